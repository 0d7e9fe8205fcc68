"""`attn_implementation="regard"`: run transformers' models on regard.attention, without building dense masks.

transformers calls an implementation's mask function and passes its result unchanged to the attention function of every
layer. Ours returns a LazyMask, which holds a mask of regard.masks, and becomes a tensor only if a backend needs one.
"""

import contextlib
import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from regard.errors import MissingExtraError, ObservationError
from regard.functional import attention
from regard.masks import BoundMask, Causal, Dense, Mask, MaskMod, Padding, Window
from regard.normalizers import Softmax
from regard.scores import ScaledDot

__all__ = ["register_with_transformers"]

_NAME = "regard"
# Modules of models that have one class per implementation, in a table.
_TABLES = (
    *("bark.modeling_bark", "falcon.modeling_falcon", "git.modeling_git", "gpt_neo.modeling_gpt_neo"),
    *("gptj.modeling_gptj", "sam.modeling_sam", "sam_hq.modeling_sam_hq", "superglue.modeling_superglue"),
    "data2vec.modeling_data2vec_vision",
)
_REACHES_COPIES = (5, 20)  # the version of transformers whose set_attn_implementation reaches copied configurations
_FAR = 2**31  # the limit of a window that is unbounded on one side


def register_with_transformers() -> None:
    """Register `attn_implementation="regard"` with transformers; repeated calls have no effect.

    Some models compute attention in code of their own (Bloom, Longformer, DeBERTa and others). These models either get
    their usual mask and run unchanged, or raise an error that refers to regard.watch, which supports them without this
    option.

    In transformers before 5.20, `model.set_attn_implementation` leaves out the stacks that have a copy of the model's
    configuration (T5 and its relatives), which would keep their implementation without a word. There this function also
    replaces `PreTrainedModel.set_attn_implementation` by one that reaches them, as newer versions do.

    Raises:
        MissingExtraError: transformers is not installed.
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel, __version__
    except ImportError as missing:
        raise MissingExtraError("transformers", "models") from missing
    AttentionInterface.register(_NAME, _attend)
    AttentionMaskInterface.register(_NAME, _ask)
    if tuple(map(int, __version__.split(".")[:2])) < _REACHES_COPIES:
        _reach_copied_configurations(PreTrainedModel)
    for name in _TABLES:
        with contextlib.suppress(ModuleNotFoundError):  # another version of transformers
            _refuse_in_tables(importlib.import_module(f"transformers.models.{name}"))


def _reach_copied_configurations(models: Any) -> None:
    """Let `set_attn_implementation` reach the stacks whose configuration is a copy of their model's."""
    of_transformers = models.set_attn_implementation
    if of_transformers.__module__ == __name__:
        return

    def set_attn_implementation(self: Any, *given: Any, **options: Any) -> None:
        of_transformers(self, *given, **options)
        config = self.config
        for stack in self.modules():
            copied = isinstance(stack, models) and stack.config is not config and type(stack.config) is type(config)
            if copied:
                of_transformers(stack, config._attn_implementation)

    set_attn_implementation.__doc__ = of_transformers.__doc__
    models.set_attn_implementation = set_attn_implementation


def _refuse_in_tables(module: ModuleType) -> None:
    """Make models that look up a class by the implementation's name raise a clear error instead of a KeyError."""
    for name, table in vars(module).items():
        if name.endswith("ATTENTION_CLASSES"):
            table.setdefault(_NAME, _refuse)


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise ObservationError(
        'this model takes attn_implementation="regard" and then computes attention in code of its own, without '
        "calling it: load it without attn_implementation and see it with regard.watch(model)"
    )


@dataclass(frozen=True, eq=False)
class LazyMask:
    """The mask that transformers requested; only our attention function may use it, any other use raises."""

    bound: BoundMask | None  # None if every pair is visible; shared by all layers, so it is planned once

    # `generate` with a static cache requests the mask before the model does, and treats it like a tensor.
    ndim = 4

    def contiguous(self) -> "LazyMask":
        """Return the mask itself."""
        return self

    # The operations of such code on a mask: index it, add it, read its shape, pass it to a torch function.
    __getitem__ = __add__ = __radd__ = __mul__ = __rmul__ = __sub__ = __rsub__ = __invert__ = __len__ = _refuse
    __bool__ = __eq__ = __lt__ = __gt__ = __le__ = __ge__ = _refuse
    __hash__ = object.__hash__

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> NoReturn:
        _refuse()

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        _refuse()


