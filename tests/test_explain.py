"""explain() says which backend runs, why the others refused, and what it costs; nothing quadratic is ever silent."""

from contextlib import nullcontext
from functools import partial

import pytest
import torch

import regard
from oracles import Largest
from regard import backends, masks, scores
from regard.backends.base import Mode
from regard.backends.selection import named
from regard.errors import InputError
from regard.normalizers import Softmax
from regard.problem import Problem
from sweeps import sweep

X = torch.zeros(2, 4, 256, 64)


def test_explain_of_a_plain_call():
    assert str(regard.explain(X, X, X)) == (
        "sdpa runs it\nstrips could, with about 2.2 × the work\nreference could, with about 6.0 × the work\n"
        "0.134 GFLOP in the 100% of blocks of 128 × 128 that hold a visible pair, 0 B besides the output"
    )


def test_explain_of_a_causal_call_counts_three_blocks_of_four():
    assert str(regard.explain(X, X, X, mask=masks.Causal(), backend="sdpa")) == (
        "sdpa runs it\n0.101 GFLOP in the 75% of blocks of 128 × 128 that hold a visible pair, 0 B besides the output"
    )


def test_explain_counts_the_mask_that_the_kernel_needs_as_a_tensor():
    assert str(regard.explain(X, X, X, mask=masks.Window(8), backend="sdpa")) == (
        "sdpa runs it\n"
        "0.101 GFLOP in the 75% of blocks of 128 × 128 that hold a visible pair, 64.0 KiB besides the output"
    )


def test_explain_says_why_the_fast_one_refused():
    cases = [
        ({"score": scores.ScaledDot(softcap=30.0)}, "it has no softcap"),
        ({"return_lse": True}, "it does not return the log-sum-exp"),
        ({"normalizer": Softmax(torch.zeros(4))}, "it has no sink logit"),
    ]
    for case in sweep(cases):
        with case as (asked, reason):
            assert str(regard.explain(X, X, X, **asked)) == (
                f"strips runs it\nsdpa refused: {reason}\nreference could, with about 2.7 × the work\n"
                "0.134 GFLOP in the 100% of blocks of 128 × 128 that hold a visible pair, 14.0 MiB besides the output"
            )


def test_explain_of_weights_names_all_who_cannot_give_them():
    assert str(regard.explain(X, X, X, return_weights=True)) == (
        "reference runs it\nsdpa refused: fused kernels do not return weights\nstrips refused: it never holds all "
        "weights\n"
        "0.134 GFLOP in the 100% of blocks of 128 × 128 that hold a visible pair, 2.0 MiB besides the output"
    )


def test_explain_of_a_named_backend_that_refuses():
    assert str(regard.explain(X, X, X, return_weights=True, backend="sdpa")) == (
        "sdpa cannot run it\nsdpa refused: fused kernels do not return weights"
    )


def test_explain_computes_nothing():
    with Largest() as largest:
        regard.explain(X, X, X, mask=masks.Window(8))
    assert largest.bytes < 256 * 256


LONG = torch.zeros(1, 8, 100_000, 64, device="meta")


def test_nothing_quadratic_runs_silently():
    for backend, words in (
        ("sdpa", "the mask or bias would be a tensor of 9.3 GiB, more than the limit of 2.0 GiB"),
        ("reference", "it holds all weights, 298.0 GiB of them, more than the limit of 2.0 GiB"),
    ):
        with pytest.raises(InputError, match=f"the backend '{backend}' cannot run this call: {words}"):
            regard.attention(LONG, LONG, LONG, mask=masks.Window(512), backend=backend)
    with pytest.raises(InputError, match=r"the weights to return need 298\.0 GiB"):
        regard.attention(LONG, LONG, LONG, return_weights=True)


def test_a_long_window_is_left_to_strips():
    lines = str(regard.explain(LONG, LONG, LONG, mask=masks.Window(512))).splitlines()
    assert lines[0] == "strips runs it"
    assert lines[-1].startswith("131 GFLOP in the 0.64% of blocks of 128 × 128 that hold a visible pair, ")


