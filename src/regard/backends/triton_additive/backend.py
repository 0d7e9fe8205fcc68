"""Additive scores in Triton: which calls the kernels compute, projections before them, and the autograd function."""

import contextlib
import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from regard.backends.base import DERIVATIVES, Answer, Backend
from regard.backends.call_form import unwritable
from regard.backends.kernel_compilers import Blocks, refuses_triton
from regard.backends.operators import Known, Operator
from regard.errors import InputError
from regard.masks.causal_and_window import Band, band_of
from regard.problem import Problem
from regard.scores import Additive
from regard.tensors import is_traced

__all__ = ["BLOCKS", "MOST_VALUES", "AdditiveAttend", "AdditiveTriton", "KernelCall"]

MOST_VALUES = 256  # columns of the output that a program holds
_FLOOR = -1e30  # a score that no visible key has; less a greater one it is finite, which minus infinity is not
_FITS = 120.0  # powers of two up to which none overflows or vanishes
_LOG2E = math.log2(math.e)

# Nothing was tuned on a GPU: of those tried, these give the fewest instructions for a pair and unit on sm_90 (10; 10
# and 17; 11 and 15), and spill hardly a register with up to 64 values of float32 or 256 of 16 bits.
BLOCKS = {
    "forward": Blocks(queries=32, keys=64, warps=4, stages=1),
    "to_queries": Blocks(queries=64, keys=32, warps=4, stages=1),
    "to_keys": Blocks(queries=32, keys=64, warps=8, stages=1),
}


@dataclass(frozen=True)
class KernelCall:
    """What is no tensor: the scale, which keys a query sees, and where the queries stand."""

    scale: float
    band: Band
    start: int


class AdditiveAttend(torch.autograd.Function):
    """Output and log-sum-exp of additive scores; the backward computes scores and weights again, tile by tile."""

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any,
        call: KernelCall,
        a: Float[Tensor, "batch heads queries hidden"],
        b: Float[Tensor, "batch kv_heads keys hidden"],
        v: Float[Tensor, "batch kv_heads keys value_dim"],
        vector: Float[Tensor, "#heads hidden"],
    ) -> tuple[Tensor, Tensor]:
        layer = HiddenLayer.of(a, b, vector, call.scale)
        output = v.new_empty(*a.shape[:3], v.shape[3])
        lse = torch.empty(a.shape[:3], dtype=torch.float32, device=v.device)
        _launch("forward", call, layer, v, (output, lse), floor=_FLOOR)
        ctx.call = call
        ctx.save_for_backward(*layer, v, output, lse)
        ctx.set_materialize_grads(False)
        return output, torch.where(lse == torch.inf, -torch.inf, lse / _LOG2E)

    @staticmethod
    def backward(ctx: Any, up: Tensor | None, up_lse: Tensor | None) -> tuple[Tensor | None, ...]:  # noqa: D102
        if torch.is_grad_enabled():  # autograd would take the gradients for constants
            raise InputError(
                "the backend 'triton' has no second derivative, which `create_graph=True` asks for: "
                'backend="reference" has one'
            )
        *parts, v, output, lse = ctx.saved_tensors
        layer = HiddenLayer(*parts)
        up = torch.zeros_like(output) if up is None else up.contiguous()
        delta = (up.float() * output).sum(-1)
        delta = delta if up_lse is None else delta - up_lse
        _, for_a, for_b, for_v, for_vector = ctx.needs_input_grad
        given = (up, lse, delta)
        da = db = dv = d_vector = None
        if for_a or for_vector:
            da, d_vector = _to_queries(ctx.call, layer, v, given, for_vector=for_vector)
        if for_b or for_v:
            db, dv = _to_keys(ctx.call, layer, v, given)
        return None, da, db, dv, d_vector


class HiddenLayer(NamedTuple):
    """The hidden layer as the kernels read it, whose units are a multiple of four.

    They lie far apart and positions side by side, so that one unit of a block is read at once.
    """

    a: Float[Tensor, "batch heads units queries"]  # 2 log₂e times their parts of x, or powers of two thereof
    b: Float[Tensor, "batch kv_heads units keys"]
    strength: Float[Tensor, "#heads units"]
    fits: Int[Tensor, ""]  # 1 where they are powers

    @classmethod
    def of(cls, a: Tensor, b: Tensor, vector: Tensor, scale: float) -> "HiddenLayer":
        """Decide on the device whether powers fit, as asking for the answer would stall it."""
        parts = [x.mT.mul(2 * _LOG2E).contiguous() for x in (a, b)]
        fits = torch.stack([x.abs().amax() for x in parts]).amax() <= _FITS  # not of NaN
        a, b = (torch.where(fits, x.exp2(), x) for x in parts)
        return cls(a, b, vector.mul(2 * _LOG2E * scale).contiguous(), fits.to(torch.int32))


def _to_queries(
    call: KernelCall, layer: HiddenLayer, v: Tensor, given: tuple[Tensor, ...], *, for_vector: bool
) -> tuple[Tensor, Tensor | None]:
    """Gradients of a and of the vector."""
    slopes = torch.zeros_like(layer.a)
    halves = torch.zeros_like(layer.a) if for_vector else slopes
    _launch("to_queries", call, layer, v, (*given, slopes, halves), for_vector=for_vector)
    # ds/da = scale · vector (1 − tanh²) and strength (¼ − half²) = ½ log₂e of that; ds/dvector = 2 scale · half.
    da = slopes.mul_(2 / _LOG2E).mT
    if not for_vector:
        return da, None
    d_vector = halves.sum((0, 3)).mul_(2 * call.scale)
    return da, d_vector if layer.strength.shape[0] > 1 else d_vector.sum(0, keepdim=True)


