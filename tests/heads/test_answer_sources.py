"""The record of where an answer came from: its numbers by hand, its file, and files that somebody has changed."""

import json
from dataclasses import replace

import numpy as np
import pytest

from regard.errors import InputError
from regard.heads.answer_sources import Removal, SourceDocument, SourcePart, Sources
from regard.heads.head_set import HeadSet


@pytest.fixture
def made() -> Sources:
    texts = "It rained. The cat is grey.", "我爱你。"
    return Sources(
        model="tiny",
        documents=(SourceDocument("a.txt", texts[0]), SourceDocument("b.txt", texts[1])),
        parts=(SourcePart("1.1", 0, 0, 10), SourcePart("1.2", 0, 11, 27), SourcePart("2.1", 1, 0, 4)),
        answer="Grey. 我.",
        token_spans=((0, 4), (4, 5), (5, 8)),
        sentence_spans=((0, 5), (6, 8)),
        log_probs=np.array([-0.5, -0.25, -2.0]),
        token_scores=np.array([[0.1, 0.6, 0.0], [0.2, 0.0, 0.0], [0.0, 0.0, 0.3]]),
        heads=HeadSet([(1, 0), (1, 1)], weights=(0.75, 0.25), job="sources"),
        removals=(Removal("1.2", 3.5, 3.25, "1.1", 0.125),),
        threshold=0.75,
        error_rate=0.05,
    )


def test_scores_are_means_over_tokens_that_count_by_what_they_read(made):
    # the tokens' scores have the sums 0.7, 0.2 and 0.3
    np.testing.assert_allclose(made.scores, np.array([0.07 + 0.04, 0.42, 0.09]) / 1.2)
    np.testing.assert_allclose(made.document_scores, np.array([0.07 + 0.04 + 0.42, 0.09]) / 1.2)
    np.testing.assert_allclose(made.sentence_scores, [[0.11 / 0.9, 0.42 / 0.9, 0], [0, 0, 0.3]])
    assert made.strength == pytest.approx((0.6 + 0.2 + 0.3) / 3)
    assert made.from_nowhere is True
    ranked = [(part.id, round(score, 9)) for part, score in made.ranked()]
    assert ranked == [("1.2", 0.35), ("1.1", 0.091666667), ("2.1", 0.075)]
    assert made.text(made.part("2.1")) == "我爱你。"
    with pytest.raises(InputError, match=r"`id` must be that of a part, 1.1 to 2.1, got '9.9'"):
        made.part("9.9")


def test_all_tokens_count_alike_by_a_readout_of_another_job(made):
    other = replace(made, heads=replace(made.heads, job="AT2"))
    np.testing.assert_allclose(other.scores, [0.1, 0.2, 0.1])
    np.testing.assert_allclose(other.document_scores, [0.3, 0.1])
    np.testing.assert_allclose(other.sentence_scores, [[0.15, 0.3, 0], [0, 0, 0.3]])


def test_an_answer_that_reads_nothing_has_the_scores_0(made):
    nothing = replace(made, token_scores=np.zeros((3, 3)))
    np.testing.assert_array_equal(nothing.scores, 0)
    np.testing.assert_array_equal(nothing.sentence_scores, 0)


def test_what_was_saved_is_loaded(made, tmp_path):
    made.save(tmp_path / "found.json")
    loaded = Sources.load(tmp_path / "found.json")
    assert loaded.as_dict() == made.as_dict()
    assert loaded.heads == made.heads
    replace(made, strength=0.8).save(tmp_path / "found.json")
    assert Sources.load(tmp_path / "found.json").strength == 0.8
    assert Sources.load(tmp_path / "found.json").from_nowhere is False
    assert loaded.removals == made.removals
    assert "我爱你" in (tmp_path / "found.json").read_text("utf-8")


def test_no_changed_byte_is_loaded_as_something_else(made, tmp_path):
    path, same = tmp_path / "found.json", 0
    made.save(path)
    whole = path.read_bytes()
    for at in range(0, len(whole), 3):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        try:
            assert Sources.load(path).as_dict() == made.as_dict(), whole[at - 20 : at + 20]
            same += 1
        except InputError:
            pass
    assert same < len(whole) / 30  # white space, and the last digits of numbers that float64 does not tell apart
    edited = json.loads(whole)
    del edited["crc"]  # as its error says
    path.write_text(json.dumps(edited | {"answer": "It is gray."}), "utf-8")
    assert Sources.load(path).answer == "It is gray."


NONE = {"part": "1.1", "drop": 1, "hidden": 1, "control": None, "control_drop": None}
CHANGES = {
    "another format": ("format", "x"),
    "another version": ("version", 2),
    "a version that is true": ("version", True),
    "no tokens": ("tokens", []),
    "a span beyond the answer": ("tokens", [[0, 4], [4, 5], [5, 900]]),
    "a span that is reversed": ("tokens", [[4, 0], [4, 5], [5, 8]]),
    "rows of two lengths": ("token_scores", [[0.1], [0.2, 0.3], [0.1]]),
    "a score that is text": ("token_scores", [["a", 0, 0], [0, 0, 0], [0, 0, 0]]),
    "scores in depth": ("token_scores", [[[0.1], 0, 0], [0, 0, 0], [0, 0, 0]]),
    "a part of no document": ("parts", [{"id": "1.1", "document": 5, "start": 0, "end": 2}] * 3),
    "a part twice": ("parts", [{"id": "1.1", "document": 0, "start": 0, "end": 2}] * 3),
    "a part beyond its document": ("parts", [{"id": "1.1", "document": 0, "start": 0, "end": 2000}] * 3),
    "parts that are none": ("parts", 7),
    "documents that are a text": ("documents", "abc"),
    "an answer that is a number": ("answer", 3),
    "a threshold that is text": ("threshold", "high"),
    "heads that are none": ("heads", []),
    "a head below 0": ("heads", {"heads": [[-1, 2]]}),
    "a removal of another part": ("removals", [{**NONE, "part": "7.7"}]),
    "a removal without a number": ("removals", [{**NONE, "drop": None}]),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_file_is_refused_in_a_sentence(made, tmp_path, name):
    key, value = CHANGES[name]
    path = tmp_path / "found.json"
    path.write_text(json.dumps({**made.as_dict(), key: value}), "utf-8")
    with pytest.raises(InputError, match=r"cannot read the sources .*found\.json: ") as raised:
        Sources.load(path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", ["", "[", '{"format": "regard sources", "format": 1}', "[" * 100_000, "NaN"])
def test_a_file_that_is_no_json_is_refused_in_a_sentence(tmp_path, text):
    path = tmp_path / "found.json"
    path.write_text(text, "utf-8")
    with pytest.raises(InputError, match="cannot read the sources"):
        Sources.load(path)
    path.unlink()
    with pytest.raises(InputError, match="No such file"):
        Sources.load(path)


@pytest.mark.parametrize("key", ["model", "documents", "parts", "token_scores", "heads", "removals", "error_rate"])
def test_a_file_without_a_key_is_refused(made, tmp_path, key):
    content = made.as_dict()
    del content[key]
    (tmp_path / "found.json").write_text(json.dumps(content), "utf-8")
    with pytest.raises(InputError, match=f"it lacks '{key}'"):
        Sources.load(tmp_path / "found.json")
