"""What ranks have of a sequence that does not divide evenly comes together again; the ranks are made here."""

import itertools
from types import SimpleNamespace

import torch

from regard.parallel.sequence_parallel import SequenceShards
from sweeps import sweep


def test_parts_of_unequal_length_are_gathered_in_order():
    for case in sweep(itertools.product([2, 3], [(), (5,), (5, 2)])):
        with case as (ranks, rest):
            _check(ranks, rest)


def _check(ranks, rest):
    whole = torch.arange(2 * 7 * 10).view(2, 7, 10)[..., :1].squeeze(-1) if not rest else torch.randn(2, 7, *rest)
    sent = []
    for rank in range(ranks):
        own = SequenceShards(SimpleNamespace(rank=rank, ranks=ranks, gather=lambda x: sent.append(x) or [x] * ranks))
        own.gather(own.shard(whole))
    assert len({x.shape for x in sent}) == 1  # as collectives ask for
    for rank in range(ranks):
        own = SequenceShards(SimpleNamespace(rank=rank, ranks=ranks, gather=lambda x: sent))
        assert torch.equal(own.gather(own.shard(whole)), whole)
