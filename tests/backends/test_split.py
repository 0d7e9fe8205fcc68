"""Calls computed in parts: the formula in float64, at the sizes where it begins and ends, and nothing else."""

import itertools

import numpy as np
import pytest
import torch

import regard
from regard import masks
from regard.backends import call_cache
from regard.backends.native import choice
from regard.errors import InputError
from sweeps import sweep


def made(heads, kv_heads, queries, keys, dim=16, batch=1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    sizes = ((heads, queries), (kv_heads, keys), (kv_heads, keys))
    return [torch.randn(batch, h, n, dim, generator=generator) for h, n in sizes]


def by_hand(q, k, v, causal, scale):
    q, k, v = (one.double().numpy() for one in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    scores = scale * q @ k.swapaxes(-1, -2)
    if causal:
        ahead = k.shape[2] - q.shape[2]
        scores = np.where(np.arange(k.shape[2]) <= np.arange(q.shape[2])[:, None] + ahead, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True)) @ v


def test_short_causal_texts():
    for case in sweep([320, 321, 383, 384, 512, 600, 639, 640]):
        with case as n:
            q, k, v = made(2, 2, n, n)
            found = regard.attention(q, k, v, mask=masks.Causal(), backend="split")
            np.testing.assert_allclose(found.numpy(), by_hand(q, k, v, True, 0.25), atol=3e-6)


@pytest.mark.parametrize("keys", [16_384, 16_385, 17_500])
def test_few_queries_against_many_keys(keys):
    for case in sweep(itertools.product([(3, 3, 1), (6, 2, 1), (9, 3, 5), (16, 1, 1)], [False, True])):
        with case as ((heads, kv_heads, queries), causal):
            q, k, v = made(heads, kv_heads, queries, keys)
            mask = masks.Causal() if causal else None
            found = regard.attention(q, k, v, mask=mask, backend="split", scale=1.0)
            # Parts are merged by log-sum-exps in float32: with AVX2 alone the error is 6e-6, and 1.5e-6 for one call of
            # the kernel.
            np.testing.assert_allclose(found.numpy(), by_hand(q, k, v, causal, 1.0), atol=1e-5)


def test_keys_of_a_cache_that_has_room_left_are_read_where_they_lie():
    """A cache hands out a part of a larger buffer, whose heads are further apart than its keys."""
    q, k, v = made(4, 2, 1, 17_000, batch=2)
    room = [torch.full((2, 2, 20_000, 16), torch.nan) for _ in range(2)]
    for buffer, x in zip(room, (k, v), strict=True):
        buffer[:, :, :17_000] = x
    found = regard.attention(q, *(one[:, :, :17_000] for one in room), backend="split")
    np.testing.assert_allclose(found.numpy(), by_hand(q, k, v, False, 0.25), atol=5e-6)


@pytest.mark.parametrize("sizes", [(2, 2, 384, 384), (4, 2, 3, 16_400)])
def test_defaults_for_new_tensors_change_nothing(sizes):
    q, k, v = made(*sizes)
    expected = regard.attention(q, k, v, mask=masks.Causal(), backend="split")
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        with torch.device("meta"):
            found = regard.attention(q, k, v, mask=masks.Causal(), backend="split")
    finally:
        torch.set_default_dtype(before)
    assert torch.equal(found, expected)


def test_auto_takes_it_where_it_was_measured_to_be_faster(monkeypatch):
    monkeypatch.setattr(choice, "_loaded", lambda: "")  # where the native kernels take nothing
    assert regard.explain(*made(2, 2, 512, 512), mask=masks.Causal()).backend == "split"
    assert regard.explain(*made(2, 2, 641, 641), mask=masks.Causal()).backend == "sdpa"
    assert regard.explain(*made(9, 3, 1, 16_384)).backend == "split"
    assert regard.explain(*made(9, 3, 1, 16_383)).backend == "sdpa"
    assert regard.explain(*made(8, 8, 1, 16_384)).backend == "sdpa"


REFUSED = {
    "a window": ({"mask": masks.Window(3)}, "softmax of scaled dot products alone"),
    "dropout": ({"mask": masks.Causal(), "dropout": 0.1}, "softmax of scaled dot products alone"),
    "the log-sum-exp": ({"mask": masks.Causal(), "return_lse": True}, "the output alone"),
    "few keys": ({"mask": None}, "causal texts of 320 to 640"),
}


def test_it_refuses_all_else_by_name():
    inputs = made(2, 2, 512, 512)
    for case in sweep(REFUSED):
        with case as name:
            options, reason = REFUSED[name]
            with pytest.raises(InputError, match=reason):
                regard.attention(*inputs, backend="split", **options)
            assert reason in str(regard.explain(*inputs, backend="split", **options))


def test_what_wants_gradients_gets_them():
    q, k, v = made(2, 2, 512, 512)
    call_cache._KEPT.clear()
    regard.attention(q, k, v, mask=masks.Causal())  # a call without gradients comes first, and is remembered
    leaf = q.clone().requires_grad_()
    regard.attention(leaf, k, v, mask=masks.Causal()).sum().backward()
    other = q.clone().requires_grad_()
    regard.attention(other, k, v, mask=masks.Causal(), backend="reference").sum().backward()
    torch.testing.assert_close(leaf.grad, other.grad, atol=1e-5, rtol=1e-4)


def test_autocast_is_followed():
    q, k, v = made(2, 2, 512, 512)
    plain = regard.attention(q, k, v, mask=masks.Causal())
    with torch.autocast("cpu", torch.bfloat16):
        cast = regard.attention(q, k, v, mask=masks.Causal())
    assert plain.dtype == torch.float32
    assert cast.dtype == torch.bfloat16
