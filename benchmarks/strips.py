"""What strips or native kernels cost, against the machine's limit and PyTorch's own ways, on CPU.

    python benchmarks/strips.py [CASE …] [--backend strips | native] [--repeats 5] [--quick] [--out results.json]

Cases: window, dropout, bias, additive, plan, longformer, bigbird (all by default). Heads 8, dim 64, float32. Times are
medians of one process with the sides of a ratio in turn; the limit is the time of matrix products of the same useful
FLOPs. Memory is the peak resident set of a process of its own, from just before the call, inputs and a small call
of the same kind done, to its end (Linux). Additive scores are computed by strips whatever the backend.
`results/blockwise-2-cores.json` is of the backend of 0.2 that strips replaced; the targets are those that it had.
"""

import argparse
import json
import math
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import regard
from regard import masks, positions, scores
from regard.backends import preferred
from regard.masks.block_plan import cover
from regard.values import tensors

HEADS, DIM = 8, 64
TARGETS = {
    "window": {"forward / limit": 2.0, "backward / forward": 3.5, "dense training / training": 8.0},
    "dropout": {"training / without": 2.5, "MB": 150},
    "bias": {"training / without": 2.0, "MB": 150},
    "additive": {"MB": 300},
    "plan": {"ms": 50, "MB": 50},
    "longformer": {"slope": 1.1},
    "bigbird": {"slope": 1.1},
}


def inputs(n: int, heads: int = HEADS) -> tuple[torch.Tensor, ...]:
    """q, k and v of one sequence."""
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(1, heads, n, DIM, generator=generator).requires_grad_() for _ in range(3))


