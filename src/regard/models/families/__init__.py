"""The families of checkpoints that a Transformer reads: each file is one, its configuration and its names."""

from regard.errors import InputError
from regard.models.families.bart import BART, MARIAN
from regard.models.families.base import Family, Raw
from regard.models.families.bert import BERT, ROBERTA
from regard.models.families.gpt2 import GPT2
from regard.models.families.llama import LLAMA, MISTRAL, QWEN2
from regard.models.families.t5 import T5

__all__ = ["FAMILIES", "Family", "family_of"]

FAMILIES: dict[str, Family] = {
    kind: family for family in (BERT, ROBERTA, GPT2, LLAMA, MISTRAL, QWEN2, T5, BART, MARIAN) for kind in family.types
}


def family_of(raw: Raw) -> Family:
    """The family that a config.json says.

    Raises:
        InputError: It says none that is here.
    """
    kind = raw.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise InputError(
            f"the checkpoint's model_type must be one of {', '.join(FAMILIES)}, got {kind!r}: regard.load_model and "
            "regard.watch run others as transformers has them"
        )
    return FAMILIES[kind]
