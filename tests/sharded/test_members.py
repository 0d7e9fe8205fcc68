"""Several processes compute what one does: every exported mask, score and bias, forward and backward.

Expected is a dense formula in numpy for masks and biases, whose rules are written once more in numpy, and one process
with the reference backend for all else. One launch computes all members, on 3 ranks; other numbers compute fewer.
"""

import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import members
import tiny_llama

import regard
from oracles import dense
from regard.parallel.sequence_layout import contiguous
from regard.parallel.shard_plan import TensorSizes, plan_shards
from regard.problem import Problem
from sweeps import sweep

CALLS = members.calls(3)
TOLERANCE = {np.dtype(np.float64): (1e-12, 1e-12), np.dtype(np.float32): (2e-6, 5e-6)}


def _independent(call):
    """Output and gradients by the formula in numpy, for calls of which it has all parts."""
    (q, k, v), _ = call.make()
    up = members._randn(*q.shape[:3], v.shape[3], seed=9)
    found = dense(q, k, v, visible=call.visible, bias=call.bias, cotangent=up)
    return {"output": found.output} | {f"gradient of {name}": getattr(found, name) for name in "qkv"}


def _check(ours, expected):
    for rank, found in enumerate(ours):
        found = {name: one for name, one in found.items() if name not in ("bytes", "events")}
        assert found.keys() == expected.keys()
        for what, array in found.items():
            want = expected[what]
            value, gradient = TOLERANCE[array.dtype]
            assert np.isfinite(array).all(), f"rank {rank}: {what} is not finite"
            largest = np.abs(want).max()
            error = np.abs(array - want).max() / (largest if largest > 1e-9 else 1.0)  # some gradients are 0
            bound = gradient if what.startswith("gradient") else value
            assert error <= bound, f"rank {rank}: {what} is off by {error:.1e} of the largest value"


@cache
def _expected(name):
    """What one process computes, or the formula where it has all parts; once for all numbers of ranks."""
    call = CALLS[name]
    expected = members.computed(call, backend="reference")
    return expected | (_independent(call) if call.visible is not None or call.bias is not None else {})


def test_ranks_together_compute_what_one_process_does(computed):
    for case in sweep(members.calls(computed.ranks)):
        with case as name:
            _check(computed.of(name), _expected(name))


def test_sequences_and_heads_are_sharded_along_another_axis(computed):
    calls = members.calls_over_axes(computed.ranks)
    if not calls:
        assert computed.ranks % 2 == 1  # two ranks for the other axis
        return
    for case in sweep(calls):
        with case as name:
            _check(computed.of(name), members.computed(calls[name], backend="reference"))


def test_what_is_sent_is_what_the_plan_says(computed):
    for case in sweep(members.calls(computed.ranks)):
        with case as name:
            _check_bytes(computed, name)


def _check_bytes(computed, name):
    (q, k, v), options = CALLS[name].make()
    whole = Problem.of(q, k, v, **{key: one for key, one in options.items() if key != "leaves"})
    layouts = [contiguous(n, computed.ranks) for n in (whole.queries, whole.keys)]
    plan = plan_shards(whole.mask, whole.everything, *layouts)
    sizes = TensorSizes.of(whole, whole.everything)
    row = whole.batch * whole.heads * q.element_size() if whole.wants_lse else 0  # its log-sum-exp goes too
    for rank, ours in enumerate(computed.of(name)):
        there, back = plan.rows_moved(rank), plan.rows_moved(rank, back=True)
        expected = plan.bytes_forward(rank, sizes) + plan.bytes_backward(rank, sizes) + (there + back) * row
        assert int(ours["bytes"]) == expected


def test_the_next_round_is_posted_before_the_last_one_is_computed(computed):
    for ours in computed.of("dropout, all"):
        events = ours["events"].tolist()
        assert events[: len(events) // 2] == events[len(events) // 2 :]  # forward and backward
        for number in range(1, computed.ranks):
            assert events.index(f"posted {number}") < events.index(f"computed {number - 1}")


def _check_call(mask, bias, ours):
    """Output and gradients of the call that `members.ordered` makes."""
    given, up = members.ordered()
    leaves = [one.requires_grad_() for one in given]
    out = regard.attention(*leaves, mask=mask, bias=bias, backend="reference")
    out.backward(up)
    expected = {"output": out} | {of: one.grad for of, one in zip("qkv", leaves, strict=True)}
    expected = {what: one.detach().numpy() for what, one in expected.items()}
    for rank, found in enumerate(ours):
        for what, want in expected.items():
            error = np.abs(found[what] - want).max() / np.abs(want).max()
            assert error <= 1e-12, f"rank {rank}: {what} is off by {error:.1e}"


def test_a_sequence_in_an_even_order_gives_the_same(computed):
    for case in sweep(members.ORDERS):
        with case as name:
            _check_call(members.ORDERS[name], members.slopes(), computed.of(f"order: {name}"))


def test_keys_that_every_rank_has_are_sharded_on_the_way(computed):
    _check_call(members.ORDERS["window"], None, computed.of("replicated"))


def test_angles_depend_on_the_length_of_a_text_as_on_one_process(computed):
    for case in sweep(members.ROWS):
        with case as row:
            options = members.ROWS[row]
            tokens = (options["attention_mask"] if "attention_mask" in options else options["documents"] >= 0).numpy()
            whole = members.read(row, lambda _, call: call()).numpy()
            for shard in computed.of(f"rows: {row}"):
                np.testing.assert_allclose(shard["states"][tokens], whole[tokens], rtol=0, atol=1e-12)


def test_decoding_against_a_sharded_cache_is_that_of_one_process(computed):
    for case in sweep(members.DECODING):
        with case as name:
            _check_decoding(computed, name)


def _check_decoding(computed, name):
    q, k, v = members.decoded()
    options = members.DECODING[name](61)
    whole, lse = regard.attention(q, k, v, return_lse=True, backend="reference", **options)
    for found in computed.of(f"decoding: {name}"):
        assert sum(found["sizes"]) == 61
        assert max(found["sizes"]) <= 2 * 61 / computed.ranks
        np.testing.assert_allclose(found["steps"], whole.numpy(), atol=1e-12 * float(whole.abs().max()))
        np.testing.assert_allclose(found["last"], whole[:, :, -3:].numpy(), atol=1e-12 * float(whole.abs().max()))
        np.testing.assert_allclose(found["lse"], lse[:, :, -3:].numpy(), atol=1e-12 * float(lse.abs().max()))


@pytest.mark.parametrize("padded", [False, True])
def test_llama_of_transformers_gives_the_logits_and_gradients_of_one_process(of_llama, padded):
    model = tiny_llama.llama()
    given = tiny_llama.inputs(padded=padded)
    expected = tiny_llama.found(model, model(**given))
    real = given["attention_mask"].bool().numpy()
    for rank, found in enumerate(of_llama.of(f"llama-{padded}")):
        assert found.keys() == expected.keys()
        for what, want in expected.items():
            ours, want = (found[what][real], want[real]) if what == "logits" else (found[what], want)
            error = np.abs(ours - want).max() / np.abs(want).max()
            bound = 1e-12 if what == "logits" else 5e-6  # transformers computes the loss in float32
            assert error <= bound, f"rank {rank}: {what} is off by {error:.1e}"