def learned(options: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors of a call that want a gradient."""
    return [one for one in tensors(options) if one.requires_grad]


def forward(n: int, **options: Any) -> Callable[[], Any]:
    """One forward call, without gradients."""
    q, k, v = inputs(n)

    def call() -> Any:
        with torch.inference_mode():
            return regard.attention(q, k, v, **options)

    return call


def training(n: int, **options: Any) -> Callable[[], Any]:
    """Forward and backward."""
    q, k, v = inputs(n)
    up = torch.randn_like(v)
    return lambda: torch.autograd.grad(regard.attention(q, k, v, **options), (q, k, v, *learned(options)), up)


def seconds(*calls: Callable[[], Any], repeats: int) -> list[float]:
    """Median seconds of each, run in turn."""
    for call in calls:
        call()
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(repeats):
        for call, mine in zip(calls, times, strict=True):
            begin = time.perf_counter()
            call()
            mine.append(time.perf_counter() - begin)
    return [statistics.median(mine) for mine in times]


def limit(pairs: int) -> Callable[[], Any]:
    """Two matrix products with as many useful FLOPs as attention over so many pairs, in matrices that stay in cache."""
    a, b, c = torch.randn(1024, 1024), torch.randn(1024, 1024), torch.empty(1024, 1024)
    times = round(2 * pairs * DIM / 1024**3)
    return lambda: [torch.mm(a, b, out=c) for _ in range(times)]


def window(repeats: int, quick: bool) -> dict[str, float]:
    """A window of 512 over 8,192 tokens."""
    n, mask = (2048 if quick else 8192), masks.Causal() & masks.Window(512)
    pairs = HEADS * sum(min(512, i + 1) for i in range(n))
    ours, best, both = seconds(forward(n, mask=mask), limit(pairs), training(n, mask=mask), repeats=2 * repeats)
    (dense,) = seconds(training(n, mask=mask, backend="sdpa"), repeats=max(1, repeats // 2))
    return {
        "ms": 1e3 * ours,
        "limit ms": 1e3 * best,
        "forward / limit": ours / best,
        "backward / forward": (both - ours) / ours,
        "dense training / training": dense / both,
    }


def dropout(repeats: int, quick: bool) -> dict[str, float]:
    """Causal training with dropout 0.1 on the weights."""
    n, mask = (1024 if quick else 4096), masks.Causal()
    ours, plain = seconds(training(n, mask=mask, dropout=0.1), training(n, mask=mask), repeats=repeats)
    return {"s": ours, "training / without": ours / plain, "MB": extra_memory("dropout", n)}


def bias(repeats: int, quick: bool) -> dict[str, float]:
    """Causal training with a T5 bias table."""
    n, mask = (1024 if quick else 4096), masks.Causal()
    ours, plain = seconds(training(n, mask=mask, bias=t5()), training(n, mask=mask), repeats=repeats)
    return {"s": ours, "training / without": ours / plain, "MB": extra_memory("bias", n)}


def additive(repeats: int, quick: bool) -> dict[str, float]:
    """An additive score with a hidden layer of 64, one head, forward and backward."""
    n = 1024 if quick else 4096
    call = training_of("additive", n)
    (ours,) = seconds(call, repeats=1 if repeats < 3 else 2)
    return {"s": ours, "MB": extra_memory("additive", n)}


def plan(repeats: int, quick: bool) -> dict[str, float]:
    """Planning causal & window(4096) over a million tokens."""
    n = 100_000 if quick else 1_000_000
    bound = (masks.Causal() & masks.Window(4096)).bind(n, n)
    (ours,) = seconds(lambda: cover(bound, n, n, 128), repeats=repeats)
    return {"ms": 1e3 * ours, "MB": extra_memory("plan", n)}


def longformer(repeats: int, quick: bool) -> dict[str, float]:
    """A window of 512 on both sides together and one global token."""
    return growth(lambda _: masks.longformer(512, global_positions=[0]), repeats, quick)


def bigbird(repeats: int, quick: bool) -> dict[str, float]:
    """Blocks of 64: a window of 3, the first and the last, 3 random ones a row and head."""
    return growth(lambda _: masks.bigbird(heads=HEADS), repeats, quick)


def growth(make: Callable[[int], masks.Mask], repeats: int, quick: bool) -> dict[str, float]:
    """Times of training at growing lengths and the slope of log time over log length."""
    lengths = [1024, 2048, 4096] if quick else [4096, 16384, 65536]
    calls = [training(n, mask=make(n)) for n in lengths]
    times = [seconds(call, repeats=1 if repeats < 3 else 2)[0] for call in calls]
    slope = math.log(times[-1] / times[0]) / math.log(lengths[-1] / lengths[0])
    return {f"s at {n}": t for n, t in zip(lengths, times, strict=True)} | {"slope": slope}


def t5() -> positions.T5Bias:
    """A table of 32 buckets."""
    return positions.T5Bias(torch.randn(32, HEADS, requires_grad=True), bidirectional=False)


def training_of(case: str, n: int) -> Callable[[], Any]:
    """What a process of its own runs to measure memory."""
    if case == "dropout":
        return training(n, mask=masks.Causal(), dropout=0.1)
    if case == "bias":
        return training(n, mask=masks.Causal(), bias=t5())
    if case == "plan":
        bound = (masks.Causal() & masks.Window(4096)).bind(n, n)
        return lambda: cover(bound, n, n, 128)
    q, k, v = inputs(n, heads=1)
    w, u, vector = (torch.randn(*shape) / 8 for shape in ((64, DIM), (64, DIM), (64,)))
    score = scores.Additive(w.requires_grad_(), u.requires_grad_(), vector.requires_grad_())
    return lambda: regard.attention(q, k, v, score=score).sum().backward()


def extra_memory(case: str, n: int) -> float:
    """Peak MB of a process that makes one call, above what it held before."""
    command = [sys.executable, __file__, "--backend", preferred(), "--alone", case, str(n)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.strip().splitlines()[-1])


def alone(case: str, n: int) -> None:
    """Print the memory of one call."""
    training_of(case, 300)()
    call = training_of(case, n)
    before = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins anew
    call()
    status = Path("/proc/self/status").read_text(encoding="ascii")
    peak = 1024 * int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])
    print((peak - before) / 1e6)


CASES = {one.__name__: one for one in (window, dropout, bias, additive, plan, longformer, bigbird)}


def main() -> None:
    """Read the options and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}")
    parser.add_argument("--backend", choices=["strips", "native"], default="strips")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="short lengths, to see that it runs")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--alone", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    with regard.use_backend(arguments.backend):
        if arguments.alone:
            alone(arguments.alone[0], int(arguments.alone[1]))
        else:
            measure(parser, arguments)


def measure(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Measure the cases and print them; write JSON where asked."""
    if unknown := set(arguments.cases) - set(CASES):
        parser.error(f"no case {', '.join(sorted(unknown))}: choose of {', '.join(CASES)}")
    machine = {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
    }
    print(machine)
    results: dict[str, Any] = {"backend": arguments.backend, "machine": machine, "quick": arguments.quick}
    results["targets"] = TARGETS
    for name in arguments.cases or CASES:
        results[name] = CASES[name](arguments.repeats, arguments.quick)
        for what, value in results[name].items():
            target = TARGETS[name].get(what)
            most = "at least" if what.startswith("dense") else "at most"
            print(f"{name:11} {what:28} {value:10.3g}" + (f"   ({most} {target})" if target else ""))
    if arguments.out:
        arguments.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
