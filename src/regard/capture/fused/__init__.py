"""Experimental: the second pass as two fused kernels, on CUDA and only on request (as the backend "triton").

`refuses` returns why they do not support a call with the requested statistics; `portions` processes a call with them;
`observe` is the pass over q and k. Tested under Triton's interpreter on a CPU, and run on an H100 against
eager attention (benchmarks/on_cuda.py).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from regard.backends.kernel_compilers import refuses_triton
from regard.capture.fused.sweep import MOST_DIM, MOST_STRONGEST, Band, Bins, Blocks, Found, observe
from regard.capture.statistics import Entropy, Extent, HeatMap, Received, Statistic, Top
from regard.capture.statistics.default_statistics import bin_width
from regard.capture.watched_call import WatchedCall
from regard.capture.weight_rows import RowBlock
from regard.capture.weights_from_qk import CallFromQK
from regard.masks.causal_and_window import band_of
from regard.normalizers import Softmax
from regard.problem import Problem

__all__ = ["Band", "Bins", "Blocks", "Found", "FusedRows", "observe", "portions", "refuses"]


def refuses(call: WatchedCall, statistics: Sequence[Statistic]) -> str | None:
    """Return why the fused pass does not support a call with these statistics, or None if it does."""
    if not isinstance(call, CallFromQK):
        return "the model computed its weights itself"
    if call.head_numbers is not None or call.chosen_rows is not None:
        return "heads or queries were chosen, and its pass is over all of them"
    problem = call.problem
    return refuses_triton(problem.q) or _refuses_problem(problem) or _refuses_statistics(statistics)


def _refuses_problem(problem: Problem) -> str | None:
    if problem.q.shape[3] > MOST_DIM:
        return f"heads are {problem.q.shape[3]} wide, and its tiles hold {MOST_DIM}"
    if not problem.score.product or problem.score.softcap is not None:
        return f"the score is no plain scaled product: {type(problem.score).__name__}"
    if type(problem.normalizer) is not Softmax or problem.sink is not None:
        return "the weights are no plain softmax"
    if problem.bias is not None or problem.weight_factor is not None:
        return "the scores have a bias" if problem.weight_factor is None else "the weights have a factor"
    if problem.mask is not None and band_of(problem.mask.mask) is None:
        return f"the mask is no band around the diagonal: {type(problem.mask.mask).__name__}"
    return None


def _refuses_statistics(statistics: Sequence[Statistic]) -> str | None:
    for one in statistics:
        if type(one) not in (HeatMap, Top, Entropy, Received):  # the data that a subclass uses are unknown
            return f"the statistic {one.name!r} reads whole rows"
        if isinstance(one, Top) and one.k > MOST_STRONGEST:
            return f"{one.k} strongest keys are more than {MOST_STRONGEST}"
    return None


def portions(
    call: WatchedCall, statistics: Sequence[Statistic], extent: Extent, start: int
) -> list[Callable[[], Iterator[RowBlock]]]:
    """Return all rows of a call, already summed; `refuses` must have returned None for the call and the statistics.

    Args:
        call: The call whose first row is row `start` of the record.
        statistics: The statistics that receive the rows.
        extent: The size of the record including this call.
        start: The number of rows processed before.
    """
    assert isinstance(call, CallFromQK)

    def fold() -> Iterator[RowBlock]:
        problem, shift = call.problem, 0 if extent.around is None else extent.around.shift
        tall, broad = bin_width(extent.queries), bin_width(extent.keys)
        found = observe(
            problem.q,
            problem.k,
            scale=problem.scale,
            band=None if problem.mask is None else band_of(problem.mask.mask),
            q_offset=problem.q_offset,
            count=max((one.k for one in statistics if isinstance(one, Top)), default=0),
            bins=Bins(tall, broad, start % tall, shift % broad),
            by_keys=any(isinstance(one, HeatMap | Received) for one in statistics),
        )
        for batch_index in range(call.batch):
            weights = problem.q.new_empty(call.heads, call.queries, 0)
            yield FusedRows(batch_index, slice(0, call.heads), start, 0, weights, found=found)

    return [fold]


@dataclass(eq=False)
class FusedRows(RowBlock):
    """All rows of one sequence without their weights: only the data of the four supported statistics."""

    found: Found | None = None

    def _of(self, found: Tensor | None) -> Tensor:
        assert found is not None  # guaranteed by `refuses` and `portions`
        return found[self.batch_index]

    @property
    def columns(self) -> slice:
        """The range of the columns among all keys."""
        return slice(self.key_start, self.key_start + self.column_sums.shape[1])

    def strongest(self, count: int) -> tuple[Float[Tensor, "heads rows count"], Int[Tensor, "heads rows count"]]:
        """Return the largest weights of each row and their columns; weight 0 if a row has fewer."""
        assert self.found is not None
        return self._of(self.found.top_weights)[..., :count], self._of(self.found.top_keys)[..., :count]

    def pooled(
        self, tall: int, broad: int
    ) -> tuple[Float[Tensor, "heads row_bins column_bins"], Float[Tensor, "heads row_bins column_bins"]]:
        """Return sums and maxima of the bins, whose sizes were given to `portions`."""
        assert self.found is not None
        return self._of(self.found.sums), self._of(self.found.maxima)

    @property
    def column_sums(self) -> Float[Tensor, "heads columns"]:
        """The attention that each key received."""
        assert self.found is not None
        return self._of(self.found.received)

    @property
    def entropy(self) -> Float[Tensor, "heads rows"]:  # already computed by the kernel
        """−Σ p ln p of each row."""
        assert self.found is not None
        return self._of(self.found.entropy)
