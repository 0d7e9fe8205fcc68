"""A builder of LLVM instructions on vectors, and the decorator that makes them callable from numba.

Addresses and strides are in bytes. A vector has 16 floats: one register with AVX-512, otherwise two or four.
"""

import inspect
from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from regard.backends.numba_loops.kernel_args import JOB
from regard.backends.numba_loops.sizes import LANES
from regard.backends.numba_loops.target import has_pairs, processor

__all__ = [
    "FLOATS",
    "HAS_PAIRS",
    "I8",
    "I16",
    "I32",
    "I64",
    "PAIRS",
    "PANEL",
    "WIDTH",
    "WORDS",
    "BFloat",
    "Code",
    "F",
    "Job",
    "compiled",
    "compiled_sums",
    "instruction",
]


Job = numba.from_dtype(JOB)  # the type of the loops' argument
HAS_PAIRS = has_pairs()
PANEL = 4 if "avx512f" in processor().features else 1  # number of vectors per row that fit the registers


def compiled(function: Callable[..., Any]) -> Any:
    """Compile a function when a compiled function calls it."""
    return numba.njit(nogil=True, error_model="numpy")(function)


def compiled_sums(function: Callable[..., Any]) -> Any:
    """Do the same, with sums that may be reordered, so that they can be vectorized; NaN is preserved."""
    return numba.njit(nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})(function)


class BFloat(ir.Type):
    """LLVM's type bfloat, which llvmlite does not define."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BFloat)

    def __hash__(self) -> int:
        return hash(BFloat)


F, I8, I16, I32, I64 = ir.FloatType(), ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
FLOATS, WORDS, PAIRS = ir.VectorType(F, LANES), ir.VectorType(I32, LANES), ir.VectorType(BFloat(), 2 * LANES)
WIDTH = 4 * LANES  # bytes of a vector


def _aligned(kind: ir.Type) -> int:
    """Return the guaranteed alignment of a vector's address: that of one of its elements."""
    element = getattr(kind, "element", kind)
    return {F: 4, I32: 4, I64: 8, I8: 1}.get(element, 2)


def _pairs_of(width: int) -> list[int]:
    """The first of each pair of neighbours, as wide, in the first four of a vector, then in those of another."""
    return [start + at for start in (0, 2 * width, LANES, LANES + 2 * width) for at in range(width)]


class Code:
    """A builder of instructions with the methods that are needed here."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.do = builder

    def at(self, address: Any, offset: int) -> Any:
        """Return an address plus an offset in bytes."""
        return self.do.add(address, ir.Constant(I64, offset)) if offset else address

    def load(self, address: Any, kind: ir.Type) -> Any:
        """Load a value from an address."""
        return self.do.load(self.do.inttoptr(address, kind.as_pointer()), align=_aligned(kind))

    def store(self, value: Any, address: Any) -> None:
        """Store a value at an address."""
        self.do.store(value, self.do.inttoptr(address, value.type.as_pointer()), align=_aligned(value.type))

    def everywhere(self, value: Any, kind: ir.VectorType = FLOATS) -> Any:
        """Return a vector with one number in all elements."""
        nothing = ir.Constant(kind, ir.Undefined)
        one = self.do.insert_element(nothing, value, ir.Constant(I32, 0))
        return self.do.shuffle_vector(one, nothing, ir.Constant(ir.VectorType(I32, LANES), [0] * LANES))

    def call(self, name: str, result: ir.Type, *given: Any) -> Any:
        """Call one of LLVM's intrinsics."""
        kind = ir.FunctionType(result, [one.type for one in given])
        return self.do.call(cgutils.get_or_insert_function(self.do.module, kind, name), given)

    def fma(self, one: Any, other: Any, added: Any) -> Any:
        """Return one · other + added, rounded once."""
        return self.call("llvm.fma.v16f32", FLOATS, one, other, added)

    def products(self, pairs: bool, added: Any, one: Any, other: Any) -> Any:
        """Add the products of floats, or of pairs of bfloat16, to the sums and return them."""
        if not pairs:
            return self.fma(one, other, added)
        both = (self.do.bitcast(each, PAIRS) for each in (one, other))
        return self.call("llvm.x86.avx512bf16.dpbf16ps.512", FLOATS, added, *both)

    def larger(self, one: Any, other: Any) -> Any:
        """Return the larger value; the second one if either is NaN."""
        return self.do.select(self.do.fcmp_ordered(">", one, other), one, other)

    def total(self, vector: Any) -> Any:
        """Return the sum of a vector, in any order."""
        return self.do.call(
            cgutils.get_or_insert_function(
                self.do.module, ir.FunctionType(F, [F, FLOATS]), "llvm.vector.reduce.fadd.v16f32"
            ),
            [ir.Constant(F, -0.0), vector],
            fastmath=("reassoc",),
        )

    def totals(self, vectors: list[Any]) -> Any:
        """Return the sums of 16 vectors as one vector: four times, neighbours in each half are added and two vectors
        become one.
        """
        for width in (
            1,
            1,
            4,
            4,
        ):  # elements first, then quarters of a vector, because shuffles within quarters are cheaper
            places = [lane + at for lane in range(0, LANES, 4 * width) for at in _pairs_of(width)]
            even, odd = (
                ir.Constant(ir.VectorType(I32, LANES), [place + shift * width for place in places]) for shift in (0, 1)
            )
            vectors = [
                self.do.fadd(self.do.shuffle_vector(one, other, even), self.do.shuffle_vector(one, other, odd))
                for one, other in zip(vectors[::2], vectors[1::2], strict=True)
            ]
        return vectors[0]

    def variables(self, count: int, start: Any) -> list[Any]:
        """Return variables on the stack with initial values, which LLVM moves to registers."""
        return [cgutils.alloca_once_value(self.do, start) for _ in range(count)]

    def loop(self, count: Any) -> Any:
        """Return a context with a loop over 0 … count − 1, whose `index` is the number."""
        return cgutils.for_range(self.do, count)

    def times(self, index: Any, width: Any) -> Any:
        """Return the product of an index and a width, which is a number or a value."""
        return self.do.mul(index, width if isinstance(width, ir.Value) else ir.Constant(I64, width))


def instruction(result: types.Type, *takes: types.Type) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that makes a code-emitting function callable from numba."""

    def made(emit: Callable[..., Any]) -> Any:
        def typed(_typing: Any, *_given: Any) -> Any:
            def codegen(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
                value = emit(Code(builder), *values)
                return context.get_dummy_value() if value is None else value

            return result(*takes), codegen

        typed.__name__, typed.__doc__ = emit.__name__, emit.__doc__
        typed.__signature__ = inspect.signature(emit)  # type: ignore[attr-defined]  # numba asks for names
        return intrinsic(typed)

    return made
