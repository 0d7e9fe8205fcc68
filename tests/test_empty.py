"""Without a sequence or a head the result is empty on every backend, as that of SDPA, and so are gradients."""

from itertools import product

import pytest
import torch
from torch import nn

import regard
from regard import masks, normalizers, positions, scores
from regard.backends.selection import named
from regard.errors import InputError
from sweeps import sweep

QUERIES, KEYS = 5, 7
LEADING = {  # of q, and of k and v
    "no sequence": ((0, 4), (0, 2)),
    "no head": ((2, 0), (2, 0)),
    "no head over key heads": ((2, 0), (2, 2)),
    "none of many": ((3, 0, 4), (3, 0, 2)),
    "three dimensions": ((0,), (0,)),
}
OPTIONS = {
    "plain": {},
    "causal": {"mask": masks.Causal()},
    "tensor": {"mask": torch.ones(QUERIES, KEYS).tril().bool()},
    "rule": {"mask": masks.MaskMod(lambda b, h, i, j: (i >= j) & (b + h >= 0))},
    "bias": {"bias": torch.linspace(-1, 1, QUERIES * KEYS).reshape(QUERIES, KEYS).requires_grad_()},
    "rotary": {"rotary": positions.RoPE(8)},
    "dropout": {"dropout": 0.5},
    "sigmoid": {"normalizer": normalizers.Sigmoid()},
    "cosine": {"score": scores.Cosine()},
    "weights": {"return_weights": True},
    "lse": {"return_lse": True},
}


def _tensors(leading):
    of_q, of_k = LEADING[leading]
    sizes = (*of_q, QUERIES, 8), (*of_k, KEYS, 8), (*of_k, KEYS, 6)
    return [torch.randn(size).requires_grad_() for size in sizes]


def test_the_result_and_its_gradients_are_empty():
    for case in sweep(LEADING):
        with case as leading:
            q, k, v = _tensors(leading)
            for backend, (name, options) in product(["auto", *named()], OPTIONS.items()):
                found = regard.attention(q, k, v, backend=backend, **options)
                output, *more = found if isinstance(found, tuple) else (found,)
                assert output.shape == (*q.shape[:-1], 6), (backend, name)
                if more:
                    assert more[0].shape == (*q.shape[:-1], *((KEYS,) if name == "weights" else ()))
                for x, grad in zip((q, k, v), torch.autograd.grad(output.sum(), (q, k, v)), strict=True):
                    assert grad.shape == x.shape
                    assert not grad.any()  # of keys that no head of q looks at
                assert "reference runs it" in str(regard.explain(q, k, v, backend=backend, **options))


def test_without_queries_or_keys_it_is_what_sdpa_gives():
    """Nothing for no queries; zeros for no keys; gradients are zeros."""
    shapes = [(0, KEYS), (QUERIES, 0), (0, 0)]
    everything = {**OPTIONS, "window": {"mask": masks.Causal() & masks.Window(3) | masks.Global([0])}}
    everything |= {"alibi": {"bias": positions.ALiBi(4)}, "sink": {"normalizer": normalizers.Softmax(torch.ones(4))}}
    for case in sweep(product(shapes, ["auto", *named()], everything)):
        with case as ((queries, keys), backend, name):
            options = {"bias": torch.zeros(1)} if name == "bias" else everything[name]
            if name in ("tensor", "bias"):  # as large as the call
                options = (
                    {"mask": torch.ones(queries, keys).bool()} if name == "tensor" else {"bias": torch.zeros(1, keys)}
                )
            q, k, v = (torch.randn(2, h, n, 8, requires_grad=True) for h, n in ((4, queries), (2, keys), (2, keys)))
            output = regard.attention(q, k, v, backend=backend, **options)
            output, *more = output if isinstance(output, tuple) else (output,)
            theirs = nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
            torch.testing.assert_close(output, theirs)
            for grad in torch.autograd.grad(output.sum(), (q, k, v)):
                assert not grad.any()
            if name == "lse":
                assert more[0].shape == (2, 4, queries)
                assert (more[0] == -torch.inf).all()


