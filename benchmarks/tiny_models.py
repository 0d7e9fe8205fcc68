"""Tiny random models of every architecture of transformers: configurations shrunk by rule, and inputs by signature.

`tiny_config` shrinks the default configuration of a model type by the names of its keys; `OPTIONS` holds what no rule
finds. `candidates` yields calls of a model, made from the names of its arguments, the likeliest first.
"""

import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

HIDDEN, HEADS, HEAD_DIM, VOCABULARY, IMAGE, PATCH = 64, 4, 16, 256, 32, 8

# The size of each kind of key, by its name; the first that matches counts.
SIZES: tuple[tuple[str, int], ...] = (
    (r"num_kv_shared_layers", 0),
    (r"index_topk", 16),
    (r"mamba_(n|num)_heads", HEADS),
    (r"mamba_(d_head|head_dim)|ssm_head_dim", 32),
    (r"mamba_d_state|ssm_state_size|state_size|mamba_chunk_size|chunk_size", 16),
    (r"vocab_size_per_layer_input|.*vocab(ulary)?_size|.*_vocab|codebook_size|num_embeddings", VOCABULARY),
    (r"(.*_)?(num_hidden_layers|num_layers|n_layers?|encoder_layers|decoder_layers|depth|layers)", 2),
    (r".*(num_encoder_layers|num_decoder_layers|num_block_layers|num_timestamp_prediction_layers)", 2),
    (r"(.*_)?(num_key_value_heads|num_kv_heads|multi_query_group_num)", 2),
    (r"(.*_)?(num_attention_heads|num_heads|n_heads?|attention_heads|num_.*attention_heads)", HEADS),
    (r"(.*_)?(linear_num_key_heads|linear_num_value_heads)", 2),
    (r"(.*_)?(head_dim|qk_head_dim|v_head_dim|d_kv|d_head|key_head_dim|value_head_dim|dim_head|rotary_dim)", HEAD_DIM),
    (r"qk_nope_head_dim|qk_rope_head_dim", HEAD_DIM),
    (r".*lora_rank", HEAD_DIM),
    (r"(.*_)?(hidden_size|d_model|n_embd|embed_dim|emb_dim|dim|hidden_dim|embedding_size|embedding_dim)", HIDDEN),
    (r"(.*_)?(projection_dim|out_hidden_size|output_hidden_size|word_embed_proj_dim|d_latents)", HIDDEN),
    (r"(.*_)?(intermediate_size|ffn_dim|d_ff|dff|ffn_hidden_size|mlp_dim|dim_feedforward|d_inner|dim_ff)", 2 * HIDDEN),
    (r"(.*_)?(num_experts|n_routed_experts|num_local_experts|moe_num_experts)", 4),
    (r"(.*_)?(num_experts_per_tok(en)?|moe_topk|moe_top_k|top_k_experts|moe_k|num_selected_experts)", 2),
    (r"n_group|topk_group|num_expert_groups", 1),
    (r"index_n_heads|index_block_size|index_topk_blocks", 4),
    (r"(.*_)?(sliding_window|sliding_window_size)", 4),
    (r"(.*_)?(max_position_embeddings|n_positions|max_source_positions|max_target_positions)", 128),
    (r"(.*_)?(num_queries|num_query_tokens)", 8),
    (r"(.*_)?image_size|crop_size|pretrain_image_size", IMAGE),
    (r"(.*_)?patch_size", PATCH),
)  # fmt: skip
_SIZES = tuple((re.compile(pattern), size) for pattern, size in SIZES)
_LISTS = {  # lists of one number a stage
    **dict.fromkeys(("depths", "num_blocks", "layers"), 1),
    **dict.fromkeys(("num_heads", "num_attention_heads"), HEADS),
    **dict.fromkeys(("hidden_sizes", "embed_dims", "neck_hidden_sizes", "embed_dim"), HIDDEN),
}
# Keys that are None by default and that a model needs nevertheless.
_NEEDED = {
    "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "n_routed_experts": 4, "num_experts": 4,
    "top_k_experts": 2, "moe_intermediate_size": 2 * HIDDEN, "prediction_length": 4, "n_shared_experts": 1,
    "head_dim": HEAD_DIM, "vocab_size": VOCABULARY,
}  # fmt: skip
_RESNET = {
    "model_type": "resnet", "embedding_size": 16, "hidden_sizes": [16, 32, 64, 64], "depths": [1, 1, 1, 1],
    "out_features": ["stage2", "stage3", "stage4"],
}  # fmt: skip
_ID = re.compile(r".*(_token_id|_token_index|_id)s?$")

