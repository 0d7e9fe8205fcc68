"""What transformers' configurations say of RoPE, by their new names and by the old ones."""

import math
from collections.abc import Mapping
from typing import Any

from regard.errors import InputError
from regard.positions.rope_scaling import DynamicNTK, LinearScaling, Llama3, Scaling, YaRN

__all__ = ["read"]

_KINDS = ("default", "linear", "dynamic", "yarn", "llama3")

# What is read below, and what says nothing of the rotation; anything else might change it.
_KNOWN = {
    "rope_type", "type", "rope_theta", "partial_rotary_factor", "factor", "original_max_position_embeddings",
    "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate", "low_freq_factor",
    "high_freq_factor", "finetuned",
}  # fmt: skip


def read(config: Any, layer_type: str | None = None) -> dict[str, Any]:
    """Give RoPE's `dim`, `base`, `rotary_dim` and `scaling` for a configuration's layers of one type."""
    said = _parameters(config, layer_type)
    dim = getattr(config, "head_dim", None)
    if dim is None:
        hidden, heads = (getattr(config, name, None) for name in ("hidden_size", "num_attention_heads"))
        if not hidden or not heads:
            raise InputError("the configuration has neither `head_dim` nor `hidden_size` and `num_attention_heads`")
        dim = hidden // heads
    base = said.get("rope_theta") or _first(config, "rope_theta", "rotary_emb_base")
    if base is None:
        if getattr(config, "rotary_dim", None) is None:
            raise InputError("the configuration has no `rope_theta`: does the model use RoPE at all?")
        base = 10000.0  # GPT-J and CodeGen do not say it
    part = said.get("partial_rotary_factor")
    part = _first(config, "partial_rotary_factor", "rotary_pct") if part is None else part
    rotary_dim = getattr(config, "rotary_dim", None) if part is None else int(dim * part)
    return {
        "dim": dim,
        "base": float(base),
        "rotary_dim": None if rotary_dim == dim else rotary_dim,
        "scaling": _scaling(config, said),
    }


def _parameters(config: Any, layer_type: str | None) -> Mapping[str, Any]:
    said = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kinds = [name for name, value in said.items() if isinstance(value, Mapping)]
    if layer_type is None and kinds:
        raise InputError(f"the layers differ, so `layer_type` must be one of {', '.join(kinds)}")
    if layer_type is None:
        return dict(said)
    if layer_type not in kinds:
        there = ", ".join(kinds) or "all layers are alike: leave it out"
        raise InputError(f"`layer_type` must be one that the configuration has ({there}), got {layer_type!r}")
    return dict(said[layer_type])


def _scaling(config: Any, said: Mapping[str, Any]) -> Scaling | None:
    kind = said.get("rope_type") or said.get("type") or "default"
    if kind not in _KINDS:
        raise InputError(f"the configuration's type of RoPE must be one of {', '.join(_KINDS)}, got {kind!r}")
    if unknown := sorted(name for name in said if name not in _KNOWN and said[name] is not None):
        raise InputError(
            f"the configuration's RoPE of type {kind!r} has parameters that are not understood: {', '.join(unknown)}"
        )
    if kind == "linear":
        return LinearScaling(_need(said, "factor"))
    if kind == "dynamic":
        return DynamicNTK(_need(said, "factor"), config.max_position_embeddings)
    if kind == "llama3":
        low, high = (_need(said, f"{name}_freq_factor") for name in ("low", "high"))
        return Llama3(_need(said, "factor"), low, high, _original(config, said))
    return _yarn(config, said) if kind == "yarn" else None


def _yarn(config: Any, said: Mapping[str, Any]) -> Scaling:
    original = _original(config, said)
    factor = said.get("factor") or config.max_position_embeddings / original
    sharpening = said.get("attention_factor")
    if sharpening is None and said.get("mscale") and said.get("mscale_all_dim"):
        above, below = (0.1 * said[name] * math.log(factor) + 1 for name in ("mscale", "mscale_all_dim"))
        sharpening = above / below
    return YaRN(
        factor,
        original,
        beta_fast=said.get("beta_fast") or 32,
        beta_slow=said.get("beta_slow") or 1,
        attention_factor=sharpening,
        truncate=said.get("truncate", True),
    )


def _original(config: Any, said: Mapping[str, Any]) -> int:
    """As transformers does: beside the parameters first, then in them, then the length of the model."""
    own = getattr(config, "original_max_position_embeddings", None)
    own = said.get("original_max_position_embeddings") if own is None else own
    return int(config.max_position_embeddings if own is None else own)


def _need(said: Mapping[str, Any], name: str) -> Any:
    if said.get(name) is None:
        raise InputError(
            f"the configuration's RoPE of type {said.get('rope_type') or said.get('type')!r} needs `{name}`"
        )
    return said[name]


def _first(config: Any, *names: str) -> Any:
    return next((value for name in names if (value := getattr(config, name, None)) is not None), None)
