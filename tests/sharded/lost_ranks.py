"""A rank that is lost in the middle, in every situation at once: `lost_ranks.py FOLDER HOW`, a group of 3 for each.

One rank kills or stops itself where `SITUATIONS` ask it to: while it computes the scores of a rectangle, in the
forward, the backward, a watched call or a step of decoding; at the gradient of a parameter; or before what all ranks do
together. The others write what they get to know, and when. Everything is imported once, and groups are forked.
"""

import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch._dynamo  # each rank would import it with its first DTensor
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import regard
from regard.errors import RankError
from regard.masks import Causal, Window
from regard.parallel import ShardedKVCache
from regard.scores import Score

RANKS = 3
TOKENS = 96


class Loss:
    """Counts what a rank computes, and loses one at one of these."""

    def __init__(self, how: int, folder: Path, rank: int) -> None:
        self.how, self.folder, self.rank = how, folder, rank
        self.left: int | None = None  # rectangles until it is lost

    def count(self) -> None:
        """Count a rectangle of scores."""
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                self.now()

    def now(self) -> None:
        """Lose the rank, if it is this one."""
        if dist.get_rank() == self.rank:
            (self.folder / "lost").write_text(str(time.time()))
            os.kill(os.getpid(), self.how)


@dataclass(frozen=True, eq=False)
class _Counted(Score):
    """A score of one's own that counts the rectangles which it is asked for."""

    loss: Loss
    softcap: float | None = None

    def tile(self, q: Tensor, k: Tensor, i: Tensor, j: Tensor) -> Tensor:
        self.loss.count()
        return q @ k.mT


def _vectors(mesh, **options):
    where = [Shard(2)]
    return [distribute_tensor(torch.randn(1, 2, TOKENS, 8), mesh, where, **options).requires_grad_() for _ in range(3)]


def _attend(loss, vectors, mask=None):
    return regard.attention(*vectors, mask=mask, score=_Counted(loss))


def _rectangles(loss, run):
    """How many rectangles a run computes on this rank."""
    loss.left = 1_000_000
    run()
    count, loss.left = 1_000_000 - loss.left, None
    return count


def forward_first(loss, mesh):
    """In the first rectangle of its rows: the keys of the next round are on their way."""
    vectors = _vectors(mesh)
    _attend(loss, vectors)
    loss.left = 0
    _attend(loss, vectors)


def forward_last(loss, mesh):
    """In the last rectangle of its rows, which it computes for rank 0; rank 1 may find it a call later."""
    vectors = _vectors(mesh)
    count = _rectangles(loss, lambda: _attend(loss, vectors, Causal()))
    loss.left = count - 1
    for _ in range(3):
        _attend(loss, vectors, Causal())


def backward(loss, mesh):
    """In the second rectangle of the backward: it owes keys and the gradients of keys."""
    vectors = _vectors(mesh)
    output = _attend(loss, vectors).to_local().sum()
    loss.left = 1
    output.backward()


class _Attends(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, *vectors):
        return regard.attention(*vectors, **self.options)


def watched(loss, mesh):
    """After the output, while statistics are computed."""
    vectors = [one.detach() for one in _vectors(mesh)]
    count = _rectangles(loss, lambda: _attend(loss, vectors))
    loss.left = count
    model = _Attends(score=_Counted(loss))
    with regard.watch(model, statistics=["distance"]):
        model(*vectors)


def watched_kept(loss, mesh):
    """Before queries and keys are gathered on all ranks."""
    vectors = [one.detach() for one in _vectors(mesh)]
    model = _Attends()
    with regard.watch(model, keep="qk"):
        for _ in range(3):
            model(*vectors)
        loss.now()
        model(*vectors)


def decoding(loss, mesh):
    """In a step of decoding against a cache over the ranks."""
    cache = ShardedKVCache(mesh)
    with torch.no_grad():
        for step in range(40):
            x = torch.randn(1, 2, 6 if step == 0 else 1, 8)
            cache.update(x, x)
            loss.left = 0 if step == 20 else None
            cache.attend(x, mask=Causal(), score=_Counted(loss))


def replicated_queries(loss, mesh):
    """In a call of queries that every rank has whole."""
    _, k, v = (one.detach() for one in _vectors(mesh))
    q = distribute_tensor(torch.randn(1, 2, 3, 8), mesh, [Replicate()])
    with torch.no_grad():
        _attend(loss, (q, k, v))
        loss.left = 0
        _attend(loss, (q, k, v))


