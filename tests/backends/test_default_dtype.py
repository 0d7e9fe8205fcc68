"""A call means the same under every default dtype and default device of PyTorch, to the bit, on every backend."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import nn

import regard
from regard import masks
from regard.positions import ALiBi, T5Bias
from regard.scores import DeBERTa, Dot
from tiers import slow_but

N, HEADS, DIM = 600, 2, 32  # as many tokens as native kernels are taken for
AMBIENT = [(torch.float64, "cpu"), (torch.float16, "cpu"), (torch.bfloat16, "cpu"), (torch.float32, "meta")]


@contextmanager
def ambient(dtype, device):
    torch.set_default_dtype(dtype)
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)


def drawn(dtype, queries=N, keys=N):
    generator = torch.Generator().manual_seed(0)
    sizes = [(1, HEADS, n, DIM) for n in (queries, keys, keys)]
    return [torch.randn(*size, generator=generator, dtype=torch.float32, device="cpu").to(dtype) for size in sizes]


def causal(backend, dtype):
    q, k, v = drawn(dtype)
    return [regard.attention(q, k, v, mask=masks.Causal(), backend=backend)]


def without_mask(backend, dtype):
    return [regard.attention(*drawn(dtype), backend=backend)]


def log_sum_exp(backend, dtype):
    return list(
        regard.attention(*drawn(dtype), mask=masks.Causal() & masks.Window(99), return_lse=True, backend=backend)
    )


def gradients(backend, dtype):
    leaves = [x.requires_grad_() for x in drawn(dtype)]
    output = regard.attention(*leaves, mask=masks.Causal(), score=Dot(softcap=20.0), backend=backend)
    return [output, *torch.autograd.grad(output.float().square().sum(), leaves)]


def gradients_of_the_log_sum_exp(backend, dtype):
    leaves = [x.requires_grad_() for x in drawn(dtype)]
    output, lse = regard.attention(*leaves, mask=masks.Causal(), return_lse=True, backend=backend)
    return torch.autograd.grad(output.float().sum() + lse.float().square().sum(), leaves)


def dropout(backend, dtype):
    leaves = [x.requires_grad_() for x in drawn(dtype)]
    options = {"dropout": 0.3, "generator": torch.Generator().manual_seed(1), "backend": backend}
    output = regard.attention(*leaves, mask=masks.Causal(), **options)
    return [output, *torch.autograd.grad(output.float().square().sum(), leaves)]


def gradient_of_a_bias(backend, dtype):
    table = torch.randn(
        8, HEADS, generator=torch.Generator().manual_seed(2), dtype=torch.float32, device="cpu"
    ).requires_grad_()
    leaves = [x.requires_grad_() for x in drawn(dtype)]
    bias = T5Bias(table, bidirectional=False, max_distance=64)
    output = regard.attention(*leaves, mask=masks.Causal(), bias=bias, backend=backend)
    return [output, *torch.autograd.grad(output.float().square().sum(), (*leaves, table))]


def decoding(backend, dtype):
    q, k, v = drawn(dtype, queries=1)
    padding = masks.Padding((torch.arange(N, device="cpu") > 50)[None])
    return [regard.attention(q, k, v, mask=masks.Causal() & padding, bias=ALiBi(HEADS), backend=backend)]


def documents(backend, dtype):
    lengths = torch.tensor([400, 0, 200], device="cpu")
    mask = masks.Document.from_lengths(lengths, within=masks.longformer(64, [0]))
    return [regard.attention(*drawn(dtype), mask=mask, backend=backend)]


def random_blocks(backend, dtype):
    return [regard.attention(*drawn(dtype), mask=masks.bigbird(block=32), backend=backend)]


def buckets_of_distances(backend, dtype):
    generator = torch.Generator().manual_seed(3)
    sizes = {"generator": generator, "dtype": torch.float32, "device": "cpu"}
    tables = [torch.randn(HEADS, 32, DIM, **sizes).to(dtype) for _ in range(2)]
    score = DeBERTa(*tables, position_buckets=16, max_relative_positions=512)
    return [regard.attention(*drawn(dtype), score=score, backend=backend)]


PRODUCTS = [
    *(causal, without_mask, log_sum_exp, gradients, gradients_of_the_log_sum_exp, dropout, gradient_of_a_bias),
    *(decoding, documents, random_blocks),
]
CALLS = {
    "native": PRODUCTS,
    "strips": [*PRODUCTS, buckets_of_distances],
    "reference": [*PRODUCTS, buckets_of_distances],
    "auto": [*PRODUCTS, buckets_of_distances],
}


@pytest.mark.parametrize(
    ("backend", "dtype"),
    slow_but(
        [("native", torch.float32), ("native", torch.bfloat16), ("auto", torch.bfloat16), ("strips", torch.float32)],
        [(backend, dtype) for backend in CALLS for dtype in (torch.float32, torch.bfloat16)],
    ),
    ids=str,
)
def test_a_call_has_the_same_bits_under_every_default(backend, dtype):
    for call in CALLS[backend]:
        expected = call(backend, dtype)
        exact = call("reference", torch.float64)
        for one, other in zip(expected, exact, strict=True):
            error = float(((one.double() - other).abs().max() / other.abs().max()).detach())
            assert error < (1e-5 if dtype == torch.float32 else 4e-2), f"{call.__name__}: {error}"
        for default in AMBIENT:
            with ambient(*default):
                results = call(backend, dtype)
            for one, other in zip(results, expected, strict=True):
                same = (one.dtype, one.device) == (other.dtype, other.device) and torch.equal(one, other)
                assert same, f"{call.__name__}, default {default}"


ARRAYS = "mean max top_keys top_weights entropy received weights".split()


class Reader(nn.Module):
    """One layer of attention over a text."""

    def __init__(self):
        super().__init__()
        self.attention = regard.nn.MultiHeadAttention(HEADS * DIM, HEADS)

    def forward(self, x):
        return self.attention(x, mask=masks.Causal())


@pytest.mark.parametrize(
    ("keep", "backend"),
    [("maps", "auto"), ("weights", "auto"), ("qk", "auto"), ("maps", "native")],
)
def test_what_is_watched_has_the_same_bits_under_every_default(keep, backend):
    torch.manual_seed(0)
    model, x = Reader().eval(), torch.randn(1, N, HEADS * DIM)

    def watched():
        options = {"keep": keep, "statistics": ["distance", "confidence"]}
        if backend != "native":  # whose compiled pass has no statistics that read the weights themselves
            options["statistics"] += ["sink", "self", "previous", "next", "first"]
            options["keys"] = {"start": (0, 90), "rest": (90, None)}
        with regard.use_backend(backend), torch.no_grad(), regard.watch(model, **options) as seen:
            model(x)
        assert seen.fallback_reasons == {}
        layer = seen.record.layers[0]
        arrays = {name: getattr(layer, name) for name in ARRAYS} | dict(layer.statistics)
        arrays["rows"] = seen.weights(layer=0, head=1) if keep != "maps" else None
        return {name: np.asarray(array) for name, array in arrays.items() if array is not None}

    expected = watched()
    for default in AMBIENT:
        with ambient(*default):
            found = watched()
        assert found.keys() == expected.keys(), f"default {default}"
        for name, array in found.items():
            assert array.dtype == expected[name].dtype, f"{name}, default {default}"
            assert np.array_equal(array, expected[name], equal_nan=True), f"{name}, default {default}"
