"""The backend: which calls the kernels can compute, and the projections before them."""

from dataclasses import replace

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack
from torch.nn.functional import pad

from regard.backends.base import Answer, run_eagerly
from regard.backends.triton_additive.launch import MOST_VALUES, Attend, Call
from regard.backends.triton_available import refuses_tensor
from regard.masks.band import Band, band_of
from regard.normalizers import Softmax
from regard.problem import Problem
from regard.scores import Additive

__all__ = ["AdditiveTriton"]


class AdditiveTriton:
    """softmax(scale · vector · tanh(W q + U k)) v in three Triton kernels, in O(n) memory, forward and backward.

    Chosen by name alone. Sees all keys or a band of them, whose other blocks are skipped; hidden layers and sums are
    float32, whatever the inputs are. Two runs agree to the bit. There is no second derivative.
    """

    name = "triton"

    def refuses(self, problem: Problem) -> str | None:
        """All but a plain softmax of additive scores over a band of keys, on CUDA."""
        if type(problem.score) is not Additive:
            return f"it computes additive scores alone, not {type(problem.score).__name__}"
        return _refuses_parts(problem) or _refuses_wishes(problem) or refuses_tensor(problem.q)

    def bytes(self, problem: Problem) -> int:
        """What is projected, once in order of positions and once of hidden units, and log-sum-exps, in float32."""
        rows = problem.batch * problem.heads * problem.queries
        columns = problem.batch * problem.kv_heads * problem.keys
        return 4 * (2 * problem.score.floats_per_pair * (rows + columns) + 2 * rows)

    def work(self, problem: Problem) -> float:
        """A tanh for each hidden unit of all pairs; it is compared with nothing."""
        pairs = problem.batch * problem.heads * problem.queries * problem.keys
        return float(pairs * problem.score.floats_per_pair)

    def plain(self, problem: Problem) -> None:
        """None: scores of one's own are never remembered."""

    @run_eagerly
    def __call__(self, problem: Problem) -> Answer:
        """Project by matrix products in float32, which autograd knows, and leave the rest to the kernels."""
        band = Band() if problem.mask is None else band_of(problem.mask.mask)
        assert band is not None  # `refuses` sees to it
        call = Call(problem.scale, band, problem.q_offset)
        with torch.autocast(problem.q.device.type, enabled=False):
            ready = replace(problem, q=problem.q.float(), k=problem.k.float()).prepared()
            assert isinstance(ready.score, Additive)
            vector = ready.score.vector.float()
            vector = vector if vector.ndim == 2 else vector[None]
            # The kernels take units four at a time; those that are added have a strength of 0.
            more = -vector.shape[1] % 4
            a, b, vector = (pad(x, (0, more)) if more else x for x in (ready.q, ready.k, vector))
            result: tuple[Tensor, Tensor] = Attend.apply(call, a, b, problem.v, vector)  # type: ignore[no-untyped-call]
        return Answer(result[0], None, result[1] if problem.wants_lse else None)


def _refuses_parts(problem: Problem) -> str | None:
    if problem.score.softcap is not None:
        return "it knows no softcap"
    if type(problem.normalizer) is not Softmax:
        return f"it normalizes by softmax alone, not {type(problem.normalizer).__name__}"
    parts = {
        "sink": problem.sink,
        "bias": problem.bias,
        "weight_factor": problem.weight_factor,
        "dropout": problem.dropout,
    }
    if (found := next((name for name, part in parts.items() if part is not None), None)) is not None:
        return f"it knows no {found}"
    if problem.mask is not None and band_of(problem.mask.mask) is None:
        return f"it knows Causal, Window and several of them at once, not {type(problem.mask.mask).__name__}"
    return None


def _refuses_wishes(problem: Problem) -> str | None:
    if problem.wants_weights:
        return "it never holds all weights"
    if problem.v.shape[3] > MOST_VALUES:
        return f"values are {problem.v.shape[3]} wide, and its tiles hold {MOST_VALUES}"
    if peek_interpreter_stack() is not None:
        return "it does not run under torch.func"
    return None
