"""Fused multiply–adds in registers, as two compiled loops: floats, and pairs of bfloat16 that are added to float32.

A loop stores what it has added up, which depends on what it was given, so that no instruction can be left out and the
sums can be checked.
"""

from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir
from numba import types

from regard.backends.numba_loops.llvm_builder import FLOATS, I64, PANEL, WIDTH, Code, instruction

__all__ = ["ACCUMULATORS", "add_products", "add_products_of_pairs"]

# Vectors of 16 floats. With AVX-512 they are registers, and more than an instruction's cycles times those that begin in
# one cycle. Otherwise they are 12 registers of AVX2, all that the two factors leave, or 24 of NEON.
ACCUMULATORS = 12 if PANEL > 1 else 6


def add_products() -> Any:
    """Compile the loop of floats: a function of C, which takes the address of a record.

    The record has 4 numbers of 8 bytes: 0 (each thread takes the next seat), how often the products are added, the
    address of the two factors, and that of the sums, (seats, `ACCUMULATORS`, 16) floats.
    """
    return _compiled(lambda record: _add_products(record))


def add_products_of_pairs() -> Any:
    """Compile the loop of pairs of bfloat16; the factors have two in place of each float."""
    return _compiled(lambda record: _add_products_of_pairs(record))


def _compiled(function: Callable[[int], None]) -> Any:
    return numba.cfunc(types.void(types.int64))(function)


@instruction(types.void, types.int64)
def _add_products(code: Code, record: Any) -> None:
    _add(code, record, pairs=False)


@instruction(types.void, types.int64)
def _add_products_of_pairs(code: Code, record: Any) -> None:
    _add(code, record, pairs=True)


def _add(code: Code, record: Any, *, pairs: bool) -> None:
    counter = code.do.inttoptr(record, I64.as_pointer())
    seat = code.do.atomic_rmw("add", counter, ir.Constant(I64, 1), "monotonic")
    times, factors, sums = (code.load(code.at(record, 8 * place), I64) for place in (1, 2, 3))
    one, other = code.load(factors, FLOATS), code.load(code.at(factors, WIDTH), FLOATS)
    mine = code.do.add(sums, code.times(seat, ACCUMULATORS * WIDTH))
    places = [code.at(mine, at * WIDTH) for at in range(ACCUMULATORS)]
    registers = [code.variables(1, code.load(place, FLOATS))[0] for place in places]
    with code.loop(times):
        for register in registers:
            code.do.store(code.products(pairs, code.do.load(register), one, other), register)
    for register, place in zip(registers, places, strict=True):
        code.store(code.do.load(register), place)