def test_modules_without_keys_or_queries_give_what_nn_gives():
    ours = regard.nn.MultiHeadAttention(8, 2)
    theirs, x = ours.to_torch(), torch.randn(3, 5, 8)
    for query, key in ((x[:, :0], x), (x, x[:, :0]), (x[:, :0], x[:, :0]), (x[:0], x[:0])):
        torch.testing.assert_close(ours(query, key), theirs(query, key, key, need_weights=False)[0])
    block = regard.nn.EncoderBlock(8, 2, 16)
    assert regard.nn.Encoder([block])(x[:, :0]).shape == (3, 0, 8)


def test_it_is_what_sdpa_gives():
    q = torch.randn(0, 4, 5, 8)
    theirs, ours = nn.functional.scaled_dot_product_attention(q, q, q), regard.attention(q, q, q)
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype


def test_a_mask_and_a_bias_of_no_sequence_are_taken_and_learn_nothing():
    q = torch.randn(0, 2, 5, 8)
    real, bias = torch.ones(0, 5, dtype=torch.bool), torch.randn(1, 2, 5, 5, requires_grad=True)
    output = regard.attention(q, q, q, mask=masks.Causal() & masks.Padding(real), bias=bias)
    assert output.shape == q.shape
    output.sum().backward()
    assert torch.equal(bias.grad, torch.zeros_like(bias))


def test_what_does_not_fit_is_refused_though_it_is_empty():
    x = torch.randn(0, 4, 5, 8)
    with pytest.raises(InputError, match="`backend` must be"):
        regard.attention(x, x, x, backend="none")
    with pytest.raises(InputError, match="multiple of those of `k`"):
        regard.attention(torch.randn(2, 4, 5, 8), x.transpose(0, 1)[:, :0].reshape(2, 0, 5, 8), x.reshape(2, 0, 5, 8))
    with pytest.raises(InputError, match="the mask is for batch 3"):
        regard.attention(x, x, x, mask=masks.Padding(torch.ones(3, 5, dtype=torch.bool)))


class Attend(nn.Module):
    def forward(self, x):
        return regard.attention(x, x, x, mask=masks.Causal())


class Fused(nn.Module):
    def forward(self, x):
        return nn.functional.scaled_dot_product_attention(x, x, x)


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (Attend(), (0, 2, 5, 8)),
        (Fused(), (0, 2, 5, 8)),
        (regard.nn.MultiHeadAttention(8, 2, rotary=positions.RoPE(4), mask=masks.Causal()), (0, 5, 8)),
        (nn.MultiheadAttention(8, 2, batch_first=True), (0, 5, 8)),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_watched_model_runs_on_no_sequence_too(module, shape):
    x = torch.randn(shape)
    call = (lambda x: module(x, x, x)[0]) if isinstance(module, nn.MultiheadAttention) else module
    with regard.watch(module) as seen:
        assert call(x).shape == shape
    assert len(seen.records) == 0
    with regard.watch(module) as seen:  # the others are seen beside it
        call(x)
        call(torch.randn(2, *shape[1:]))
    assert len(seen.layers) == 1


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_explain_counts_nothing_for_an_empty_call(backend):
    found = regard.explain(*_tensors("no sequence"), backend=backend)
    assert (found.flops, found.bytes, found.share) == (0, 0, 0.0)


def test_a_tensor_as_a_mask_may_have_no_sequence_either() -> None:
    for case in sweep(product([1, 2], ["auto", *named()])):
        with case as (heads, backend):
            q, none = torch.randn(0, 2, 5, 8), torch.ones(0, heads, 5, 5, dtype=torch.bool)
            for mask in (none, masks.Dense(none), ~masks.Dense(none), masks.Dense(none) & masks.Causal()):
                assert regard.attention(q, q, q, mask=mask, backend=backend).shape == q.shape
            q, none = torch.randn(2, 0, 5, 8), torch.ones(2, 0, 5, 5, dtype=torch.bool)
            assert regard.attention(q, q, q, mask=none, backend=backend).shape == q.shape
