"""What decoding asks of a model, when it stops, and what it gives: one protocol each for texts and for decodings."""

from dataclasses import dataclass
from typing import Protocol

from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.errors import InputError
from regard.models.decoding.checks import check_count, check_tokens

__all__ = ["Continuation", "Decoding", "Limits", "Written"]


class Continuation(Protocol):
    """A batch of texts that a model goes on writing: it keeps what it has read.

    It may have an attribute `together`: True where rows that have ended stay, and read padding, until all have. That is
    what a watched model needs, whose record has the same rows from first to last. They draw no random number; beside
    them the other rows' logits may differ in the last bits.
    """

    def read(
        self, tokens: Int[Tensor, "rows n"], real: Bool[Tensor, "rows n"] | None = None
    ) -> Float[Tensor, "rows vocabulary"]:
        """Read tokens behind those read before and give the logits of the next token of each row.

        Args:
            tokens: The prompt at first, then one token a row.
            real: False for padding, which is seen by no one; None where every token is real.
        """
        ...

    def select(self, rows: Int[Tensor, " chosen"]) -> None:
        """Go on with these rows, which may be repeated, reordered or left out."""
        ...


@dataclass(frozen=True)
class Limits:
    """When a text ends, and which tokens may not or must come.

    A forced token stands above `banned`, and costs a beam nothing (log-probability 0), as in transformers' `generate`,
    whose names are given in brackets.

    Args:
        most: New tokens at most (max_new_tokens).
        stop: Tokens that end a text; they are part of it (eos_token_id).
        pad: Fills up rows that have ended (pad_token_id).
        least: New tokens before a stop token may come (min_new_tokens).
        forced_last: Token that is written at the limit (forced_eos_token_id: Marian, BART).
        forced_first: Token that is written first (forced_bos_token_id: BART).
        banned: Tokens that are never chosen (bad_words_ids of one token each: Marian never writes its padding).

    Raises:
        InputError: A number is out of its range, or a token is both banned and a stop token.

    >>> Limits(most=20, stop=(2,)).least
    0
    """

    most: int = 64
    stop: tuple[int, ...] = ()
    pad: int = 0
    least: int = 0
    forced_last: int | None = None
    forced_first: int | None = None
    banned: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_count("most", self.most, "counts new tokens", at_least=1)
        check_count("least", self.least, "counts new tokens before a stop token", at_least=0)
        if self.least > self.most:
            raise InputError(
                f"`least` ({self.least}) cannot be above `most` ({self.most}): raise `most`, or lower `least`"
            )
        for name in ("stop", "banned"):
            check_tokens(name, getattr(self, name))
        for name in ("forced_first", "forced_last"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), "is a token", at_least=0)
        if both := sorted(set(self.stop) & set(self.banned)):
            raise InputError(
                f"`banned` and `stop` exclude one another, got {both} in both: take {both[0]} out of `stop` if texts "
                "must not end with it, out of `banned` if they may"
            )


@dataclass(frozen=True)
class Written:
    """What was written behind a prompt.

    Args:
        tokens: The new tokens, the stop token included where one came.
        score: Sum of the log-probabilities that the model itself gives to them; for beams that of transformers: forced
            tokens cost nothing, and the sum is divided by length ** length_penalty.
    """

    tokens: tuple[int, ...]
    score: float


class Decoding(Protocol):
    """A way to choose the next token: Greedy, Sampling, Beam."""

    def write(
        self,
        text: Continuation,
        prompt: Int[Tensor, "rows n"],
        limits: Limits,
        real: Bool[Tensor, "rows n"] | None = None,
    ) -> list[Written]:
        """Go on with every row of the prompt until it ends; one result a row, in their order."""
        ...
