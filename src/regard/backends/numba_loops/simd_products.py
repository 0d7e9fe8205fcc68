"""Products as LLVM instructions, because numba does not hold a block of sums in registers. Addresses and strides are in
bytes.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from llvmlite import ir
from numba import types

from regard.backends.numba_loops.llvm_builder import FLOATS, HAS_PAIRS, I32, I64, PANEL, WIDTH, Code, F, instruction
from regard.backends.numba_loops.sizes import LANES, ROWS

__all__ = [
    "add_few_f32",
    "add_few_pairs",
    "dots_f32",
    "dots_pairs",
    "multiply_f32",
    "multiply_pairs",
    "multiply_transposed",
]

_WIDTHS = 2, 4, 8  # vectors of a key for which the code has no loop

_zeros = ir.Constant(FLOATS, [0.0] * LANES)
_at = types.int64  # an address, a stride or a count


def _multiplied(
    code: Code, pairs: bool, rows: int, vectors: int, a: Any, lda: Any, b: Any, ldb: Any, c: Any, ldc: Any, depth: Any,
    fresh: Any, transposed: bool = False,
) -> None:  # fmt: skip
    do = code.do
    row_step, depth_step = (4, lda) if transposed else (lda, 4)
    sums = [code.variables(vectors, _zeros) for _ in range(rows)]
    into = [do.add(c, code.times(ir.Constant(I64, row), ldc)) for row in range(rows)]
    with do.if_then(do.icmp_signed("==", fresh, ir.Constant(I64, 0))):
        for row in range(rows):
            for at in range(vectors):
                do.store(code.load(code.at(into[row], at * WIDTH), FLOATS), sums[row][at])
    left = [do.add(a, code.times(ir.Constant(I64, row), row_step)) for row in range(rows)]
    with code.loop(depth) as loop:
        below = do.add(b, code.times(loop.index, ldb))
        right = [code.load(code.at(below, at * WIDTH), FLOATS) for at in range(vectors)]
        for row in range(rows):
            here = do.add(left[row], code.times(loop.index, depth_step))
            one = code.everywhere(code.load(here, F))
            for at in range(vectors):
                do.store(code.products(pairs, do.load(sums[row][at]), one, right[at]), sums[row][at])
    for row in range(rows):
        for at in range(vectors):
            code.store(do.load(sums[row][at]), code.at(into[row], at * WIDTH))


def _case(
    code: Code, value: Any, cases: Mapping[int, Callable[[], None]], otherwise: Callable[[], None] = lambda: None
) -> None:
    """Emit what a value chooses of some cases."""
    done, other = code.do.append_basic_block("done"), code.do.append_basic_block("otherwise")
    chosen = code.do.switch(value, other)
    for number, emit in cases.items():
        case = code.do.append_basic_block(f"case{number}")
        chosen.add_case(ir.Constant(I64, number), case)
        code.do.position_at_end(case)
        emit()
        code.do.branch(done)
    code.do.position_at_end(other)
    otherwise()
    code.do.branch(done)
    code.do.position_at_end(done)


def _multiply(pairs: bool, name: str, *, transposed: bool = False) -> Any:
    def emit(
        code: Code, a: Any, lda: Any, b: Any, ldb: Any, c: Any, ldc: Any, depth: Any, vectors: Any, fresh: Any
    ) -> None:
        if pairs and not HAS_PAIRS:
            return  # never called; the processor would have no such instruction
        given = a, lda, b, ldb, c, ldc, depth, fresh, transposed
        _case(code, vectors, {n: partial(_multiplied, code, pairs, ROWS, n, *given) for n in range(1, PANEL + 1)})

    emit.__name__ = name
    left = "aᵀ, which has depth rows," if transposed else "a (4 × depth)"
    emit.__doc__ = f"""c (4 × 16 vectors) = {left} · b (depth × 16 vectors), added to what c holds unless fresh."""
    return instruction(types.void, *[_at] * 9)(emit)


multiply_f32, multiply_pairs = _multiply(False, "multiply_f32"), _multiply(True, "multiply_pairs")
multiply_transposed = _multiply(False, "multiply_transposed", transposed=True)


def _add_few(pairs: bool, name: str) -> Any:
    def emit(
        code: Code, a: Any, lda: Any, b: Any, ldb: Any, c: Any, ldc: Any, depth: Any, vectors: Any, rows: Any
    ) -> None:
        if pairs and not HAS_PAIRS:
            return  # never called
        given = a, lda, b, ldb, c, ldc, depth, ir.Constant(I64, 0)

        def of_rows(count: int) -> None:
            _case(code, vectors, {n: partial(_multiplied, code, pairs, count, n, *given) for n in (1, PANEL)})

        _case(code, rows, {count: partial(of_rows, count) for count in range(1, ROWS + 1)})

    emit.__name__ = name
    emit.__doc__ = """c (rows × 16 vectors) += a (rows × depth) · b (depth × 16 vectors), for up to 4 rows, and for one
    vector or PANEL.
    """
    return instruction(types.void, *[_at] * 9)(emit)


add_few_f32, add_few_pairs = _add_few(False, "add_few_f32"), _add_few(True, "add_few_pairs")


def _dots_of(
    code: Code, pairs: bool, rows: int, width: int | None, a: Any, b: Any, ldb: Any, c: Any, ldc: Any, count: Any,
    vectors: Any,
) -> None:  # fmt: skip
    """Compute sixteen sums at a time, for as many keys as rows leave; of `width` vectors each, or of any number."""
    do, step = code.do, LANES // rows
    lda = do.mul(vectors, ir.Constant(I64, WIDTH))
    left = [do.add(a, code.times(ir.Constant(I64, row), lda)) for row in range(rows)]
    into = [do.add(c, code.times(ir.Constant(I64, row), ldc)) for row in range(rows)]
    sums = code.variables(LANES, _zeros)

    def add(keys: list[Any], first: int, at: Any) -> None:
        others = [code.load(do.add(key, at), FLOATS) for key in keys]
        for row in range(rows):
            one = code.load(do.add(left[row], at), FLOATS)
            for key in range(4):
                held = sums[step * row + first + key]
                do.store(code.products(pairs, do.load(held), one, others[key]), held)

    with code.loop(do.sdiv(count, ir.Constant(I64, step))) as some:
        key = do.add(b, do.mul(code.times(some.index, step), ldb))
        for one in sums:
            do.store(_zeros, one)
        for first in range(0, step, 4):  # four keys at a time, because each needs an address in a register
            keys = [key := key if first == at == 0 else do.add(key, ldb) for at in range(4)]
            if width is not None:
                for at in range(width):
                    add(keys, first, ir.Constant(I64, at * WIDTH))
            else:
                with code.loop(vectors) as loop:
                    add(keys, first, code.times(loop.index, WIDTH))
        totals = code.totals([do.load(one) for one in sums])
        for row in range(rows):
            places = ir.Constant(ir.VectorType(I32, step), list(range(step * row, step * row + step)))
            code.store(do.shuffle_vector(totals, totals, places), do.add(into[row], code.times(some.index, 4 * step)))


def _dots(pairs: bool, name: str) -> Any:
    def emit(code: Code, a: Any, b: Any, ldb: Any, c: Any, ldc: Any, count: Any, vectors: Any, rows: Any) -> None:
        if pairs and not HAS_PAIRS:
            return  # never called
        given = a, b, ldb, c, ldc, count, vectors

        def of_rows(some: int) -> None:
            cases = {width: partial(_dots_of, code, pairs, some, width, *given) for width in _WIDTHS}
            _case(code, vectors, cases, partial(_dots_of, code, pairs, some, None, *given))

        _case(code, rows, {some: partial(of_rows, some) for some in (1, 2, 4)})

    emit.__name__ = name
    emit.__doc__ = """c (rows × count) = a (rows × vectors) · b (count × vectors)ᵀ, for 1, 2 or 4 rows that lie side by
    side in a, and a multiple of 16 keys. A sum does not depend on the number of rows.
    """
    return instruction(types.void, *[_at] * 8)(emit)


dots_f32, dots_pairs = _dots(False, "dots_f32"), _dots(True, "dots_pairs")
