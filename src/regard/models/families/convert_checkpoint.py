"""A Hugging Face checkpoint under our names."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from regard.errors import InputError
from regard.models.config import TransformerConfig
from regard.models.families.base import WANTED, Family, Raw

__all__ = ["read"]


@dataclass
class _Sorted:
    """A checkpoint's tensors by what they are to us."""

    ours: dict[str, Tensor] = field(default_factory=dict)
    spare: dict[str, Tensor] = field(default_factory=dict)  # taken where there is no other
    copies: list[tuple[str, Tensor, str]] = field(default_factory=list)  # must equal what they are copies of
    foreign: list[str] = field(default_factory=list)
    prefixed: bool = False  # whether names have the prefix of a trunk with a head beside it


def read(
    family: Family, raw: Raw, tensors: Iterable[tuple[str, Tensor]], *, name: str, wanted: type[Any] | None = None
) -> tuple[TransformerConfig, dict[str, Tensor]]:
    """Give the configuration and the tensors of a checkpoint, under our names.

    Args:
        family: Whose names it has.
        raw: Its config.json.
        tensors: Its weights by their names.
        name: What it is called, for errors.
        wanted: The kind of head that is asked for.

    Raises:
        InputError: The configuration cannot be read, or there are weights that our modules have no place for.
    """
    try:
        config = family.config(raw if wanted is None else {**raw, WANTED: wanted})
    except (TypeError, AttributeError, ValueError, LookupError, ArithmeticError) as problem:
        raise InputError(
            f"the config.json of {name!r} cannot be read as a {family.types[0]} model: {problem}"
        ) from problem
    found = _sorted(family, config, tensors, name)
    foreign = [one for one in found.foreign if not found.prefixed or config.output_head or one.startswith(family.trunk)]
    if foreign:
        raise InputError(
            f"the checkpoint {name!r} has {foreign[0]}, which a {family.types[0]} model of ours has no place for: "
            "regard.load_model and regard.watch run it as transformers has it"
        )
    state = found.spare | found.ours
    for theirs, one, source in found.copies:
        if not torch.equal(state.setdefault(source, one), one):
            raise InputError(
                f"the checkpoint {name!r} has a {theirs} of its own, which ours shares with its embedding: "
                "regard.load_model and regard.watch run it as transformers has it"
            )
    return _tied(config, state, name)


def _sorted(family: Family, config: TransformerConfig, tensors: Iterable[tuple[str, Tensor]], name: str) -> _Sorted:
    found = _Sorted()
    for theirs, one in tensors:
        found.prefixed |= bool(family.trunk) and theirs.startswith(family.trunk)
        ours = family.rename(theirs)
        if ours and not one.is_floating_point():
            raise InputError(f"the checkpoint {name!r} has {theirs} as {one.dtype}: load one that is not quantized")
        if ours is None:
            found.foreign.append(theirs)
        elif ours.startswith("="):
            found.copies.append((theirs, one, ours[1:]))
        elif ours.startswith("?"):
            found.spare[ours[1:]] = one
        elif ours:
            found.ours |= dict(family.reshape(ours, one, config))
    return found


def _tied(
    config: TransformerConfig, state: dict[str, Tensor], name: str
) -> tuple[TransformerConfig, dict[str, Tensor]]:
    """What is said to be tied may be written twice, and then differently: the weights that are there hold."""
    own = state.pop("decoder_embedding.weight", None) if config.decoder_vocab_size is None else None
    if own is not None and not torch.equal(own, state["embedding.weight"]):
        raise InputError(
            f"the checkpoint {name!r} has an embedding of its own for the decoder, and its config.json says one for "
            "both: regard.load_model and regard.watch run it as transformers has it"
        )
    source = "embedding.weight" if config.decoder_vocab_size is None else "decoder_embedding.weight"
    for key in ("output_head.weight", "output_head.vocabulary.weight"):
        head: Any = config.output_head
        if key in state and getattr(head, "tie_word_embeddings", False):
            if torch.equal(state[key], state[source]):
                del state[key]
            else:
                config = replace(config, output_head=replace(head, tie_word_embeddings=False))
    return config, state
