"""What a rank sends, counted where PyTorch sends it, and the order of what it sends and computes."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

from torch import distributed as dist

from regard.parallel.sharded_call import ShardedCall

MOVED = 2**16  # tags from here on are of rows that another rank computes


@dataclass(eq=False)
class Traffic:
    """The bytes that a rank sent to others, and a word for each step: "posted 1", "computed 0"."""

    bytes_sent: int = 0
    events: list[str] = field(default_factory=list)


@contextmanager
def count_traffic() -> Iterator[Traffic]:
    """Count what this rank sends inside, forward and backward."""
    traffic, send, rectangles = Traffic(), dist.batch_isend_irecv, ShardedCall.rectangles

    def counted(ops):
        traffic.bytes_sent += sum(op.tensor.nbytes for op in ops if op.op is dist.isend)
        if ops[0].tag < MOVED and ops[0].tag % 2 == 0:  # odd ones are of gradients that go back
            traffic.events.append(f"posted {ops[0].tag // 2}")
        return send(ops)

    def computed(self, now):
        traffic.events.append(f"computed {now.number}")
        return rectangles(self, now)

    with patch.object(dist, "batch_isend_irecv", counted), patch.object(ShardedCall, "rectangles", computed):
        yield traffic
