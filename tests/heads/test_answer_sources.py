"""The record of where an answer came from: its numbers by hand, its file, and files that somebody has changed."""

import json
from dataclasses import replace

import numpy as np
import pytest

from regard.errors import InputError
from regard.heads.answer_sources import Removal, SourceDocument, SourcePart, Sources
from regard.heads.head_set import HeadSet
from sweeps import sweep


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
    places = range(0, len(whole), 3)
    for at in places:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        try:
            assert Sources.load(path).as_dict() == made.as_dict(), whole[at - 20 : at + 20]
            same += 1
        except InputError:
            pass
    assert same < len(places) / 10  # white space, and the last digits of numbers that float64 does not tell apart
    edited = json.loads(whole)
    del edited["crc"]  # as its error says
    path.write_text(json.dumps(edited | {"answer": "It is gray."}), "utf-8")
    assert Sources.load(path).answer == "It is gray."


NONE = {"part": "1.1", "drop": 1, "hidden": 1, "control": None, "control_drop": None}
CHANGES = {
    "another format": ("format", "x", "a JSON object whose"),
    "another version": ("version", 2, "version 2, and this regard reads version 1: update regard"),
    "a version that is true": ("version", True, "version True"),
    "no tokens": ("tokens", [], "`token_scores` and `log_probs` must have 0 tokens"),
    "a span beyond the answer": ("tokens", [[0, 4], [4, 5], [5, 900]], "spans must be characters of the answer"),
    "a span that is reversed": ("tokens", [[4, 0], [4, 5], [5, 8]], "spans must be characters of the answer"),
    "rows of two lengths": ("token_scores", [[0.1], [0.2, 0.3], [0.1]], "damaged"),
    "a score that is text": ("token_scores", [["a", 0, 0], [0, 0, 0], [0, 0, 0]], "its scores must be"),
    "scores in depth": ("token_scores", [[[0.1], 0, 0], [0, 0, 0], [0, 0, 0]], "its scores must be"),
    "a part of no document": ("parts", [{"id": "1.1", "document": 5, "start": 0, "end": 2}] * 3, "part 1.1 must be"),
    "a part twice": ("parts", [{"id": "1.1", "document": 0, "start": 0, "end": 2}] * 3, "the ids of `parts` must"),
    "a part beyond its document": (
        "parts", [{"id": "1.1", "document": 0, "start": 0, "end": 2000}] * 3, "part 1.1 must end within its document",
    ),
    "parts that are none": ("parts", 7, "damaged"),
    "documents that are a text": ("documents", "abc", "damaged"),
    "an answer that is a number": ("answer", 3, "must have a text here, got '3'"),
    "a threshold that is text": ("threshold", "high", "must have a finite number here, got 'high'"),
    "heads that are none": ("heads", [], "an object with `heads`"),
    "a head below 0": ("heads", {"heads": [[-1, 2]]}, "`heads` must be pairs"),
    "a removal of another part": ("removals", [{**NONE, "part": "7.7"}], "`removals` must be of parts"),
    "a removal without a number": ("removals", [{**NONE, "drop": None}], "`removals` must have numbers"),
}  # fmt: skip
LACKING = ["model", "documents", "parts", "token_scores", "heads", "removals", "error_rate"]
NO_JSON = {
    "empty": ("", "must be JSON"),
    "cut off": ("[", "must be JSON"),
    "a name twice": ('{"format": "regard sources", "format": 1}', "'format' twice: keep one of them"),
    "depth": ("[" * 100_000, "must be JSON"),
    "a number": ("NaN", "a JSON object whose"),
}


def test_a_wrong_file_is_refused_in_a_sentence(made, tmp_path):
    content, path = made.as_dict(), tmp_path / "found.json"
    files = {name: (json.dumps(content | {key: value}), reason) for name, (key, value, reason) in CHANGES.items()}
    for lacking in LACKING:
        left = {key: value for key, value in content.items() if key != lacking}
        files[f"without {lacking}"] = (json.dumps(left), f"it lacks '{lacking}'")
    files |= NO_JSON
    for case in sweep(files):
        with case as name:
            text, reason = files[name]
            path.write_text(text, "utf-8")
            with pytest.raises(InputError, match=rf"cannot read the sources .*found\.json: .*{reason}") as raised:
                Sources.load(path)
            assert "\n" not in str(raised.value)
    path.unlink()
    with pytest.raises(InputError, match=r"cannot read the sources .*No such file"):
        Sources.load(path)