WINDOW_OVER_RANKS = """\
strips runs it
685 GFLOP in the 0.97% of blocks of 128 × 128 that hold a visible pair, 1.0 GiB besides the output
65,536 tokens over 4 ranks, 16,384 each; rows are computed where they are
the mask leaves 0.97% of the pairs, in blocks; the busiest rank has 1.00 × the mean work
1 of 3 rounds send keys
forward, a rank sends 6.0 MiB on average, 8.0 MiB at most; backward 18.0 MiB on average, 24.0 MiB at most
rank    rows  work / mean  keys from  forward  backward
   0  16,384         0.99       none  8.0 MiB   8.0 MiB
   1  16,384         1.00          0  8.0 MiB  24.0 MiB
   2  16,384         1.00          1  8.0 MiB  24.0 MiB
   3  16,384         1.00          2      0 B  16.0 MiB"""


def test_explain_over_ranks_needs_none_of_them():
    # A key and a value of 32 heads of width 128 are 16 KiB in bfloat16; 512 of them are 8 MiB, and float32 gradients
    # twice as much.
    x = torch.zeros(1, 32, 65_536, 128, dtype=torch.bfloat16, device="meta")
    assert str(regard.explain(x, x, x, mask=masks.Causal() & masks.Window(512), ranks=4)) == WINDOW_OVER_RANKS


def test_explain_over_ranks_moves_causal_rows_to_the_mirror_rank():
    said = str(regard.explain(LONG, LONG, LONG, mask=masks.Causal(), ranks=64))
    assert "49,968 rows are computed on their mirror rank" in said
    assert "the busiest rank has 1.00 × the mean work" in said
    assert "rank    rows" not in said  # 64 are too many to list


def test_explain_over_ranks_refuses_what_they_cannot_compute():
    cases = [
        ({"ranks": 0}, "`ranks` is the number of processes .* at least 1, got 0"),
        ({"ranks": 2, "mask": masks.Causal(), "q": [[0.0]]}, "`q` must be a tensor"),
        ({"ranks": 2, "backend": "sdpa"}, '`backend` must be "auto" or "strips" over several ranks'),
        ({"ranks": 2, "mask": torch.ones(3, 3, dtype=torch.bool)}, "the mask must be 256 queries"),
    ]
    for case in sweep(cases):
        with case as (asked, words), pytest.raises(InputError, match=words):
            regard.explain(**{"q": X, "k": X, "v": X, **asked})
    nothing = X[:, :, :0]
    assert "sends 0 B" in str(regard.explain(nothing, nothing, nothing, mask=masks.Causal(), ranks=2))
    refused = str(regard.explain(X, X, X, ranks=2, return_weights=True))
    assert refused == "strips cannot run it\nstrips refused: over several ranks, no rank has all weights of a row"


def test_what_is_linear_in_memory_runs_at_that_length():
    for mask in (None, masks.Causal()):
        assert backends.choose(Problem.of(LONG, LONG, LONG, mask=mask)).name == "sdpa"


def test_the_budget_decides():
    mask = masks.Window(4)
    assert backends.choose(Problem.of(X, X, X, mask=mask, max_bytes=2**16), "sdpa").name == "sdpa"
    with pytest.raises(InputError, match=r"a tensor of 64\.0 KiB, more than the limit of 64\.0 KiB"):
        backends.choose(Problem.of(X, X, X, mask=mask, max_bytes=2**16 - 1), "sdpa")


@pytest.mark.parametrize("call", [regard.attention, regard.explain])
def test_an_unknown_backend_is_answered_with_those_there_are(call):
    words = "one of native, sdpa, strips, reference, flex, got 'flash'$"
    with pytest.raises(InputError, match=words):
        call(X, X, X, backend="flash")


