"""What modules and models ask of sizes, flags, masks, arguments and assignments; each error names the way out."""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from regard.errors import InputError
from regard.masks import BoundMask, Dense, Mask, Padding, from_attention_mask
from regard.nn.per_sample import check_repeatable, is_repeated
from regard.nn.standard_names import FORWARD, INIT
from regard.torch_private import holds

__all__ = [
    "both",
    "check_padding",
    "check_width",
    "mask_of",
    "public_module",
    "refuse_unknown",
    "visible_keys",
]

_VALUES = ("score", "mask", "attn_bias", "rotary", "normalizer")  # what MultiHeadAttention holds in modules
_M = TypeVar("_M", bound=type[nn.Module])
_F = TypeVar("_F", bound=Callable[..., Any])


def check_width(name: str, x: Tensor, width: int, made_by: str) -> None:
    """Raise unless `x` is (..., n, width); `made_by` is the argument of the constructor that says the width."""
    if x.ndim < 2 or x.shape[-1] != width:
        raise InputError(
            f"`{name}` must be (..., length, {width}), got shape {tuple(x.shape)}: build the module with "
            f"`{made_by}={x.shape[-1] if x.ndim else 1}`, or project it first"
        )


def check_padding(x: Tensor, padding: object, name: str = "key_padding_mask", *, x_name: str = "x") -> Tensor:
    """Give `padding` back if it has a flag for each token of each sequence of `x`; `name` is that of the argument."""
    if isinstance(padding, Tensor) and padding.dtype == torch.bool and x.ndim == 3 and padding.shape == x.shape[:2]:
        return padding
    got = f"{padding.dtype} of shape {tuple(padding.shape)}" if isinstance(padding, Tensor) else type(padding).__name__
    way = f"{name}.bool()"
    if name == "key_padding_mask":
        way += " if True (1) is padding, attention_mask == 0 if 1 is a token as in transformers"
    raise InputError(
        f"`{name}` must be boolean (batch, tokens) for {x_name} (batch, tokens, width), got {got} for {x_name} "
        f"{tuple(x.shape)}: write {way}, {name}.expand(...) where sequences share it, and {x_name}[None] for one "
        "sequence"
    )


def visible_keys(
    own: Mask | BoundMask | None,
    mask: Mask | BoundMask | Tensor | None,
    key_padding_mask: Tensor | None,
    key: Tensor,
    name: str = "key_padding_mask",
) -> Mask | BoundMask | None:
    """What the module's own mask, the given one and the padding of the keys (..., keys, width) all let see."""
    if mask is not None:
        own = both(own, mask_of(mask, key.shape[0] if key.ndim > 2 else 1))
    if key_padding_mask is None:
        return own
    return both(own, Padding(~check_padding(key, key_padding_mask, name, x_name="key")))


def mask_of(mask: Mask | BoundMask | Tensor | None, batch: int = 1) -> Mask | BoundMask | None:
    """Read what is given to `forward`: a mask, a boolean tensor, or zeros and ones in four dimensions."""
    if not isinstance(mask, Tensor):
        return mask
    if mask.ndim == 4:
        return from_attention_mask(mask)
    if mask.is_floating_point() or mask.dtype.is_complex or mask.dtype.itemsize > 1 or mask.ndim != 2:
        raise InputError(
            f"`mask` must be a mask of regard.masks, a boolean tensor (queries, keys), or one of booleans or zeros "
            f"and ones (batch, heads, queries, keys), got {mask.dtype} of shape {tuple(mask.shape)}: write "
            "masks.Padding(mask) if it is (batch, keys), mask.bool() if it is (queries, keys), mask[:, "
            "None] if it is (batch, queries, keys); floats that are added to the scores are `attn_bias=`"
        )
    if mask.shape[0] != 1 and holds(mask.shape[0] == batch):
        raise InputError(
            f"a boolean mask of shape {tuple(mask.shape)} may be (queries, keys) or, as the batch is {batch}, (batch, "
            "keys): write mask[None, None] for a matrix, masks.Padding(mask) for flags of tokens"
        )
    return Dense(mask)


