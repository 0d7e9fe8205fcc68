"""Compile the loops with numba to machine code that a process without numba can run.

The loops allocate nothing and raise nothing, so their code calls only the functions of C's library in `CALLED`.
"""

from collections.abc import Callable, Iterator
from typing import Any

from llvmlite import binding, ir
from numba import from_dtype, types
from numba.core import compiler
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target

from regard.backends.numba_loops.kernel_args import BLOCK_OF_WEIGHTS, HEAD_ROWS
from regard.backends.numba_loops.target import CALLED, LOOPS, ObjectCode

__all__ = ["compile_loops"]


def compile_loops() -> Iterator[tuple[str, ObjectCode]]:
    """Yield the name and the machine code of each loop, one after the other.

    Raises:
        RuntimeError: A loop calls functions that another process may not have.
    """
    from regard.backends.numba_loops import backward, decode, head_rows, prefill, statistics_from_qk, weight_statistics
    from regard.backends.numba_loops.llvm_builder import Job

    modules = {prefill: Job, decode: Job, backward: Job}
    weights = from_dtype(BLOCK_OF_WEIGHTS)
    modules |= {weight_statistics: weights, statistics_from_qk: weights, head_rows: from_dtype(HEAD_ROWS)}
    takes = {name: (getattr(module, name), record) for module, record in modules.items() for name in module.__all__}
    for name in LOOPS:
        yield name, _compiled(name, *takes[name])


@global_compiler_lock
def _compiled(name: str, function: Callable[..., Any], record: Any) -> ObjectCode:
    flags = compiler.Flags()
    flags.no_cpython_wrapper = flags.no_cfunc_wrapper = flags.nrt = True
    flags.error_model = "numpy"
    context = cpu_target.target_context
    takes = (types.CPointer(record),)
    made: Any = compiler.compile_extra(cpu_target.typing_context, context, function, takes, types.void, flags, {})
    library = context.codegen().create_library(name)
    library.add_ir_module(_entrance(context, made.fndesc, symbol := f"regard_{name}"))
    library.add_linking_library(made.library)
    library.finalize()
    module = binding.parse_assembly(str(library._final_module))
    machine = context.codegen()._tm
    _keep_alone(module, symbol, machine)
    declared = {one.name for one in module.functions if one.is_declaration and not one.name.startswith("llvm.")}
    if others := declared - CALLED:
        raise RuntimeError(f"the loop {name!r} calls {', '.join(sorted(others))}")
    return ObjectCode(symbol, machine.emit_object(module))


def _entrance(context: Any, function: Any, symbol: str) -> ir.Module:
    """Return a function for calls from C, without numba's report of errors, of which a loop has none."""
    module = context.create_module(symbol)
    inner = ir.Function(
        module, context.call_conv.get_function_type(function.restype, function.argtypes), function.llvm_func_name
    )
    takes = [context.get_value_type(one) for one in function.argtypes]
    entrance = ir.Function(module, ir.FunctionType(ir.VoidType(), takes), symbol)
    builder = ir.IRBuilder(entrance.append_basic_block("entry"))
    context.call_conv.call_function(builder, inner, function.restype, function.argtypes, entrance.args)
    builder.ret_void()
    return module


def _keep_alone(module: Any, symbol: str, machine: Any) -> None:
    """Remove everything that a function does not need."""
    for one in module.functions:
        if not one.is_declaration and one.name != symbol:
            one.linkage = "internal"
    for one in module.global_variables:
        if not one.is_declaration:
            one.linkage = "internal"
    passes = binding.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.add_strip_dead_prototype_pass()
    passes.run(module, binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(speed_level=3)))
