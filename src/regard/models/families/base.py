"""What a family of checkpoints is: its configuration read as ours, and its names of tensors."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from regard.errors import InputError
from regard.models.checkpoint_files import GENERATION, NUMBERS
from regard.models.config import TransformerConfig
from regard.models.generation_config import read_generation_config
from regard.models.inputs_outputs import SpecialTokens
from regard.models.output_heads import OutputHead
from regard.nn.feed_forward import HiddenAct, check_hidden_act

__all__ = [
    "WANTED",
    "Family",
    "Raw",
    "activation",
    "choose",
    "label_count",
    "need",
    "read",
    "read_config",
    "refuse",
    "saved_class",
    "tokens",
]

Raw = Mapping[str, Any]
Rules = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Family:
    """Checkpoints that share an architecture and the names of its tensors.

    Args:
        types: Their `model_type` in config.json.
        changed: What the family changed, in a phrase for the docs.
        paper: Where it comes from.
        config: Reads config.json.
        rules: Regular expressions of names and what ours are; what no rule fits is refused, "" drops a tensor, "=name"
            is a copy that must equal the tensor of ours, "?name" is taken where there is no other.
        trunk: The prefix of everything but the head, which a bare model's names lack.
        reshape: What becomes of a tensor under our name: split, transposed or cut.
    """

    types: tuple[str, ...]
    changed: str
    paper: str
    config: Callable[[Raw], TransformerConfig]
    rules: Rules
    trunk: str
    reshape: Callable[[str, Tensor, TransformerConfig], Iterator[tuple[str, Tensor]]] = field(
        default=lambda name, one, config: iter([(name, one)])  # noqa: ARG005
    )

    def rename(self, name: str) -> str | None:
        """Our name of a tensor; "" if it is not needed, None if no rule fits."""
        name = name.removeprefix(self.trunk)
        for pattern, ours in self.rules:
            if match := re.fullmatch(pattern, name):
                return match.expand(ours)
        return None


def need(raw: Raw, name: str) -> Any:
    """A value that a configuration must have."""
    if raw.get(name) is None:
        raise InputError(
            f"the checkpoint's config.json lacks `{name}`, which a {raw.get('model_type')} model must have"
        )
    return raw[name]


def refuse(raw: Raw, **wanted: Any) -> None:
    """Raise where a configuration asks for what our modules do not compute."""
    for name, value in wanted.items():
        if raw.get(name, value) not in (value, None):
            raise InputError(
                f"the checkpoint's config.json has `{name}` = {raw[name]!r}, and regard.models reads {value!r} alone: "
                "regard.load_model and regard.watch run it as transformers has it"
            )


def activation(name: str) -> HiddenAct:
    """Return the activation of a config.json if it is one that a Transformer has."""
    try:
        return check_hidden_act(name)
    except InputError as problem:
        raise InputError(f"the checkpoint's activation: {problem}") from problem


WANTED = "regard.head"  # a key beside those of config.json: the kind of head that is asked for


def choose(raw: Raw, heads: Mapping[str, OutputHead]) -> OutputHead | None:
    """The head of the class that was saved, by the end of its name; of a bare model that which is asked for.

    None for a bare model and for heads that we lack.
    """
    named = saved_class(raw)
    saved = next((head for ending, head in heads.items() if named.endswith(ending)), None)
    if saved is None and WANTED in raw:
        return next((head for head in heads.values() if type(head) is raw[WANTED] and not head.fresh), None)
    return saved


def saved_class(raw: Raw) -> str:
    """The name of the class that was saved; "" where none is said."""
    known = raw.get("architectures") or [""]
    return known if isinstance(known, str) else str(known[0])


def label_count(raw: Raw) -> int:
    """How many labels a classifier tells apart."""
    return len(raw.get("id2label") or ()) or int(raw.get("num_labels", 2))


def tokens(raw: Raw) -> SpecialTokens:
    """The tokens that mean something; those for writing are read from generation_config.json, which is merged in."""
    pad, forced = raw.get("pad_token_id"), raw.get("forced_eos_token_id")
    if isinstance(forced, list):
        forced = forced[0] if len(forced) == 1 else None  # several are named as a rule that is not obeyed
    return SpecialTokens(
        pad_token_id=None if isinstance(pad, int) and pad < 0 else pad,
        bos_token_id=raw.get("bos_token_id"),
        eos_token_id=raw.get("eos_token_id"),
        decoder_start_token_id=raw.get("decoder_start_token_id"),
        forced_bos_token_id=raw.get("forced_bos_token_id"),
        forced_eos_token_id=forced,
        suppress_tokens=raw.get("suppress_tokens") or (),
    )


def _check_generation(raw: Raw, name: str) -> None:
    """Raise where a value of generation is wrong, with the file that has it; an old config.json has all of them."""
    said = raw.get(GENERATION) or {}
    own = "config.json" if "model_type" in said else "generation_config.json"
    for one in fields(SpecialTokens):
        try:
            tokens({one.name: raw.get(one.name)})
        except InputError as problem:
            file = own if said.get(one.name) is not None else "config.json"
            raise InputError(f"cannot read the {file} of {name!r}: {problem}") from problem
    try:
        read_generation_config(said)
    except InputError as problem:
        raise InputError(f"cannot read the {own} of {name!r}: {problem}") from problem


@dataclass
class _Sorted:
    """A checkpoint's tensors by what they are to us."""

    ours: dict[str, Tensor] = field(default_factory=dict)
    spare: dict[str, Tensor] = field(default_factory=dict)  # taken where there is no other
    copies: list[tuple[str, Tensor, str]] = field(default_factory=list)  # must equal what they are copies of
    foreign: list[str] = field(default_factory=list)
    prefixed: bool = False  # whether names have the prefix of a trunk with a head beside it


def read_config(family: Family, raw: Raw, *, name: str, wanted: type[Any] | None = None) -> TransformerConfig:
    """Give the configuration of a checkpoint, whose arguments are those of `read`.

    Raises:
        InputError: It cannot be read.
    """
    _check_generation(raw, name)
    try:
        config = family.config(raw if wanted is None else {**raw, WANTED: wanted})
        return replace(config, generation_config=read_generation_config(raw.get(GENERATION) or {}))
    except (TypeError, AttributeError, ValueError, LookupError, ArithmeticError) as problem:
        raise InputError(
            f"the config.json of {name!r} cannot be read as a {family.types[0]} model: {problem}"
        ) from problem


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
    config = read_config(family, raw, name=name, wanted=wanted)
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
        if ours and one.dtype not in NUMBERS:
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
