"""What numba cannot say: the loops over vectors that attention spends its time in, written as LLVM's instructions.

Addresses and strides are in bytes. A vector is 16 floats: one register where the processor has AVX-512, two or four
where it has not. numba's own loops become vectors too, but do not keep a block of sums in registers.
"""

import inspect
from collections.abc import Callable
from typing import Any

from llvmlite import binding, ir
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic

from regard.backends.compiled.job import Job

__all__ = [
    "HAS_PAIRS",
    "LANES",
    "PANEL",
    "ROWS",
    "add",
    "cap",
    "claim",
    "copy",
    "dots_f32",
    "dots_pairs",
    "exp2_f32",
    "exp2_pairs",
    "hide",
    "interleave",
    "largest",
    "multiply_f32",
    "multiply_pairs",
    "pointer",
    "rescale",
    "transpose",
    "write_bf16",
    "write_f32",
    "zero",
]


def _features() -> set[str]:
    """What the processor can that numba compiles for: this one, or the one that it was told of."""
    if config.CPU_FEATURES is not None or config.CPU_NAME not in (None, "host"):
        return {one[1:] for one in (config.CPU_FEATURES or "").split(",") if one.startswith("+")}
    return {name for name, there in binding.get_host_cpu_features().items() if there}


LANES = 16
ROWS = 4  # of a product, whose sums are kept in registers
PANEL = 4 if "avx512f" in _features() else 1  # vectors side by side that these rows have registers for
HAS_PAIRS = "avx512bf16" in _features()  # whether pairs of bfloat16 are multiplied and added to float32 at once


class _BFloat(ir.Type):
    """The type of LLVM that llvmlite has no name for."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


_F, _I8, _I16, _I32, _I64 = ir.FloatType(), ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
_VF, _VI, _VB = ir.VectorType(_F, LANES), ir.VectorType(_I32, LANES), ir.VectorType(_BFloat(), 2 * LANES)
_WIDTH = 4 * LANES  # bytes of a vector

# 2 ** x for x in −0.5 … 0.5 to the last bit but one (Cephes, exp2f).
_EXP2 = (1.535336188319500e-4, 1.339887440266574e-3, 9.618437357674640e-3, 5.550332471162809e-2,
         2.402264791363012e-1, 6.931472028550421e-1, 1.0)  # fmt: skip
_ROUNDS = 1.5 * 2**23  # added to a float of less than 2 ** 22 it leaves the nearest whole number in the lowest bits
_LOG2_E = 1.4426950408889634
_LEAST = -126.0  # 2 ** less is no normal number any more; it is 0 here


def _aligned(kind: ir.Type) -> int:
    """To what the address of a vector is aligned for sure: to one of its elements."""
    element = getattr(kind, "element", kind)
    return {_F: 4, _I32: 4, _I64: 8, _I8: 1}.get(element, 2)


def _pairs_of(width: int) -> list[int]:
    """The first of each pair of neighbours, as wide, in the first four of a vector, then in those of another."""
    return [start + at for start in (0, 2 * width, LANES, LANES + 2 * width) for at in range(width)]


class _Code:
    """A builder of instructions, with the few that are needed here."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.do = builder

    def at(self, address: Any, offset: int) -> Any:
        return self.do.add(address, ir.Constant(_I64, offset)) if offset else address

    def load(self, address: Any, kind: ir.Type) -> Any:
        return self.do.load(self.do.inttoptr(address, kind.as_pointer()), align=_aligned(kind))

    def store(self, value: Any, address: Any) -> None:
        self.do.store(value, self.do.inttoptr(address, value.type.as_pointer()), align=_aligned(value.type))

    def everywhere(self, value: Any, kind: ir.VectorType = _VF) -> Any:
        nothing = ir.Constant(kind, ir.Undefined)
        one = self.do.insert_element(nothing, value, ir.Constant(_I32, 0))
        return self.do.shuffle_vector(one, nothing, ir.Constant(ir.VectorType(_I32, LANES), [0] * LANES))

    def call(self, name: str, result: ir.Type, *given: Any) -> Any:
        kind = ir.FunctionType(result, [one.type for one in given])
        return self.do.call(cgutils.get_or_insert_function(self.do.module, kind, name), given)

    def fma(self, one: Any, other: Any, added: Any) -> Any:
        return self.call("llvm.fma.v16f32", _VF, one, other, added)

    def products(self, pairs: bool, added: Any, one: Any, other: Any) -> Any:
        """The sums, and the products of floats, or of pairs of bfloat16, added to them."""
        if not pairs:
            return self.fma(one, other, added)
        both = (self.do.bitcast(each, _VB) for each in (one, other))
        return self.call("llvm.x86.avx512bf16.dpbf16ps.512", _VF, added, *both)

    def larger(self, one: Any, other: Any) -> Any:
        """The larger; the second where one of them is NaN."""
        return self.do.select(self.do.fcmp_ordered(">", one, other), one, other)

    def total(self, vector: Any) -> Any:
        return self.do.call(
            cgutils.get_or_insert_function(
                self.do.module, ir.FunctionType(_F, [_F, _VF]), "llvm.vector.reduce.fadd.v16f32"
            ),
            [ir.Constant(_F, -0.0), vector],
            fastmath=("reassoc",),
        )

    def totals(self, vectors: list[Any]) -> Any:
        """The sums of 16 vectors, as one: neighbours are added in each half, two vectors become one, four times."""
        for width in (1, 1, 4, 4):  # elements, then quarters of a vector, which shuffle within themselves for less
            places = [lane + at for lane in range(0, LANES, 4 * width) for at in _pairs_of(width)]
            even, odd = (
                ir.Constant(ir.VectorType(_I32, LANES), [place + shift * width for place in places]) for shift in (0, 1)
            )
            vectors = [
                self.do.fadd(self.do.shuffle_vector(one, other, even), self.do.shuffle_vector(one, other, odd))
                for one, other in zip(vectors[::2], vectors[1::2], strict=True)
            ]
        return vectors[0]

    def variables(self, count: int, start: Any) -> list[Any]:
        return [cgutils.alloca_once_value(self.do, start) for _ in range(count)]

    def loop(self, count: Any) -> Any:
        return cgutils.for_range(self.do, count)

    def times(self, index: Any, width: Any) -> Any:
        return self.do.mul(index, width if isinstance(width, ir.Value) else ir.Constant(_I64, width))


