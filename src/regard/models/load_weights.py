"""A model made without numbers, and filled with those of a checkpoint."""

from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from regard.errors import InputError
from regard.models.output_heads import OutputHead
from regard.models.standard_names import CONFIG

__all__ = ["change", "fill"]


class _NothingDrawn(TorchFunctionMode):
    """Leaves out what torch.nn.init would draw: on the meta device that imports PyTorch's compiler, for a second."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


def change(config: Any, changes: dict[str, Any]) -> Any:
    """A configuration with other values; a head of the checkpoint's own kind is the checkpoint's.

    Raises:
        InputError: It has no such value, or the weights that are there are another head's.
    """
    known = {field.name for field in fields(config)}
    if unknown := sorted(set(changes) - known):
        meant = f"{CONFIG[unknown[0]]} is meant" if unknown[0] in CONFIG else f"it has {', '.join(sorted(known))}"
        raise InputError(f"{type(config).__name__} has no {unknown[0]!r}: {meant}")
    head, stored = changes.get("output_head"), getattr(config, "output_head", None)
    kind: type[Any] = type(stored)
    if isinstance(head, OutputHead) and not head.fresh and isinstance(head, kind):
        if head not in (kind(), stored):
            raise InputError(
                f"the checkpoint's output head is {stored}, which has its weights, got {head}: leave `output_head` out"
            )
        changes = changes | {"output_head": stored}
    return replace(config, **changes)


def fill(cls: type[Any], config: Any, stored: Any, state: dict[str, Tensor], name: str) -> Any:
    """Give a model of this configuration the tensors of a checkpoint whose own configuration was `stored`.

    A head that is to be trained takes what fits it, and draws the rest.

    Raises:
        InputError: Tensors are missing, left over, or of another shape.
    """
    layers = [getattr(config, which, 0) for which in ("layers", "encoder_layers", "decoder_layers")]
    if sum(layers) > len(state):  # before so many are made
        raise InputError(f"the checkpoint {name!r} has {len(state)} weights, too few for {sum(layers):,} layers")
    try:
        with torch.device("meta"), _NothingDrawn():
            model = cls(config)
    except InputError:
        raise
    except (ArithmeticError, RuntimeError, TypeError, ValueError) as problem:
        reason = " ".join(str(problem).split())[:200]
        raise InputError(f"the configuration of {name!r} makes no model: {reason}") from problem
    wanted: dict[str, Tensor] = dict(model.state_dict())
    head, before = getattr(config, "output_head", None), getattr(stored, "output_head", None)
    if head is None or head != before:
        state = {
            key: one
            for key, one in state.items()
            if not key.startswith("output_head.") or _fits(key, one, wanted, head, before)
        }
    fresh = head != before and getattr(head, "fresh", False)
    _check(wanted, state, fresh, name)
    if any(key not in state for key in wanted):
        like = next(iter(state.values()))
        drawn = cls(config).state_dict()
        state = state | {key: drawn[key].to(like.dtype) for key in wanted if key not in state}
    model.load_state_dict({key: state[key] for key in wanted}, assign=True)
    for module in model.modules():
        if hasattr(module, "make_buffers"):
            module.make_buffers()
    return model.eval()


def _fits(key: str, one: Tensor, wanted: dict[str, Tensor], head: Any, before: Any) -> bool:
    """Whether a tensor of the checkpoint's head serves another: one of its kind, or BERT's pooler."""
    kin = before is None or type(before) is type(head) or key.startswith("output_head.tanh_layer.")
    return kin and key in wanted and wanted[key].shape == one.shape


def _check(wanted: dict[str, Tensor], state: dict[str, Tensor], fresh: bool, name: str) -> None:
    lacking = sorted(key for key in wanted if key not in state and not (fresh and key.startswith("output_head.")))
    spare = sorted(key for key in state if key not in wanted)
    if lacking:
        what = f"lacks {len(lacking)} weights, {lacking[0]} first"
    elif spare:
        what = f"has weights beyond it, {spare[0]} first"
    else:
        what = ""
    if what:
        raise InputError(f"the checkpoint {name!r} does not fill its configuration: it {what}")
    if wrong := sorted(key for key, one in state.items() if one.shape != wanted[key].shape):
        shapes = tuple(state[wrong[0]].shape), tuple(wanted[wrong[0]].shape)
        raise InputError(
            f"the checkpoint {name!r} has {wrong[0]} of shape {shapes[0]}, its configuration says {shapes[1]}"
        )
    if whole := sorted(key for key, one in state.items() if not one.is_floating_point()):
        raise InputError(
            f"the checkpoint {name!r} has {whole[0]} as {state[whole[0]].dtype}: load one that is not quantized"
        )