def both(own: Mask | BoundMask | None, given: Mask | BoundMask | None) -> Mask | BoundMask | None:
    """See what the module's own mask and the given one both let see."""
    if own is None or given is None:
        return given if own is None else own
    places = {(one.q_len, one.kv_len, one.q_offset) for one in (own, given) if isinstance(one, BoundMask)}
    if len(places) > 1:
        raise InputError(
            f"the module's mask and `mask` must be bound to one place, got (queries, keys, q_offset) "
            f"{' and '.join(map(str, sorted(places)))}: leave the module's unbound"
        )
    free = [one.mask if isinstance(one, BoundMask) else one for one in (own, given)]
    together = free[0] & free[1]
    return together.bind(*places.pop()) if places else together


def public_module(*, takes_jagged: bool = True, **reasons: str) -> Callable[[_M], _M]:
    """Make a module check what it is called with and what is assigned to it, as all modules here do.

    - Standard names that it lacks, in constructor and call, are refused by a sentence that has its own; `reasons` are
      sentences for names that this module lacks. `batch_first=True` is what all modules do, and is taken; False raises.
    - Nested tensors must be jagged; without `takes_jagged` they must be padded.
    - Opacus must be able to repeat the call for each sample (`regard.nn.per_sample`).
    - A value that is assigned must be in a module, as the constructor puts it there.

    Raises:
        InputError: One of these is not so.
    """

    def decorate(module: _M) -> _M:
        values = frozenset(_VALUES) & inspect.signature(module).parameters.keys()
        for method, hints in (("__init__", INIT), ("forward", FORWARD)):
            setattr(module, method, _with_known_names(module.__name__, getattr(module, method), hints, reasons))
        module.forward = _with_inputs_checked(module.forward, takes_jagged)
        module.__setattr__ = _with_values_in_modules(module, values, reasons)  # type: ignore[method-assign,assignment]
        return module

    return decorate


def _with_known_names(
    module: str, function: Callable[..., Any], hints: Mapping[str, tuple[str, ...]], reasons: Mapping[str, str]
) -> Callable[..., Any]:
    parameters = inspect.signature(function).parameters
    known = frozenset(parameters)
    passes_on = any(one.kind is one.VAR_KEYWORD for one in parameters.values())

    @functools.wraps(function)
    def checked(*args: Any, **named: Any) -> Any:
        if named and not torch.compiler.is_compiling() and not named.keys() <= known:
            for name in [name for name in named if name not in known]:
                if name == "batch_first":
                    _check_batch_first(named.pop(name))
                    continue
                meant = next((one for one in hints.get(name, ()) if " " in one or one in known), None)
                reason = reasons.get(name, "")
                if reason or (meant is not None and not (passes_on and " " in meant)):
                    reason = reason or (meant if " " in str(meant) else f"`{meant}` is meant")  # type: ignore[assignment]
                    raise InputError(f"{module} has no argument `{name}`: {reason}")
        return function(*args, **named)

    return checked


def _with_inputs_checked(forward: Callable[..., Any], takes_jagged: bool) -> Callable[..., Any]:
    names = list(inspect.signature(forward).parameters)[1:]

    @functools.wraps(forward)
    def checked(self: nn.Module, *inputs: Any, **named: Any) -> Any:
        if not torch.compiler.is_compiling():
            for index, x in enumerate(inputs):
                if isinstance(x, Tensor) and x.is_nested:
                    check_nested(self, names[index], x)
            for name, x in named.items():
                if isinstance(x, Tensor) and x.is_nested:
                    check_nested(self, name, x)
            if is_repeated(self):
                check_repeatable(self, *inputs[1:], **named)
        return forward(self, *inputs, **named)

    def check_nested(self: nn.Module, name: str, x: Tensor) -> None:
        if not (takes_jagged and x.layout == torch.jagged):
            _refuse_nested(type(self).__name__, name, takes_jagged)

    return checked


