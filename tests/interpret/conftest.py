"""Oracles for watching: a dense softmax over the q and k that a run really used, and plain runs to compare with."""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import regard


def dense_weights(q: Tensor, k: Tensor, mask: Tensor | None, *, causal: bool, scale: float | None) -> np.ndarray:
    """softmax(scale · q kᵀ + mask) as one matrix; rows in which nothing is visible are 0.

    In float32, with the scale on q: with scores beyond 50, as real models have them, another order of the same
    operations differs by up to 4e-6.
    """
    q, k = q.detach(), k.detach()
    if q.ndim > 2 and k.shape[-3] != q.shape[-3]:
        k = k.repeat_interleave(q.shape[-3] // k.shape[-3], -3)
    scores = (q * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)) @ k.transpose(-2, -1)
    if causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:]).tril().bool(), -torch.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    scores = scores.masked_fill(scores < -1e8, -torch.inf)
    return scores.softmax(-1).nan_to_num(0.0).numpy()


@pytest.fixture(scope="session")
def load() -> Callable[[str], Any]:
    """Load a bundled model once for the process, or skip with a word; whoever changes it puts it back."""
    from regard import hub as bundled

    loaded = functools.cache(regard.load_model)

    def load(name: str) -> Any:
        if not bundled.is_installed(name):
            pytest.skip(f"{name} is not installed: regard models get {name}")
        return loaded(name)

    return load


@contextlib.contextmanager
def _kernel_calls() -> Iterator[list[np.ndarray]]:
    """The weights of each call of the fused kernel, from the q, k and mask that it was given; computed at the end, as a
    softmax inside would be heard by a watch.
    """
    kernel, calls, weights = functional.scaled_dot_product_attention, [], []

    def spy(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, **given: Any) -> Any:
        mask = None if attn_mask is None else attn_mask.clone()
        calls.append((query.clone(), key.clone(), mask, given.get("is_causal", False), given.get("scale")))
        return kernel(query, key, value, attn_mask, **given)

    functional.scaled_dot_product_attention = spy
    try:
        yield weights
    finally:
        functional.scaled_dot_product_attention = kernel
        weights += [dense_weights(q, k, mask, causal=causal, scale=scale) for q, k, mask, causal, scale in calls]


@pytest.fixture
def kernel_calls() -> Callable[[], contextlib.AbstractContextManager[list[np.ndarray]]]:
    return _kernel_calls


def _first(output: Any) -> Tensor:
    if isinstance(output, Tensor):
        return output
    return _first(output[0])


@pytest.fixture
def watched() -> Callable[..., Any]:
    """Run a module plainly and watched: same output to the bit, same random numbers drawn; gives what was seen."""

    def run(model: nn.Module, call: Callable[[], Any], **asked: Any) -> Any:
        torch.manual_seed(5)
        plain = _first(call())
        state = torch.get_rng_state()
        torch.manual_seed(5)
        with regard.watch(model, **({"keep": "weights"} | asked)) as seen:
            output = _first(call())
        assert torch.equal(torch.get_rng_state(), state)
        if plain.is_nested:
            plain, output = plain.to_padded_tensor(0.0), output.to_padded_tensor(0.0)
        assert torch.equal(plain, output)
        return seen

    return run


@pytest.fixture
def far() -> Callable[[np.ndarray, Any], float]:
    """The largest difference of weights, where anything is seen at all: hidden rows are 0 here, even in eager code."""

    def difference(ours: np.ndarray, theirs: Any) -> float:
        theirs = np.asarray(theirs.detach() if isinstance(theirs, Tensor) else theirs)
        assert ours.shape == theirs.shape
        blind = ours.sum(-1) == 0
        assert np.isfinite(ours).all()
        return float(np.abs(ours - theirs)[~blind].max(initial=0.0))

    return difference
