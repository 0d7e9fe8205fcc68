"""How far narrow types are from float64: regard's backends and PyTorch's own kernel on the same inputs.

    python benchmarks/precision.py            # prints the table
    python benchmarks/precision.py --write    # and writes it into docs/precision.md, in place of the one there

The error of a tensor is its root mean square difference from the result in float64 of the same (rounded) inputs, over
the root mean square of that result. The peak is the largest difference, over the same.
"""

import argparse
import re
from pathlib import Path
from typing import NamedTuple

import torch
from torch.nn import functional

import regard
from regard import masks

RELEASE = f"torch {torch.__version__.split('+')[0]}"
PAGE = Path(__file__).parents[1] / "docs" / "precision.md"
TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
TENSORS = "output", "gradient of q", "gradient of k", "gradient of v"
# batch, heads, key–value heads, queries, keys, width, and how large queries are: large ones make sharp weights
SHAPES = {
    "128 × 128, width 64": (2, 4, 4, 128, 128, 64, 1.0),
    "384 × 384, width 64": (1, 4, 4, 384, 384, 64, 1.0),
    "300 × 300, width 32": (1, 4, 4, 300, 300, 32, 1.0),
    "150 × 400, grouped": (1, 4, 2, 150, 400, 64, 1.0),
    "300 × 300, sharp": (1, 4, 4, 300, 300, 64, 4.0),
}
MASKS = {
    "all": lambda *_: None,
    "causal": lambda *_: masks.Causal(),
    "window of 64": lambda *_: masks.Causal() & masks.Window(64),
    "half at random": lambda queries, keys: (
        torch.rand(queries, keys, generator=torch.Generator().manual_seed(9)) < 0.5
    ).index_fill(1, torch.tensor([0]), True),
}


class Error(NamedTuple):
    """How far from float64, relative to the size of the right result."""

    mean: float
    peak: float


def inputs(shape: str, dtype: torch.dtype) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Make q, k and v in a type, and what the gradient of the output is."""
    batch, heads, kv_heads, queries, keys, width, size = SHAPES[shape]
    generator = torch.Generator().manual_seed(0)
    q, k, v, up = (
        torch.randn(*sizes, generator=generator)
        for sizes in (
            (batch, heads, queries, width),
            (batch, kv_heads, keys, width),
            (batch, kv_heads, keys, width),
            (batch, heads, queries, width),
        )
    )
    return [x.to(dtype) for x in (size * q, k, v)], up.to(dtype)


def results(how: str, shape: str, mask: str, dtype: torch.dtype) -> list[torch.Tensor]:
    """Compute output and gradients of one case by a backend, or by "pytorch", from inputs rounded to a type."""
    tensors, up = inputs(shape, dtype)
    if how == "float64":
        tensors, up = [x.double() for x in tensors], up.double()
    q, k, v = (x.requires_grad_() for x in tensors)
    queries, keys = q.shape[2], k.shape[2]
    seen = MASKS[mask](queries, keys)
    if how == "pytorch":
        dense = seen.bind(queries, keys).dense()[0, 0] if isinstance(seen, masks.Mask) else seen
        out = functional.scaled_dot_product_attention(q, k, v, attn_mask=dense, enable_gqa=q.shape[1] != k.shape[1])
    else:
        out = regard.attention(q, k, v, mask=seen, backend="reference" if how == "float64" else how)
    return [one.detach().double() for one in (out, *torch.autograd.grad(out, (q, k, v), up))]


def errors(how: str, shape: str, mask: str, dtype: torch.dtype) -> list[Error]:
    """The error of the output and of each gradient."""
    found = []
    for one, exact in zip(results(how, shape, mask, dtype), results("float64", shape, mask, dtype), strict=True):
        size = exact.square().mean().sqrt()
        found.append(Error(float((one - exact).square().mean().sqrt() / size), float((one - exact).abs().max() / size)))
    return found


def rows() -> list[list[str]]:
    """The table: one row a type, shape and mask, the worst of output and gradients as a share of PyTorch's error."""
    table = []
    for type_name, dtype in TYPES.items():
        for shape in SHAPES:
            for mask in MASKS:
                theirs = errors("pytorch", shape, mask, dtype)
                row = [type_name, shape, mask, _small(theirs[0].mean), _small(max(one.mean for one in theirs[1:]))]
                for how in ("sdpa", "strips", "reference"):
                    ours = errors(how, shape, mask, dtype)
                    shares = [one.mean / other.mean for one, other in zip(ours, theirs, strict=True)]
                    row += [f"{shares[0]:.2f}", f"{max(shares[1:]):.2f}"]
                table.append(row)
    return table


def _small(x: float) -> str:
    return f"{x:.1e}".replace("e-0", "e-")


HEAD = (
    "| type | queries × keys | mask | PyTorch: output | its gradients | sdpa: output | gradients | strips: output "
    "| gradients | reference: output | gradients |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|"
)


def table() -> str:
    """The table in Markdown."""
    return "\n".join([HEAD, *(f"| {' | '.join(row)} |" for row in rows())])


def with_table(page: str, text: str) -> str:
    """Return the page with another table, and with the release of PyTorch that was measured."""
    page = re.sub(r"\| type \|.*?\n\n", lambda _: f"{text}\n\n", page, count=1, flags=re.DOTALL)
    return re.sub(r"\(torch [\d.]+\)", f"({RELEASE})", page, count=1)


def main() -> None:
    """Print the table, and write it into the page if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write it into docs/precision.md")
    asked = parser.parse_args()
    text = table()
    print(text)
    if asked.write:
        PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), text), encoding="utf-8")


if __name__ == "__main__":
    main()