def _to_keys(call: KernelCall, layer: HiddenLayer, v: Tensor, given: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Gradients of b and v."""
    slopes, dv = torch.zeros_like(layer.b), torch.empty(v.shape, dtype=v.dtype, device=v.device)
    _launch("to_keys", call, layer, v, (*given, slopes, dv))
    return slopes.mul_(2 / _LOG2E).mT, dv


def _launch(
    name: str, call: KernelCall, layer: HiddenLayer, v: Tensor, rest: tuple[Tensor, ...], **fixed: float
) -> None:
    """Run a kernel, a program for each block, with products and with sums: those that do not fit end at once.

    The grid has one dimension, as the others end at 65,535.
    """
    from regard.backends.triton_additive import kernels

    (batch, heads, units, queries), (_, kv_heads, _, keys) = layer.a.shape, layer.b.shape
    band = call.band.within(queries + keys + abs(call.start))
    blocks = BLOCKS[name]
    each = kv_heads * -(-keys // blocks.keys) if name == "to_keys" else heads * -(-queries // blocks.queries)
    with torch.cuda.device(v.device) if v.is_cuda else contextlib.nullcontext():
        for product in (True, False):
            getattr(kernels, name)[(batch * each,)](
                *(layer.a, layer.b, v, layer.strength, *rest),
                *v.stride(),
                *(heads, heads // kv_heads, queries, keys, call.start, *band),
                *(units if layer.strength.shape[0] > 1 else 0, layer.fits),
                hidden=units,
                product=product,
                value_dim=v.shape[3],
                padded=max(16, 1 << (v.shape[3] - 1).bit_length()),
                **fixed,
                **blocks.options,
            )


class AdditiveTriton(Backend):
    """softmax(scale · vector · tanh(W q + U k)) v in three Triton kernels, in O(n) memory, forward and backward.

    Chosen by name alone. Sees all keys or a band of them, whose other blocks are skipped; hidden layers and sums are
    float32, whatever the inputs are. Two runs agree to the bit. There is no second derivative.
    """

    name = "triton"
    experimental = (
        "on CUDA: its kernels, and those for regard.watch, are right on an H100, but their tiles were never tuned: "
        "2,048 tokens take longer than with the plain formula"
    )

    lacks = DERIVATIVES | {
        "score but Additive": "it computes additive scores alone, not {}",
        "softcap": "it knows no softcap",
        "normalizer but Softmax": "it normalizes by softmax alone, not {}",
        **{part: f"it knows no {part}" for part in ("sink", "bias", "weight_factor", "dropout")},
        "mask but a band": "it knows Causal, Window and several of them at once, not {}",
        "weights": "it never holds all weights",
        "torch.func": "it does not run under torch.func",
    }

    def limits(self, problem: Problem) -> str | None:
        """Values that are too wide, and where there is no Triton."""
        if problem.v.shape[3] > MOST_VALUES:
            return f"values are {problem.v.shape[3]} wide, and its tiles hold {MOST_VALUES}"
        return refuses_triton(problem.q)

    def bytes(self, problem: Problem) -> int:
        """What is projected, once in order of positions and once of hidden units, and log-sum-exps, in float32."""
        rows = problem.batch * problem.heads * problem.queries
        columns = problem.batch * problem.kv_heads * problem.keys
        return 4 * (2 * problem.score.floats_per_pair * (rows + columns) + 2 * rows)

    def work(self, problem: Problem) -> float:
        """A tanh for each hidden unit of all pairs; it is compared with nothing."""
        pairs = problem.batch * problem.heads * problem.queries * problem.keys
        return float(pairs * problem.score.floats_per_pair)

    def leaves_graph(self, problem: Problem) -> bool:
        """Whether a value of the call is written in Python."""
        return unwritable(problem) is not None

    def __call__(self, problem: Problem) -> Answer:
        """Project by matrix products in float32, which autograd knows, and leave the rest to the kernels."""
        return OPERATOR(problem) if is_traced(problem.q) else _attend(problem)


def _attend(problem: Problem) -> Answer:
    output, lse, _ = _results(problem, None, False)
    return Answer(output, None, lse if problem.wants_lse else None)


def _results(problem: Problem, _: Known | None, __: bool) -> Known:
    """Compute again for the backward, which wants the hidden layer in the order of the kernels."""
    band = Band() if problem.mask is None else band_of(problem.mask.mask)
    assert band is not None  # `refuses` sees to it
    call = KernelCall(problem.scale, band, problem.q_offset)
    with torch.autocast(problem.q.device.type, enabled=False):
        ready = replace(problem, q=problem.q.float(), k=problem.k.float()).prepared()
        assert isinstance(ready.score, Additive)
        vector = ready.score.vector.float()
        vector = vector if vector.ndim == 2 else vector[None]
        # The kernels take units four at a time; those that are added have a strength of 0.
        more = -vector.shape[1] % 4
        a, b, vector = (pad(x, (0, more)) if more else x for x in (ready.q, ready.k, vector))
        output, lse = AdditiveAttend.apply(call, a, b, problem.v, vector)  # type: ignore[no-untyped-call]
    return output, lse, lse.new_empty(0)


OPERATOR = Operator("triton", _results, output_dtype=lambda dtype, _: dtype)
