"""The interception: a torch-function mode for calls, module hooks for names, and a way around fast paths."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules import module as module_hooks

from regard.observe.intercept.calls import read_sdpa, refuse_transforms
from regard.observe.intercept.eager import Eager
from regard.observe.intercept.fastpath import FastPathMode, has_fast_path, patch, unpatch
from regard.observe.intercept.multihead import read_encoder_layer, read_functional, read_multihead
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

Reader = Callable[..., Seen]


class Interception(FastPathMode):
    """While entered, every attention call of the model is handed to the recorder, after it has returned.

    The call itself runs untouched, and whatever is computed from its inputs is computed beside it, without gradients
    and without drawing random numbers: the output is the same to the bit.
    """

    def __init__(self, model: nn.Module, recorder: Recorder, readers: Mapping[Callable[..., Any], Reader]) -> None:
        super().__init__()
        self._model, self._recorder = model, recorder
        self.unread_kernels: dict[str, str] = {}  # and the class of the module that called them
        self._eager = Eager([*model.parameters(), *model.buffers()])
        self._readers = dict(readers)
        self._hooks: list[Any] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the call, then look at it."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        looking = not _in_backward() and not torch.compiler.is_compiling()
        if looking:
            self._eager.before(name, args, kwargs)
        result = func(*args, **kwargs)
        if not looking:
            return result
        if self._recorder.outside:
            return result
        with torch.no_grad():
            if isinstance(func, _OPERATORS):
                self._notice(func, args, kwargs)
            elif func is _KERNEL:
                self._see(read_sdpa, self._recorder.module, _named(args, kwargs), output=result)
            elif func is functional.multi_head_attention_forward:
                self._see(read_functional, args, kwargs)
            elif func in self._readers:
                self._see(lambda: self._readers[func](*args, **kwargs), output=result)
            elif (seen := self._eager.after(func, args, kwargs, result, self._place)) is not None:
                self._see(lambda: seen)
        return result

    def _see(self, read: Reader, *args: Any, output: Any = None) -> None:
        """Read a call and hand it to the recorder, unless there is nothing to attend from or to."""
        refuse_transforms(self._place)
        seen = read(*args)
        call = seen.call
        if self._recorder.wants_output and (given := _heads(seen, output)) is not None:
            seen = dataclasses.replace(seen, output=given)
        if call.batch and call.heads and call.queries and call.keys:
            self._recorder.see(seen)

    def _notice(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """An operator called by its name: PyTorch's kernel is read, any other with an attention's name remembered."""
        name = str(operator)
        if name.startswith("aten.scaled_dot_product_attention"):
            self._see(read_sdpa, self._recorder.module, _named(args, kwargs))
        elif _ATTENDS.search(name):
            self.unread_kernels.setdefault(name, self._place)

    @property
    def _place(self) -> str:
        """What runs now, for messages."""
        return type(self._recorder.module or self._model).__name__

    def unread(self, *, rearranged: bool = False) -> list[str]:
        """Classes of modules whose softmax over products was not seen, as their weights are no queries × keys."""
        return self._eager.unread(rearranged=rearranged)

    def __enter__(self) -> Self:
        """Put hooks in place and let fast paths run."""
        self._hooks = [
            # Global hooks: those on a module of its own would switch the encoder's fast path off.
            module_hooks.register_module_forward_pre_hook(lambda module, _: self._recorder.enter(module)),
            module_hooks.register_module_forward_hook(
                lambda module, _, __: self._recorder.leave(module), always_call=True
            ),
        ]
        patch()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: Any) -> None:
        """Take everything away again, also after an error."""
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        unpatch()

    def calls_inside(self, module: nn.Module) -> bool:
        """Whether a part of the model in this module computes something of its own, which only the mode sees."""
        if isinstance(module, nn.MultiheadAttention) or has_fast_path(module):
            return False
        return any(map(self._recorder.owns, module.modules()))

    def before_module(self) -> int:
        """How many calls were seen."""
        return self._recorder.calls

    def after_module(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], before: int) -> None:
        """Read what a module with a fast path attended to from its inputs."""
        if _in_backward():
            return
        with torch.no_grad():
            if isinstance(module, nn.MultiheadAttention):
                if not self._recorder.outside:
                    self._see(read_multihead, module, args, kwargs)
            elif isinstance(module, nn.TransformerEncoderLayer) and self._recorder.calls == before:
                self._see_encoder_layer(module, args, kwargs)

    def _see_encoder_layer(self, layer: nn.TransformerEncoderLayer, args: Any, kwargs: Any) -> None:
        """The fast path calls no inner module, so the layer stands in for its own attention."""
        if self._recorder.outside and not self._recorder.owns(layer.self_attn):
            return
        self._recorder.enter(layer.self_attn)
        try:
            self._see(read_encoder_layer, layer, args, kwargs)
        finally:
            self._recorder.leave(layer.self_attn)


def _named(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of PyTorch's kernel by name."""
    return dict(zip(_SDPA, args, strict=False)) | kwargs


def _heads(seen: Seen, output: Any) -> Tensor | None:
    """What a call gave, if it is (batch, heads, queries, width) itself: of a view, no gradient would be told."""
    output = output[0] if isinstance(output, tuple) else output
    return output if isinstance(output, Tensor) and output.ndim == 4 else seen.output


def _in_backward() -> bool:
    """Gradient checkpointing runs forward code a second time during backward, which was seen the first time."""
    return torch._C._current_graph_task_id() != -1
