"""Several processes: `worker.py RANKS FOLDER PROGRAM`; each writes what the program finds to FOLDER.

The ranks are forked once everything is imported, which takes longer than some of the programs.
"""

import faulthandler
import os
import signal
import socket
import sys
import traceback
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch._dynamo  # each rank would import it with its first DTensor
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parent)]

import members  # noqa: E402
import tiny_llama  # noqa: E402
import trained_runs  # noqa: E402
import watched_calls  # noqa: E402
from members import distribute_tensor  # noqa: E402
from processes import TRAINED, WATCHED  # noqa: E402
from traffic import count_traffic  # noqa: E402

import regard  # noqa: E402
from regard.parallel import ShardedKVCache  # noqa: E402


def compute_contract(mesh, folder):
    """Every call of the contract, and what was sent for the plain ones."""

    def distribute(x):
        return distribute_tensor(x, mesh, [Shard(2)]).requires_grad_()

    rank, ranks = mesh.get_rank(), mesh.size()
    for name, call in members.calls(ranks).items():
        torch.manual_seed(rank)  # ranks need not agree
        with count_traffic() as traffic:
            found = members.computed(call, distribute)
        np.savez(folder / f"{name}.{rank}.npz", **found, bytes=traffic.bytes_sent, events=np.array(traffic.events))
    if ranks % 2 == 0:
        axes = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("other", "sequence"))
        for name, call in members.calls_over_axes().items():
            dim, _ = members.AXES[name]

            def distribute_twice(x, dim=dim):
                return distribute_tensor(x, axes, [Shard(dim), Shard(2)]).requires_grad_()

            np.savez(folder / f"{name}.{rank}.npz", **members.computed(call, distribute_twice))

    compute_orders(mesh, folder)
    compute_decoding(mesh, folder)
    compute_replicated(mesh, folder)
    compute_rows(mesh, folder)
    if ranks in WATCHED:
        compute_watched(mesh, folder / "watched")
    if ranks in TRAINED:
        trained_runs.compute_trained(mesh, folder / "trained")


def compute_orders(mesh, folder):
    """Queries, keys and values in the order that makes the work of a mask even."""
    for name, mask in members.ORDERS.items():
        given, up = members.ordered()
        shards = [regard.shard_sequence(x, mesh, mask, dim=2) for x in given]
        leaves = [one.tensor.detach().requires_grad_() for one in shards]
        with count_traffic() as traffic:
            out = regard.attention(*leaves, mask=shards[0].mask, bias=members.slopes())
            out.backward(regard.shard_sequence(up, mesh, mask, dim=2).tensor)
        found = {"output": shards[0].restore(out)}
        found |= {of: shards[0].restore(one.grad) for of, one in zip("qkv", leaves, strict=True)}
        arrays = {what: one.detach().numpy() for what, one in found.items()}
        np.savez(folder / f"order: {name}.{mesh.get_rank()}.npz", **arrays, bytes=traffic.bytes_sent)


def compute_decoding(mesh, folder):
    """A prompt and some tokens, against a cache over the ranks; and DTensors of which every rank has all queries."""
    for name, options in members.DECODING.items():
        q, k, v = members.decoded()
        cache, found = ShardedKVCache(mesh), []
        with torch.no_grad():
            for start, end in members.STEPS:
                cache.update(k[:, :, start:end], v[:, :, start:end])
                found.append(cache.attend(q[:, :, start:end], **options(end)))
            shards = [
                distribute_tensor(x, mesh, [where])
                for x, where in zip((q[:, :, -3:], k, v), (Replicate(), Shard(2), Shard(2)), strict=True)
            ]
            out = regard.attention(*shards, return_lse=True, **options(k.shape[2]))
        np.savez(
            folder / f"decoding: {name}.{mesh.get_rank()}.npz", steps=torch.cat(found, 2).numpy(),
            last=out[0].to_local().numpy(), lse=out[1].to_local().numpy(), sizes=np.array(cache.layout.sizes),
        )  # fmt: skip


