"""What decoding needs of a model, when it ends, and what it returns: a protocol for models and one for decodings."""

from dataclasses import dataclass
from typing import Protocol

from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from regard.errors import InputError
from regard.models.decoding.checks import check_count, check_tokens

__all__ = ["Continuation", "Decoding", "GeneratedSequence", "GenerationLimits"]


class Continuation(Protocol):
    """A batch of texts that a model continues: it keeps the tokens it has run on.

    It may have an attribute `together`: True where rows that have ended stay, and get padding, until all have. That is
    what a watched model needs, whose record has the same rows from first to last. They draw no random number; beside
    them the other rows' logits may differ in the last bits.
    """

    def step(
        self, tokens: Int[Tensor, "rows n"], attention_mask: Bool[Tensor, "rows n"] | None = None
    ) -> Float[Tensor, "rows vocabulary"]:
        """Run on tokens after those before; return the logits of the next token of each row.

        Args:
            tokens: The prompt at first, then one token a row.
            attention_mask: True for tokens, False for padding, which no token attends to; None where all are tokens.
        """
        ...

    def reorder(self, rows: Int[Tensor, " chosen"]) -> None:
        """Continue with these rows, which may be repeated, reordered or left out."""
        ...


@dataclass(frozen=True)
class GenerationLimits:
    """When a text ends, and which tokens may not or must come, by the names of transformers' GenerationConfig.

    A forced token comes before `suppress_tokens`, and costs a beam nothing (log-probability 0), as in transformers.

    Args:
        max_new_tokens: New tokens at most.
        eos_token_id: Tokens that end a text; they are part of it.
        pad_token_id: Fills up rows that have ended.
        min_new_tokens: New tokens before a text may end.
        forced_eos_token_id: Token that comes at the limit (Marian, BART).
        forced_bos_token_id: Token that comes first (BART).
        suppress_tokens: Tokens that are never chosen (Marian never generates its padding).

    Raises:
        InputError: A number is out of its range, or a token is both suppressed and the end of a text.

    >>> GenerationLimits(max_new_tokens=20, eos_token_id=(2,)).min_new_tokens
    0
    """

    max_new_tokens: int = 20
    eos_token_id: tuple[int, ...] = ()
    pad_token_id: int = 0
    min_new_tokens: int = 0
    forced_eos_token_id: int | None = None
    forced_bos_token_id: int | None = None
    suppress_tokens: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_count("max_new_tokens", self.max_new_tokens, "counts new tokens", at_least=1)
        check_count("min_new_tokens", self.min_new_tokens, "counts new tokens before the end", at_least=0)
        if self.min_new_tokens > self.max_new_tokens:
            raise InputError(
                f"`min_new_tokens` ({self.min_new_tokens}) cannot be above `max_new_tokens` ({self.max_new_tokens}): "
                "raise `max_new_tokens`, or lower `min_new_tokens`"
            )
        for name in ("eos_token_id", "suppress_tokens"):
            check_tokens(name, getattr(self, name))
        for name in ("forced_bos_token_id", "forced_eos_token_id"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), "is a token", at_least=0)
        if both := sorted(set(self.eos_token_id) & set(self.suppress_tokens)):
            raise InputError(
                f"`suppress_tokens` and `eos_token_id` exclude one another, got {both} in both: take {both[0]} out of "
                "`eos_token_id` if texts must not end with it, out of `suppress_tokens` if they may"
            )


@dataclass(frozen=True)
class GeneratedSequence:
    """What was generated after a prompt.

    Args:
        tokens: The new tokens, the end token included where one came.
        score: Sum of the log-probabilities that the model itself gives to them; for beams that of transformers: forced
            tokens cost nothing, and the sum is divided by length ** length_penalty.
    """

    tokens: tuple[int, ...]
    score: float


class Decoding(Protocol):
    """A way to choose the next token: Greedy, Sampling, BeamSearch."""

    def search(
        self,
        text: Continuation,
        prompt: Int[Tensor, "rows n"],
        limits: GenerationLimits,
        /,
        attention_mask: Shaped[Tensor, "rows n"] | None = None,
    ) -> list[GeneratedSequence]:
        """Continue every row of the prompt until it ends; return one result a row, in their order.

        `attention_mask` is 1 (or True) for tokens and 0 for padding; the continuation gets it as a boolean tensor.
        """
        ...
