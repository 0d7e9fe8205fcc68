"""How far narrow types are from float64: regard's backends and PyTorch's own kernel on the same inputs.

    python benchmarks/precision.py            # prints the table
    python benchmarks/precision.py --write    # and writes it into docs/precision.md

The error of a tensor is its root mean square difference from the result in float64 of the same (rounded) inputs, over
the root mean square of that result. The peak is the largest difference, over the same.
"""

import argparse
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
                for how in ("sdpa", "blockwise", "reference"):
                    ours = errors(how, shape, mask, dtype)
                    shares = [one.mean / other.mean for one, other in zip(ours, theirs, strict=True)]
                    row += [f"{shares[0]:.2f}", f"{max(shares[1:]):.2f}"]
                table.append(row)
    return table


def _small(x: float) -> str:
    return f"{x:.1e}".replace("e-0", "e-")


HEAD = (
    "| type | queries × keys | mask | PyTorch: output | its gradients | sdpa: output | gradients | blockwise: output "
    "| gradients | reference: output | gradients |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|"
)


def table() -> str:
    """The table in Markdown."""
    return "\n".join([HEAD, *(f"| {' | '.join(row)} |" for row in rows())])


def main() -> None:
    """Print the table, and write it into the page if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write it into docs/precision.md")
    asked = parser.parse_args()
    text = table()
    print(text)
    if asked.write:
        PAGE.write_text(f"{INTRODUCTION}\n{text}\n{AFTERWARDS}", encoding="utf-8")


INTRODUCTION = f"""# How exact narrow types are

Inputs are rounded to bfloat16 or float16. The result of each backend is compared with the formula, which is evaluated
in float64 on the same rounded inputs. The error is the root mean square of the difference divided by the root mean
square of the float64 result.

The columns of PyTorch give the error of `F.scaled_dot_product_attention` on CPU ({RELEASE}). The column "its
gradients" gives the largest error among the gradients of q, k and v. The columns of the backends give the error of each
backend divided by the error of PyTorch; for gradients this is again the largest of the three. A value of 1.00 means as
exact as PyTorch, and a smaller value means more exact. A test limits the values of `sdpa` and `blockwise` to at most
1.5.

`blockwise` and `reference` convert their inputs to float32, compute in float32, and round once at the end. `sdpa` is
PyTorch's kernel, which rounds the weights before it multiplies them by the values.

A score that projects queries or keys (`Bilinear`, `Cosine`) does so in float32, and every backend then computes in
float32 and rounds the output once. `sdpa` takes longer that way where a device multiplies narrow types faster: pass
`q @ W` with `scores.Dot()` to have its projections rounded.

`rotary=` turns queries and keys in their own type, as models do: turned, they are rounded to it again on every backend.

Measured by `python benchmarks/precision.py --write` on CPU.
"""


AFTERWARDS = """
## Autocast

Under autocast, the output has the dtype of autocast on every backend, like the output of
`F.scaled_dot_product_attention`. Float64 inputs stay float64. `sdpa` also computes in the dtype of autocast; only a
bias in float32 is added in float32. All other backends compute in the same way as without autocast and round the output
once.

## Rows with a very low bias

Padding is sometimes implemented as a bias of −1e9, or of the lowest number of a dtype. If such a bias covers a whole
row, the scores are finite and the weights sum to 1: each of the n keys gets the weight 1/n. With a *mask* instead of a
bias, a fully hidden row has weights 0.

In float32 a log-sum-exp cannot represent a row with such a bias, because −1e9 + ln n is rounded to −1e9. If parts of
the row are merged by their log-sum-exp, they are added instead of averaged, and exp(score − lse) gives 1 instead of
1/n. The backends differ as follows:

- `blockwise` and `numba` store a log-sum-exp in two numbers; the second number is the rounding error of the first. Both
  are right, forward and backward. If the log-sum-exp of a row is beyond ±1,024, `blockwise` computes without the fused
  kernel, which gives only one number. For a window of 256 over 2,048 tokens this took 2.3 times as long forward and 1.3
  times as long backward.
- `reference` computes whole rows, and is right.
- `sdpa` is right forward. In the backward of PyTorch's CPU kernel, the gradients of such a row are up to n times too
  large. regard therefore looks for such rows if the call is on CPU, the bias is not learned, and q, k or v need
  gradients. If there is such a row, `sdpa` refuses the call, and `auto` selects another backend.
- In compiled code, under `torch.func` and on other devices, regard does not look for such rows, and `flex` never looks
  for them. In these cases hide keys with `mask=`, which needs no low bias and is faster.

In float32 the scores of such a row are rounded to multiples of 64, because they are close to −1e9. The weights of the
row are therefore equal, whatever the products of q and k are. This is the result of the formula in float32, and it is
the same on every backend.
"""


if __name__ == "__main__":
    main()