# What no rule finds: the options of a type's configuration, over what the rules give.
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "layoutlmv3": {"coordinate_size": 8, "shape_size": 16},
    "lilt": {"hidden_size": 48},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "chameleon": {"vocabulary_map": {"<image>": 4}},
    "bamba": {"attn_layer_indices": [1]},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}},
    "depth_anything": {"neck_hidden_sizes": [16, 32, 32, 32], "fusion_hidden_size": 16},
}
# The class to run, where several have the configuration.
CLASSES: Mapping[str, str] = {}


def configuration(name: str) -> Any:
    """Return the class of a type's configuration."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return CONFIG_MAPPING[name]


def tiny_config(name: str, *, wide: bool = False) -> Any:
    """Return a small configuration of a type; with `wide`, only the numbers of layers, tokens and experts shrink."""
    return shrunk(configuration(name), wide=wide, options=OPTIONS.get(name, {}))


def shrunk(kind: Any, *, wide: bool, options: Mapping[str, Any] = {}, default: Any = None) -> Any:
    """Return a small configuration of a class."""
    from transformers import PreTrainedConfig

    try:
        default = kind() if default is None else default
    except Exception:
        if not options:
            raise
        return kind(**options)
    given: dict[str, Any] = {}
    for key, value in vars(default).items():
        if type(value).__name__ == "TimmBackboneConfig" or (key == "use_timm_backbone" and value):
            given |= {"use_timm_backbone": False, "backbone": None, "backbone_config": _RESNET}
        elif isinstance(value, PreTrainedConfig):
            given[key] = shrunk(type(value), wide=wide, default=value).to_dict()
        elif not key.startswith("_") and (new := _small(key, value, wide=wide)) is not None:
            given[key] = new
    given = _consistent(given, default)
    names = inspect.signature(kind.__init__).parameters
    takes_any = any(one.kind is one.VAR_KEYWORD for one in names.values())
    known = {key: value for key, value in given.items() if takes_any or key in names}
    return kind(**(known | dict(options)))


def _small(key: str, value: Any, *, wide: bool) -> Any:
    """Return the small value of a key, or None where it stays."""
    if value is None:
        return _NEEDED.get(key)
    if isinstance(value, bool):
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        if _ID.fullmatch(key):
            return value % (VOCABULARY - 8) if value >= VOCABULARY else None
        size = next((size for pattern, size in _SIZES if pattern.fullmatch(key)), None)
        if size is None or value <= size or (wide and size not in (2, 4, VOCABULARY)):
            return None
        return None if wide and "head" in key else size
    if isinstance(value, list | tuple) and value and all(type(one) is int for one in value):
        if _ID.fullmatch(key):
            return [one % (VOCABULARY - 8) for one in value]
        if key in ("image_size", "crop_size") and not wide:
            return [IMAGE] * len(value)
        if key in _LISTS and not (wide and _LISTS[key] != 1):
            return [min(_LISTS[key], 2 ** (max(one, 1).bit_length() - 1)) for one in value]
    return None


def _consistent(given: dict[str, Any], default: Any) -> dict[str, Any]:
    """Bring keys together that depend on each other: kinds of layers, groups of heads, sections of positions."""
    kinds = vars(default).get("layer_types")
    if isinstance(kinds, list) and kinds and isinstance(kinds[0], str):
        each = list(dict.fromkeys(kinds))
        given["layer_types"] = each if len(each) > 1 else each * 2
        given["num_hidden_layers"] = len(given["layer_types"])
    heads = given.get("num_attention_heads")
    groups, whole = (vars(default).get(name) for name in ("num_key_value_heads", "num_attention_heads"))
    if isinstance(groups, int) and isinstance(heads, int) and isinstance(whole, int) and groups >= whole:
        given["num_key_value_heads"] = heads
    for key in ("rope_parameters", "rope_scaling"):
        found = getattr(default, key, None)
        if isinstance(found, dict) and "rope_type" in found and _mentions(default, "mrope_section"):
            half = found.get("partial_rotary_factor", 1.0) < 1
            given[key] = found | {"mrope_section": [2, 1, 1] if half else [4, 2, 2]}
    return given


def _mentions(config: Any, word: str) -> bool:
    """Return whether the code of a configuration's models names something."""
    return any(word in inspect.getsource(one) for one in _modules(type(config)))


