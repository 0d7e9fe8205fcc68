"""In narrow types the gradient of a learned table is summed in float32 and rounded once, which leaves 0.2 %."""

import pytest
import torch

import regard
from regard.positions import RelativePositionBias, RelativePositionBiasND, T5Bias
from regard.scores import Additive, DeBERTa, RelativeKeyQuery, Shaw
from sweeps import sweep
from tiers import slow_but

HEADS, KEYS, DIM = 2, 600, 8
TABLES = {
    "shaw": ([(17, DIM), (17, DIM)], lambda key, value: {"score": Shaw(key, value)}),
    "shaw of heads": ([(HEADS, 17, DIM)] * 2, lambda key, value: {"score": Shaw(key, value)}),
    "relative_key_query": ([(HEADS, 17, DIM)], lambda table: {"score": RelativeKeyQuery(table)}),
    "deberta": ([(HEADS, 16, DIM)] * 2, lambda keys, queries: {"score": DeBERTa(keys, queries, -1, 8)}),
    "additive": ([(8, DIM), (8, DIM), (8,)], lambda query, key, vector: {"score": Additive(query, key, vector)}),
    "t5": ([(32, HEADS)], lambda table: {"bias": T5Bias(table, bidirectional=True)}),
    "table": ([(17, HEADS)], lambda table: {"bias": RelativePositionBias(table)}),
    "grid": ([(39 * 59, HEADS)], lambda table: {"bias": RelativePositionBiasND(table, (20, 30))}),
}


def gradients(name, dtype, type_of_sums, backend):
    shapes, made = TABLES[name]
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(one, generator=generator).to(dtype) for one in [(1, HEADS, KEYS, DIM)] * 4 + shapes]
    q, k, v, up, *tables = (one.to(type_of_sums) for one in drawn)
    tables = [one.requires_grad_() for one in tables]
    output = regard.attention(q, k, v, backend=backend, **made(*tables))
    return torch.autograd.grad(output, tables, up)


@pytest.mark.parametrize("dtype", slow_but([torch.bfloat16], [torch.bfloat16, torch.float16]))
def test_the_gradient_of_a_table_is_rounded_once(dtype):
    for case in sweep(TABLES):
        with case as name:
            exact = gradients(name, dtype, torch.float64, "strips")
            for backend in (
                "reference",
                "strips",
                "auto",
                *(["sdpa", "native"] if "bias" in TABLES[name][1](*_zeros(name)) else []),
            ):
                for found, wanted in zip(gradients(name, dtype, dtype, backend), exact, strict=True):
                    error = ((found.double() - wanted).square().mean() / wanted.square().mean()).sqrt()
                    assert found.dtype == dtype
                    assert error <= 0.005, f"{backend}: off by {float(error):.1%}"


def _zeros(name):
    return [torch.zeros(one) for one in TABLES[name][0]]


@pytest.mark.parametrize("name", ["t5", "shaw"])
def test_narrow_tables_compile_without_a_break(name):
    shapes, made = TABLES[name]
    x = torch.randn(1, HEADS, KEYS, DIM).bfloat16()[:, :, :20]
    tables = [torch.randn(one).bfloat16() for one in shapes]
    tables = [one.requires_grad_() for one in tables]
    run = lambda x, *tables: regard.attention(x, x, x, backend="reference", **made(*tables))  # noqa: E731
    compiled = torch.compile(run, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, *tables), run(x, *tables), rtol=2e-2, atol=2e-2)