def dropout_seed(loss, mesh):
    """Before the ranks share the seed of the dropout, which rank 0 gives."""
    vectors = _vectors(mesh)
    for step in range(5):
        if step == 2:
            loss.now()
        regard.attention(*vectors, dropout=0.5)


class _Projects(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.projection = nn.Linear(8, 24)

    def forward(self, inputs_embeds):
        q, k, v = self.projection(inputs_embeds)[:, None].chunk(3, -1)
        return regard.attention(q, k, v, mask=Causal())


def model_forward(loss, mesh):
    """Before a step of a model inside `sequence_parallel`."""
    model = _Projects()
    x = torch.randn(1, TOKENS, 8)
    with regard.sequence_parallel(model, mesh):
        for step in range(5):
            if step == 2:
                loss.now()
            model(inputs_embeds=x).sum().backward()


def model_gradients(loss, mesh):
    """At the gradient of a parameter, which is summed over the ranks."""
    model = _Projects()
    x = torch.randn(1, TOKENS, 8)
    model.projection.bias.register_hook(lambda _: loss.now())
    with regard.sequence_parallel(model, mesh):
        model(inputs_embeds=x).sum().backward()


def model_gather(loss, mesh):
    """Before the outputs of a model are gathered."""
    model = _Projects()
    with regard.sequence_parallel(model, mesh) as shards, torch.no_grad():
        output = model(inputs_embeds=torch.randn(1, TOKENS, 8))
        loss.now()
        shards.gather(output.movedim(1, 2))


def sharding(loss, mesh):
    """Before a sequence is sharded in the order of a mask, and before one of its results is restored."""
    x = torch.randn(1, 2, TOKENS, 8)
    for step in range(5):
        if step == 2:
            loss.now()
        shards = regard.shard_sequence(x, mesh, Causal(), dim=2)
        shards.restore(shards.tensor)


def while_busy(loss, mesh):
    """Before a call, to which the others come when its connections are closed already."""
    vectors = _vectors(mesh)
    _attend(loss, vectors)
    loss.now()
    time.sleep(3)
    _attend(loss, vectors)


def chain(loss, mesh):
    """Of a window: rank 1 waits for rank 0, which is lost, and rank 2 for rank 1, which fails for that."""
    vectors = [x.detach() for x in _vectors(mesh)]
    for step in range(100_000):
        if step == 5:
            loss.now()
        regard.attention(*vectors, mask=Causal() & Window(16))


def keeper_of_the_store(loss, mesh):
    """The same where the store, in which ranks say whom they have lost, ends with rank 0."""
    chain(loss, mesh)


SITUATIONS: dict[str, Callable] = {
    one.__name__: one
    for one in (
        forward_first, forward_last, backward, watched, watched_kept, decoding, replicated_queries, dropout_seed,
        model_forward, model_gradients, model_gather, sharding, while_busy, chain, keeper_of_the_store,
    )
}  # fmt: skip


def lost_rank(name):
    """Which rank is lost in a situation."""
    return 0 if name in ("chain", "keeper_of_the_store") else 2


def _store(rank, folder, name, port):
    if name == "keeper_of_the_store":
        return dist.TCPStore("127.0.0.1", port, RANKS, is_master=rank == 0)
    return dist.FileStore(str(folder / "store"), RANKS)


def _free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def _run(rank, folder, how, name, port):
    """Run a situation on one rank; write what it gets to know."""
    code = 1
    try:
        with (folder / f"log.{rank}").open("w") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        torch.set_num_threads(1)
        store = _store(rank, folder, name, port)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
        mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("sequence",))
        SITUATIONS[name](Loss(how, folder, lost_rank(name)), mesh)
        (folder / f"said.{rank}").write_text(f"{time.time()} nothing")
        code = 0
    except RankError as error:
        (folder / f"said.{rank}").write_text(f"{time.time()} {error}")
        code = 0
    except BaseException as error:
        (folder / f"said.{rank}").write_text(f"{time.time()} {type(error).__name__}: {error}")
        traceback.print_exc()
    finally:
        os._exit(code)


def main(folder, how, seconds, names):
    """Run all situations at once, and end what is left of them after so many seconds."""
    children, port = {}, _free_port()
    for name in names:
        (folder / name).mkdir()
        for rank in range(RANKS):
            child = os.fork()
            if not child:
                _run(rank, folder / name, how, name, port)
            children[child] = rank != lost_rank(name)
    until = time.monotonic() + seconds
    try:
        while time.monotonic() < until and any(children.values()):
            child, _ = os.waitpid(-1, os.WNOHANG)
            children.pop(child, None)
            time.sleep(0 if child else 0.1)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:] or list(SITUATIONS))