def _modules(kind: Any) -> list[Any]:
    """Return the modules of models beside the module of a configuration, its own first."""
    own = importlib.import_module(kind.__module__)
    if not (path := getattr(own, "__file__", None)):
        return []
    names = sorted(one.stem for one in Path(path).parent.glob("modeling_*.py"))
    mine = own.__name__.rpartition(".")[2].replace("configuration_", "modeling_")
    names.sort(key=lambda name: name != mine)
    return [importlib.import_module(f"{own.__package__}.{name}") for name in names]


def model_classes(name: str, config: Any) -> list[Any]:
    """Return the classes of models that have a configuration, the plainest first."""
    from transformers import PreTrainedModel

    kind = type(config)
    modules = _modules(kind)
    found = [
        one
        for module in modules
        for one in vars(module).values()
        if inspect.isclass(one) and issubclass(one, PreTrainedModel) and one.__module__ == module.__name__
        and getattr(one, "config_class", None) is kind and "forward" in vars(one)
    ]  # fmt: skip
    if not found:
        found = _mapped(kind) or _parts(kind, modules)
    if wanted := CLASSES.get(name):
        return [one for one in found if one.__name__ == wanted]

    def rank(one: Any) -> tuple[bool, bool, bool, int]:
        name = one.__name__
        plain = name == kind.__name__.removesuffix("Config") + "Model"
        for_a_task = "For" in name and not name.endswith("Generation")
        return not issubclass(one, PreTrainedModel), not plain, for_a_task, len(name)

    return sorted(found, key=rank)


def _mapped(kind: Any) -> list[Any]:
    """Return the class of another model that has a configuration."""
    from transformers.models.auto import modeling_auto

    mappings = (modeling_auto.MODEL_MAPPING, modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING)
    return [one[kind] for one in mappings if kind in one]


def _parts(kind: Any, modules: list[Any]) -> list[Any]:
    """Return modules that are made of a configuration and are no model of their own, such as towers."""
    found = []
    for module in modules:
        for one in vars(module).values():
            if inspect.isclass(one) and issubclass(one, nn.Module) and one.__module__ == module.__name__:
                names = inspect.signature(one.__init__).parameters
                annotation = names["config"].annotation if len(names) == 2 and "config" in names else None
                if annotation is kind or str(annotation).rpartition(".")[2] == kind.__name__:
                    found.append(one)
    return found


def randomized(model: nn.Module) -> nn.Module:
    """Draw matrices with a standard deviation of 1/√fan_in: those that models begin with give weights all alike."""
    torch.manual_seed(1)
    with torch.no_grad():
        for name, one in model.named_parameters():
            if one.is_floating_point() and (one.ndim >= 2 or "sinks" in name):
                one.normal_(0, 1 if one.ndim < 2 else max(1, one[0].numel()) ** -0.5)
    return model.eval()


