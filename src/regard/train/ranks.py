"""The processes of a run: some share out the rows of a step, `context_parallel_size` of them the tokens of each row.

All of them have the whole model, and gradients are averaged by DistributedDataParallel over all: a mesh of ("data",
"sequence"), whose sequence axis is contiguous.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from regard.errors import InputError
from regard.parallel.exchange import Exchange
from regard.parallel.sequence_parallel import shard_calls
from regard.train.loss_and_optimizer import OneProcess

__all__ = ["Ranks"]


class Ranks(OneProcess):
    """The processes of a run, seen from one of them.

    Args:
        accelerator: accelerate's, after which the process group exists.
        sequence_ranks: How many processes share the tokens of each row.

    Raises:
        InputError: The number of processes is no multiple of it.
    """

    def __init__(self, accelerator: Any, sequence_ranks: int) -> None:
        count, device = accelerator.num_processes, accelerator.device
        if count % sequence_ranks:
            raise InputError(
                f"`training.context_parallel_size` is {sequence_ranks}, and must divide the number of processes, which "
                f"is {count}: start torchrun --nproc-per-node {sequence_ranks} -m regard train FILE, or set "
                "context_parallel_size = 1"
            )
        self.sequence_ranks, self.data_ranks = sequence_ranks, count // sequence_ranks
        self.data_rank = accelerator.process_index // sequence_ranks
        self._sequence, self._accelerator = Exchange.alone(), accelerator
        if sequence_ranks > 1:
            sizes = self.data_ranks, sequence_ranks
            mesh = init_device_mesh(device.type, sizes, mesh_dim_names=("data", "sequence"))
            self._sequence = Exchange.of(mesh["sequence"].get_group())
        # Where gloo would wait for half an hour for a process that is stopped, what is sent is watched.
        everyone = dist.group.WORLD
        self._everyone = Exchange.of(everyone) if everyone is not None and device.type == "cpu" else None

    def sum(self, x: Tensor) -> Tensor:
        """Return the sum over all processes."""
        total: Tensor = self._accelerator.reduce(x) if self._everyone is None else self._everyone.summed(x)
        return total

    def sum_parts(self, x: Tensor) -> Tensor:
        """Return the sum over the processes that share the tokens of a row."""
        return x if self.sequence_ranks == 1 else self._sequence.summed(x)

    @contextmanager
    def over(self, model: nn.Module) -> Iterator[Callable[[Tensor], Tensor]]:
        """Run a model on this process's tokens inside; give what cuts its labels out of those of whole rows."""
        if self.sequence_ranks == 1:
            with super().over(model) as cut:
                yield cut
        else:
            with shard_calls(model, self._sequence) as shards:
                yield shards.shard

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Let the first process go through before the others, which name it where it fails."""
        if not self._accelerator.is_main_process:
            self.meet()
        yield
        if self._accelerator.is_main_process:
            self.meet()

    def meet(self) -> None:
        """Return when all processes are here."""
        self.sum(torch.zeros((), device=self._accelerator.device))

    def prepare(self, model: nn.Module) -> None:
        """Let gradients be averaged by what names a process that is lost; buffers stay the same in every step."""
        if isinstance(model, DistributedDataParallel) and self._everyone is not None:
            model.register_comm_hook(self._everyone, _average)
            model.broadcast_buffers = False


def _average(everyone: Exchange, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # type: ignore[name-defined]
    averaged: torch.futures.Future[Tensor] = torch.futures.Future()
    averaged.set_result(everyone.sum_over(bucket.buffer().div_(everyone.ranks)))
    return averaged