def compute_replicated(mesh, folder):
    """Queries over the ranks, of which each has all keys and values."""
    (q, k, v), up = members.ordered()
    leaves = [
        distribute_tensor(x, mesh, [where]).requires_grad_()
        for x, where in zip((q, k, v), (Shard(2), Replicate(), Replicate()), strict=True)
    ]
    out = regard.attention(*leaves, mask=members.ORDERS["window"])
    out.backward(distribute_tensor(up, mesh, [Shard(2)]))
    found = {"output": out} | {of: one.grad for of, one in zip("qkv", leaves, strict=True)}
    arrays = {what: one.full_tensor().detach().numpy() for what, one in found.items()}
    np.savez(folder / f"replicated.{mesh.get_rank()}.npz", **arrays)


def compute_rows(mesh, folder):
    """Rows of texts and padding, read by a model inside `sequence_parallel`."""

    def over_ranks(model, call):
        with regard.sequence_parallel(model, mesh["sequence"]) as shards:
            return shards.gather(call())

    for row in members.ROWS:
        np.savez(folder / f"rows: {row}.{mesh.get_rank()}.npz", states=members.read(row, over_ranks).numpy())


def compute_llama(mesh, folder):
    """transformers' Llama over the shards of its sequence."""
    for padded in (False, True):
        model = tiny_llama.llama()
        with regard.sequence_parallel(model, mesh["sequence"]) as shards:
            output = model(**tiny_llama.inputs(padded=padded))
            found = tiny_llama.found(model, output, shards.gather)
        np.savez(folder / f"llama-{padded}.{mesh.get_rank()}.npz", **found)
    watch_llama(mesh, partial(save_record, mesh, folder / "watched"))


def compute_long(mesh, folder):
    """4,096 tokens in float32."""
    for name, mask in members.LONG.items():
        found = members.long(mask, lambda x: distribute_tensor(x, mesh, [Shard(2)]))
        np.savez(folder / f"{name}.{mesh.get_rank()}.npz", **found)


def save_record(mesh, folder, name, seen, *, unchanged=True):
    """Write an atlas, and the arrays beside it: an atlas rounds maps of long texts to 16 bits."""
    folder.mkdir(exist_ok=True)
    seen.save(folder / f"{name}.{mesh.get_rank()}.atlas")
    seen.save(folder / f"{name}.atlas")  # by all ranks at once
    arrays = {f"{at} {of}": getattr(one, of) for at, one in enumerate(seen.layers) for of in watched_calls.FIELDS}
    np.savez(folder / f"{name}.{mesh.get_rank()}.npz", **arrays)
    if not unchanged:
        (folder / f"{name}.{mesh.get_rank()}.changed").touch()


