"""A head set is a value, kept whole in one small file; a bad file gets one sentence."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import numpy

import regard
from regard.errors import InputError
from regard.heads import HeadSet, ReadoutScore
from sweeps import sweep

FOUND = HeadSet(
    heads=((17, 3), (4, 0)),
    weights=(0.75, -0.25),
    job="retrieval",
    stream=("target", "source"),
    head_scores=(0.5, 0.25),
    method="by hand",
    model="a model",
    fingerprint="0a1b",
    held_out=ReadoutScore.of(9, 10),
    shuffled_labels=ReadoutScore.of(1, 10),
    chance=0.1,
)


def test_a_saved_set_is_the_set(tmp_path: Path) -> None:
    FOUND.save(tmp_path / "heads.json")
    assert HeadSet.load(tmp_path / "heads.json") == FOUND
    assert regard.HeadSet is HeadSet
    least = HeadSet([[1, 2]])
    least.save(tmp_path / "least.json")
    assert HeadSet.load(tmp_path / "least.json") == least == HeadSet(((1, 2),), (1.0,))


def test_the_strength_of_what_was_read_counts_heads_that_prefer_the_right_candidate() -> None:
    heads = [(1, 2), (1, 3), (2, 0)]
    assert HeadSet(heads, (0.5, 0.25, 0.25), head_scores=(-0.5, 0.6, 0.2)).strength_weights == pytest.approx(
        (0, 0.75, 0.25)
    )
    for scores in ((), (-0.1, -0.2, 0.0)):
        assert HeadSet(heads, (0.5, 0.25, 0.25), head_scores=scores).strength_weights == (0.5, 0.25, 0.25)


def test_no_changed_byte_is_loaded_as_another_set(tmp_path: Path) -> None:
    path, same = tmp_path / "heads.json", 0
    FOUND.save(path)
    whole = path.read_bytes()
    places = range(len(whole))
    for at in places:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        try:
            assert HeadSet.load(path) == FOUND, whole[at - 20 : at + 20]
            same += 1
        except InputError:
            pass
    assert same < len(places) / 10  # white space
    edited = json.loads(whole)
    path.write_text(json.dumps(edited | {"heads": [[17, 3], [4, 1]]}), "utf-8")
    with pytest.raises(InputError, match=r'damaged: its checksum .* remove "crc" if you have edited it'):
        HeadSet.load(path)
    del edited["crc"]
    path.write_text(json.dumps(edited | {"heads": [[17, 3], [4, 1]]}), "utf-8")
    assert HeadSet.load(path).heads == ((17, 3), (4, 1))


def test_a_set_is_frozen_and_hashable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        FOUND.job = "sink"  # type: ignore[misc]
    assert len({FOUND, dataclasses.replace(FOUND)}) == 1


def test_wilsons_interval_is_that_of_his_formula() -> None:
    # The roots of (p − 0.3)² = z² p (1 − p) / 10, by hand.
    low, high = ReadoutScore.of(3, 10).confidence_interval
    for end in (low, high):
        assert (end - 0.3) ** 2 == pytest.approx(1.959963984540054**2 * end * (1 - end) / 10, rel=1e-9)
    assert low < 0.3 < high


def test_the_control_fails_where_shuffled_labels_beat_chance() -> None:
    assert not FOUND.control_failed
    assert dataclasses.replace(FOUND, shuffled_labels=ReadoutScore.of(9, 10)).control_failed
    assert not HeadSet([(0, 0)]).control_failed


def test_another_model_is_refused() -> None:
    FOUND.check_model("0a1b")
    HeadSet([(0, 0)]).check_model("anything")
    with pytest.raises(InputError, match=r"found in a model .* fingerprint beef: find them again"):
        FOUND.check_model("beef")


NO_SETS = [
    ({"heads": []}, "a list of pairs"),
    ({"heads": "17.3"}, "a list of pairs"),
    ({"heads": [(1, 2, 3)]}, "pairs of a layer and a head"),
    ({"heads": [(1, True)]}, "pairs of a layer and a head"),
    ({"heads": [(1, -1)]}, "pairs of a layer and a head"),
    ({"heads": [(1, 2), (1, 2)]}, "must differ, got 1.2"),
    ({"weights": (1.0,)}, "a number per head, 2 of them, got 1"),
    ({"weights": (1.0, float("nan"))}, "`weights` must be finite"),
    ({"head_scores": (1.0, "2")}, "`head_scores` must be finite"),
    ({"stream": ("a", "b", "c")}, "`stream` must be"),
    ({"job": None}, "`job` must be a text"),
    ({"held_out": 0.5}, "`held_out` must be a ReadoutScore"),
    ({"chance": 2.0}, "`chance` must be from 0 to 1"),
    ({"correlation": 1.5}, "`correlation` must be from -1 to 1"),
]


def test_what_is_no_set_is_refused() -> None:
    for case in sweep(NO_SETS):
        with case as (given, reason), pytest.raises(InputError, match=reason):
            dataclasses.replace(FOUND, **given)


def content(**changes: Any) -> str:
    asked = json.loads(json.dumps(dataclasses.asdict(FOUND)))
    return json.dumps({"format": "regard head set", "version": 1, **asked, **changes})


BAD_FILES = [
    ("", "must be JSON"),
    ("[" * 100_000, "must be JSON"),
    ("[]", "a JSON object whose"),
    ('{"format": "regard head set"}', "version None"),
    (content(version=2), "version 2, and this regard reads version 1"),
    (content(version=True), "version True"),
    (content(code="import os"), "'code'"),
    (content().replace('"job"', '"model"'), "names 'model' twice"),
    (content(heads=None), "a list of pairs"),
    (content(heads=[[1.0, 2]]), "pairs of a layer"),
    (content(weights=[1e999, 0]), "must be finite"),
    (content(held_out=[1, 2]), "`held_out` must be an object"),
    (content(held_out={"accuracy": 2, "confidence_interval": [0, 1], "num_examples": 3}), "0 to 1, got"),
    (content(held_out={"accuracy": 1, "confidence_interval": [0], "num_examples": 3}), "two numbers, got 1"),
    (content(held_out={"accuracy": 1, "confidence_interval": [0, 1], "num_examples": "3"}), "number from 1"),
    ('{"format": "regard head set", "version": 1}', "must have `heads`"),
    (" " * (2**20 + 1), "at most 1,048,576 bytes"),
]


def test_a_bad_file_gets_one_sentence(tmp_path: Path) -> None:
    for case in sweep(BAD_FILES, lambda row: f"{row[0][:60]}: {row[1]}"):
        with case as (text, reason):
            (tmp_path / "heads.json").write_text(text, encoding="utf-8")
            with pytest.raises(InputError, match=rf"cannot read the head set .*heads\.json: .*{reason}") as raised:
                HeadSet.load(tmp_path / "heads.json")
            assert "\n" not in str(raised.value)
            assert len(str(raised.value)) < 500


def test_bytes_that_are_no_text_and_a_file_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "heads.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="must be JSON"):
        HeadSet.load(tmp_path / "heads.json")
    with pytest.raises(InputError, match="No such file"):
        HeadSet.load(tmp_path / "none.json")


def test_a_pattern_of_duo_attention_is_what_its_loader_reads(tmp_path: Path) -> None:
    found = HeadSet([(1, 3), (1, 2), (0, 0)], head_scores=(0.8, 0.4, 0.0))
    sizes = {"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
    found.save_duo_attention(tmp_path / "pattern", **sizes, sink_size=16, recent_size=64)
    # as duo_attn.utils.load_attn_pattern does
    table = np.loadtxt(tmp_path / "pattern" / "full_attention_heads.tsv", dtype=float, delimiter="\t")
    np.testing.assert_allclose(np.clip(table, 0, 1), [[0.5, 0], [0, 0.9], [0, 0]])
    assert json.loads((tmp_path / "pattern" / "config.json").read_text()) == {"sink_size": 16, "recent_size": 64}
    found.save_duo_attention(tmp_path / "pattern", **sizes)  # its own files are replaced
    assert json.loads((tmp_path / "pattern" / "config.json").read_text())["sink_size"] == 128
    (tmp_path / "model").mkdir()
    for text in ('{"model_type": "llama"}', "no JSON"):
        (tmp_path / "model" / "config.json").write_text(text)
        with pytest.raises(InputError, match=r"a config\.json of something else"):
            found.save_duo_attention(tmp_path / "model", **sizes)
        assert (tmp_path / "model" / "config.json").read_text() == text
    with pytest.raises(InputError, match="`folder` must be a folder"):
        found.save_duo_attention(tmp_path / "model" / "config.json", **sizes)
    with pytest.raises(InputError, match=r"of 1 layers with 4 heads, got 1\.3"):
        found.save_duo_attention(tmp_path, **sizes | {"num_hidden_layers": 1})
    with pytest.raises(InputError, match="multiple of `num_key_value_heads`, got 4 and 3"):
        found.save_duo_attention(tmp_path, **sizes | {"num_key_value_heads": 3})


def test_at2s_coefficients_are_heads_by_layer_and_number(tmp_path: Path) -> None:
    coefficients = np.array([[0.5, 0.0, -0.125], [0.0, 0.25, 0.125]], dtype=np.float32)
    numpy.save_file({"weights": coefficients}, tmp_path / "at2.safetensors")
    found = HeadSet.load_at2(tmp_path / "at2.safetensors")
    assert dict(zip(found.heads, found.weights, strict=True)) == {
        (0, 0): 0.5, (0, 2): -0.125, (1, 1): 0.25, (1, 2): 0.125,
    }  # fmt: skip
    assert found.job == "AT2"


NOT_OF_AT2 = [
    ({"linear.weight": np.ones((1, 6))}, r"one tensor of shape \(layers, heads\), from 2 layers, got .*\(1, 6\)"),
    ({"a": np.ones((2, 3)), "b": np.ones((2, 3))}, "must have one tensor"),
    ({"a": np.zeros((2, 3))}, "not all 0"),
    ({"a": np.full((2, 3), np.nan)}, "must be finite"),
    (None, "must be safetensors"),
]


def test_a_file_that_is_not_at2s_is_refused_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "at2.safetensors"
    for case in sweep(NOT_OF_AT2):
        with case as (tensors, said):
            path.write_bytes(b"{}" if tensors is None else numpy.save(tensors))
            with pytest.raises(InputError, match=f"cannot read AT2's coefficients from .*{said}") as raised:
                HeadSet.load_at2(path)
            assert "\n" not in str(raised.value)
    path.unlink()
    with pytest.raises(InputError, match="No such file"):
        HeadSet.load_at2(path)


def test_alignment_heads_are_whispers_pairs() -> None:
    transformers = pytest.importorskip("transformers")
    found = HeadSet([(5, 9), (5, 3)]).alignment_heads
    assert found == [[5, 3], [5, 9]]
    assert transformers.GenerationConfig(alignment_heads=found).to_dict()["alignment_heads"] == found
