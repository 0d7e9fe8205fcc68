"""Tiny random models of every architecture of transformers: configurations shrunk by rule, and inputs by signature.

`tiny_config` shrinks the default configuration of a model type by the names of its keys; `OPTIONS` holds what no rule
finds. `candidates` yields calls of a model, made from the names of its arguments, the likeliest first, and `mend`
mends a call as the error says that it raised. `owners` and `Called` find a part that cannot be called by itself in a
model of another type, with the arguments that this model calls it with.
"""

import importlib
import inspect
import linecache
import re
import traceback
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
    **dict.fromkeys(("encoder_in_channels", "decoder_in_channels"), HIDDEN),
}
# Keys that are None by default and that a model needs nevertheless.
_NEEDED = {
    "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "n_routed_experts": 4, "num_experts": 4,
    "top_k_experts": 2, "moe_intermediate_size": 2 * HIDDEN, "prediction_length": 4, "n_shared_experts": 1,
    "head_dim": HEAD_DIM, "vocab_size": VOCABULARY, "image_token_id": 5, "image_token_index": 5,
    "video_token_id": 6, "video_token_index": 6, "audio_token_id": 7, "audio_token_index": 7,
}  # fmt: skip
_RESNET = {
    "model_type": "resnet", "embedding_size": 16, "hidden_sizes": [16, 32, 64, 64], "depths": [1, 1, 1, 1],
    "out_features": ["stage2", "stage3", "stage4"],
}  # fmt: skip
_KINDS = ("layer_types", "layers_block_type")
# What shrinks: all; all but widths and positions; numbers of layers, experts and tokens; nothing.
SCALES = ("tiny", "wide", "whole", "default")
_ID = re.compile(r".*(_token_id|_token_index|_id)s?$")

