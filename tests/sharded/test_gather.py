"""What ranks have of a sequence that does not divide evenly comes together again; the ranks are made here."""

from types import SimpleNamespace

import pytest
import torch

from regard.parallel.sequence_parallel import SequenceShards


@pytest.mark.parametrize("rest", [(), (5,), (5, 2)])
@pytest.mark.parametrize("ranks", [2, 3])
def test_parts_of_unequal_length_are_gathered_in_order(ranks, rest):
    whole = torch.arange(2 * 7 * 10).view(2, 7, 10)[..., :1].squeeze(-1) if not rest else torch.randn(2, 7, *rest)
    sent = []
    for rank in range(ranks):
        own = SequenceShards(SimpleNamespace(rank=rank, ranks=ranks, gather=lambda x: sent.append(x) or [x] * ranks))
        own.gather(own.shard(whole))
    assert len({x.shape for x in sent}) == 1  # as collectives ask for
    for rank in range(ranks):
        own = SequenceShards(SimpleNamespace(rank=rank, ranks=ranks, gather=lambda x: sent))
        assert torch.equal(own.gather(own.shard(whole)), whole)
