"""What decoding needs of a model and what it returns: protocols, limits, and the limits as rules for tokens."""

from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn import functional

from regard.checks import check_count, check_size
from regard.errors import InputError
from regard.models.inputs_outputs import token_mask

__all__ = [
    "Continuation",
    "Decoding",
    "GeneratedSequence",
    "GenerationLimits",
    "Rules",
    "check_prompt",
    "check_tokens",
    "cut",
    "nothing_to_choose",
]


def check_tokens(name: str, value: object) -> None:
    """Raise unless `value` is a tuple of tokens."""
    if not isinstance(value, tuple) or any(isinstance(t, bool) or not isinstance(t, int) or t < 0 for t in value):
        raise InputError(
            f"`{name}` must be a tuple of tokens, integers of at least 0, got {value!r}: write (2,) for token 2, "
            "tuple(tokens) for a list"
        )


def check_prompt(prompt: Tensor, attention_mask: Tensor | None) -> Bool[Tensor, "rows n"] | None:
    """Return the mask as a boolean one; raise unless the prompt is (rows, n) with a token in each row."""
    if prompt.ndim != 2 or prompt.shape[1] == 0 or prompt.dtype not in (torch.int64, torch.int32):
        raise InputError(
            f"`prompt` must be integers (rows, n) with n of at least 1, got {prompt.dtype} of shape "
            f"{tuple(prompt.shape)}: write prompt[None] for one text, and begin an empty one with its start token"
        )
    mask = token_mask("attention_mask", attention_mask, prompt.shape)
    if mask is not None and not bool(mask.any(1).all()):
        row = int(mask.any(1).int().argmin())
        raise InputError(
            f"`attention_mask` must be 1 (or True) somewhere in each row, got only padding in row {row}: leave it out"
        )
    return mask


def nothing_to_choose() -> InputError:
    """Say why no token can be chosen."""
    return InputError(
        "`text` must give logits of which one at least can be chosen, got NaN, +inf, or -inf for every token that "
        "`limits` allow: look for overflow in the model (float16 instead of bfloat16 or float32), a prompt "
        "that it cannot read, or `suppress_tokens` and `min_new_tokens` that leave nothing"
    )


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
        check_size("max_new_tokens", self.max_new_tokens, "counts new tokens")
        check_count("min_new_tokens", self.min_new_tokens, 0, "counts new tokens before the end", None)
        if self.min_new_tokens > self.max_new_tokens:
            raise InputError(
                f"`min_new_tokens` ({self.min_new_tokens}) cannot be above `max_new_tokens` ({self.max_new_tokens}): "
                "raise `max_new_tokens`, or lower `min_new_tokens`"
            )
        for name in ("eos_token_id", "suppress_tokens"):
            check_tokens(name, getattr(self, name))
        for name in ("forced_bos_token_id", "forced_eos_token_id"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), 0, "is a token", None)
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


class Rules:
    """What may be chosen at each step: −∞ for what may not, 0 for a token that must.

    Args:
        limits: The limits.
        logits: The first logits, for the size of the vocabulary and the device.

    Raises:
        InputError: A token lies outside the vocabulary.

    >>> limits = GenerationLimits(
    ...     max_new_tokens=3, eos_token_id=(2,), min_new_tokens=1, forced_eos_token_id=2, suppress_tokens=(0,)
    ... )
    >>> rules = Rules(limits, torch.zeros(1, 3))
    >>> [rules(torch.zeros(1, 3), written).tolist() for written in range(3)]
    [[[-inf, 0.0, -inf]], [[-inf, 0.0, 0.0]], [[-inf, -inf, 0.0]]]
    """

    def __init__(self, limits: GenerationLimits, logits: Float[Tensor, "rows vocabulary"]) -> None:
        self.limits = limits
        self.eos_token_id = torch.tensor(limits.eos_token_id, dtype=torch.int64, device=logits.device)
        forced = [
            ("forced_bos_token_id", limits.forced_bos_token_id),
            ("forced_eos_token_id", limits.forced_eos_token_id),
        ]
        for name, token in [
            *(("eos_token_id", t) for t in limits.eos_token_id),
            *(("suppress_tokens", t) for t in limits.suppress_tokens),
            *forced,
        ]:
            if token is not None and token >= logits.shape[1]:
                raise InputError(
                    f"`{name}` must be of the model's vocabulary of {logits.shape[1]}, got {token}: take it from the "
                    "model's own tokenizer"
                )
        self.always = _flags(limits.suppress_tokens, logits) if limits.suppress_tokens else None
        early = limits.min_new_tokens and limits.eos_token_id
        self.early = _flags(limits.suppress_tokens + limits.eos_token_id, logits) if early else self.always

    def __call__(self, log_probs: Float[Tensor, "rows vocabulary"], written: int) -> Float[Tensor, "rows vocabulary"]:
        """Apply the limits where there are `written` new tokens."""
        forced = self._forced(written)
        if forced is not None:
            only = torch.full_like(log_probs, -torch.inf)
            only[:, forced] = 0.0
            return only
        never = self.early if written < self.limits.min_new_tokens else self.always
        return log_probs if never is None else log_probs.masked_fill(never, -torch.inf)

    def _forced(self, written: int) -> int | None:
        """The token that must come; at a limit of one token the last one wins."""
        if self.limits.forced_eos_token_id is not None and written == self.limits.max_new_tokens - 1:
            return self.limits.forced_eos_token_id
        return self.limits.forced_bos_token_id if written == 0 else None

    def ends(self, tokens: Int[Tensor, "*rows"]) -> Bool[Tensor, "*rows"]:
        """Which tokens end a text."""
        return torch.isin(tokens, self.eos_token_id)

    @staticmethod
    def log_softmax(logits: Float[Tensor, "rows vocabulary"]) -> Float[Tensor, "rows vocabulary"]:
        """Log-probabilities in float32 at least; a row with NaN or +inf is NaN everywhere."""
        return functional.log_softmax(logits, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))


def _flags(tokens: tuple[int, ...], logits: Tensor) -> Bool[Tensor, " vocabulary"]:
    """True at these tokens."""
    flags = torch.zeros(logits.shape[1], dtype=torch.bool, device=logits.device)
    flags[list(tokens)] = True
    return flags


def cut(tokens: list[int], stop: tuple[int, ...]) -> tuple[int, ...]:
    """Take the tokens up to the first stop token, and with it.

    >>> cut([5, 2, 0, 0], stop=(2,)), cut([5, 6], stop=(2,))
    ((5, 2), (5, 6))
    """
    length = next((n for n, token in enumerate(tokens, start=1) if token in stop), len(tokens))
    return tuple(tokens[:length])
