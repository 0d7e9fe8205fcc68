"""Additive scores in Triton against the formula in plain PyTorch, on a CUDA device: training time and peak memory.

    python benchmarks/additive.py [--tokens 2048 4096 8192] [--heads 1] [--hidden 64] [--width 64] [--out out.json]

`eager` holds the hidden layer of all pairs, as the formula is usually written: 4 · n² · hidden bytes a head, and more
for its gradients. Forward and backward, float32 and bfloat16, warmed up, interleaved, medians of CUDA events. Wanted at
8,192: `times` (eager over Triton) at least 5, and memory that grows with n (issue 7). Both are compared with float64 at
512 tokens first. Where eager does not fit into memory its time stands as null. Figures: results/additive-h100.json.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import regard
from regard.masks import Causal
from regard.scores import Additive

Run = Callable[..., Tensor]


def eager(q: Tensor, k: Tensor, v: Tensor, w_query: Tensor, w_key: Tensor, vector: Tensor, *, causal: bool) -> Tensor:
    """The formula with the hidden layer of all pairs at hand."""
    hidden = torch.tanh((q @ w_query.T)[:, :, :, None] + (k @ w_key.T)[:, :, None])
    scores = hidden @ vector
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
    return torch.softmax(scores, -1) @ v


def ours(q: Tensor, k: Tensor, v: Tensor, *held: Tensor, causal: bool) -> Tensor:
    """The same by the kernels."""
    return regard.attention(q, k, v, score=Additive(*held), mask=Causal() if causal else None, backend="triton")


def tensors(tokens: int, heads: int, hidden: int, width: int, dtype: torch.dtype) -> list[Tensor]:
    """Everything that is learned: q, k, v, both maps and the vector."""
    shapes = [(1, heads, tokens, width)] * 3 + [(hidden, width)] * 2 + [(hidden,)]
    scales = 1.0, 1.0, 1.0, width**-0.5, width**-0.5, hidden**-0.5
    made = (torch.randn(shape, device="cuda") * scale for shape, scale in zip(shapes, scales, strict=True))
    return [one.to(dtype).requires_grad_() for one in made]


def train(run: Run, leaves: list[Tensor], up: Tensor, *, causal: bool) -> list[Tensor]:
    """One forward and backward."""
    output = run(*leaves, causal=causal)
    return [output.detach(), *torch.autograd.grad(output, leaves, up)]


def seconds(run: Callable[[], Any]) -> float:
    """The time of one run by the device's own clock."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in "be")
    begin.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1000


def peak(run: Callable[[], Any]) -> int:
    """Bytes that one run allocates above what is there."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def fits(run: Callable[[], Any]) -> bool:
    """Whether a run has memory enough; it warms up, too."""
    try:
        run()
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        return False
    return True


def measure(tokens: int, dtype: torch.dtype, causal: bool, arguments: argparse.Namespace) -> dict[str, Any]:
    """Both for one length, interleaved."""
    leaves = tensors(tokens, arguments.heads, arguments.hidden, arguments.width, dtype)
    up = torch.randn_like(leaves[2])

    def by_us() -> None:
        train(ours, leaves, up, causal=causal)

    def by_eager() -> None:
        train(eager, leaves, up, causal=causal)

    runs = [by_us, by_eager] if fits(by_eager) else [by_us]
    for one in runs:
        one()
    times = [[seconds(one) for one in runs] for _ in range(arguments.repeats)]
    medians = [statistics.median(column) for column in zip(*times, strict=True)]
    return {
        "tokens": tokens,
        "dtype": str(dtype).removeprefix("torch."),
        "mask": "causal" if causal else "none",
        "triton_seconds": medians[0],
        "eager_seconds": medians[1] if len(runs) > 1 else None,
        "times": medians[1] / medians[0] if len(runs) > 1 else None,
        "spread": [max(column) / min(column) for column in zip(*times, strict=True)],
        "peak_bytes": [peak(one) for one in runs],
    }


def differences(hidden: int, width: int) -> dict[str, float]:
    """The largest differences from float64, relative to the largest number, of the output and all gradients."""
    found = {}
    names = "output", "q", "k", "v", "w_query", "w_key", "vector"
    for dtype in (torch.float32, torch.bfloat16):
        leaves = tensors(512, 2, hidden, width, dtype)
        up = torch.randn_like(leaves[2])
        wide = [one.detach().double().requires_grad_() for one in leaves]
        wanted = train(eager, wide, up.double(), causal=True)
        for name, mine, other in zip(names, train(ours, leaves, up, causal=True), wanted, strict=True):
            error = (mine.double() - other).abs().max() / other.abs().max()
            found[f"{name}, {str(dtype).removeprefix('torch.')}"] = float(error)
    return found


def main() -> None:
    """Measure and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 2048, 4096, 8192])
    parser.add_argument("--heads", type=int, default=1)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("this needs a GPU (a CUDA device), and there is none: not measured")
        return
    torch.manual_seed(0)
    result = {
        "device": torch.cuda.get_device_name(),
        "versions": {name: metadata.version(name) for name in ("torch", "triton", "regard")},
        "differences": differences(arguments.hidden, arguments.width),
        "runs": [
            measure(tokens, dtype, causal, arguments)
            for dtype in (torch.float32, torch.bfloat16)
            for causal in (False, True)
            for tokens in arguments.tokens
        ],
    }
    text = json.dumps(result, indent=2)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n", encoding="utf-8")
    wrong = [name for name, error in result["differences"].items() if error > (2e-2 if "bfloat16" in name else 2e-5)]
    if wrong:
        sys.exit(f"NOT right: {', '.join(wrong)} differ from float64")


if __name__ == "__main__":
    main()
