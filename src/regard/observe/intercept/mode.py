"""The interception: a torch-function mode for calls, module hooks for names, and wrappers around fast paths."""

import contextlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules import module as module_hooks
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode

from regard.observe.intercept.calls import read_sdpa, refuse_transforms
from regard.observe.intercept.eager import Eager
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


class Interception(TorchFunctionMode):
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
        self._wrapped: list[nn.Module] = []

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
                self._see(read_sdpa, self._recorder.module, dict(zip(_SDPA, args, strict=False)) | kwargs)
            elif func is functional.multi_head_attention_forward:
                self._see(read_functional, args, kwargs)
            elif func in self._readers:
                self._see(self._readers[func], *args, **kwargs)
            elif (seen := self._eager.after(func, args, kwargs, result, self._place)) is not None:
                self._see(lambda: seen)
        return result

    def _see(self, read: Reader, *args: Any, **kwargs: Any) -> None:
        """Read a call and hand it to the recorder."""
        refuse_transforms(self._place)
        self._recorder.see(read(*args, **kwargs))

    def _notice(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """An operator called by its name: PyTorch's kernel is read, any other with an attention's name remembered."""
        name = str(operator)
        if name.startswith("aten.scaled_dot_product_attention"):
            self._see(read_sdpa, self._recorder.module, dict(zip(_SDPA, args, strict=False)) | kwargs)
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
        """Put hooks and wrappers in place."""
        self._hooks = [
            # Global hooks: those on a module of its own would switch the encoder's fast path off.
            module_hooks.register_module_forward_pre_hook(lambda module, _: self._recorder.enter(module)),
            module_hooks.register_module_forward_hook(
                lambda module, _, __: self._recorder.leave(module), always_call=True
            ),
        ]
        for module in self._model.modules():
            if _has_fast_path(module):
                self._wrap(module)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: Any) -> None:
        """Take everything away again, also after an error."""
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        for hook in self._hooks:
            hook.remove()
        for module in self._wrapped:
            vars(module).pop("forward", None)
        self._hooks, self._wrapped = [], []

    def _wrap(self, module: nn.Module) -> None:
        """Let a module with a fast path run without the mode, and read what it attended to from its inputs."""
        if "forward" in vars(module):
            return  # someone else has replaced it (accelerate's hooks); the mode sees what that calls
        original = module.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            seen_before = self._recorder.calls
            with self._suspended():
                result = original(*args, **kwargs)
                if _in_backward():
                    return result
                with torch.no_grad():
                    if isinstance(module, nn.MultiheadAttention):
                        self._see(read_multihead, module, args, kwargs)
                    elif isinstance(module, nn.TransformerEncoderLayer) and self._recorder.calls == seen_before:
                        self._see_encoder_layer(module, args, kwargs)
            return result

        forward.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
        module.forward = forward
        self._wrapped.append(module)

    def _see_encoder_layer(self, layer: nn.TransformerEncoderLayer, args: Any, kwargs: Any) -> None:
        """The fast path calls no inner module, so the layer stands in for its own attention."""
        self._recorder.enter(layer.self_attn)
        try:
            self._see(read_encoder_layer, layer, args, kwargs)
        finally:
            self._recorder.leave(layer.self_attn)

    @contextlib.contextmanager
    def _suspended(self) -> Iterator[None]:
        """Take this mode, and no other, off the stack."""
        above: list[TorchFunctionMode] = []
        if self not in _get_current_function_mode_stack():
            yield  # inside another module with a fast path: already suspended
            return
        while (mode := _pop_mode()) is not self:
            above.append(mode)
        for mode in reversed(above):
            _push_mode(mode)
        try:
            yield
        finally:
            for _ in above:
                _pop_mode()
            _push_mode(self)
            for mode in reversed(above):
                _push_mode(mode)


def _has_fast_path(module: nn.Module) -> bool:
    """The three modules whose fast paths a mode would switch off, unless a subclass computes something of its own."""
    if isinstance(module, nn.MultiheadAttention):
        return type(module).forward is nn.MultiheadAttention.forward
    if isinstance(module, nn.TransformerEncoderLayer):
        own = type(module)
        base = nn.TransformerEncoderLayer
        return own.forward is base.forward and own._sa_block is base._sa_block
    if isinstance(module, nn.TransformerEncoder):
        return type(module).forward is nn.TransformerEncoder.forward and all(map(_has_fast_path, module.layers))
    return False


def _in_backward() -> bool:
    """Gradient checkpointing runs forward code a second time during backward, which was seen the first time."""
    return torch._C._current_graph_task_id() != -1
