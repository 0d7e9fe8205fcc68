"""The inner vector loops of attention as LLVM instructions, except for products. Addresses and strides are in bytes."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from regard.backends.numba_loops.kernel_args import PACKED, SEATS
from regard.backends.numba_loops.llvm_builder import (
    FLOATS,
    HAS_PAIRS,
    I8,
    I16,
    I32,
    I64,
    PANEL,
    WIDTH,
    WORDS,
    BFloat,
    Code,
    F,
    Job,
    instruction,
)  # fmt: skip
from regard.backends.numba_loops.sizes import LANES

__all__ = [
    "LANES",
    "LOG2_E",
    "PANEL",
    "add",
    "cap",
    "cap_slope",
    "claim",
    "copy",
    "count_packed",
    "count_up",
    "exp_f32",
    "exp_pairs",
    "finish_pack",
    "hide",
    "interleave",
    "largest",
    "pointer",
    "power",
    "rescale",
    "sit",
    "transpose",
    "write_bf16",
    "write_f32",
    "zero",
]


# 2 ** x for x in −0.5 … 0.5, exact except for the last bit (Cephes, exp2f).
_EXP2 = (1.535336188319500e-4, 1.339887440266574e-3, 9.618437357674640e-3, 5.550332471162809e-2,
         2.402264791363012e-1, 6.931472028550421e-1, 1.0)  # fmt: skip
_ROUNDS = 1.5 * 2**23  # added to a float below 2 ** 22, it gives the nearest integer in the lowest bits
# tanh x = x + x³ · polynomial of x², exact except for the last bit for |x| < 0.625 (Cephes, tanhf).
_TANH = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
LOG2_E = 1.4426950408889634
_LEAST = -126.0  # below this exponent 2 ** x is not a normal number, and 0 is used

_zeros, _float = ir.Constant(FLOATS, [0.0] * LANES), types.float32
_at = types.int64  # an address, a stride or a count


@instruction(_float, _at, _at, _float)
def largest(code: Code, row: Any, vectors: Any, scale: Any) -> Any:
    """Return the largest of scale · x over a row of a multiple of 4 vectors."""
    do = code.do
    found = code.variables(4, ir.Constant(FLOATS, [float("-inf")] * LANES))
    factor = code.everywhere(scale)
    with code.loop(do.lshr(vectors, ir.Constant(I64, 2))) as loop:
        start = do.add(row, code.times(loop.index, 4 * WIDTH))
        for at in range(4):
            one = do.fmul(code.load(code.at(start, at * WIDTH), FLOATS), factor)
            do.store(code.larger(one, do.load(found[at])), found[at])
    a, b, c, d = (do.load(one) for one in found)
    most = code.larger(code.larger(a, b), code.larger(c, d))
    kind = ir.FunctionType(F, [FLOATS])
    return do.call(cgutils.get_or_insert_function(do.module, kind, "llvm.vector.reduce.fmax.v16f32"), [most])


def power(code: Code, x: Any) -> Any:
    """Return 2 ** x; 0 if the result is not a normal number, NaN for NaN."""
    do = code.do
    rounds, least = (ir.Constant(FLOATS, [number] * LANES) for number in (_ROUNDS, _LEAST))
    whole = do.fadd(x, rounds)
    rest = do.fsub(x, do.fsub(whole, rounds))
    series: Any = ir.Constant(FLOATS, [_EXP2[0]] * LANES)
    for number in _EXP2[1:]:
        series = code.fma(series, rest, ir.Constant(FLOATS, [number] * LANES))
    bits = do.shl(do.bitcast(whole, WORDS), ir.Constant(WORDS, [23] * LANES))
    two = do.bitcast(do.add(bits, ir.Constant(WORDS, [127 << 23] * LANES)), FLOATS)
    # Not "no less than", because NaN must be preserved.
    return do.select(do.fcmp_ordered("<", x, least), _zeros, do.fmul(series, two))


def _exp(pairs: bool, name: str) -> Any:
    def emit(code: Code, row: Any, into: Any, vectors: Any, scale: Any, most: Any) -> Any:
        do = code.do
        if pairs and not HAS_PAIRS:
            return ir.Constant(F, 0.0)  # never called
        totals = code.variables(2, _zeros)
        factor, least = code.everywhere(scale), code.everywhere(most)
        log = ir.Constant(FLOATS, [LOG2_E] * LANES)
        with code.loop(do.lshr(vectors, ir.Constant(I64, 1))) as loop:
            start = do.add(row, code.times(loop.index, 2 * WIDTH))
            target = do.add(into, code.times(loop.index, WIDTH if pairs else 2 * WIDTH))
            for at in range(2):
                # Rounded as in `largest`, without a fused multiplication, so that no number exceeds the maximum.
                x = do.fsub(do.fmul(code.load(code.at(start, at * WIDTH), FLOATS), factor), least)
                weight = power(code, do.fmul(x, log))
                do.store(do.fadd(do.load(totals[at]), weight), totals[at])
                if pairs:
                    weight = do.fptrunc(weight, ir.VectorType(BFloat(), LANES))
                code.store(weight, code.at(target, at * (WIDTH // 2 if pairs else WIDTH)))
        return code.total(do.fadd(*(do.load(one) for one in totals)))

    emit.__name__, emit.__doc__ = name, "e ** (scale · x − most) over a row of an even number of vectors, and its sum."
    return instruction(_float, _at, _at, _at, _float, _float)(emit)


exp_f32, exp_pairs = _exp(False, "exp_f32"), _exp(True, "exp_pairs")


@instruction(types.void, _at, _at, _at, _float)
def cap_slope(code: Code, gradients: Any, capped: Any, vectors: Any, most: Any) -> None:
    """Multiply gradients by the slope of the cap, 1 − (x / most)², at the capped scores x."""
    do, inverse = code.do, code.everywhere(code.do.fdiv(ir.Constant(F, 1.0), most))
    one = ir.Constant(FLOATS, [1.0] * LANES)
    with code.loop(vectors) as loop:
        offset = code.times(loop.index, WIDTH)
        at = do.add(gradients, offset)
        ratio = do.fmul(code.load(do.add(capped, offset), FLOATS), inverse)
        code.store(do.fmul(code.load(at, FLOATS), do.fsub(one, do.fmul(ratio, ratio))), at)


@instruction(types.void, _at, _at, _float, _float)
def cap(code: Code, row: Any, vectors: Any, scale: Any, most: Any) -> None:
    """Replace x by most · tanh(scale · x)."""
    do, factor, whole = code.do, code.everywhere(scale), code.everywhere(most)
    one, two, far, near, twice, small = (
        ir.Constant(FLOATS, [number] * LANES) for number in (1.0, 2.0, 30.0, -30.0, 2 * LOG2_E, 0.625)
    )
    with code.loop(vectors) as loop:
        at = do.add(row, code.times(loop.index, WIDTH))
        x = do.fmul(code.load(at, FLOATS), factor)
        # Beyond ± 30 the tangent is ± 1; NaN is preserved.
        x = do.select(do.fcmp_ordered(">", x, far), far, x)
        x = do.select(do.fcmp_ordered("<", x, near), near, x)
        square = do.fmul(x, x)
        series: Any = ir.Constant(FLOATS, [_TANH[0]] * LANES)
        for number in _TANH[1:]:
            series = code.fma(series, square, ir.Constant(FLOATS, [number] * LANES))
        close = code.fma(do.fmul(series, square), x, x)
        beyond = do.fsub(one, do.fdiv(two, do.fadd(power(code, do.fmul(x, twice)), one)))
        is_close = do.fcmp_ordered("<", square, do.fmul(small, small))
        code.store(do.fmul(whole, do.select(is_close, close, beyond)), at)


@instruction(types.void, _at, _at, _at, _float)
def add(code: Code, row: Any, bias: Any, count: Any, factor: Any) -> None:
    """Replace x by factor · x + bias for the first floats of a row."""
    do = code.do
    vectors = do.lshr(count, ir.Constant(I64, 4))
    with code.loop(vectors) as loop:
        offset = code.times(loop.index, WIDTH)
        at = do.add(row, offset)
        added = code.load(do.add(bias, offset), FLOATS)
        code.store(code.fma(code.load(at, FLOATS), code.everywhere(factor), added), at)
    begun = do.shl(vectors, ir.Constant(I64, 4))
    with code.loop(do.sub(count, begun)) as loop:  # the memory after them may belong to other data
        offset = code.times(do.add(begun, loop.index), 4)
        at = do.add(row, offset)
        code.store(do.fadd(do.fmul(code.load(at, F), factor), code.load(do.add(bias, offset), F)), at)


@instruction(types.void, _at, _at, _at, _float)
def hide(code: Code, row: Any, seen: Any, vectors: Any, instead: Any) -> None:
    """Replace numbers by `instead` where a row of bytes is 0."""
    do, other = code.do, code.everywhere(instead)
    with code.loop(vectors) as loop:
        at = do.add(row, code.times(loop.index, WIDTH))
        kept = code.load(do.add(seen, code.times(loop.index, LANES)), ir.VectorType(I8, LANES))
        visible = do.icmp_unsigned("!=", kept, ir.Constant(ir.VectorType(I8, LANES), [0] * LANES))
        code.store(do.select(visible, code.load(at, FLOATS), other), at)


@instruction(types.void, _at, _at, _float)
def rescale(code: Code, row: Any, vectors: Any, factor: Any) -> None:
    """Multiply a row by a number."""
    do, times = code.do, code.everywhere(factor)
    with code.loop(vectors) as loop:
        at = do.add(row, code.times(loop.index, WIDTH))
        code.store(do.fmul(code.load(at, FLOATS), times), at)


@instruction(types.void, _at, _at, _at)
def copy(code: Code, into: Any, source: Any, count: Any) -> None:
    """Copy bytes."""
    bytes_ = I8.as_pointer()
    cgutils.raw_memcpy(
        code.do, code.do.inttoptr(into, bytes_), code.do.inttoptr(source, bytes_), count, ir.Constant(I64, 1)
    )


@instruction(types.int64, types.CPointer(Job))
def claim(code: Code, counter: Any) -> Any:
    """Return the present value of a counter and increment it atomically, so that each thread gets another number."""
    where = code.do.bitcast(counter, I64.as_pointer())
    return code.do.atomic_rmw("add", where, ir.Constant(I64, 1), "monotonic")


@instruction(types.int64, types.CPointer(Job))
def sit(code: Code, counter: Any) -> Any:
    """Do the same with the counter of threads."""
    return _counted(code, counter, SEATS, 1, "monotonic")


@instruction(types.int64, _at)
def count_up(code: Code, counter: Any) -> Any:
    """Return the present value of a counter at an address and increment it, so that the thread that finds the last
    value sees what all others had written.
    """
    return code.do.atomic_rmw("add", code.do.inttoptr(counter, I64.as_pointer()), ir.Constant(I64, 1), "acq_rel")


@instruction(types.int64, types.CPointer(Job))
def finish_pack(code: Code, counter: Any) -> Any:
    """Count a block as rearranged, so that threads that see the number see the block."""
    return _counted(code, counter, PACKED, 1, "release")


@instruction(types.int64, types.CPointer(Job))
def count_packed(code: Code, counter: Any) -> Any:
    """Return the number of blocks that are rearranged."""
    return _counted(code, counter, PACKED, 0, "acquire")


def _counted(code: Code, job: Any, place: int, more: int, order: str) -> Any:
    where = code.do.gep(code.do.bitcast(job, I64.as_pointer()), [ir.Constant(I64, place)])
    return code.do.atomic_rmw("add", where, ir.Constant(I64, more), order)


@instruction(types.void, *[_at] * 4)
def transpose(code: Code, source: Any, lds: Any, into: Any, depth: Any) -> None:
    """Rearrange 16 rows of 32 bits each as columns: element e of all of them at `into` + e · panel."""
    do = code.do
    rows = [do.add(source, code.times(ir.Constant(I64, row), lds)) for row in range(LANES)]
    with code.loop(depth) as loop:
        at = code.times(loop.index, 4)
        column: Any = ir.Constant(WORDS, ir.Undefined)
        for row in range(LANES):
            column = do.insert_element(column, code.load(do.add(rows[row], at), I32), ir.Constant(I32, row))
        code.store(column, do.add(into, code.times(loop.index, PANEL * WIDTH)))


@instruction(types.void, *[_at] * 4)
def interleave(code: Code, one: Any, other: Any, into: Any, vectors: Any) -> None:
    """Interleave two rows of 16 bits element by element."""
    do, kind = code.do, ir.VectorType(I16, LANES)
    turns = [at // 2 + LANES * (at % 2) for at in range(2 * LANES)]
    with code.loop(vectors) as loop:
        at = code.times(loop.index, 2 * LANES)
        both = (code.load(do.add(row, at), kind) for row in (one, other))
        mixed = do.shuffle_vector(*both, ir.Constant(ir.VectorType(I32, 2 * LANES), turns))
        code.store(mixed, do.add(into, code.times(loop.index, WIDTH)))


@instruction(types.void, _at, _at, _at, _float)
def write_f32(code: Code, row: Any, into: Any, vectors: Any, factor: Any) -> None:
    """Write factor · x of a row."""
    do, times = code.do, code.everywhere(factor)
    with code.loop(vectors) as loop:
        at = code.times(loop.index, WIDTH)
        code.store(do.fmul(code.load(do.add(row, at), FLOATS), times), do.add(into, at))


@instruction(types.void, _at, _at, _at, _float)
def write_bf16(code: Code, row: Any, into: Any, vectors: Any, factor: Any) -> None:
    """Write factor · x of a row as bfloat16."""
    if not HAS_PAIRS:
        return  # never called
    do, times = code.do, code.everywhere(factor)
    with code.loop(vectors) as loop:
        one = do.fmul(code.load(do.add(row, code.times(loop.index, WIDTH)), FLOATS), times)
        narrow = do.fptrunc(one, ir.VectorType(BFloat(), LANES))
        code.store(narrow, do.add(into, code.times(loop.index, 2 * LANES)))


@instruction(types.voidptr, _at)
def pointer(code: Code, address: Any) -> Any:
    """Return an address in the form that numba's `carray` takes."""
    return code.do.inttoptr(address, I8.as_pointer())


@instruction(types.void, _at, _at)
def zero(code: Code, address: Any, count: Any) -> None:
    """Set bytes to 0."""
    cgutils.memset(code.do, code.do.inttoptr(address, I8.as_pointer()), count, 0)