def _ask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int | Tensor = 0,
    mask_function: Callable[..., Tensor] | None = None,
    attention_mask: Tensor | LazyMask | None = None,
    device: torch.device | str = "cpu",
    **_: Any,
) -> LazyMask:
    """Return the mask of a request as a LazyMask; transformers calls this as its mask function."""
    if isinstance(attention_mask, LazyMask):
        return attention_mask  # requested before, by `generate`
    from transformers.masking_utils import bidirectional_mask_function, causal_mask_function

    rule = mask_function or causal_mask_function
    key_start = int(kv_offset)  # a sliding cache has dropped the earlier ones
    if torch.compiler.is_compiling() and rule not in (causal_mask_function, bidirectional_mask_function):
        i = torch.arange(q_length, device=device) + int(q_offset)
        mask: Mask | None = _evaluate(rule, batch_size, i, torch.arange(kv_length, device=device) + key_start)
    else:
        mask = _translate(rule, key_start)
    if attention_mask is not None:
        real = attention_mask[:, key_start : key_start + kv_length].bool()
        if torch.compiler.is_compiling() or not bool(real.all()):  # compiled code cannot depend on the numbers
            real = nn.functional.pad(real, (0, kv_length - real.shape[1]))
            mask = Padding(real) if mask is None else mask & Padding(real)
    return LazyMask(None if mask is None else mask.bind(q_length, kv_length, int(q_offset) - key_start))


def _evaluate(rule: Callable[..., Tensor], batch: int, i: Tensor, j: Tensor) -> Dense:
    """Return the mask for a rule by asking it for every pair of positions.

    The compiler does not show what a function holds, such as the size of a window or the documents of a packed row, for
    which transformers asks in every compiled call without a mask and a cache.
    """
    sequence = torch.arange(batch, device=i.device)[:, None, None, None]
    seen = rule(sequence, torch.zeros_like(sequence), i[None, None, :, None], j[None, None, None])
    return Dense(seen.expand(-1, -1, len(i), len(j)))


def _translate(rule: Callable[..., Tensor], key_start: int) -> Mask | None:
    """Return the mask for a rule of transformers, so that blocks are known without evaluating pairs; None if every
    pair is visible.
    """
    from transformers.masking_utils import bidirectional_mask_function, causal_mask_function

    if rule is causal_mask_function:
        return Causal()
    if rule is bidirectional_mask_function:
        return None
    held = inspect.getclosurevars(rule).nonlocals if inspect.isfunction(rule) else {}
    maker = getattr(rule, "__qualname__", "").partition(".")[0]
    if maker == "and_masks" and "mask_functions" in held:
        parts = [_translate(part, key_start) for part in held["mask_functions"]]
        some = [part for part in parts if part is not None]
        return _all_of(some)
    size = held.get("sliding_window")
    if maker == "sliding_window_overlay" and isinstance(size, int) and size > 0:  # 0: of layers that do not exist
        return Window(left=size - 1, right=_FAR)
    return MaskMod(lambda batch, head, i, j: rule(batch, head, i + key_start, j + key_start))


def _all_of(masks: list[Mask]) -> Mask | None:
    whole: Mask | None = None
    for mask in masks:
        whole = mask if whole is None else whole & mask
    return whole


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: LazyMask | Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    output_attentions: bool = False,
    **_: Any,
) -> tuple[Tensor, Tensor | None]:
    """Compute attention for transformers: inputs are (batch, heads, n, d), the output is (batch, n, heads, d)."""
    mask, bias = _mask_and_bias(module, query, key, attention_mask, is_causal)
    if position_bias is not None:
        bias = position_bias if bias is None else bias + position_bias
    results = attention(
        query,
        key,
        value,
        score=ScaledDot(softcap=softcap),
        mask=mask,
        bias=bias,
        scale=scaling,
        normalizer=Softmax(s_aux),
        dropout=dropout,
        return_weights=output_attentions or _weights_are_collected(),
    )
    output, weights = results if isinstance(results, tuple) else (results, None)
    return output.transpose(1, 2).contiguous(), weights


def _weights_are_collected() -> bool:
    """Return whether a forward pass with output_attentions=True is running: some models do not pass the flag on."""
    try:
        from transformers.utils.output_capturing import _active_collector
    except ImportError:  # another version of transformers: only the flag decides
        return False
    return any("attentions" in key for key in _active_collector.get() or ())


def _mask_and_bias(
    module: nn.Module, query: Tensor, key: Tensor, given: LazyMask | Tensor | None, is_causal: bool | None
) -> tuple[Mask | BoundMask | None, Tensor | None]:
    """Return the mask and bias of a layer, from a LazyMask, a tensor prepared by the user, or the layer's own flag."""
    if isinstance(given, LazyMask):
        return given.bound, None
    if isinstance(given, Tensor):
        return (Dense(given), None) if given.dtype == torch.bool else (None, given[..., : key.shape[2]])
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", False)
    return (Causal(align="start") if causal and query.shape[2] > 1 else None), None
