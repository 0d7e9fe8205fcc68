"""What transformers' configurations say of RoPE, by their new names and by the old ones."""

import math
from collections.abc import Mapping
from typing import Any

from regard.errors import InputError
from regard.positions.rope_scaling import (
    DynamicNTK,
    LinearScaling,
    Llama3,
    LongRoPE,
    Proportional,
    Scaling,
    YaRN,
)

__all__ = ["read"]

_KINDS = ("default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional", "mrope")

# Whether the pairs of a model's `mrope_section` alternate. Other models have other orders (ERNIE 4.5-VL: rows first).
_MROPE_INTERLEAVED = {
    "qwen2_vl": False,
    "qwen2_5_vl": False,
    "glm4v": False,
    "glm4v_moe": False,
    "qwen3_vl": True,
    "qwen3_vl_moe": True,
}

# What is read below, and what says nothing of the rotation; anything else might change it.
_KNOWN = {
    "rope_type", "type", "rope_theta", "partial_rotary_factor", "factor", "original_max_position_embeddings",
    "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate", "low_freq_factor",
    "high_freq_factor", "finetuned", "short_factor", "long_factor", "mrope_section", "mrope_interleaved",
}  # fmt: skip


def read(config: Any, layer_type: str | None = None) -> dict[str, Any]:
    """Give RoPE's arguments, but for `interleaved`, for a configuration's layers of one type."""
    said = _parameters(config, layer_type)
    dim = getattr(_of_layers(config, layer_type), "head_dim", None)
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
    if _kind(config, said) == "proportional":  # the share is that of the scaling
        rotary_dim, said = None, said | {"partial_rotary_factor": part}
    return {
        "dim": dim,
        "base": float(base),
        "rotary_dim": None if rotary_dim == dim else rotary_dim,
        "scaling": _scaling(config, said),
        **_sections(config, said),
    }


def _of_layers(config: Any, layer_type: str | None) -> Any:
    """The configuration of the layers of a type, whose heads may have another width (Gemma 4)."""
    of_types = getattr(config, "per_layer_config", None)
    if layer_type is None or of_types is None:
        return config
    try:
        return of_types[layer_type]
    except (KeyError, ValueError):  # in other models, whose layers have one width
        return config


def _parameters(config: Any, layer_type: str | None) -> dict[str, Any]:
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


def _kind(config: Any, said: Mapping[str, Any]) -> Any:
    kind = said.get("rope_type") or said.get("type") or "default"
    of_phi3 = getattr(config, "model_type", None) in ("phi3", "phi4_multimodal")
    return "longrope" if kind == "su" or (kind == "yarn" and of_phi3) else kind  # names of older files


def _scaling(config: Any, said: Mapping[str, Any]) -> Scaling | None:
    kind = _kind(config, said)
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
    if kind == "longrope":
        return _longrope(config, said)
    if kind == "proportional":
        part = said.get("partial_rotary_factor")
        return Proportional(1.0 if part is None else part, said.get("factor") or 1.0)
    return _yarn(config, said) if kind == "yarn" else None


def _longrope(config: Any, said: Mapping[str, Any]) -> Scaling:
    original = _original(config, said)
    return LongRoPE(
        max(1.0, said.get("factor") or config.max_position_embeddings / original),
        short_factor=_need(said, "short_factor"),
        long_factor=_need(said, "long_factor"),
        original_max_position_embeddings=original,
        attention_factor=said.get("attention_factor"),
    )


def _sections(config: Any, said: Mapping[str, Any]) -> dict[str, Any]:
    if said.get("mrope_section") is None:
        return {}
    model_type = str(getattr(config, "model_type", None)).removesuffix("_text")
    if model_type not in _MROPE_INTERLEAVED:
        raise InputError(
            "the configuration has an `mrope_section`, and the order of its pairs is known for the model types "
            f"{', '.join(_MROPE_INTERLEAVED)}, got {model_type!r}: build RoPE(..., mrope_section=...) yourself"
        )
    return {"mrope_section": said["mrope_section"], "mrope_interleaved": _MROPE_INTERLEAVED[model_type]}


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
