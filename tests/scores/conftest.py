"""Attention with any score, compared with the formula written out: dense, in float64, values and all gradients."""

import math
from itertools import product

import pytest
import torch

import regard
from sweeps import sweep

# batch, heads, key–value heads, queries, keys, width of q, width of v
LAYOUTS = {
    "square": (2, 4, 4, 6, 6, 5, 5),
    "grouped": (2, 4, 2, 5, 9, 6, 3),
    "one kv head, more queries than keys": (1, 4, 1, 9, 6, 4, 7),
}
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}


def randn(*shape, seed=0, dtype=torch.float64):
    """Draw numbers of variance 1 / fan-in, the fan-in being the last size: projections as they are initialized."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=generator, dtype=torch.float64) / math.sqrt(shape[-1])).to(dtype)


def written_out(scores, v, visible, a_v=None):
    """Softmax over what is visible, rows that see nothing being zero, then Σ_j w_ij (v_j + a_ij)."""
    exp = torch.where(visible, scores, torch.zeros_like(scores)).exp() * visible
    total = exp.sum(-1, keepdim=True)
    weights = exp / torch.where(total == 0, torch.ones_like(total), total)
    output = torch.einsum("bhij,bhjd->bhid", weights, v)
    return weights, output if a_v is None else output + torch.einsum(
        "bhij,hijd->bhid", weights, a_v.expand(v.shape[1], -1, -1, -1)
    )


def _agrees(make, formula, shapes, backend, key_width=None, layouts=LAYOUTS, **options):
    """Compare in all layouts and types: see `_agrees_in`."""
    for case in sweep(product(layouts, TOLERANCE)):
        with case as (layout, dtype):
            _agrees_in(make, formula, shapes, layout, dtype, backend, key_width, **options)


def _agrees_in(make, formula, shapes, layout, dtype, backend, key_width, **options):
    """Compare `score=make(**held)` with `formula(q, k, i, j, **held)`: the scaled scores, perhaps a_ij of values.

    `shapes` gives the shape of each held tensor from (heads, width of q, width of k, width of v).
    """
    b, h, kv, n, m, d, dv = LAYOUTS[layout]
    dk = d if key_width is None else key_width
    q, k, v = (
        randn(*s, seed=seed, dtype=dtype) * math.sqrt(s[-1])
        for seed, s in enumerate([(b, h, n, d), (b, kv, m, dk), (b, kv, m, dv)])
    )
    held = {name: randn(*s, seed=9 + at, dtype=dtype) for at, (name, s) in enumerate(shapes(h, d, dk, dv).items())}
    visible = torch.rand(b, h, n, m, generator=torch.Generator().manual_seed(5)) < 0.7
    visible[:, :, 1] = False
    cotangent = randn(b, h, n, dv, seed=6)

    ours = {"q": q, "k": k, "v": v, **{f"score.{name}": x for name, x in held.items()}}
    theirs = {name: x.detach().clone().double().requires_grad_() for name, x in ours.items()}
    ours = {name: x.clone().requires_grad_() for name, x in ours.items()}
    everything = {
        "mask": visible,
        "score": make(**{name: ours[f"score.{name}"] for name in held}),
        "backend": backend,
        **options,
    }
    output = regard.attention(ours["q"], ours["k"], ours["v"], **everything)
    assert output.dtype == dtype
    assert (output[:, :, 1] == 0).all()

    wide_k, wide_v = (theirs[name].repeat_interleave(h // kv, 1) for name in "kv")
    i, j = torch.arange(n)[:, None] + m - n, torch.arange(m)
    scores = formula(theirs["q"], wide_k, i, j, **{name: theirs[f"score.{name}"] for name in held})
    scores, a_v = scores if isinstance(scores, tuple) else (scores, None)
    weights, expected = written_out(scores, wide_v, visible, a_v)

    _close(output, expected, dtype, "output")
    output.backward(cotangent.to(dtype))
    expected.backward(cotangent.to(dtype).double())
    for name in ours:
        assert ours[name].grad is not None, name
        assert theirs[name].grad.abs().max() > 0, f"the formula does not depend on {name}"
        _close(ours[name].grad, theirs[name].grad, dtype, f"gradient of {name}")
    if backend == "reference":
        shown = regard.attention(ours["q"], ours["k"], ours["v"], return_weights=True, **everything)[1]
        _close(shown, weights, dtype, "weights")


def _close(ours, theirs, dtype, what):
    error = (ours.detach().double() - theirs.detach()).abs().max().item()
    assert error <= TOLERANCE[dtype] * max(1.0, theirs.detach().abs().max().item()), f"{what} is off by {error:.2e}"


@pytest.fixture
def agrees():
    return _agrees
