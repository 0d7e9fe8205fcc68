"""Modules exported to ONNX, every size free that differs between two of their inputs, and run in ONNX Runtime.

program = exported(module, given, other)
program(*inputs)            what ONNX Runtime computes: the leaves of the module's output, in order
"""

import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from regard.errors import InputError

__all__ = ["Calls", "exported", "free_sizes", "refusal"]


class Calls(nn.Module):
    """A function of tensors as a module."""

    def __init__(self, call: Callable[..., Any], *modules: nn.Module) -> None:
        super().__init__()
        self.call, self.modules_ = call, nn.ModuleList(modules)

    def forward(self, *inputs: Any) -> Any:
        return self.call(*self.modules_, *inputs)


def free_sizes(module: nn.Module, given: tuple[Any, ...], other: tuple[Any, ...]) -> dict[str, Any]:
    """The `dynamic_shapes` of a call: each size that is another in these two inputs."""

    def sizes(one: Tensor, another: Tensor) -> dict[int, Any] | None:
        pairs = enumerate(zip(one.shape, another.shape, strict=True))
        return {dim: torch.export.Dim.DYNAMIC for dim, (size, another) in pairs if size != another} or None

    bound = inspect.signature(module.forward).bind(*pytree.tree_map(sizes, given, other))
    return dict(bound.arguments)


def exported(module: nn.Module, given: tuple[Any, ...], other: tuple[Any, ...]) -> Callable[..., list[Tensor]]:
    """Export a module by the inputs `given`; what is called with others of any size computes it in ONNX Runtime."""
    import onnxruntime

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own, of PyTorch's deprecated internals
        program = torch.onnx.export(
            module, given, dynamo=True, dynamic_shapes=free_sizes(module, given, other), verbose=False
        )
    assert program is not None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        program.model_proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [one.name for one in program.model.graph.inputs]
    read = {one.name for one in session.get_inputs()}

    def run(*inputs: Any) -> list[Tensor]:
        arrays = zip(names, pytree.tree_leaves(inputs), strict=True)
        found = session.run(
            None, {name: np.ascontiguousarray(one.detach().numpy()) for name, one in arrays if name in read}
        )
        return [torch.from_numpy(one) for one in found]

    return run


def refusal(error: BaseException) -> InputError | None:
    """Our own sentence among the causes of an exporter's error."""
    return next((one for one in _causes(error) if isinstance(one, InputError)), None)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
