"""The inner vector loops of attention as LLVM instructions, because numba cannot express them.

numba vectorizes its own loops too, but does not hold a block of sums in registers. Addresses and strides are in bytes.
"""

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
from regard.backends.numba_loops.sizes import LANES, ROWS

__all__ = [
    "HAS_PAIRS",
    "LANES",
    "LOG2_E",
    "PANEL",
    "ROWS",
    "add",
    "cap",
    "cap_slope",
    "claim",
    "copy",
    "count_packed",
    "dots_f32",
    "dots_pairs",
    "exp_f32",
    "exp_pairs",
    "finish_pack",
    "hide",
    "interleave",
    "largest",
    "multiply_f32",
    "multiply_pairs",
    "multiply_transposed",
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


def _multiplied(
    code: Code, pairs: bool, vectors: int, a: Any, lda: Any, b: Any, ldb: Any, c: Any, ldc: Any, depth: Any, fresh: Any,
    transposed: bool,
) -> None:  # fmt: skip
    do = code.do
    row_step, depth_step = (4, lda) if transposed else (lda, 4)
    sums = [code.variables(vectors, _zeros) for _ in range(ROWS)]
    rows = [do.add(c, code.times(ir.Constant(I64, row), ldc)) for row in range(ROWS)]
    with do.if_then(do.icmp_signed("==", fresh, ir.Constant(I64, 0))):
        for row in range(ROWS):
            for at in range(vectors):
                do.store(code.load(code.at(rows[row], at * WIDTH), FLOATS), sums[row][at])
    left = [do.add(a, code.times(ir.Constant(I64, row), row_step)) for row in range(ROWS)]
    with code.loop(depth) as loop:
        below = do.add(b, code.times(loop.index, ldb))
        right = [code.load(code.at(below, at * WIDTH), FLOATS) for at in range(vectors)]
        for row in range(ROWS):
            here = do.add(left[row], code.times(loop.index, depth_step))
            one = code.everywhere(code.load(here, F))
            for at in range(vectors):
                do.store(code.products(pairs, do.load(sums[row][at]), one, right[at]), sums[row][at])
    for row in range(ROWS):
        for at in range(vectors):
            code.store(do.load(sums[row][at]), code.at(rows[row], at * WIDTH))


def _multiply(pairs: bool, name: str, *, transposed: bool = False) -> Any:
    def emit(
        code: Code, a: Any, lda: Any, b: Any, ldb: Any, c: Any, ldc: Any, depth: Any, vectors: Any, fresh: Any
    ) -> None:
        if pairs and not HAS_PAIRS:
            return  # never called; the processor would have no such instruction
        done = code.do.append_basic_block("done")
        chosen = code.do.switch(vectors, done)
        for width in range(1, PANEL + 1):
            case = code.do.append_basic_block(f"vectors{width}")
            chosen.add_case(ir.Constant(I64, width), case)
            code.do.position_at_end(case)
            _multiplied(code, pairs, width, a, lda, b, ldb, c, ldc, depth, fresh, transposed)
            code.do.branch(done)
        code.do.position_at_end(done)

    emit.__name__ = name
    left = "aᵀ, which has depth rows," if transposed else "a (4 × depth)"
    emit.__doc__ = f"""c (4 × 16 vectors) = {left} · b (depth × 16 vectors), added to what c holds unless fresh."""
    return instruction(types.void, *[_at] * 9)(emit)


multiply_f32, multiply_pairs = _multiply(False, "multiply_f32"), _multiply(True, "multiply_pairs")
multiply_transposed = _multiply(False, "multiply_transposed", transposed=True)


def _dots(pairs: bool, name: str) -> Any:
    def emit(code: Code, a: Any, b: Any, ldb: Any, c: Any, ldc: Any, count: Any, vectors: Any) -> None:
        if pairs and not HAS_PAIRS:
            return  # never called
        do = code.do
        lda = do.mul(vectors, ir.Constant(I64, WIDTH))
        left = [do.add(a, code.times(ir.Constant(I64, row), lda)) for row in range(ROWS)]
        into = [do.add(c, code.times(ir.Constant(I64, row), ldc)) for row in range(ROWS)]
        sums = code.variables(4 * ROWS, _zeros)
        last = do.sub(count, ir.Constant(I64, 1))
        with code.loop(do.lshr(do.add(count, ir.Constant(I64, 3)), ir.Constant(I64, 2))) as four:
            first = code.times(four.index, 4)
            keys = [code.at(first, key) for key in range(4)]
            keys = [do.select(do.icmp_signed("<", key, last), key, last) for key in keys]
            right = [do.add(b, code.times(key, ldb)) for key in keys]
            for one in sums:
                do.store(_zeros, one)
            with code.loop(vectors) as loop:
                at = code.times(loop.index, WIDTH)
                others = [code.load(do.add(key, at), FLOATS) for key in right]
                for row in range(ROWS):
                    one = code.load(do.add(left[row], at), FLOATS)
                    for key in range(4):
                        held = sums[4 * row + key]
                        do.store(code.products(pairs, do.load(held), one, others[key]), held)
            totals = code.totals([do.load(one) for one in sums])
            for row in range(ROWS):
                places = ir.Constant(ir.VectorType(I32, 4), list(range(4 * row, 4 * row + 4)))
                code.store(do.shuffle_vector(totals, totals, places), do.add(into[row], code.times(first, 4)))

    emit.__name__ = name
    emit.__doc__ = """c (4 × count) = a (4 × vectors) · b (count × vectors)ᵀ; the rows of a lie side by side.

    Rows of c are written up to the next multiple of 4, with the last number again.
    """
    return instruction(types.void, *[_at] * 7)(emit)


dots_f32, dots_pairs = _dots(False, "dots_f32"), _dots(True, "dots_pairs")


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
