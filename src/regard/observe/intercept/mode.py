"""The interception: a torch-function mode that reads each attention call of one thread after it has returned."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.observe.intercept.calls import read_sdpa, refuse_transforms
from regard.observe.intercept.eager import Eager
from regard.observe.intercept.fastpath import WatchingMode, in_backward
from regard.observe.intercept.multihead import read_encoder_layer, read_functional, read_native
from regard.observe.recorder import Recorder
from regard.observe.site import Seen

__all__ = ["Interception"]

# The function itself, whoever puts another in its place (as SageAttention does, to call its own kernel).
_KERNEL = torch._C._nn.scaled_dot_product_attention
# What a torch-function mode is told of the kernel: its builtin has no signature of its own.
_SDPA = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")

# Called by name: torch.ops.<library>.<operator>, as flash-attn registers its kernels.
_OPERATORS = torch._ops.OpOverload, torch._ops.OpOverloadPacket
_ATTENDS = re.compile(r"flash|attention|sdpa|attn_(func|fwd|forward|varlen)|mha_(fwd|forward)", re.IGNORECASE)

_FAKE = torch._C._TorchDispatchModeKey.FAKE

Reader = Callable[..., Seen]


class Interception(WatchingMode):
    """While entered, every attention call of the model is handed to the recorder, after it has returned.

    The call itself runs untouched, and whatever is computed from its inputs is computed beside it, without gradients
    and without drawing random numbers: the output is the same to the bit. Other threads run unobserved.
    """

    def __init__(self, model: nn.Module, recorder: Recorder, readers: Mapping[Callable[..., Any], Reader]) -> None:
        super().__init__(model)
        self._recorder = recorder
        self.unread_kernels: dict[str, str] = {}  # and the class of the module that called them
        self._eager = Eager([*model.parameters(), *model.buffers()])
        self._readers = dict(readers)

    def watches(self, module: nn.Module) -> bool:
        """Whether the module is the watched model or a part of it."""
        return self._recorder.owns(module)

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the call, then look at it."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        looking = not in_backward() and not _is_traced()
        if looking:
            self._eager.before(name, args, kwargs)
        result = func(*args, **kwargs)
        if not looking:
            return result
        with torch.no_grad():
            if isinstance(func, _OPERATORS):
                self._notice(func, args, kwargs)
            elif func is _KERNEL:
                self._see(lambda: read_sdpa(self._recorder.module, _named(args, kwargs)), output=result)
            elif func is functional.multi_head_attention_forward:
                self._see(lambda: read_functional(args, kwargs))
            elif func is torch._native_multi_head_attention:
                self._see(lambda: read_native(args, kwargs))
            elif func is torch._transformer_encoder_layer_fwd:
                self._see(lambda: read_encoder_layer(args, kwargs), weight=args[3])
            elif func in self._readers:
                self._see(lambda: self._readers[func](*args, **kwargs), output=result)
            elif (seen := self._eager.after(func, args, kwargs, result, self._softmax_place)) is not None:
                self._see(lambda: seen)
        return result

    def _see(self, read: Callable[[], Seen], *, output: Any = None, weight: Tensor | None = None) -> None:
        """Read a call and hand it to the recorder, unless there is nothing to attend from or to."""
        if not self._recorder.locate(weight):
            return
        refuse_transforms(self._place)
        seen = read()
        call = seen.call
        if self._recorder.wants_output and (given := _heads(seen, output)) is not None:
            seen = dataclasses.replace(seen, output=given)
        if call.batch and call.heads and call.queries and call.keys:
            self._recorder.see(seen)
        else:
            self._recorder.calls += 1

    def _notice(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """An operator called by its name: PyTorch's kernel is read, any other with an attention's name remembered."""
        name = str(operator)
        if name.startswith("aten.scaled_dot_product_attention"):
            self._see(lambda: read_sdpa(self._recorder.module, _named(args, kwargs)))
        elif _ATTENDS.search(name) and self._recorder.locate():
            self.unread_kernels.setdefault(name, self._place)

    def _softmax_place(self) -> str | None:
        """Where a softmax runs, for messages; None in another model."""
        return self._place if self._recorder.locate() else None

    @property
    def _place(self) -> str:
        """What ran when it was last asked for, for messages."""
        return type(self._recorder.module or self._model).__name__

    def unread(self, *, rearranged: bool = False) -> list[str]:
        """Classes of modules whose softmax over products was not seen, as their weights are no queries × keys."""
        return self._eager.unread(rearranged=rearranged)


def _is_traced() -> bool:
    """Whether this thread computes with tensors that have no values; a compiler may run in another one."""
    return torch.compiler.is_dynamo_compiling() or torch._C._get_dispatch_mode(_FAKE) is not None


def _named(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of PyTorch's kernel by name."""
    return dict(zip(_SDPA, args, strict=False)) | kwargs


def _heads(seen: Seen, output: Any) -> Tensor | None:
    """What a call gave, if it is (batch, heads, queries, width) itself: of a view, no gradient would be told."""
    output = output[0] if isinstance(output, tuple) else output
    return output if isinstance(output, Tensor) and output.ndim == 4 else seen.output
