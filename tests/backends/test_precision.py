"""In narrow types no backend is much less exact than PyTorch's own kernel; benchmarks/precision.py measures it."""

import importlib.util
import itertools
from pathlib import Path

import pytest
import torch

import regard
from regard import scores
from regard.backends.native import library
from sweeps import sweep

PATH = Path(__file__).parents[2] / "benchmarks" / "precision.py"
SPEC = importlib.util.spec_from_file_location("precision", PATH)
precision = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(precision)

MOST = 1.5


@pytest.mark.slow
@pytest.mark.parametrize("dtype", precision.TYPES)
def test_the_error_is_at_most_half_as_large_again_as_that_of_pytorch(dtype):
    for case in sweep(itertools.product(precision.SHAPES, precision.MASKS)):
        with case as (shape, mask):
            theirs = precision.errors("pytorch", shape, mask, precision.TYPES[dtype])
            for how in ("sdpa", "strips"):
                ours = precision.errors(how, shape, mask, precision.TYPES[dtype])
                for name, one, other in zip(precision.TENSORS, ours, theirs, strict=True):
                    assert one.mean <= MOST * other.mean, (
                        f"{how}: {name} is off by {one.mean:.1e}, PyTorch's by {other.mean:.1e}"
                    )
                    assert one.peak <= MOST * other.peak, (
                        f"{how}: {name} is off by {one.peak:.1e}, PyTorch's by {other.peak:.1e}"
                    )


@pytest.mark.parametrize("backend", ["sdpa", "strips", "reference", "native"])
def test_projected_queries_and_keys_are_not_rounded(backend):
    """Rounded to bfloat16 they would move scores of this size by half, and weights by as much."""
    if backend == "native" and (reason := library.refuses()):
        pytest.skip(reason)
    for case in sweep(["bilinear", "cosine"]):
        with case as kind:
            generator = torch.Generator().manual_seed(0)
            q, k, v = (torch.randn(1, 2, 48, 16, generator=generator).bfloat16() for _ in range(3))
            held = torch.randn(16, 16, generator=generator) * 4
            x, y = q.double(), k.double()
            if kind == "bilinear":
                score, found = scores.Bilinear(held), x @ held.double() @ y.mT
            else:
                score = scores.Cosine(0.01)
                found = (x / x.norm(dim=-1, keepdim=True)) @ (y / y.norm(dim=-1, keepdim=True)).mT / 0.01
            expected = found.softmax(-1) @ v.double()
            output = regard.attention(q, k, v, score=score, backend=backend)
            assert output.dtype == torch.bfloat16
            # A half of the last bit is 2⁻⁹.
            torch.testing.assert_close(output.double(), expected, rtol=2**-8, atol=1e-3)


def test_the_error_that_is_measured_is_that_of_rounding():
    # bfloat16 keeps 8 bits: rounding alone leaves about 2⁻⁹ / √3 of a number, and PyTorch's output is about there.
    output = precision.errors("reference", "128 × 128, width 64", "all", precision.TYPES["bfloat16"])[0]
    assert 0.5 < output.mean / (2**-9 / 3**0.5) < 2


def test_another_table_leaves_the_rest_of_the_page():
    page = precision.PAGE.read_text(encoding="utf-8")
    changed = precision.with_table(page, "| type | another |")
    after = page.partition("| type |")[2].partition("\n\n")[2]
    assert changed.partition("| type |")[2] == f" another |\n\n{after}"
    assert changed.partition("(torch ")[0] == page.partition("(torch ")[0]


def test_the_page_shows_every_case():
    page = precision.PAGE.read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if line.startswith(("| bfloat16", "| float16"))]
    assert len(lines) == len(precision.TYPES) * len(precision.SHAPES) * len(precision.MASKS)
    for line in lines:
        shares = [float(one) for one in line.strip("| ").split(" | ")[5:9]]
        assert max(shares) <= MOST, line
