"""Dropout of weights as LLVM instructions, forward and backward: the numbers of `regard.dropout`, sixteen at a time."""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from regard.backends.numba_loops.llvm_builder import FLOATS, I16, I32, WIDTH, WORDS, Code, instruction
from regard.backends.numba_loops.simd_exp_and_tanh import LOG2_E, power
from regard.backends.numba_loops.sizes import LANES
from regard.dropout import SHIFT, TIMES

__all__ = ["drop_bf16", "drop_f32", "weigh_back", "weigh_back_dropped"]

_float, _at = types.float32, types.int64


def _drop(kind: ir.Type, name: str) -> Any:
    def emit(code: Code, row: Any, columns: Any, vectors: Any, bits: Any, least: Any) -> None:
        do, lines = code.do, _everywhere(code, bits)
        limit, nothing = _everywhere(code, least), ir.Constant(ir.VectorType(kind, LANES), [0] * LANES)
        with code.loop(vectors) as loop:
            at = do.add(row, code.times(loop.index, LANES * kind.width // 8))
            kept = _kept(code, lines, do.add(columns, code.times(loop.index, WIDTH)), limit)
            code.store(do.select(kept, code.load(at, nothing.type), nothing), at)

    emit.__name__ = name
    emit.__doc__ = "Replace numbers by 0 where the hash of the row and of the column is less than a limit."
    return instruction(types.void, *[_at] * 5)(emit)


drop_f32, drop_bf16 = _drop(I32, "drop_f32"), _drop(I16, "drop_bf16")


def _everywhere(code: Code, number: Any) -> Any:
    return code.everywhere(code.do.trunc(number, I32), WORDS)


def _kept(code: Code, lines: Any, columns: Any, limit: Any) -> Any:
    """Return which of 16 columns are kept, as `Dropout.keep`."""
    do = code.do
    first, second, shift = (ir.Constant(WORDS, [number] * LANES) for number in (*TIMES, SHIFT))
    bits = do.mul(do.xor(lines, code.load(columns, WORDS)), first)
    return do.icmp_signed(">=", do.mul(do.xor(bits, do.ashr(bits, shift)), second), limit)


@instruction(types.void, *[_at] * 3, *[_float] * 4)
def weigh_back(
    code: Code, row: Any, gradients: Any, vectors: Any, scale: Any, lse: Any, delta: Any, factor: Any
) -> None:
    """Replace x by its weight w = e ** (scale · x − lse), and the gradient g of the weight by that of the product,
    factor · w · (g − delta).
    """
    _weigh_back(code, row, gradients, vectors, (scale, lse, delta, factor), None)


@instruction(types.void, *[_at] * 3, *[_float] * 5, *[_at] * 3)
def weigh_back_dropped(
    code: Code, row: Any, gradients: Any, vectors: Any, scale: Any, lse: Any, delta: Any, factor: Any, kept: Any,
    columns: Any, bits: Any, least: Any,
) -> None:  # fmt: skip
    """Do the same with g multiplied by `kept`, or by 0 where the weight is dropped, and so the weight at the end."""
    lines, limit = _everywhere(code, bits), _everywhere(code, least)

    def times_at(offset: Any) -> Any:
        found = _kept(code, lines, code.do.add(columns, offset), limit)
        return code.do.select(found, code.everywhere(kept), ir.Constant(FLOATS, [0.0] * LANES))

    _weigh_back(code, row, gradients, vectors, (scale, lse, delta, factor), times_at)


def _weigh_back(
    code: Code, row: Any, gradients: Any, vectors: Any, numbers: Any, times_at: Callable[[Any], Any] | None
) -> None:
    do = code.do
    scales, sums, deltas, factors = map(code.everywhere, numbers)
    log = ir.Constant(FLOATS, [LOG2_E] * LANES)
    with code.loop(vectors) as loop:
        offset = code.times(loop.index, WIDTH)
        at, other = do.add(row, offset), do.add(gradients, offset)
        # Rounded as in the forward, without a fused multiplication: a large score keeps no digit that its sum lacks.
        weight = power(code, do.fmul(do.fsub(do.fmul(code.load(at, FLOATS), scales), sums), log))
        gradient, thin = code.load(other, FLOATS), weight
        if times_at is not None:
            times = times_at(offset)
            gradient, thin = do.fmul(gradient, times), do.fmul(weight, times)
        code.store(thin, at)
        code.store(do.fmul(do.fmul(do.fsub(gradient, deltas), weight), factors), other)
