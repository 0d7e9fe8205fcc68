"""One layer of a very long text: 131,072 tokens, 8 heads of 64, causal; its atlas with q and k, and one weight of it.

    python benchmarks/long_layer.py [--tokens 131072] [--heads 8] [--window 0] [--out results.json]

The weight that is read through `Matrix` is compared with the one computed by hand in float64 numpy. Memory is the peak
resident set of the whole process, interpreter and libraries in it (Linux).
"""

import argparse
import json
import platform
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import regard
from regard.masks import Causal, Window
from regard.record.tiles import Matrix
from regard.tensors import human_bytes

MEMORY = 2 * 2**30  # at most, in all
WIDTH = 64


class Layer(nn.Module):
    """One call over given queries and keys, which are the values too."""

    def __init__(self, tokens: int, heads: int, window: int) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        self.q, self.k = (torch.randn(1, heads, tokens, WIDTH, generator=draw) for _ in "qk")
        self.window = window

    def forward(self) -> None:
        """What it gives is not looked at."""
        if self.window:
            regard.attention(self.q, self.k, self.k, mask=Causal() & Window(self.window))
        else:
            functional.scaled_dot_product_attention(self.q, self.k, self.k, is_causal=True)


def by_hand(layer: Layer, head: int, query: int, key: int) -> float:
    """softmax(q·k / √d) of one row, in float64."""
    first = max(0, query + 1 - layer.window) if layer.window else 0
    q, k = layer.q[0, head, query].double().numpy(), layer.k[0, head, first : query + 1].double().numpy()
    scores = k @ q / np.sqrt(WIDTH)
    powers = np.exp(scores - scores.max())
    return float(powers[key - first] / powers.sum())


def main() -> None:
    """Measure and print; write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=131_072)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--window", type=int, default=0, help="of keys that a query sees; 0: all before it")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    layer = Layer(arguments.tokens, arguments.heads, arguments.window)
    with tempfile.TemporaryDirectory() as folder:
        atlas = Path(folder) / "it.atlas"
        begin = time.perf_counter()
        with torch.inference_mode():
            layer()
        plain = time.perf_counter() - begin
        with torch.inference_mode(), regard.watch(layer, keep="qk") as seen:
            layer()
        seen.save(atlas)
        both = time.perf_counter() - begin - plain
        size, peak = atlas.stat().st_size, peak_bytes()
        stored = regard.load_atlas(atlas).layers[0]
        query, head = arguments.tokens - 7, arguments.heads - 1
        key = int(stored.top_keys[0, head, query, 2])
        matrix = Matrix(stored, head)
        begin = time.perf_counter()
        found = matrix.weight(query, key)
        seconds = time.perf_counter() - begin
        begin = time.perf_counter()
        matrix.tile(slice(0, 256), slice(0, 256))
        tile = time.perf_counter() - begin
    wanted = by_hand(layer, head, query, key)
    result = {
        "tokens": arguments.tokens,
        "heads": arguments.heads,
        "window": arguments.window,
        "plain_seconds": plain,
        "watched_and_written_seconds": both,
        "atlas_bytes": size,
        "peak_bytes": peak,
        "weight": found,
        "by_hand": wanted,
        "first_weight_seconds": seconds,
        "tile_seconds": tile,
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "date": time.strftime("%Y-%m-%d"),
    }
    print(f"{arguments.tokens:,} tokens, {arguments.heads} heads of {WIDTH}, {result['machine']}")
    print(f"plain {plain:.1f} s; watched and written {both:.1f} s; atlas {human_bytes(size)}; peak {human_bytes(peak)}")
    print(f"weight of query {query:,} and key {key:,}: {found:.9f}, by hand {wanted:.9f}; read in {seconds:.3f} s")
    print(f"a tile of 256 × 256 weights: {tile:.3f} s")
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if peak > MEMORY or abs(found - wanted) > 1e-5 * max(wanted, 1e-9):
        sys.exit("NOT as asked for: at most 2 GiB and the weight to 1e-5, relative")


def peak_bytes() -> int:
    """The largest resident set so far."""
    status = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in status if line.startswith("VmHWM")).split()[1])


if __name__ == "__main__":
    main()