@pytest.mark.parametrize("call", [regard.attention, regard.explain])
def test_a_removed_backend_is_answered_with_those_that_compute_its_calls(call):
    words = r"got 'triton': the Triton kernels were removed; backend=\"auto\" computes additive scores by \"strips\""
    with pytest.raises(InputError, match=words):
        call(X, X, X, backend="triton")
    for x, name in ((LONG, "strips"), (X[:, :, :5], "reference")):
        score = scores.Additive(None, None, torch.ones(64, device=x.device))
        assert str(regard.explain(x, x, x, score=score)).startswith(f"{name} runs it")


def test_a_named_backend_that_refuses_says_why_and_what_to_do():
    words = "the backend 'sdpa' cannot run this call: it has no softcap; backend=\"auto\" takes one that can"
    with pytest.raises(InputError, match=words):
        regard.attention(X, X, X, score=scores.ScaledDot(softcap=1.0), backend="sdpa")


def test_compiled_code_holds_whole_tensors_only_where_they_are_small():
    cases = [
        (512, {"mask": masks.Window(128)}, "sdpa"),
        (512, {"score": scores.ScaledDot(softcap=5.0)}, "reference"),
        (512, {"mask": masks.RandomBlocks(2)}, "strips"),
        (5000, {"mask": masks.Window(128)}, "strips"),
        (5000, {"dropout": 0.1}, "strips"),
        (5000, {"mask": masks.Causal()}, "sdpa"),
        (5000, {"return_weights": True}, "reference"),
    ]
    for case in sweep(cases):
        with case as (n, asked, name):
            x = torch.zeros(1, 1, n, 8, device="meta")
            assert backends.choose(Problem.of(x, x, x, **asked), mode=Mode.COMPILED).name == name


def test_compiled_code_refuses_in_the_words_of_eager_code():
    problem = Problem.of(X, X, X, score=scores.ScaledDot(softcap=30.0))
    for backend in ("sdpa", "native"):
        mine = named()[backend].refuses(problem, Mode.EAGER)
        assert mine == named()[backend].refuses(problem, Mode.COMPILED)
    for mode in Mode:
        with pytest.raises(InputError, match="the backend 'sdpa' cannot run this call: it has no softcap"):
            backends.choose(problem, "sdpa", mode=mode)
    drawn = Problem.of(X, X, X, mask=masks.RandomBlocks(2))
    with pytest.raises(InputError, match="'reference' cannot run this call: compiled code cannot draw the blocks"):
        backends.choose(drawn, "reference", mode=Mode.COMPILED)


RULE = masks.MaskMod(lambda batch, head, i, j: (i + j) % 3 > 0)
BREAK = "compiled code leaves its graph for it: {} is written in Python, and the operator of {} holds values of regard"


def test_explain_says_where_a_compiler_has_to_break_its_graph_and_only_there():
    """What it says is what `torch.compile` does, asked by fullgraph=True."""
    long = torch.zeros(1, 1, 4100, 8)
    cases = [
        (X[:1, :1], {"mask": RULE}, None),
        (X[:1, :1], {"mask": RULE, "backend": "strips"}, ("MaskMod", "strips")),
        (long, {"mask": RULE}, ("MaskMod", "strips")),
        (long, {"mask": masks.Window(9)}, None),
        (X[:1, :1], {"mask": RULE & masks.RandomBlocks(2)}, ("MaskMod", "strips")),
    ]
    for case in sweep(cases):
        with case as (x, asked, said):
            lines = str(regard.explain(x, x, x, **asked)).splitlines()
            breaks = [line for line in lines if "compiled code" in line]
            assert breaks == ([] if said is None else [BREAK.format(*said) + " alone"])
            torch._dynamo.reset()
            call = torch.compile(partial(regard.attention, **asked), backend="eager", fullgraph=True)
            with nullcontext() if said is None else pytest.raises(torch._dynamo.exc.Unsupported):
                call(x, x, x)