def _refuse_nested(module: str, name: str, takes_jagged: bool) -> None:
    if takes_jagged:
        raise InputError(
            f"`{name}` must be jagged or a plain tensor, got a nested tensor of the layout torch.strided: make it with "
            "torch.nested.nested_tensor(list, layout=torch.jagged)"
        )
    raise InputError(
        f"`{name}` must be a plain tensor in {module}, got a nested one: pad it with {name}.to_padded_tensor(0.0), and "
        "hide the padding by `key_padding_mask` where it is attended to; MultiHeadAttention takes "
        "layout=torch.jagged"
    )


def _with_values_in_modules(
    module: type[nn.Module], values: frozenset[str], reasons: Mapping[str, str]
) -> Callable[[nn.Module, str, Any], None]:
    """The `__setattr__` of a module whose constructor puts `values` into modules."""
    assign = module.__setattr__

    def checked(self: nn.Module, name: str, value: Any) -> None:
        if value is not None and not isinstance(value, nn.Module):
            if name in values or (is_dataclass(value) and name in self.__dict__.get("_modules", {})):
                raise InputError(
                    f"`{name}` of {module.__name__} must be a module that gives a value, or None, got "
                    f"{type(value).__name__}: pass the value to the constructor as `{name}=`, or assign "
                    f"module.{name} = regard.nn.ValueModule(value)"
                )
            if name in _VALUES and type(self) is module:
                raise InputError(f"{module.__name__} has no `{name}` to assign: {_way_of_value(self, name, reasons)}")
        assign(self, name, value)

    return checked


def _way_of_value(module: nn.Module, name: str, reasons: Mapping[str, str]) -> str:
    for path, part in module.named_modules():
        if path and name in vars(part).keys() | part._modules.keys():
            return f"build it anew, or assign module.{path}.{name} = regard.nn.ValueModule(value)"
    return reasons.get(name, "MultiHeadAttention and regard.attention take one")


def _check_batch_first(value: object) -> None:
    if value is not True:
        raise InputError(
            f"inputs are (batch, length, width) here, `batch_first=True` is what all modules do, got {value!r}: leave "
            "it out, and give x.transpose(0, 1) for x of shape (length, batch, width)"
        )


def refuse_unknown(what: str, hints: Mapping[str, str]) -> Callable[[_F], _F]:
    """Make a function or a class refuse a keyword of these names, which it lacks, by a sentence that has its own.

    A hint is what is meant in its place, or a whole sentence, which ends with a full stop.

    Raises:
        InputError: A name of `hints` is given.
    """

    def decorate(given: _F) -> _F:
        function: Any = given.__init__ if isinstance(given, type) else given  # type: ignore[misc]
        parameters = inspect.signature(function).parameters
        named_only = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
        known, places = (
            frozenset(parameters),
            [name for name, one in parameters.items() if one.kind not in named_only],
        )
        first_by_name = next((name for name in parameters if name not in places), "")
        assert not known & hints.keys(), (what, known & hints.keys())

        @functools.wraps(function)
        def checked(*args: Any, **named: Any) -> Any:
            if len(args) > len(places):
                raise InputError(f"{what} takes arguments after `{places[-1]}` by name, such as {first_by_name}=")
            if not named.keys() <= known:
                for name in named:
                    if name in hints:
                        meant = hints[name]
                        meant = meant[:-1] if meant.endswith(".") else f"{meant} is meant"
                        raise InputError(f"{what} has no argument `{name}`: {meant}")
            return function(*args, **named)

        if isinstance(given, type):
            given.__init__ = checked  # type: ignore[misc]
            return given
        return checked  # type: ignore[return-value]

    return decorate