def candidates(model: Any) -> Iterator[dict[str, Any]]:
    """Yield arguments of a call: those that are required and the main input, then with masks, or with more."""
    signature = inspect.signature(model.forward).parameters
    required = [
        one.name for one in signature.values()
        if one.default is one.empty and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
    ]  # fmt: skip
    made = _Made(model)
    main = getattr(model, "main_input_name", "input_ids")
    mains = [one for one in (main, "input_ids", "inputs_embeds", "pixel_values", "input_features", "input_values",
             "hidden_states", "decoder_input_ids", "past_values") if one in signature]  # fmt: skip
    seen: list[set[str]] = []
    for first in dict.fromkeys(mains or required[:1]):
        chosen = dict.fromkeys([first, *required])
        chosen |= dict.fromkeys(one for one in ("input_features_mask", "grid_thw") if one in signature)
        if getattr(model.config, "is_encoder_decoder", False) or "decoder_input_ids" in required:
            chosen |= dict.fromkeys(one for one in ("decoder_input_ids",) if one in signature)
        for more in (
            ("attention_mask",),
            (),
            ("pixel_values", "attention_mask"),
            ("input_ids", "attention_mask"),
            ("input_features",),
        ):
            names = [*chosen, *(one for one in more if one in signature)]
            if set(names) in seen:
                continue
            seen.append(set(names))
            given = {one: made(one) for one in dict.fromkeys(names)}
            given = {key: value for key, value in given.items() if value is not None}
            if given and all(one in given for one in required):
                yield given
                if "input_features" in given:
                    last = made.features_of_bins_last()
                    yield given | {"input_features": last} | _sound_mask(given, last.shape[:2])
                    yield given | {"input_features": last[:, None]}


def argument(model: Any, name: str) -> Any:
    """Return an argument of a call by its name, or None where its name says nothing."""
    return _Made(model)(name)


def _sound_mask(given: Mapping[str, Any], shape: Any) -> dict[str, torch.Tensor]:
    """Return a mask of a sequence of features, where there is one of tokens."""
    alone = "input_ids" not in given and "decoder_input_ids" not in given
    return {"attention_mask": torch.ones(shape, dtype=torch.long)} if "attention_mask" in given and alone else {}