def _instruction(result: types.Type, *takes: types.Type) -> Callable[[Callable[..., Any]], Any]:
    """Make a function that numba can call of one that emits its code."""

    def made(emit: Callable[..., Any]) -> Any:
        def typed(_typing: Any, *_given: Any) -> Any:
            def codegen(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
                value = emit(_Code(builder), *values)
                return context.get_dummy_value() if value is None else value

            return result(*takes), codegen

        typed.__name__, typed.__doc__ = emit.__name__, emit.__doc__
        typed.__signature__ = inspect.signature(emit)  # type: ignore[attr-defined]  # numba asks for names
        return intrinsic(typed)

    return made


_zeros, _float = ir.Constant(_VF, [0.0] * LANES), types.float32
_at = types.int64  # an address, a stride or a count


def _multiplied(
    code: _Code, pairs: bool, vectors: int, a: Any, lda: Any, b: Any, ldb: Any, c: Any, ldc: Any, depth: Any, fresh: Any
) -> None:
    do = code.do
    sums = [code.variables(vectors, _zeros) for _ in range(ROWS)]
    rows = [do.add(c, code.times(ir.Constant(_I64, row), ldc)) for row in range(ROWS)]
    with do.if_then(do.icmp_signed("==", fresh, ir.Constant(_I64, 0))):
        for row in range(ROWS):
            for at in range(vectors):
                do.store(code.load(code.at(rows[row], at * _WIDTH), _VF), sums[row][at])
    left = [do.add(a, code.times(ir.Constant(_I64, row), lda)) for row in range(ROWS)]
    with code.loop(depth) as loop:
        below = do.add(b, code.times(loop.index, ldb))
        right = [code.load(code.at(below, at * _WIDTH), _VF) for at in range(vectors)]
        for row in range(ROWS):
            here = do.add(left[row], code.times(loop.index, 4))
            one = code.everywhere(code.load(here, _F))
            for at in range(vectors):
                do.store(code.products(pairs, do.load(sums[row][at]), one, right[at]), sums[row][at])
    for row in range(ROWS):
        for at in range(vectors):
            code.store(do.load(sums[row][at]), code.at(rows[row], at * _WIDTH))


def _multiply(pairs: bool, name: str) -> Any:
    def emit(
        code: _Code, a: Any, lda: Any, b: Any, ldb: Any, c: Any, ldc: Any, depth: Any, vectors: Any, fresh: Any
    ) -> None:
        if pairs and not HAS_PAIRS:
            return  # never called; the processor would have no such instruction
        done = code.do.append_basic_block("done")
        chosen = code.do.switch(vectors, done)
        for width in range(1, PANEL + 1):
            case = code.do.append_basic_block(f"vectors{width}")
            chosen.add_case(ir.Constant(_I64, width), case)
            code.do.position_at_end(case)
            _multiplied(code, pairs, width, a, lda, b, ldb, c, ldc, depth, fresh)
            code.do.branch(done)
        code.do.position_at_end(done)

    emit.__name__ = name
    emit.__doc__ = (
        """c (4 × 16 vectors) = a (4 × depth) · b (depth × 16 vectors), added to what c holds unless fresh."""
    )
    return _instruction(types.void, *[_at] * 9)(emit)


multiply_f32, multiply_pairs = _multiply(False, "multiply_f32"), _multiply(True, "multiply_pairs")


def _dots(pairs: bool, name: str) -> Any:
    def emit(code: _Code, a: Any, b: Any, ldb: Any, c: Any, ldc: Any, count: Any, vectors: Any) -> None:
        if pairs and not HAS_PAIRS:
            return  # never called
        do = code.do
        lda = do.mul(vectors, ir.Constant(_I64, _WIDTH))
        left = [do.add(a, code.times(ir.Constant(_I64, row), lda)) for row in range(ROWS)]
        into = [do.add(c, code.times(ir.Constant(_I64, row), ldc)) for row in range(ROWS)]
        sums = code.variables(4 * ROWS, _zeros)
        last = do.sub(count, ir.Constant(_I64, 1))
        with code.loop(do.lshr(do.add(count, ir.Constant(_I64, 3)), ir.Constant(_I64, 2))) as four:
            first = code.times(four.index, 4)
            keys = [code.at(first, key) for key in range(4)]
            keys = [do.select(do.icmp_signed("<", key, last), key, last) for key in keys]
            right = [do.add(b, code.times(key, ldb)) for key in keys]
            for one in sums:
                do.store(_zeros, one)
            with code.loop(vectors) as loop:
                at = code.times(loop.index, _WIDTH)
                others = [code.load(do.add(key, at), _VF) for key in right]
                for row in range(ROWS):
                    one = code.load(do.add(left[row], at), _VF)
                    for key in range(4):
                        held = sums[4 * row + key]
                        do.store(code.products(pairs, do.load(held), one, others[key]), held)
            totals = code.totals([do.load(one) for one in sums])
            for row in range(ROWS):
                places = ir.Constant(ir.VectorType(_I32, 4), list(range(4 * row, 4 * row + 4)))
                code.store(do.shuffle_vector(totals, totals, places), do.add(into[row], code.times(first, 4)))

    emit.__name__ = name
    emit.__doc__ = """c (4 × count) = a (4 × vectors) · b (count × vectors)ᵀ; the rows of a lie side by side.

    Rows of c are written up to the next multiple of 4, with the last number again.
    """
    return _instruction(types.void, *[_at] * 7)(emit)


dots_f32, dots_pairs = _dots(False, "dots_f32"), _dots(True, "dots_pairs")


@_instruction(_float, _at, _at, _float)
def largest(code: _Code, row: Any, vectors: Any, scale: Any) -> Any:
    """The largest of scale · x over a row of a multiple of 4 vectors."""
    do = code.do
    found = code.variables(4, ir.Constant(_VF, [float("-inf")] * LANES))
    factor = code.everywhere(scale)
    with code.loop(do.lshr(vectors, ir.Constant(_I64, 2))) as loop:
        start = do.add(row, code.times(loop.index, 4 * _WIDTH))
        for at in range(4):
            one = do.fmul(code.load(code.at(start, at * _WIDTH), _VF), factor)
            do.store(code.larger(one, do.load(found[at])), found[at])
    a, b, c, d = (do.load(one) for one in found)
    most = code.larger(code.larger(a, b), code.larger(c, d))
    kind = ir.FunctionType(_F, [_VF])
    return do.call(cgutils.get_or_insert_function(do.module, kind, "llvm.vector.reduce.fmax.v16f32"), [most])


def _power(code: _Code, x: Any) -> Any:
    """2 ** x; 0 where that is no normal number, NaN where x is."""
    do = code.do
    rounds, least = (ir.Constant(_VF, [number] * LANES) for number in (_ROUNDS, _LEAST))
    whole = do.fadd(x, rounds)
    rest = do.fsub(x, do.fsub(whole, rounds))
    power: Any = ir.Constant(_VF, [_EXP2[0]] * LANES)
    for number in _EXP2[1:]:
        power = code.fma(power, rest, ir.Constant(_VF, [number] * LANES))
    bits = do.shl(do.bitcast(whole, _VI), ir.Constant(_VI, [23] * LANES))
    two = do.bitcast(do.add(bits, ir.Constant(_VI, [127 << 23] * LANES)), _VF)
    # Not "no less than": what is NaN must stay so.
    return do.select(do.fcmp_ordered("<", x, least), _zeros, do.fmul(power, two))


def _exp2(pairs: bool, name: str) -> Any:
    def emit(code: _Code, row: Any, into: Any, vectors: Any, scale: Any, most: Any) -> Any:
        do = code.do
        if pairs and not HAS_PAIRS:
            return ir.Constant(_F, 0.0)  # never called
        totals = code.variables(2, _zeros)
        factor, less = code.everywhere(scale), code.everywhere(do.fneg(most))
        with code.loop(do.lshr(vectors, ir.Constant(_I64, 1))) as loop:
            start = do.add(row, code.times(loop.index, 2 * _WIDTH))
            target = do.add(into, code.times(loop.index, _WIDTH if pairs else 2 * _WIDTH))
            for at in range(2):
                x = code.fma(code.load(code.at(start, at * _WIDTH), _VF), factor, less)
                weight = _power(code, x)
                do.store(do.fadd(do.load(totals[at]), weight), totals[at])
                if pairs:
                    weight = do.fptrunc(weight, ir.VectorType(_BFloat(), LANES))
                code.store(weight, code.at(target, at * (_WIDTH // 2 if pairs else _WIDTH)))
        return code.total(do.fadd(*(do.load(one) for one in totals)))

    emit.__name__, emit.__doc__ = name, "2 ** (scale · x − most) over a row of an even number of vectors, and its sum."
    return _instruction(_float, _at, _at, _at, _float, _float)(emit)


exp2_f32, exp2_pairs = _exp2(False, "exp2_f32"), _exp2(True, "exp2_pairs")


@_instruction(types.void, _at, _at, _float, _float)
def cap(code: _Code, row: Any, vectors: Any, scale: Any, most: Any) -> None:
    """most · tanh(x · y / 2), where 2 ** scale is e ** y."""
    do, factor, whole = code.do, code.everywhere(scale), code.everywhere(most)
    one, two, far, near = (ir.Constant(_VF, [number] * LANES) for number in (1.0, 2.0, 64.0, -64.0))
    with code.loop(vectors) as loop:
        at = do.add(row, code.times(loop.index, _WIDTH))
        x = do.fmul(code.load(at, _VF), factor)
        # Beyond ± 64 the tangent is ± 1; what is NaN stays so.
        x = do.select(do.fcmp_ordered(">", x, far), far, x)
        x = do.select(do.fcmp_ordered("<", x, near), near, x)
        tangent = do.fsub(one, do.fdiv(two, do.fadd(_power(code, x), one)))
        code.store(do.fmul(whole, tangent), at)


@_instruction(types.void, _at, _at, _at, _float)
def add(code: _Code, row: Any, bias: Any, count: Any, factor: Any) -> None:
    """factor · x + log₂ e · bias for the first floats of a row."""
    do = code.do
    vectors = do.lshr(count, ir.Constant(_I64, 4))
    with code.loop(vectors) as loop:
        offset = code.times(loop.index, _WIDTH)
        at = do.add(row, offset)
        added = do.fmul(code.load(do.add(bias, offset), _VF), ir.Constant(_VF, [_LOG2_E] * LANES))
        code.store(code.fma(code.load(at, _VF), code.everywhere(factor), added), at)
    begun = do.shl(vectors, ir.Constant(_I64, 4))
    with code.loop(do.sub(count, begun)) as loop:  # beyond them may be memory of somebody else
        offset = code.times(do.add(begun, loop.index), 4)
        at = do.add(row, offset)
        added = do.fmul(code.load(do.add(bias, offset), _F), ir.Constant(_F, _LOG2_E))
        code.store(do.fadd(do.fmul(code.load(at, _F), factor), added), at)


@_instruction(types.void, _at, _at, _at, _float)
def hide(code: _Code, row: Any, seen: Any, vectors: Any, instead: Any) -> None:
    """Put another number where a row of bytes is 0."""
    do, other = code.do, code.everywhere(instead)
    with code.loop(vectors) as loop:
        at = do.add(row, code.times(loop.index, _WIDTH))
        kept = code.load(do.add(seen, code.times(loop.index, LANES)), ir.VectorType(_I8, LANES))
        visible = do.icmp_unsigned("!=", kept, ir.Constant(ir.VectorType(_I8, LANES), [0] * LANES))
        code.store(do.select(visible, code.load(at, _VF), other), at)


@_instruction(types.void, _at, _at, _float)
def rescale(code: _Code, row: Any, vectors: Any, factor: Any) -> None:
    """Multiply a row by a number."""
    do, times = code.do, code.everywhere(factor)
    with code.loop(vectors) as loop:
        at = do.add(row, code.times(loop.index, _WIDTH))
        code.store(do.fmul(code.load(at, _VF), times), at)


@_instruction(types.void, _at, _at, _at)
def copy(code: _Code, into: Any, source: Any, count: Any) -> None:
    """Copy bytes."""
    bytes_ = _I8.as_pointer()
    cgutils.raw_memcpy(
        code.do, code.do.inttoptr(into, bytes_), code.do.inttoptr(source, bytes_), count, ir.Constant(_I64, 1)
    )


@_instruction(types.int64, types.CPointer(Job))
def claim(code: _Code, counter: Any) -> Any:
    """The number that a job begins with, which no other thread is given, as it is raised by one."""
    where = code.do.bitcast(counter, _I64.as_pointer())
    return code.do.atomic_rmw("add", where, ir.Constant(_I64, 1), "monotonic")


@_instruction(types.void, *[_at] * 4)
def transpose(code: _Code, source: Any, lds: Any, into: Any, depth: Any) -> None:
    """Lay 16 rows of 32 bits each out as columns: element e of all of them at `into` + e · panel."""
    do = code.do
    rows = [do.add(source, code.times(ir.Constant(_I64, row), lds)) for row in range(LANES)]
    with code.loop(depth) as loop:
        at = code.times(loop.index, 4)
        column: Any = ir.Constant(_VI, ir.Undefined)
        for row in range(LANES):
            column = do.insert_element(column, code.load(do.add(rows[row], at), _I32), ir.Constant(_I32, row))
        code.store(column, do.add(into, code.times(loop.index, PANEL * _WIDTH)))


@_instruction(types.void, *[_at] * 4)
def interleave(code: _Code, one: Any, other: Any, into: Any, vectors: Any) -> None:
    """Two rows of 16 bits, element by element in turn."""
    do, kind = code.do, ir.VectorType(_I16, LANES)
    turns = [at // 2 + LANES * (at % 2) for at in range(2 * LANES)]
    with code.loop(vectors) as loop:
        at = code.times(loop.index, 2 * LANES)
        both = (code.load(do.add(row, at), kind) for row in (one, other))
        mixed = do.shuffle_vector(*both, ir.Constant(ir.VectorType(_I32, 2 * LANES), turns))
        code.store(mixed, do.add(into, code.times(loop.index, _WIDTH)))


@_instruction(types.void, _at, _at, _at, _float)
def write_f32(code: _Code, row: Any, into: Any, vectors: Any, factor: Any) -> None:
    """Write factor · x of a row."""
    do, times = code.do, code.everywhere(factor)
    with code.loop(vectors) as loop:
        at = code.times(loop.index, _WIDTH)
        code.store(do.fmul(code.load(do.add(row, at), _VF), times), do.add(into, at))


@_instruction(types.void, _at, _at, _at, _float)
def write_bf16(code: _Code, row: Any, into: Any, vectors: Any, factor: Any) -> None:
    """Write factor · x of a row as bfloat16."""
    if not HAS_PAIRS:
        return  # never called
    do, times = code.do, code.everywhere(factor)
    with code.loop(vectors) as loop:
        one = do.fmul(code.load(do.add(row, code.times(loop.index, _WIDTH)), _VF), times)
        narrow = do.fptrunc(one, ir.VectorType(_BFloat(), LANES))
        code.store(narrow, do.add(into, code.times(loop.index, 2 * LANES)))


@_instruction(types.voidptr, _at)
def pointer(code: _Code, address: Any) -> Any:
    """An address as numba's `carray` takes it."""
    return code.do.inttoptr(address, _I8.as_pointer())


@_instruction(types.void, _at, _at)
def zero(code: _Code, address: Any, count: Any) -> None:
    """Set bytes to 0."""
    cgutils.memset(code.do, code.do.inttoptr(address, _I8.as_pointer()), count, 0)
