"""Causal attention in bfloat16 on a CUDA device: TFLOP/s of `regard.attention`, beside the card's matrix products.

    python benchmarks/dense_gpu.py [--tokens 512 … 131072] [--heads 32] [--width 128] [--out results.json]

Calls are timed in turn with products of 8,192 × 8,192 matrices, ends of the device's work waited for. Counted are the
useful operations, 2 · width for a pair in each of the two products. Figures: results/dense-h100.json.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

import regard
from regard.masks import Causal
from regard_bench.timing import in_turn

SIZES = [512, 2048, 8192, 32768, 131072]


def waited_for(call: Callable[[], object]) -> Callable[[], None]:
    """The call, and the end of what it has begun on the device."""

    def run() -> None:
        with torch.inference_mode():
            call()
        torch.cuda.synchronize()

    return run


def measure(n: int, heads: int, width: int) -> dict[str, float]:
    """TFLOP/s of both, medians, and their ratio."""
    q, k, v = torch.randn(3, 1, heads, n, width, device="cuda", dtype=torch.bfloat16)
    a, b = torch.randn(2, 8192, 8192, device="cuda", dtype=torch.bfloat16)
    sides = {
        "attention": waited_for(lambda: regard.attention(q, k, v, mask=Causal())),
        "products": waited_for(lambda: a @ b),
    }
    times = in_turn(sides, max_seconds=5.0)
    flops = {"attention": 4 * width * heads * n * (n + 1) / 2, "products": 2 * 8192**3}
    speed = {name: flops[name] / times.median(name) / 1e12 for name in sides}
    return {"tokens": n, **speed, "share": speed["attention"] / speed["products"]}


def main() -> None:
    """Measure and print; write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=SIZES)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this measures a CUDA device, and there is none here")
    rows = []
    for n in arguments.tokens:
        rows.append(row := measure(n, arguments.heads, arguments.width))
        print(f"{n:>8,} tokens  {row['attention']:7.1f} TFLOP/s  {row['share']:.0%} of products", flush=True)
    if arguments.out:
        made = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "date": time.strftime("%Y-%m-%d")}
        arguments.out.write_text(json.dumps({**made, "rows": rows}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