class _Made:
    """Makes the arguments of a call by their names."""

    def __init__(self, model: Any) -> None:
        self.config, self.draw, self.model = model.config, torch.Generator().manual_seed(0), model

    def find(self, *names: str, default: Any = None) -> Any:
        """Return a key of the configuration, or of a configuration inside it."""
        from transformers import PreTrainedConfig

        inner = [one for one in vars(self.config).values() if isinstance(one, PreTrainedConfig)]
        for name in names:
            for one in (self.config, *inner):
                if (value := getattr(one, name, None)) is not None:
                    return value
        return default

    def randn(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.draw)

    def __call__(self, name: str) -> Any:
        """Return an argument, or None where its name says nothing."""
        config = self.config
        if name in ("hidden_states", "pixel_values") and "grid_thw" in inspect.signature(self.model.forward).parameters:
            return self.patches()
        makers = {
            "past_values": lambda: self.series(self.past),
            "past_time_features": lambda: self.series(self.past, config.num_time_features),
            "past_observed_mask": lambda: torch.ones(2, self.past),
            "future_values": lambda: self.series(config.prediction_length),
            "future_time_features": lambda: self.series(config.prediction_length, config.num_time_features),
            "input_features_mask": lambda: torch.ones(2, self.features().shape[-1], dtype=torch.long),
            "input_ids": self.ids, "decoder_input_ids": lambda: self.ids(7), "attention_mask": self.mask,
            "encoder_hidden_states": lambda: self.randn(2, 9, self.width()),
            "hidden_states": lambda: self.randn(2, 12, self.width()),
            "inputs_embeds": lambda: self.randn(2, 12, self.width()),
            "pixel_values": self.pixels, "pixel_values_videos": self.frames, "input_values": self.sound,
            "input_features": self.features, "bbox": lambda: torch.zeros(2, 12, 4, dtype=torch.long),
            "grid_thw": lambda: torch.tensor([[1, 4, 4]]), "image_grid_thw": lambda: torch.tensor([[1, 4, 4]]),
        }  # fmt: skip
        if name in makers:
            return makers[name]()
        if re.fullmatch(r"(.*_)?(embeds|hidden_states|features|encoder_outputs|query_embeds|states|latents)", name):
            return self.randn(2, 9, self.width())
        if re.fullmatch(r"(.*_)?(input_ids|token_ids|ids)", name):
            return self.ids()
        return None

    def features_of_bins_last(self) -> torch.Tensor:
        """Return features of sound with the bins last, as Conformers take them."""
        return self.features().transpose(1, 2).contiguous()

    def patches(self) -> torch.Tensor:
        """Return the flat patches of a 4 × 4 grid, as vision models of any resolution take them."""
        side, frames = int(self.find("patch_size", default=14)), int(self.find("temporal_patch_size", default=1))
        return self.randn(16, int(self.find("in_channels", "num_channels", "in_chans", default=3)) * frames * side**2)

    def series(self, length: int, *more: int) -> torch.Tensor:
        """Return time series of the length of a context and its lags."""
        channels = getattr(self.config, "num_input_channels", None)
        shape = (length, int(channels)) if channels is not None and not more else (length, *more)
        return self.randn(2, *shape)

    @property
    def past(self) -> int:
        """The positions of a time series before what is predicted."""
        return int(self.config.context_length) + max(getattr(self.config, "lags_sequence", None) or [0])

    def width(self) -> int:
        return int(self.find("hidden_size", "d_model", "embed_dim", "n_embd", "hidden_dim", default=HIDDEN))

    def ids(self, length: int = 12) -> torch.Tensor:
        tokens = int(self.find("vocab_size", default=99))
        special = [value for key, value in _every_id(self.config) if isinstance(value, int)]
        allowed = torch.tensor([one for one in range(3, tokens) if one not in special])
        return allowed[torch.randint(len(allowed), (2, length), generator=self.draw)]

    def mask(self) -> torch.Tensor:
        mask = torch.ones(2, 12, dtype=torch.long)
        mask[1, 9:] = 0
        return mask

    def pixels(self) -> torch.Tensor:
        size = self.find("image_size", default=4 * IMAGE)  # convolutions leave a 32nd of each side
        height, width = (*size, *size)[:2] if isinstance(size, list | tuple) else (size, size)
        channels = self.find("num_channels", "in_channels", "in_chans", default=3)
        return self.randn(2, int(channels), int(height), int(width))

    def frames(self) -> torch.Tensor:
        size, frames = self.find("image_size", default=IMAGE), self.find("num_frames", default=2)
        return self.randn(2, int(frames), 3, int(size), int(size))

    def sound(self) -> torch.Tensor:
        if bins := self.find("num_mel_bins"):
            return self.randn(2, int(self.find("max_length", default=64)), int(bins))
        channels = self.find("audio_channels") or (1 if "codebook_size" in vars(self.config) else None)
        return self.randn(2, 4000) if channels is None else self.randn(2, int(channels), 4000)

    def features(self) -> torch.Tensor:
        bins = int(self.find("num_mel_bins", "input_feat_size", "n_mels", default=80))
        length = 2 * int(self.find("max_source_positions", default=64))
        return self.randn(2, bins, length)


def _every_id(config: Any) -> Iterator[tuple[str, Any]]:
    from transformers import PreTrainedConfig

    for key, value in vars(config).items():
        if isinstance(value, PreTrainedConfig):
            yield from _every_id(value)
        elif _ID.fullmatch(key):
            yield key, value
