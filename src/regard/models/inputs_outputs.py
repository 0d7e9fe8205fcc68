"""What a forward pass takes, token ids and masks, checked; and what it returns, like transformers' ModelOutput."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils import _pytree

from regard.cache import Cache
from regard.errors import InputError
from regard.masks.document import places_in_documents
from regard.models.output_heads import LanguageModel
from regard.parallel.sequence_part import SEQUENCE_PART
from regard.tensors import unwrapped

__all__ = [
    "Output",
    "SpecialTokens",
    "as_pytree",
    "check_documents",
    "check_input_ids",
    "check_logits_to_keep",
    "token_mask",
    "token_positions",
]


def _is_token(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


@dataclass(frozen=True, kw_only=True)
class SpecialTokens:
    """The tokens that mean something to a model, by transformers' names; None where it has none.

    Args:
        pad_token_id: Fills up a batch.
        bos_token_id: Begins a text.
        eos_token_id: Ends a text; one token, or several of which each does.
        decoder_start_token_id: The first token of the decoder of an encoder–decoder; `bos_token_id` by default.
        mask_token_id: Stands for a hidden token (BERT's [MASK]).
        forced_bos_token_id: What is always generated after a single start token (BART).
        forced_eos_token_id: What is generated at the maximum length (BART, Marian).
        suppress_tokens: What is never generated (Marian: its padding).

    Raises:
        InputError: A value is no token.

    >>> SpecialTokens(eos_token_id=[2, 5]).eos_token_ids
    (2, 5)
    """

    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | Sequence[int] | None = None
    decoder_start_token_id: int | None = None
    mask_token_id: int | None = None
    forced_bos_token_id: int | None = None
    forced_eos_token_id: int | None = None
    suppress_tokens: Sequence[int] = ()

    def __post_init__(self) -> None:
        for one in fields(self):
            value, several = getattr(self, one.name), one.name in ("eos_token_id", "suppress_tokens")
            if several and isinstance(value, list | tuple):
                object.__setattr__(self, one.name, tuple(value))  # a value that can be compared and hashed
                wrong = not all(map(_is_token, value))
            else:
                wrong = one.name == "suppress_tokens" or not (value is None or _is_token(value))
            if wrong:
                kind = "tokens, integers" if several else "a token, an integer"
                raise InputError(f"`{one.name}` must be {kind} from 0 to 2³¹ − 1, got {value!r}")

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """All tokens that end a text."""
        found = self.eos_token_id
        return () if found is None else (found,) if isinstance(found, int) else tuple(found)

    @property
    def decoder_prefix(self) -> tuple[int, ...]:
        """The tokens before a target, as in transformers' `generate`: the start token, and one that is forced after it.

        >>> SpecialTokens(bos_token_id=0, decoder_start_token_id=2, forced_bos_token_id=0).decoder_prefix
        (2, 0)
        """
        start = self.bos_token_id if self.decoder_start_token_id is None else self.decoder_start_token_id
        forced = () if self.forced_bos_token_id is None else (self.forced_bos_token_id,)
        return () if start is None else (start, *forced)

    def end_token_id(self, eos_token_id: int | None) -> int:
        """Return the token that ends a text: of several the one that the tokenizer has, its `eos_token_id`.

        Raises:
            InputError: There is none, or there are several and the tokenizer has none of them.
        """
        ends = self.eos_token_ids
        if eos_token_id is not None and (eos_token_id in ends or not ends):
            return eos_token_id
        if len(ends) == 1:
            return ends[0]
        if ends:
            raise InputError(
                f"`eos_token_id` in generation_config.json or config.json has several tokens, {list(ends)}: name "
                "the one that ends the texts of a corpus as `eos_token` in tokenizer_config.json"
            )
        raise InputError(
            "no token ends a text: the model has no `eos_token_id` in generation_config.json or config.json, and its "
            "tokenizer_config.json no `eos_token`; name the token there"
        )

    def around_target(
        self, template: tuple[Sequence[int], Sequence[int]], eos_token_id: int | None
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the tokens before and after a target in the labels of an encoder–decoder.

        They are those of the tokenizer's template, as in transformers; but where generation forces the first token,
        that one begins the labels, and a token that ends generation ends them.

        >>> tokens = SpecialTokens(eos_token_id=2, decoder_start_token_id=2, forced_bos_token_id=7)
        >>> tokens.around_target(((), ()), 2), tokens.around_target(((0,), (2,)), 2)
        (((7,), (2,)), ((7,), (2,)))
        """
        before, after = template
        begin = tuple(before) if self.forced_bos_token_id is None else (self.forced_bos_token_id,)
        is_ended = len(after) > 0 and after[-1] in self.eos_token_ids
        return begin, tuple(after) if is_ended else (*after, self.end_token_id(eos_token_id))


def token_mask(
    name: str, mask: Tensor | None, shape: Sequence[int], before: int = 0
) -> Bool[Tensor, "batch all"] | None:
    """Return an attention_mask of any type as a boolean one, True for tokens; `before` of them are a cache's.

    Raises:
        InputError: It has another shape, or values that are neither 0 nor 1.
    """
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.ndim != 2 or mask.shape[0] != shape[0] or mask.shape[1] != shape[1]:
        found = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        cached = f", the {before} tokens of the cache included" if before else ""
        raise InputError(f"`{name}` must have shape {tuple(shape)} (batch, tokens){cached}, got {found}")
    if mask.dtype == torch.bool:
        return mask
    seen = mask != 0
    values = unwrapped(mask)
    if not torch.compiler.is_compiling() and bool((strange := values.ne(1) & values.ne(0)).any()):
        wrong = values[strange][0].item()
        raise InputError(f"`{name}` has 1 (or True) for tokens and 0 (or False) for padding, got {wrong}")
    return seen


def check_documents(documents: Tensor, ids: Tensor, mask: Tensor | None, cache: Cache | None, head: Any) -> None:
    """Raise unless `documents` are numbers of texts for ids without a mask and a cache, and the head reads tokens."""
    if mask is not None or cache is not None:
        raise InputError(
            "`documents` name the padding themselves (−1), and are run on at once: leave `attention_mask`, "
            "`past_key_values` and `use_cache` out"
        )
    if documents.shape != ids.shape or documents.is_floating_point() or documents.dtype == torch.bool:
        raise InputError(
            f"`documents` must be integers of the shape of `input_ids`, {tuple(ids.shape)}, got {documents.dtype} "
            f"of shape {tuple(documents.shape)}"
        )
    if head is not None and not head.each:
        raise InputError(f"`documents` share rows, and {head} pools a row: give attention_mask=")


def check_logits_to_keep(value: object, labels: Tensor | None, head: object) -> None:
    """Raise unless `logits_to_keep` is a number of last tokens, and the model without labels generates."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InputError(f"`logits_to_keep` counts the last tokens, 0 for all, and is an integer, got {value!r}")
    if value and labels is not None:
        raise InputError("`labels` need the logits of all tokens: leave `logits_to_keep` out")
    if value and head is not None and not isinstance(head, LanguageModel):
        raise InputError(f"`logits_to_keep` is for models that generate, this one has {head}: leave it out")


def token_positions(
    name: str,
    ids: Int[Tensor, "batch n"],
    seen: Bool[Tensor, "batch all"] | None,
    documents: Int[Tensor, "batch n"] | None,
    before: int,
    limit: int | None,
) -> Int[Tensor, "*batch n"]:
    """Return the positions of tokens that follow `before` others: those in their texts, without padding.

    `name` is that of the mask `seen`, `limit` the number of positions that there are. Padding behind a text counts on,
    as in transformers. Of a sequence that is sharded over ranks, `ids` are this rank's, and their positions are known.

    Raises:
        InputError: There are more tokens than positions, or padding between two tokens.
    """
    if not torch.compiler.is_compiling() and (part := SEQUENCE_PART.get()) is not None:
        _check_length(part.longest, limit)
        return part.position_ids if limit is None else part.position_ids.clamp_max(limit - 1)
    if documents is not None:
        positions = places_in_documents(documents).masked_fill(documents < 0, 0)  # padding has no place
        _check_length(positions.max() + 1, limit)
        return positions
    if seen is None:
        _check_length(before + ids.shape[1], limit)
        return torch.arange(before, before + ids.shape[1], device=ids.device)
    _check_gaps(name, seen)
    at = torch.arange(seen.shape[1], device=seen.device)
    positions = (at - seen.int().argmax(1, keepdim=True)).clamp_min(0)[:, before:]
    _check_length(seen.sum(1).max(), limit)
    return positions if limit is None else positions.clamp_max(limit - 1)


def _check_length(length: int | Tensor, limit: int | None) -> None:
    if limit is None or torch.compiler.is_compiling():
        return
    if (length := int(unwrapped(length).max() if isinstance(length, Tensor) else length)) > limit:
        raise InputError(f"the text has {length} tokens, and this model has positions for {limit}: shorten it")


def _check_gaps(name: str, mask: Tensor) -> None:
    """Distances count places, and so padding between two tokens would move them apart."""
    if torch.compiler.is_compiling():
        return
    begins = mask[:, 1:] & ~mask[:, :-1]
    if bool(unwrapped(begins.sum(1) + mask[:, 0] > 1).any()):
        raise InputError(
            f"`{name}` has padding between tokens, which would move them apart: pad at one end, and on the left where "
            "the text is continued from a cache"
        )


def check_input_ids(name: str, ids: Tensor, vocab_size: int) -> Tensor:
    """Return ids (batch, n) as integers; raise unless they are tokens of the vocabulary."""
    if ids.ndim != 2 or ids.is_floating_point() or ids.dtype == torch.bool:
        raise InputError(
            f"`{name}` must be integers (batch, n), got {ids.dtype} of shape {tuple(ids.shape)}"
            + (f": write {name}[None] for a single text" if ids.ndim == 1 else "")
        )
    if ids.device.type == "cpu" and ids.numel() and not torch.compiler.is_compiling():  # elsewhere it would wait
        values = unwrapped(ids)
        least, most = int(values.min()), int(values.max())
        if least < 0 or most >= vocab_size:
            raise InputError(
                f"`{name}` must be tokens from 0 to {vocab_size - 1}, got {least if least < 0 else most}: is it the "
                "tokenizer of this model?"
            )
    return ids if ids.dtype in (torch.int64, torch.int32) else ids.long()


T = TypeVar("T")


def as_pytree(cls: type[T]) -> type[T]:
    """Let PyTorch look for tensors in the fields, as torch.export and fully_shard do."""

    def flatten(one: T) -> tuple[list[Any], None]:
        return [getattr(one, name.name) for name in fields(one)], None  # type: ignore[arg-type]

    def unflatten(values: Any, _: None) -> T:
        return cls(*values)

    name = f"{cls.__module__}.{cls.__qualname__}"
    _pytree.register_pytree_node(cls, flatten, unflatten, serialized_type_name=name)
    return cls


@as_pytree
@dataclass(frozen=True, eq=False)
class Output(Mapping[str, Any]):
    """What a forward pass returns; what was not computed is None.

    As in transformers, `output[0]` is the first field that is present: the loss; without labels, the logits; without an
    output head, the last hidden state. `output["logits"]` is a field, and iterating yields the names of the fields.

    Args:
        loss: Of the `labels`, a mean; a mapping of fields in its place is taken apart.
        logits: What the output head computes.
        last_hidden_state: The last states, the decoder's where there is one, after the final norm.
        past_key_values: The keys and values so far, with `use_cache` or where they were given.
        hidden_states: With `output_hidden_states` the embeddings and the states after each block, the last after the
            final norm: layers + 1 of them. Of an encoder–decoder the decoder's (`decoder_hidden_states`).
        encoder_last_hidden_state: The encoder's last states, of an encoder–decoder.
        encoder_hidden_states: The same of the encoder of an encoder–decoder.
    """

    loss: Float[Tensor, ""] | None = None
    logits: Float[Tensor, "batch *n labels"] | None = None
    last_hidden_state: Float[Tensor, "batch n hidden_size"] | None = None
    past_key_values: Cache | None = None
    hidden_states: tuple[Float[Tensor, "batch n hidden_size"], ...] | None = None
    encoder_last_hidden_state: Float[Tensor, "batch source hidden_size"] | None = None
    encoder_hidden_states: tuple[Float[Tensor, "batch source hidden_size"], ...] | None = None

    def __post_init__(self) -> None:
        # As transformers' ModelOutput: accelerate rebuilds a mapping by `type(output)(dict)` in mixed precision.
        first: Any = self.loss
        if isinstance(first, Mapping):
            values = dict(first)
            if unknown := values.keys() - {one.name for one in fields(self)}:
                raise TypeError(f"an Output has no field {sorted(unknown)[0]!r}")
            for one in fields(self):
                object.__setattr__(self, one.name, values.get(one.name))

    @property
    def decoder_hidden_states(self) -> tuple[Tensor, ...] | None:
        """The decoder's `hidden_states`, of an encoder–decoder."""
        return None if self.encoder_last_hidden_state is None else self.hidden_states

    def to_tuple(self) -> tuple[Any, ...]:
        """Return what is there, in order; the last hidden state only where nothing is computed from it."""
        return tuple(self[name] for name in self if name != "last_hidden_state" or self.logits is None)

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            return self.to_tuple()[key]
        if key not in iter(self):
            raise KeyError(key)
        return getattr(self, key)

    def __iter__(self) -> Iterator[str]:
        return (one.name for one in fields(self) if getattr(self, one.name) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)
