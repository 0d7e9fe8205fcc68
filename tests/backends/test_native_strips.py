"""Strips of 16 rows and columns in partial blocks: what a mask hides of them is not computed, forward or backward."""

import itertools

import torch
from torch.nn.functional import scaled_dot_product_attention

import regard
from regard import masks
from regard.backends.native import mask_tables
from regard.problem import Problem
from sweeps import sweep

N = 150  # the last block has 22 rows


def seen_as(mask):
    return mask.bind(N, N).dense().expand(1, 1, N, N)


def checkers(size):
    at = torch.arange(N) // size
    return (at[:, None] + at) % 2 == 0


MASKS = {
    "causal": masks.Causal(),
    "window": masks.Causal() & masks.Window(40),
    "both sides": masks.Window(left=9, right=33),
    "a global token": masks.longformer(20, global_positions=[70]),
    "documents": masks.Document(torch.arange(N) // 37),
    "a corner": masks.Dense((torch.arange(N)[:, None] % 64 > 50) & (torch.arange(N) % 64 < 3)),
    "strips apart": masks.Dense(checkers(16)),
    "rows apart": masks.Dense((torch.arange(N) // 16 % 2 == 0)[:, None].expand(N, N)),
    "columns apart": masks.Dense((torch.arange(N) // 16 % 2 == 1).expand(N, N)),
    "single pairs": masks.Dense(torch.rand(N, N, generator=torch.Generator().manual_seed(0)) < 0.002),
}


def test_strips_hold_every_visible_pair_and_agree():
    for case in sweep(MASKS):
        with case as name:
            x = torch.zeros(1, 1, N, 16)
            tables = mask_tables.tables_for(Problem.of(x, x, x, mask=MASKS[name]))
            for bits, (rows, columns) in zip(tables.visible, tables.strip_ranges, strict=True):
                computed = [[a <= at < b for at in range(4)] for a, b in rows.tolist()]
                assert [[a <= at < b for at in range(4)] for a, b in columns.tolist()] == [
                    list(x) for x in zip(*computed, strict=True)
                ]
                for i, j in zip(*bits.nonzero(), strict=True):
                    assert computed[i // 16][j // 16]


def test_strips_that_see_nothing_are_not_computed():
    x = torch.zeros(1, 1, 128, 16)
    spans = {
        name: mask_tables.tables_for(Problem.of(x, x, x, mask=mask)).strip_ranges.tolist()
        for name, mask in {"causal": masks.Causal(), "column": masks.Causal() & masks.Dense(torch.eye(128) > 0)}.items()
    }
    assert spans["causal"] == [[[[0, 1], [0, 2], [0, 3], [0, 4]], [[0, 4], [1, 4], [2, 4], [3, 4]]]]
    assert spans["column"] == [[[[0, 1], [1, 2], [2, 3], [3, 4]]] * 2] * 2


def formula(q, k, v, seen, bias=None):
    scores = q @ k.mT / q.shape[-1] ** 0.5 + (0 if bias is None else bias)
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    return weights.nan_to_num(0.0) @ v


def test_output_and_gradients_are_those_of_the_formula():
    for case in sweep(itertools.product(["plain", "softcap", "wide", "bias"], MASKS)):
        with case as (options, name):
            mask, seen = MASKS[name], seen_as(MASKS[name])
            generator = torch.Generator().manual_seed(1)
            width = 80 if options == "wide" else 32
            *given, up = (torch.randn(2, 2, N, size, generator=generator) for size in (width, width, 48, 48))
            bias = torch.randn(1, 2, N, N, generator=generator) if options == "bias" else None
            score = regard.scores.ScaledDot(softcap=2.0) if options == "softcap" else None
            leaves = [x.requires_grad_() for x in given]
            output = regard.attention(*leaves, mask=mask, bias=bias, score=score, backend="native")
            found = torch.autograd.grad(output, leaves, up)
            exact = [x.detach().double().requires_grad_() for x in leaves]
            if options == "softcap":
                q, k, v = exact
                scores = 2 * (q @ k.mT / width**0.5 / 2).tanh()
                expected = scores.masked_fill(~seen, -torch.inf).softmax(-1)
                expected = torch.where(seen.any(-1, keepdim=True), expected, 0.0) @ v
            else:
                expected = formula(*exact, seen, bias)
            torch.testing.assert_close(output.double(), expected, rtol=0, atol=3e-6)
            blind = ~seen.any(-1)[0, 0]
            assert (output[:, :, blind] == 0).all()
            for one, other in zip(found, torch.autograd.grad(expected, exact, up.double()), strict=True):
                torch.testing.assert_close(one.double(), other.nan_to_num(0.0), rtol=0, atol=1e-5)


def test_its_error_in_bfloat16_is_at_most_half_as_large_again_as_that_of_pytorch():
    for case in sweep(MASKS):
        with case as name:
            mask, seen = MASKS[name], seen_as(MASKS[name])
            q, k, v = (
                torch.randn(2, 2, N, 64, generator=torch.Generator().manual_seed(at)).bfloat16() for at in range(3)
            )
            exact = formula(q.double(), k.double(), v.double(), seen)
            ours = regard.attention(q, k, v, mask=mask, backend="native").double()
            theirs = scaled_dot_product_attention(q, k, v, attn_mask=seen).double()
            there = seen.any(-1)[0, 0]
            errors = [(one - exact)[:, :, there].abs().mean() for one in (ours, theirs)]
            assert errors[0] <= 1.5 * errors[1]
            assert (ours[:, :, ~there] == 0).all()


def test_a_number_that_is_none_in_a_hidden_strip_does_not_spread():
    q, k, v = torch.randn(3, 1, 1, 128, 32).unbind(0)
    k[..., 127, :] = v[..., 127, :] = float("nan")
    leaves = [x.requires_grad_() for x in (q, k, v)]
    output = regard.attention(*leaves, mask=masks.Causal(), backend="native")
    assert output[..., :112, :].isfinite().all()
    dq, _, _ = torch.autograd.grad(output[..., :112, :].sum(), leaves)
    assert dq[..., :112, :].isfinite().all()