def compute_watched(mesh, folder):
    """What the ranks see of calls, each in an atlas of its own, and whether outputs are those without a watch."""
    save = partial(save_record, mesh, folder)
    for name in watched_calls.CASES:
        case = watched_calls.CASES[name]
        shards = [distribute_tensor(x, mesh, [Shard(2)]) for x in case.tensors()]
        seen, unchanged = watched_calls.observed(case, *shards)
        save(name, seen, unchanged=unchanged)
    for name, case in watched_calls.ORDERS.items():
        shards = [regard.shard_sequence(x, mesh, case.options()["mask"], dim=2) for x in case.tensors()]
        seen, unchanged = watched_calls.observed(case, *(one.tensor for one in shards), mask=shards[0].mask)
        save(name, seen, unchanged=unchanged)
    case = watched_calls.CASES[watched_calls.REPLICATED]
    where = zip(case.tensors(), (Replicate(), Shard(2), Shard(2)), strict=True)
    seen, unchanged = watched_calls.observed(case, *(distribute_tensor(x, mesh, [at]) for x, at in where))
    save("replicated", seen, unchanged=unchanged)
    if mesh.size() % 2 == 0:
        axes = init_device_mesh("cpu", (2, mesh.size() // 2), mesh_dim_names=("other", "sequence"))
        for name, (of, dim) in watched_calls.AXES.items():
            case = watched_calls.CASES[of]
            shards = [distribute_tensor(x, axes, [Shard(dim), Shard(2)]) for x in case.tensors()]
            seen, unchanged = watched_calls.observed(case, *shards)
            save(name, seen, unchanged=unchanged)
    model, ids = watched_calls.CallsPyTorch().double(), watched_calls.CallsPyTorch.IDS
    with torch.no_grad(), regard.sequence_parallel(model, mesh["sequence"]):
        plain = model(ids)
        with regard.watch(model, statistics=["induction"]) as inside:
            output = model(ids)
    save("watch inside", inside, unchanged=torch.equal(plain, output))
    watch = regard.watch(model, statistics=["induction"])
    with torch.inference_mode(), watch as outside, regard.sequence_parallel(model, mesh["sequence"]):
        output = model(ids)
        model(ids)
    save("watch outside", outside[0], unchanged=torch.equal(plain, output))
    save("second pass", outside[1])


def watch_llama(mesh, save):
    """transformers' Llama over the shards of its sequence, with the watch outside and inside."""
    model, given = tiny_llama.llama().eval(), tiny_llama.inputs(padded=False)
    with regard.sequence_parallel(model, mesh["sequence"]):
        plain = model(**given)
    with regard.watch(model, **tiny_llama.WATCH) as seen, regard.sequence_parallel(model, mesh["sequence"]):
        output = model(**given)
        output.loss.backward()
    save("llama", seen, unchanged=torch.equal(plain.logits, output.logits))
    with regard.sequence_parallel(model, mesh["sequence"]), regard.watch(model, **tiny_llama.WATCH) as seen:
        output = model(**given)
    save("llama, watch inside", seen, unchanged=torch.equal(plain.logits, output.logits))


def close_connections(mesh, folder):
    """Rank 1 closes its connections in the middle, the first time that the program is run."""
    dist.barrier()  # a rank that is still connecting would wait for one that has closed for as long as its timeout
    if mesh.get_rank() == 1 and not (closed := folder.with_name("closed")).exists():
        closed.touch()
        for file in os.listdir("/proc/self/fd"):
            with suppress(OSError), socket.socket(fileno=os.dup(int(file))) as one:
                if not one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    one.shutdown(socket.SHUT_RDWR)
    dist.all_reduce(torch.ones(1))
    (folder / f"summed.{mesh.get_rank()}").touch()


def fail_on_one(mesh, folder):
    """Rank 1 fails by itself, and the others with it."""
    with (folder.parent / "tries").open("a") as tries:
        tries.write(f"{mesh.get_rank()} ")
    if mesh.get_rank() == 1:
        raise ValueError("rank 1 has found a fault")
    dist.all_reduce(torch.ones(1))


PROGRAMS = {
    "connections close once": close_connections,
    "one fails": fail_on_one,
    "contract": compute_contract,
    "llama": compute_llama,
    "long": compute_long,
}


def main(rank, ranks, folder, program):
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    PROGRAMS[program](init_device_mesh("cpu", (ranks,), mesh_dim_names=("sequence",)), folder)
    dist.barrier()
    dist.destroy_process_group()


def fork(rank, *job):
    """Run `main` in a process of its own, whose output goes to a file; return its number."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        with (job[1] / f"log.{rank}").open("w") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        main(rank, *job)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def wait_for(children, *, folder):
    """Whether a rank failed; `failed` tells how each one ended, in the order of time."""
    waited = dict(children)
    failed = False
    while waited:
        child, status = os.wait()
        rank = waited.pop(child, None)
        if status and rank is not None:
            failed = True
            code = os.waitstatus_to_exitcode(status)
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
            with (folder / "failed").open("a") as file:
                file.write(f"{rank} {how}\n")
    return failed


if __name__ == "__main__":
    faulthandler.enable()
    job = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    if job[2] == "llama":
        import transformers.models.llama.modeling_llama  # noqa: F401
    sys.exit(wait_for({fork(rank, *job): rank for rank in range(job[0])}, folder=job[1]))
