"""Sending between the ranks of a group, posted ahead and waited for later."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch import distributed as dist

from regard.parallel.liveness import Liveness
from regard.parallel.sequence_layout import SequenceLayout

__all__ = ["Exchange", "Pending", "moves", "redistribute", "together"]


@dataclass(eq=False)
class Pending:
    """Messages on their way, each with the ranks that it depends on; tensors must live until they have arrived."""

    works: list[tuple[tuple[int, ...], "dist.Work"]]
    held: tuple[Tensor, ...]

    def wait(self) -> None:
        """Return when all have arrived.

        Raises:
            RankError: A rank is gone.
        """
        for ranks, work in self.works:
            Liveness.of_this_process().wait(work, ranks)


@dataclass(frozen=True, eq=False)
class Exchange:
    """The ranks of one process group, seen from one of them."""

    group: "dist.ProcessGroup | None"
    rank: int
    ranks: int

    @classmethod
    def alone(cls) -> "Exchange":
        """One rank that has all."""
        return cls(None, 0, 1)

    @classmethod
    def of(cls, group: "dist.ProcessGroup") -> "Exchange":
        """The exchange of a group."""
        return cls(group, dist.get_rank(group), dist.get_world_size(group))

    def post(self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor], tag: int) -> Pending:
        """Begin to send and receive a tensor to and from each of some ranks; empty ones are not sent.

        All ranks post in the same order.

        Raises:
            RankError: A rank is gone.
        """
        going = [(peer, x) for peer, x in sends.items() if x.numel()]
        coming = [(peer, x) for peer, x in receives.items() if x.numel()]
        ops = [dist.P2POp(dist.isend, x, group=self.group, tag=tag, group_peer=peer) for peer, x in going]
        ops += [dist.P2POp(dist.irecv, x, group=self.group, tag=tag, group_peer=peer) for peer, x in coming]
        ranks = [self.global_rank(peer) for peer, _ in (*going, *coming)]
        works = []
        if ops:
            with Liveness.of_this_process().names(ranks):  # who is gone before it is written to is found here
                works = dist.batch_isend_irecv(ops)
        each = [(one,) for one in ranks] if len(works) == len(ops) else [tuple(ranks)] * len(works)
        return Pending(list(zip(each, works, strict=True)), tuple(x for _, x in (*going, *coming)))

    def global_rank(self, rank: int) -> int:
        """The number that a rank of this group has among all processes."""
        return rank if self.group is None else dist.get_global_rank(self.group, rank)

    def together(self, begin: "Callable[[], dist.Work | None]", *held: Tensor) -> None:
        """Begin what all ranks do together, and wait for it.

        Raises:
            RankError: A rank is gone.
        """
        others = tuple(self.global_rank(rank) for rank in range(self.ranks) if rank != self.rank)
        with Liveness.of_this_process().names(others):
            work = begin()
        if work is not None:
            Pending([(others, work)], held).wait()

    def gather(self, x: Tensor) -> list[Tensor]:
        """The tensors of all ranks, of one shape."""
        parts = [torch.empty_like(x) for _ in range(self.ranks)]
        x = x.contiguous()
        self.together(lambda: dist.all_gather(parts, x, group=self.group, async_op=True), x, *parts)
        return parts

    def share(self, x: Tensor) -> None:
        """Give all ranks the tensor of the first one, in place."""
        self.together(lambda: dist.broadcast(x, group=self.group, group_src=0, async_op=True), x)

    def summed(self, x: Tensor) -> Tensor:
        """The sum over all ranks, as a new tensor."""
        return self.sum_over(x.clone())

    def sum_over(self, x: Tensor) -> Tensor:
        """The sum over all ranks, in place."""
        self.together(lambda: dist.all_reduce(x, group=self.group, async_op=True), x)
        return x

    def max_over(self, x: Tensor) -> Tensor:
        """The largest number of all ranks, in place."""
        self.together(lambda: dist.all_reduce(x, dist.ReduceOp.MAX, group=self.group, async_op=True), x)
        return x


def together(ranks: Sequence[int], send: Callable[[], Tensor]) -> Tensor:
    """Give what an operation of PyTorch gives that sends between these processes, and differentiates as it does.

    Raises:
        RankError: One of them is gone.
    """
    found: list[Tensor] = []
    learns = torch.is_grad_enabled()

    class Work:
        def wait(self) -> None:
            with torch.set_grad_enabled(learns):
                found.append(send())

    others = [rank for rank in ranks if rank != dist.get_rank()]
    if not others:
        return send()
    Liveness.of_this_process().wait(Work(), others)
    return found[0]


def moves(source: SequenceLayout, target: SequenceLayout, giver: int, taker: int) -> list[tuple[int, int, int]]:
    """What one rank gives another where a sequence is laid out anew: index at the giver, at the taker, and length."""
    found = []
    for theirs, to in target.places(taker):
        for mine, start in source.places(giver):
            top, bottom = max(mine.start, theirs.start), min(mine.stop, theirs.stop)
            if top < bottom:
                found.append((start + top - mine.start, to + top - theirs.start, bottom - top))
    return found


def redistribute(
    x: Tensor, dim: int, source: SequenceLayout, target: SequenceLayout, exchange: Exchange, tag: int
) -> Tensor:
    """Give the part of a sequence that `target` puts on this rank, of the parts as `source` has them."""
    if source == target:
        return x
    me = exchange.rank
    sizes = list(x.shape)
    sizes[dim] = target.sizes[me]
    result = x.new_empty(sizes)

    def parts(whole: Tensor, found: list[tuple[int, int, int]], end: int) -> list[Tensor]:
        return [whole.narrow(dim, one[end], one[2]) for one in found]

    others = [peer for peer in range(exchange.ranks) if peer != me]
    going = {peer: moves(source, target, me, peer) for peer in others}
    coming = {peer: moves(source, target, peer, me) for peer in others}
    sends = {peer: torch.cat(parts(x, found, 0), dim).contiguous() for peer, found in going.items() if found}
    arriving = {}
    for peer, found in coming.items():
        if found:
            sizes[dim] = sum(one[2] for one in found)
            arriving[peer] = x.new_empty(sizes)
    pending = exchange.post(sends, arriving, tag)
    own = moves(source, target, me, me)
    for to, part in zip(parts(result, own, 1), parts(x, own, 0), strict=True):
        to.copy_(part)
    pending.wait()
    for peer, whole in arriving.items():
        pieces = whole.split([one[2] for one in coming[peer]], dim)
        for to, part in zip(parts(result, coming[peer], 1), pieces, strict=True):
            to.copy_(part)
    return result