# What no rule finds: the options of a type's configuration, over what the rules give.
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 1e4}},
    "emu3": {"vocabulary_map": {"<image>": 4}},
    "gemma4_assistant": {
        "text_config": {"model_type": "gemma4_text", "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
    },
    "ernie4_5_vl_moe_text": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [3, 3, 2]}
    },
    "deepseek_ocr2_encoder": {
        "hidden_size": 896,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "intermediate_size": 128,
    },
    "granite4_vision": {"deepstack_layer_map": [[-1, 0]], "spatial_target_layers": [1], "downsample_rate": "1/2"},
    "janus_vqgan": {"num_patches": 8},
    "llama4_vision_model": {"intermediate_size": 256},
    "lw_detr_vit": {"image_size": 64},
    "superpoint": {"keypoint_decoder_dim": 65},
    "step3p5": {"sliding_window": 4},
    "qwen3_omni_moe_talker_text": {"shared_expert_intermediate_size": 128},
    "t5gemma2_text": {"dropout_rate": 0.0},
    "t5gemma2_decoder": {"dropout_rate": 0.0},
    "pix2struct_text_model": {"initializer_range": 0.02},
    "moonshine_streaming": {"num_key_value_heads": 4},
    "sam_vision_model": {"output_channels": 64, "num_pos_feats": 32},
    "sam_hq_vision_model": {"output_channels": 64, "num_pos_feats": 32},
    "kosmos-2": {"latent_query_num": 4},
    "sam2_vision_model": {"backbone_feature_sizes": [[8, 8], [4, 4], [2, 2]]},
    "sam2_hiera_det_model": {"hidden_size": 96, "image_size": [32, 32]},
    "sam2_prompt_encoder": {"patch_size": 16},
    "emu3_vqgan": {"base_channels": 32, "num_res_blocks": 1},
    "clap_audio_model": {"hidden_size": 512},
    "seggpt": {"image_size": [2 * IMAGE, IMAGE]},
    "phi4_multimodal_audio": {"ext_pw_out_channel": 64, "depthwise_separable_out_channel": 64},
    "mamba2": {"num_heads": 8, "head_dim": HEAD_DIM},
    "sam3_vision_model": {"backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]]},
    "shieldgemma2": {"yes_token_index": 10, "no_token_index": 11},
    "rag": {"n_docs": 1},
    "tvp": {"max_img_size": 128, "visual_prompt_size": 16},
    "unlimited_ocr_vision_encoder": {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 128},
    "xmod": {"default_language": "en_XX"},
    "moshi_depth": {"num_codebooks": 16},
    "qwen3_omni_moe_talker": {"spatial_merge_size": 2},
    "zamba": {
        "layers_block_type": ["linear_attention", "hybrid", "hybrid"],
        "num_hidden_layers": 3,
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
    },
    "xclip_vision_model": {"num_frames": 2},
    "nemotron": {"num_key_value_heads": 2},
    "nemotron_h": {"n_groups": 2},
    "muse_glimmer_assistant": {"target_layer_ids": [0]},
    "molmo2": {"adapter_config": {"model_type": "molmo2_adapter", "vision_feature_layer": [1, 0]}},
    "mobilevitv2": {"image_size": 64},
    "vitmatte": {
        "fusion_hidden_sizes": [32, 16, 16, 8],
        "backbone_config": {
            "model_type": "vitdet",
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "patch_size": 16,
            "image_size": 64,
            "num_channels": 4,
            "out_features": ["stage2"],
        },
    },
    "upernet": {"use_auxiliary_head": False},
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense", "sparse"]},
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


def tiny_config(name: str, scale: str = "tiny") -> Any:
    """Return a small configuration of a type at one of `SCALES`."""
    return shrunk(configuration(name), scale=scale, options=OPTIONS.get(name, {}))


def shrunk(kind: Any, *, scale: str, options: Mapping[str, Any] = {}, default: Any = None) -> Any:
    """Return a small configuration of a class at one of `SCALES`."""
    from transformers import PreTrainedConfig

    try:
        plain = kind()
    except Exception:  # such as one that needs its options
        plain = kind(**options) if default is None else default
    default = plain if default is None else default
    # what the owner of a configuration sets in it stays
    added = {key for key in vars(default) if key not in vars(plain) and not key.startswith("_")}
    given = {
        key: value for key, value in vars(default).items()
        if not isinstance(value, PreTrainedConfig) and not key.startswith("_")
        and (key in added or value != vars(plain)[key])
    }  # fmt: skip
    for key, value in vars(default).items():
        if type(value).__name__ == "TimmBackboneConfig" or (key == "use_timm_backbone" and value):
            given |= {"use_timm_backbone": False, "backbone": None, "backbone_config": _RESNET}
        elif isinstance(value, PreTrainedConfig):
            inner = OPTIONS.get(value.model_type, {})
            given[key] = shrunk(type(value), scale=scale, default=value, options=inner).to_dict()
        elif not key.startswith("_") and (new := _small(key, value, scale)) is not None:
            given[key] = new
    if scale != "default":
        given = _consistent(given, default)
    names = inspect.signature(kind.__init__).parameters
    takes_any = any(one.kind is one.VAR_KEYWORD for one in names.values())
    known = {key: value for key, value in given.items() if takes_any or key in added or {key, f"_{key}"} & {*names}}
    return kind(**(known | dict(options)))


def _small(key: str, value: Any, scale: str) -> Any:
    """Return the small value of a key, or None where it stays."""
    if value is None:
        return _NEEDED.get(key)
    if isinstance(value, bool) or scale == "default":
        return None
    if isinstance(value, int):
        return _small_number(key, value, scale)
    if isinstance(value, list | tuple) and value and all(type(one) is int for one in value):
        return _small_numbers(key, value, scale)
    return None


def _small_number(key: str, value: int, scale: str) -> int | None:
    if _ID.fullmatch(key):
        return value % (VOCABULARY - 8) if value >= VOCABULARY else None
    size = next((size for pattern, size in _SIZES if pattern.fullmatch(key)), None)
    if size is None or value <= size:
        return None
    if scale == "tiny":
        return size
    counts = size in (2, 4, VOCABULARY) or (scale == "wide" and "image_size" in key)
    return size if counts and "head" not in key else None


def _small_numbers(key: str, values: Any, scale: str) -> list[int] | None:
    if key in ("intermediate_hook_ids", "intermediate_layers_indices"):  # of layers, of which two remain
        return [at % 2 for at in range(len(values))][::-1]
    if _ID.fullmatch(key):
        return [one % (VOCABULARY - 8) for one in values]
    if key in ("image_size", "crop_size") and scale != "whole":
        return [IMAGE] * len(values)
    if key in _LISTS and (scale == "tiny" or _LISTS[key] == 1):
        return [min(_LISTS[key], 2 ** (max(one, 1).bit_length() - 1)) for one in values]
    return None


def _consistent(given: dict[str, Any], default: Any) -> dict[str, Any]:
    """Bring keys together that depend on each other: kinds of layers, groups of heads, sections of positions."""
    if {"qk_head_dim", "qk_rope_head_dim"} <= given.keys():
        given["qk_head_dim"] = given["qk_rope_head_dim"] + given.get("qk_nope_head_dim", HEAD_DIM)
    given |= _layers(default)
    given |= _stages(default)
    heads = given.get("num_attention_heads")
    groups, whole = (vars(default).get(name) for name in ("num_key_value_heads", "num_attention_heads"))
    if isinstance(groups, int) and isinstance(heads, int) and isinstance(whole, int) and groups >= whole:
        given["num_key_value_heads"] = heads
    for key in ("rope_parameters", "rope_scaling"):
        rope = getattr(default, key, None)
        if isinstance(rope, dict) and "rope_type" in rope and _mentions(default, "mrope_section"):
            width = given.get("head_dim") or vars(default).get("head_dim") or HEAD_DIM
            turning = width * (rope.get("partial_rotary_factor") or vars(default).get("partial_rotary_factor") or 1)
            given[key] = rope | {"mrope_section": _sections(rope.get("mrope_section"), int(turning) // 2)}
    return given


def _layers(default: Any) -> dict[str, Any]:
    """Return one layer of each kind, at least two in all, with what else is listed by layer."""
    kinds = next((kinds for key in _KINDS if isinstance(kinds := getattr(default, key, None), list) and kinds), [])
    if not kinds or not isinstance(kinds[0], str):
        return {}
    first = {kind: kinds.index(kind) for kind in dict.fromkeys(kinds)}
    if not any(key in vars(default) for key in _KINDS):  # a rule of the layer's index, which no list overrides
        return {"num_hidden_layers": max(2, 1 + max(first.values()))}
    chosen = list(first.values()) if len(first) > 1 else [0, 0]
    listed = {
        key: [values[at] for at in chosen] for key, values in vars(default).items()
        if isinstance(values, list | tuple) and len(values) == len(kinds) and not _ID.fullmatch(key)
    }  # fmt: skip
    return listed | {"num_hidden_layers": len(chosen)}


def _stages(default: Any) -> dict[str, Any]:
    """Return the outputs of a backbone, in their number: by stages, of which there remain as many, or by layers."""
    keys = vars(default)
    if isinstance(depths := keys.get("depths"), list | tuple) and len(depths) == keys.get("num_hidden_layers"):
        return {"num_hidden_layers": len(depths)}
    outputs = vars(default).get("_out_indices") or ()
    if not outputs or (len(outputs) < 2 and "depths" not in vars(default)):
        return {}
    if "depths" in vars(default) or "num_hidden_layers" not in vars(default):
        return {"out_features": list(default.out_features)}
    return {
        "num_hidden_layers": len(outputs),
        "out_features": [f"stage{at + 1}" for at in range(len(outputs))],
        "out_indices": list(range(1, len(outputs) + 1)),
    }


def _sections(sections: Any, half: int) -> list[int]:
    """Return the sections of a rotary embedding, in their proportions, so that they fill half a head."""
    if not isinstance(sections, list | tuple) or not sections:
        sections = [2, 1, 1]
    parts = [max(1, int(one * half / sum(sections) + 0.5)) for one in sections]
    return [*parts[:-1], half - sum(parts[:-1])]


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
    import transformers
    from transformers.models.auto import modeling_auto

    mappings = (modeling_auto.MODEL_MAPPING_NAMES, modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    names = [mapping[kind.model_type] for mapping in mappings if kind.model_type in mapping]
    return [getattr(transformers, name) for name in names if isinstance(name, str)]


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


def mend_configuration(problem: Exception) -> bool:
    """Set a key of a configuration that is None where the model's code needs a size; return whether there was one."""
    for frame, code in _raising(problem):
        config = frame.f_locals.get("config", getattr(frame.f_locals.get("self"), "config", None))
        for key in re.findall(r"config\.(\w+)", code) if config is not None else ():
            size = next((size for pattern, size in _SIZES if pattern.fullmatch(key)), None)
            if size is not None and getattr(config, key, 0) is None:
                setattr(config, key, size)
                return True
    return False


def too_large(kind: Any, config: Any) -> bool:
    """Return whether a model has more than 200 million parameters, where that can be told without memory for them."""
    try:
        with torch.device("meta"):
            model = kind(config)
    except Exception:
        return False
    return sum(one.numel() for one in model.parameters()) > 200e6


def owners(name: str) -> list[str]:
    """Return the types whose configuration has a type's configuration inside it, the nearest first."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES, model_type_to_module_name

    package, kind = model_type_to_module_name(name), configuration(name)
    depths: dict[str, int] = {}
    for owner in CONFIG_MAPPING_NAMES:
        if owner != name and model_type_to_module_name(owner) == package:
            try:
                depth = _depth(configuration(owner)(), kind)
            except Exception:
                continue
            if depth:
                depths[owner] = depth
    return sorted(depths, key=lambda owner: depths[owner])


def _depth(config: Any, kind: Any) -> int:
    """Return how deep a configuration of a class is inside another, or 0 where it is not."""
    from transformers import PreTrainedConfig

    for value in vars(config).values():
        if type(value) is kind:
            return 1
        if isinstance(value, PreTrainedConfig) and (depth := _depth(value, kind)):
            return depth + 1
    return 0


class Called:
    """Records, inside its `with` block, the arguments of the first call of each part with a type's configuration."""

    def __init__(self, model: nn.Module, name: str) -> None:
        kind = configuration(name)
        inner = [module for module in model.modules() if module is not model]
        wanted = kind.__name__.removesuffix("Config")
        classes = tuple(_parts(kind, _modules(kind)))
        self.modules: dict[nn.Module, dict[str, Any]] = {}
        self._of_kind = [module for module in inner if type(module).__name__ in (wanted, f"{wanted}Model")] or [
            module for module in inner if type(getattr(module, "config", None)) is kind or isinstance(module, classes)
        ]
        self._hooks: list[Any] = []

    def __enter__(self) -> "Called":
        self._hooks = [one.register_forward_pre_hook(self._record, with_kwargs=True) for one in self._of_kind]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _record(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if module in self.modules:
            return
        signature = inspect.signature(module.forward)
        given: dict[str, Any] = {}
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            keywords = signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
            given |= value if keywords else {name: value}
        # a cache of keys would grow with each call
        self.modules[module] = {
            key: _copied(value) for key, value in given.items() if "Cache" not in type(value).__name__
        }

    def first(self) -> list[tuple[nn.Module, dict[str, Any], bool]]:
        """Return the outermost parts that were called, with their arguments, and whether a part is all of its kind."""
        inner = {one for module in self._of_kind for one in module.modules() if one is not module}
        called = [module for module in self._of_kind if module in self.modules]
        return [(module, self.modules[module], module not in inner) for module in called[:3]]


def _copied(value: Any) -> Any:
    """Return a copy of the tensors in nested arguments."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if type(value) in (list, tuple):
        return type(value)(_copied(one) for one in value)
    return {key: _copied(one) for key, one in value.items()} if type(value) is dict else value


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
    mains = [one for one in (
        *([main] if isinstance(main, str) else main), "input_ids", "inputs_embeds", "pixel_values", "input_features",
        "input_values", "hidden_states", "decoder_input_ids", "past_values",
    ) if one in signature]  # fmt: skip
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
            ("pixel_values", "input_points", "input_labels"),
        ):
            names = [*chosen, *(one for one in more if one in signature)]
            if set(names) in seen or {"input_ids", "inputs_embeds"} <= set(names):
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


def mend(model: Any, given: dict[str, Any], problem: Exception) -> bool:
    """Mend the arguments of a call as its error says, and return whether they are others now."""
    said = str(problem)
    return (
        _with_tokens(model, given, said)
        or _with_missing(model, given, problem)
        or _without_cache(given, problem)
        or _with_dimensions(model, given, problem)
        or _with_sizes(given, said)
    )


def _with_tokens(model: Any, given: dict[str, Any], said: str) -> bool:
    """Put as many tokens of an image, a video or a sound into `input_ids` as there are features of it."""
    numbers = re.search(r"tokens:? (\d+).*?features:? (\d+)", said)
    if not numbers or "input_ids" not in given or int(numbers[1]) == int(numbers[2]):
        return False
    word = next((word for word in ("video", "audio", "image") if word in said.lower()), "image")
    token = _Made(model).find(f"{word}_token_id", f"{word}_token_index", "image_token_id", "image_token_index")
    if not isinstance(token, int):
        return False
    ids = given["input_ids"]
    count = -(-int(numbers[2]) // len(ids))
    given["input_ids"] = torch.cat([ids[:, :1], torch.full((len(ids), count), token), ids[:, 1:]], 1)
    if "attention_mask" in given:
        given["attention_mask"] = torch.ones_like(given["input_ids"])
    return True


def _with_missing(model: Any, given: dict[str, Any], problem: Exception) -> bool:
    """Add the arguments that an error names, or that are None in the line that raised it."""
    parameters = inspect.signature(model.forward).parameters
    said = str(problem)
    if re.search(r"cannot specify both|at the same time|exactly one of", said) and re.search(
        "|".join(rf"\b{name}\b" for name in given), said
    ):
        return False
    named = [name for name in parameters if name not in given and re.search(rf"\b{name}\b", said)]
    if re.search(r"\beither\b|exactly (one|1)\b| or ", said):
        named = named[:1]
    for frame, code in [] if named else _raising(problem):
        words = re.findall(r"\w+", code)
        named = [
            name for name in dict.fromkeys(words)
            if name in parameters and name not in given and frame.f_locals.get(name, 0) is None
        ]  # fmt: skip
        if named:
            break
    named = [name for name in named if not ({name, *given} >= {"input_ids", "inputs_embeds"})]
    made = {name: value for name in named if (value := argument(model, name)) is not None}
    given |= made
    return bool(made)


def _raising(problem: Exception) -> list[tuple[Any, str]]:
    """Return the frames of the models' code that an error went through, the innermost first, with the code called."""
    frames = []
    trace = problem.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if trace.tb_frame.f_globals.get("__name__", "").startswith("transformers.models"):
            first, last, *_ = list(code.co_positions())[trace.tb_lasti // 2]
            lines = range(first or trace.tb_lineno, (last or trace.tb_lineno) + 1)
            frames.append((trace.tb_frame, "".join(linecache.getline(code.co_filename, line) for line in lines)))
        trace = trace.tb_next
    return frames[::-1]


def _without_cache(given: dict[str, Any], problem: Exception) -> bool:
    """Run without a cache where none can be made of the configuration, as of one of several towers."""
    modules = [frame.f_globals.get("__name__") for frame, _ in traceback.walk_tb(problem.__traceback__)]
    if "transformers.cache_utils" not in modules or "use_cache" in given or not isinstance(problem, AttributeError):
        return False
    given["use_cache"] = False
    return True


def _with_dimensions(model: Any, given: dict[str, Any], problem: Exception) -> bool:
    """Give an argument the number of dimensions that its unpacking needs, as videos, pairs of images or images."""
    said = str(problem)
    if numbers := re.search(r"input to conv2d, but got input of size: \[(\d+), (\d+)\]", said):  # flat patches
        side = int(_Made(model).find("patch_size", default=PATCH))
        for name, value in given.items():
            if list(getattr(value, "shape", ())) == [int(numbers[1]), int(numbers[2])]:
                given[name] = value.unflatten(-1, (-1, side, side))
                return True
    numbers = re.search(r"values to unpack \(expected (\d)|must be a (\d)D tensor", said)
    if not numbers:
        return False
    ndim = int(numbers[1] or numbers[2])
    code = next((code for _, code in _raising(problem)), "")
    named = [name for name in given if re.search(rf"\b{name}\b", code)] or [
        name for name in given if name.startswith(("pixel_values", "hidden_states"))
    ]
    made = _Made(model)
    side = made.find("patch_size", default=PATCH)
    for name in named:
        value = given[name]
        if ndim == 5 and isinstance(value, torch.Tensor) and value.ndim == 2 and value.shape[-1] % int(side) ** 2 == 0:
            given[name] = value.unflatten(-1, (-1, int(side), int(side)))[None]  # flat patches
            return True
    shapes = {5: made.frames, 4: made.pixels, 3: lambda: made.randn(2, 12, made.width())}
    for name in named:
        value = given[name]
        if isinstance(value, torch.Tensor) and value.is_floating_point() and ndim in shapes:
            # a tensor that had these dimensions lost one on its way: it is of several images for each text
            given[name] = shapes[ndim]() if value.ndim != ndim else value[:, None]
            return True
    return False


# What a layer says of the last dimension of its input: what it is, and what it has to be.
_WIDTHS = (
    re.compile(r"shapes cannot be multiplied \(\d+x(?P<old>\d+) and (?P<new>\d+)x\d+\)"),
    re.compile(r"normalized_shape=\[(?P<new>\d+)\].* size\[(?:\d+, )*(?P<old>\d+)\]"),
    re.compile(r"tensor a \((?P<old>\d+)\) must match the size of tensor b \((?P<new>\d+)\)"),
)
_CHANNELS = re.compile(r"weight of size \[([\d, ]+)\], expected input\[([\d, ]+)\] to have (\d+) channels")


def _with_sizes(given: dict[str, Any], said: str) -> bool:
    """Give an argument the length, the channels or the width that a layer expects of it."""
    if _with_length(given, said):
        return True
    if numbers := _CHANNELS.search(said):
        weight, size = ([int(one) for one in numbers[at].split(", ")] for at in (1, 2))
        return _with_channels(given, size, int(numbers[3]), len(weight))
    numbers = next((match for pattern in _WIDTHS if (match := pattern.search(said))), None)
    old, new = (int(numbers["old"]), int(numbers["new"])) if numbers else (0, 0)
    for name, value in given.items() if old else ():
        if not isinstance(value, torch.Tensor) or value.shape[-1:] != (old,):
            continue
        if value.is_floating_point():
            if name == "pixel_values" and value.ndim == 4:  # flat patches
                value = value[:, 0, 0, 0, None, None].expand(-1, 16, -1)
            given[name] = torch.randn(*value.shape[:-1], new, generator=torch.Generator().manual_seed(0))
            return True
        if name.endswith("input_ids") and value.ndim == 2:  # several tokens for each step
            given[name] = value[..., None].repeat(1, 1, new)
            return True
    return False


def _with_length(given: dict[str, Any], said: str) -> bool:
    """Give an argument a length that can be divided, or as many rows as there are codebooks."""
    multiple = re.search(r"length (\d+) is not a multiple of (\d+)", said)
    books = re.search(r"shape '\[-?\d+, (\d+), -?(\d+)\]' is invalid for input of size (\d+)", said)
    for name, value in given.items():
        if not isinstance(value, torch.Tensor):
            continue
        if multiple and value.shape[-1] == int(multiple[1]):
            given[name] = value[..., : value.shape[-1] // int(multiple[2]) * int(multiple[2])]
            return True
        if books and value.ndim == 2 and value.numel() == int(books[3]):
            given[name] = value.repeat(int(books[1]), 1)
            return True
    return False


def _with_channels(given: dict[str, Any], size: list[int], channels: int, ndim: int) -> bool:
    """Give the argument of a convolution its channels: as a second dimension, or by exchanging it with the last."""
    for name, value in given.items():
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            continue
        shape = list(value.shape)
        if shape[:-1] not in (size[:-1], size[1:-1]):  # the last may be padded
            continue
        if len(shape) == ndim and shape[-1] == channels:
            given[name] = value.movedim(-1, 1).contiguous()
        else:
            sizes = shape[2:] if len(shape) == ndim else [shape[-1] if ndim == 3 else 2 * IMAGE] * (ndim - 2)
            generator = torch.Generator().manual_seed(0)
            given[name] = torch.randn(shape[0], channels, *sizes, generator=generator)
        return True
    return False


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
        names = inspect.signature(self.model.forward).parameters
        if name in ("hidden_states", "pixel_values") and "grid_thw" in names:
            return self.patches()
        makers = {
            "past_values": lambda: self.series(self.past),
            "past_time_features": lambda: self.series(self.past, config.num_time_features),
            "past_observed_mask": lambda: torch.ones(2, self.past),
            "future_values": lambda: self.series(config.prediction_length),
            "future_time_features": lambda: self.series(config.prediction_length, config.num_time_features),
            "input_features_mask": lambda: torch.ones(2, self.features().shape[-1], dtype=torch.long),
            "input_ids": lambda: self.codes(12), "decoder_input_ids": lambda: self.codes(7),
            "attention_mask": self.mask,
            "encoder_hidden_states": lambda: self.randn(2, 9, self.width()),
            "hidden_states": lambda: self.randn(2, 12, self.width()),
            "inputs_embeds": lambda: self.randn(2, 12, self.width()),
            "pixel_values": (
                self.strip if "target_sizes" in names
                else (lambda: self.randn(2, 3, IMAGE, IMAGE)) if "prompt_pixel_values" in names
                else (lambda: self.pixels()[:, None, None].repeat(1, 1, 4, 1, 1, 1)) if "aspect_ratio_mask" in names
                else (lambda: self.patches().expand(2, -1, -1)) if {"pixel_position_ids", "spatial_shapes"} & {*names}
                else self.pixels
            ),
            "audio_mel": lambda: self.features().transpose(1, 2),
            "audio_mel_mask": lambda: torch.zeros(2, self.features().shape[-1], dtype=torch.bool),
            "pixel_values_videos": self.frames, "input_values": self.sound,
            "input_features": lambda: self.features()[0] if "feature_lens" in names else self.features(),
            "bbox": lambda: torch.zeros(2, 12, 4, dtype=torch.long),
            "grid_thw": lambda: torch.tensor([[1, 4, 4]]), "image_grid_thw": lambda: torch.tensor([[1, 4, 4]]),
            "image_attention_mask": lambda: torch.ones(2, 12, 1, dtype=torch.long),
            "image_embeds_position_mask": lambda: (torch.arange(12) < int(self.find("latent_query_num"))).repeat(2, 1),
            "input_points": lambda: torch.rand(2, 1, 3, 2, generator=self.draw) * IMAGE,
            "input_labels": lambda: torch.ones(2, 1, 3, dtype=torch.long),
            "mask": lambda: torch.ones(2, 12, dtype=torch.bool),
            "merge_sizes": lambda: torch.tensor([1]),
            "doc_scores": lambda: self.randn(2, 1),
            "t_cond": lambda: self.randn(1, 1, self.width()),
            "spectrogram": lambda: self.randn(2, 20, int(self.find("model_in_dim", default=80))),
            "mel_spectrogram": lambda: self.randn(2, int(self.find("mel_dim", default=80)), 20),
            **dict.fromkeys(("prompt_pixel_values", "prompt_masks"), lambda: self.randn(2, 3, IMAGE, IMAGE)),
            "last_hidden_state": lambda: self.randn(2, 1, int(self.find("input_size", default=self.width()))),
            "task_inputs": lambda: self.ids(int(self.find("task_seq_len", default=12))).float(),
            "classes_input_ids": lambda: self.ids(6), "tasks_input_ids": lambda: self.ids(6),
            "classes_attention_mask": lambda: torch.ones(2, 6, dtype=torch.long),
            "tasks_attention_mask": lambda: torch.ones(2, 6, dtype=torch.long),
            "classes_structure": lambda: torch.tensor([1, 1]),
            "spatial_shapes": lambda: torch.tensor([[4, 4], [4, 4]]),
            "target_sizes": lambda: torch.tensor([[4, 4]]),
            "pixel_attention_mask": lambda: torch.ones(2, 16, dtype=torch.long),
            "pixel_position_ids": lambda: torch.cartesian_prod(torch.arange(4), torch.arange(4)).expand(2, -1, -1),
            "flattened_patches": lambda: torch.cat([torch.ones(2, 16, 2), self.randn(2, 16, self.width())], -1),
            "visual_feats": lambda: self.randn(2, 9, config.visual_feat_dim),
            "visual_pos": lambda: torch.rand(2, 9, 4, generator=self.draw),
            "aspect_ratio_mask": lambda: torch.ones(2, 1, 4, dtype=torch.long),
            "aspect_ratio_ids": lambda: torch.ones(2, 1, dtype=torch.long),
            "feature_lens": lambda: torch.tensor([self.features().shape[-1]]),
            "timesteps": lambda: torch.arange(9).expand(2, -1),
            "rewards": lambda: self.randn(2, 9, 1), "returns_to_go": lambda: self.randn(2, 9, 1),
            "states": lambda: self.randn(2, 9, int(self.find("state_dim", default=self.width()))),
            "actions": lambda: self.randn(2, 9, int(self.find("act_dim", default=self.width()))),
        }  # fmt: skip
        if name in makers:
            return makers[name]()
        if re.fullmatch(r"(.*_)?(embeds|hidden_states|features|encoder_outputs|query_embeds|states|latents)", name):
            return self.randn(2, 9, self.width())
        if re.fullmatch(r"(.*_)?type_ids", name):
            return torch.zeros(2, 12, dtype=torch.long)
        if re.fullmatch(r"(.*_)?attention_mask", name):
            return torch.ones(2, 12, dtype=torch.long)
        if name == "position_ids":
            return torch.arange(12).repeat(2, 1)
        if re.fullmatch(r"(.*_)?(input_ids|token_ids|ids)", name):
            return self.ids()
        return None

    def features_of_bins_last(self) -> torch.Tensor:
        """Return features of sound with the bins last, as Conformers take them."""
        return self.features().transpose(1, 2).contiguous()

    def patches(self) -> torch.Tensor:
        """Return the flat patches of a 4 × 4 grid, as vision models of any resolution take them."""
        side, frames = self.find("patch_size", default=14), int(self.find("temporal_patch_size", default=1))
        side = int(side[0] if isinstance(side, list | tuple) else side)
        return self.randn(16, int(self.find("in_channels", "num_channels", "in_chans", default=3)) * frames * side**2)

    def strip(self) -> torch.Tensor:
        """Return the patches of a 4 × 4 grid beside each other in one row."""
        side = int(self.find("patch_size", default=PATCH))
        return self.randn(1, int(self.find("num_channels", default=3)), side, 16 * side)

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

    def codes(self, length: int) -> torch.Tensor:
        """Return the ids of tokens, or of sounds, which have one for each channel of a delay pattern."""
        ids, delays = self.ids(length), self.find("delay_pattern")
        sounds = delays and (length == 7 or "decoder_config" not in vars(self.config))
        return ids[..., None].repeat(1, 1, len(delays)) if sounds else ids

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
        if ratios := self.find("scaled_images_ratios"):
            size = int(self.find("patch_size") / min(ratios))
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
        if window := self.find("n_window"):
            length -= length % (2 * window)
        return self.randn(2, bins, length)


def _every_id(config: Any) -> Iterator[tuple[str, Any]]:
    from transformers import PreTrainedConfig

    for key, value in vars(config).items():
        if isinstance(value, PreTrainedConfig):
            yield from _every_id(value)
        elif _ID.fullmatch(key):
            yield key, value
