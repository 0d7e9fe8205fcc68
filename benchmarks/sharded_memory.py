"""How much memory does a rank take of a sequence that is sharded over several?

    python benchmarks/sharded_memory.py [--ranks 4] [--heads 8] [--tokens 65536] [--window 2048] [--watch]

One process computes the call alone with `strips`, then each of the ranks its part: causal with a window, heads of
64, forward and backward, one thread each; with --watch forward alone, under regard.watch. Printed is what the resident
set was at its peak above what it was before q, k and v were made, in MiB, and the seconds that it took. Linux alone,
which can reset the peak of a process.
"""

import argparse
import multiprocessing
import tempfile
import time
from pathlib import Path
from typing import Any


def resident(which: str) -> float:
    """Return a line of this process's status ("VmRSS", or its peak "VmHWM") in MiB."""
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(which))


def measure(rank: int, asked: argparse.Namespace, ranks: int, store: str, found: Any) -> None:
    """Put the peak of one rank into a queue."""
    import torch
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    import regard
    from regard import masks

    torch.set_num_threads(1)
    mesh: Any = None
    if ranks > 1:
        distributed.init_process_group("gloo", store=distributed.FileStore(store, ranks), rank=rank, world_size=ranks)
        mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("sequence",))

    def made(tokens: int) -> Any:
        x = torch.randn(1, asked.heads, tokens // ranks, 64)
        return x if mesh is None else DTensor.from_local(x, mesh, [Shard(2)])

    class Attends(torch.nn.Module):
        def forward(self, *tensors: Any) -> Any:
            return regard.attention(*tensors, mask=masks.Causal() & masks.Window(asked.window), backend="strips")

    def train(tokens: int) -> None:
        q, k, v = (made(tokens).detach().requires_grad_() for _ in range(3))
        Attends()(q, k, v).backward(made(tokens))

    def watch(tokens: int) -> None:
        model = Attends()
        with torch.no_grad(), regard.watch(model):
            model(*(made(tokens) for _ in range(3)))

    run = watch if asked.watch else train
    run(256 * ranks)  # whatever is loaded by the first call
    before, began = resident("VmRSS"), time.perf_counter()
    Path("/proc/self/clear_refs").write_text("5", "utf-8")
    run(asked.tokens)
    found.put((rank, resident("VmHWM") - before, time.perf_counter() - began))
    if ranks > 1:
        distributed.barrier()
        distributed.destroy_process_group()


def measured(asked: argparse.Namespace, ranks: int) -> list[tuple[float, float]]:
    """Return the peak of each rank, and its seconds."""
    spawn = multiprocessing.get_context("spawn")
    found: Any = spawn.Queue()
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder, "store"))
        started = [spawn.Process(target=measure, args=(rank, asked, ranks, store, found)) for rank in range(ranks)]
        for one in started:
            one.start()
        results = sorted(found.get(timeout=600) for _ in started)
        for one in started:
            one.join()
    return [(peak, seconds) for _, peak, seconds in results]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=65536)
    parser.add_argument("--window", type=int, default=2048)
    parser.add_argument("--watch", action="store_true")
    asked = parser.parse_args()
    ((alone, seconds),), several = measured(asked, 1), measured(asked, asked.ranks)
    each = ", ".join(f"{peak:,.0f} MiB in {took:.1f} s" for peak, took in several)
    print(f"one process: {alone:,.0f} MiB in {seconds:.1f} s; each of {asked.ranks} ranks: {each}")
    low, high = (one * asked.ranks / alone for one in (min(several)[0], max(several)[0]))
    print(f"{low:.2f} to {high:.2f} × one process's / ranks")


if __name__ == "__main__":
    main()
