"""Many short sequences: both sides compute the same, in the way that each is fastest."""

import math
import runpy
from pathlib import Path

import pytest
import torch
from torch import nn

from regard_bench.cases import SHORT, short_sequences
from regard_bench.comparing import compare
from regard_bench.rows import Effort, at_most
from sweeps import sweep

ROOT = Path(__file__).resolve().parents[2]
TARGETS = {  # case: its target
    "16 tokens, boolean mask": 1.3,
    "16 tokens, new padding": 1.3,
    "a layer over 16 tokens, training": 1.3,
    "a layer over 16 tokens, inference": 1.5,
    "windows of 49, a bias that learns": 1.05,
    "windows of 49, a bias that learns, training": 0.8,
}
FORWARD = [case for case in TARGETS if not case.endswith("training")]
FUSED = "aten::_scaled_dot_product_flash_attention_for_cpu"


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """A few sequences and windows, which take no time."""
    monkeypatch.setattr(short_sequences, "_SEQUENCES", (5,))
    monkeypatch.setattr(short_sequences, "_WINDOWS", (3,))


@pytest.fixture
def sides(monkeypatch):
    """Return the calls of each case: regard's, and the other library's."""
    calls = {}

    def kept(effort, case, at, what, sides, *, over, target):
        assert over == ("regard", "peer" if "layer" in case else "sdpa")
        calls[case] = tuple(sides[name] for name in over)
        return compare(effort, case, at, what, sides, over=over, target=target)

    monkeypatch.setattr(short_sequences, "compare", kept)
    list(SHORT.rows(Effort(max_seconds=0, only=())))
    return calls


def operators(call):
    with short_sequences._Operators() as recorded:
        call()
    return recorded.names


def test_every_row_is_measured_in_a_quick_run_too_and_has_its_target():
    rows = list(SHORT.rows(Effort(max_seconds=0, max_tokens=4096)))
    assert {row.case: row.target for row in rows} == {case: at_most(number) for case, number in TARGETS.items()}
    assert all(row.ratio.rounds >= 5 for row in rows)
    assert [row.at for row in rows] == [*4 * ["5 sequences"], *2 * ["3 windows"]]


def test_both_sides_give_the_same_output_or_gradients(sides):
    for case in sweep(TARGETS):
        with case as name:
            ours, theirs = (call() for call in sides[name])
            if name in FORWARD:
                assert not ours.requires_grad
                assert not theirs.requires_grad
                torch.testing.assert_close(ours, theirs)
                continue
            torch.testing.assert_close(ours[0], theirs[0])
            # A layer of PyTorch has the weights of three projections in one parameter.
            ours, theirs = (torch.cat([gradient.flatten() for gradient in side]) for side in (ours, theirs))
            assert len(ours) == len(theirs)
            assert math.isclose(ours.square().sum(), theirs.square().sum(), rel_tol=1e-4)


def test_sequences_have_masks_of_their_own_that_hide_some_keys_and_never_all(monkeypatch):
    monkeypatch.setattr(short_sequences, "_SEQUENCES", (64,))
    masks = []

    def recorded(q, k, v, attn_mask):
        masks.append(attn_mask)
        return q

    monkeypatch.setattr(short_sequences, "sdpa", recorded)
    list(short_sequences._masked(Effort(max_seconds=0), 64))
    matrix, row = (next(mask for mask in masks if mask.shape[2] == queries) for queries in (16, 1))
    assert matrix.shape == (64, 1, 16, 16)
    assert row.shape == (64, 1, 1, 16)
    assert (matrix == row).all()
    assert row.any(-1).all()
    assert len(row.unique(dim=0)) > 10


def test_a_padding_mask_is_new_in_each_call(monkeypatch, sides):
    made, padding = [], short_sequences.Padding
    monkeypatch.setattr(short_sequences, "Padding", lambda tokens: made.append(padding(tokens)) or made[-1])
    ours, _ = sides["16 tokens, new padding"]
    ours()
    ours()
    first, second = made
    assert first.attention_mask.data_ptr() != second.attention_mask.data_ptr()


def test_pytorch_is_called_in_the_way_that_is_fastest(sides):
    for case in sweep(FORWARD):
        with case as name:
            _, theirs = sides[name]
            expected = "aten::_native_multi_head_attention" if "layer" in name else FUSED
            assert expected in operators(theirs)


def test_sdpa_leaves_its_fused_kernel_for_a_parameter_and_so_gets_it_detached():
    """When this fails, the forward row of windows can give both sides the parameter."""
    q, k, v = short_sequences._tensors(3, 4, 49, 32)
    bias = nn.Parameter(torch.zeros(1, 4, 49, 49))
    with torch.no_grad():
        assert FUSED not in operators(lambda: short_sequences.sdpa(q, k, v, attn_mask=bias))


def test_windows_learn_their_bias_on_both_sides(sides):
    ours, theirs = (call() for call in sides["windows of 49, a bias that learns, training"])
    for side in (ours, theirs):
        assert [tuple(gradient.shape) for gradient in side] == [*3 * [(3, 4, 49, 32)], (1, 4, 49, 49)]
    torch.testing.assert_close(ours, theirs)


def test_without_its_fast_path_pytorchs_layer_is_no_peer_and_the_row_says_why():
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        rows = {row.case: row for row in SHORT.rows(Effort(max_seconds=0))}
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    row = rows.pop("a layer over 16 tokens, inference")
    assert row.ratio is None
    assert row.why == "nn.MultiheadAttention does not take its fast path here"
    assert row.target == at_most(1.5)
    assert len(rows) == 5
    assert all(other.ratio for other in rows.values())


def test_the_page_has_a_column_for_each_run_of_short_sequences_with_targets():
    def run(median):
        row = {"case": "16 tokens, new padding", "at": "8 sequences", "what": "time / SDPA's", "unit": "×", "why": ""}
        row |= {"median": median, "low": median, "high": median, "rounds": 5, "target": "≤ 1.3"}
        small = row | {"case": "small calls, full", "at": "16 tokens", "unit": "µs", "target": None}
        return {"machine": {"cpu": "AMD EPYC"}, "rows": [row, small]}

    made = runpy.run_path(str(ROOT / "benchmarks/table.py"))["short_table"]
    whole = {"rows": [{"case": "small calls, full", "at": "16 tokens", "what": "above SDPA"}]}
    assert made({"AMD EPYC": whole}, [run(1.25), run(1.5)]).splitlines() == [
        "| case | at | what | target | AMD EPYC, run 1 | AMD EPYC, run 2 |",
        "|---|---|---|---:|---:|---:|",
        "| 16 tokens, new padding | 8 sequences | time / SDPA's | ≤ 1.3 | 1.25 × | 1.50 × |",
        "| small calls, full | 16 tokens | time / SDPA's |  | 1.25 µs | 1.50 µs |",
    ]
