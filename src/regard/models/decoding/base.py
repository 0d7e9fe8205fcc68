"""What decoding needs of a model and what it returns: protocols, limits, and the limits as rules for tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn import functional

from regard.checks import check_count, check_size
from regard.errors import InputError
from regard.models.decoding.rules import RepetitionPenalty, TokenRule
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
    "of_rows",
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


def nothing_to_choose(limits: "GenerationLimits", *, is_nan: bool) -> InputError:
    """Say why no token can be chosen: the log-probabilities are NaN, or else the rules exclude all tokens."""
    if is_nan:
        return InputError(
            "`text` must give logits of which one at least can be chosen, got NaN, +inf, or -inf for every token: look "
            "for overflow in the model (float16 instead of bfloat16 or float32), or a prompt that it cannot read"
        )
    names = [name for name in ("suppress_tokens", "begin_suppress_tokens") if getattr(limits, name)]
    names += ["min_new_tokens"] if any(of_rows(limits.min_new_tokens, 1)) else []
    names += [getattr(rule, "name", type(rule).__name__) for rule in limits.rules]
    rules = ", ".join(f"`{name}`" for name in names if name != RepetitionPenalty.name)  # which excludes no token
    which = f"one of them, {rules}" if rules else "them"
    return InputError(f"the rules about tokens leave nothing to choose: loosen {which}")


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

    A forced token comes before all other rules, and costs a beam nothing (log-probability 0), as in transformers.

    Args:
        max_new_tokens: New tokens at most; a tuple has a number for each row.
        eos_token_id: Tokens that end a text; they are part of it.
        pad_token_id: Fills up rows that have ended.
        min_new_tokens: New tokens before a text may end; a tuple has a number for each row.
        forced_eos_token_id: Token that comes at the limit (Marian, BART).
        forced_bos_token_id: Token that comes first after a prompt of one token (BART).
        suppress_tokens: Tokens that are never chosen (Marian never generates its padding).
        begin_suppress_tokens: Tokens that are not chosen first, or not second where the first one is forced.
        rules: What else changes scores, such as a RepetitionPenalty, in this order.

    Raises:
        InputError: A number is out of its range, or a token is suppressed that is forced or the end of a text.

    >>> GenerationLimits(max_new_tokens=20, eos_token_id=(2,)).min_new_tokens
    0
    """

    max_new_tokens: int | tuple[int, ...] = 20
    eos_token_id: tuple[int, ...] = ()
    pad_token_id: int = 0
    min_new_tokens: int | tuple[int, ...] = 0
    forced_eos_token_id: int | None = None
    forced_bos_token_id: int | None = None
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()
    rules: tuple[TokenRule, ...] = ()

    def __post_init__(self) -> None:
        self._check_counts()
        for name in ("eos_token_id", "suppress_tokens", "begin_suppress_tokens"):
            check_tokens(name, getattr(self, name))
        for name in ("forced_bos_token_id", "forced_eos_token_id"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), 0, "is a token", None)
            if getattr(self, name) in self.suppress_tokens:
                raise InputError(
                    f"`{name}` and `suppress_tokens` exclude one another, got {getattr(self, name)} in both: take it "
                    "out of `suppress_tokens`"
                )
        if both := sorted(set(self.eos_token_id) & set(self.suppress_tokens)):
            raise InputError(
                f"`suppress_tokens` and `eos_token_id` exclude one another, got {both} in both: take {both[0]} out of "
                "`eos_token_id` if texts must not end with it, out of `suppress_tokens` if they may"
            )

    def _check_counts(self) -> None:
        counts = [value for value in (self.max_new_tokens, self.min_new_tokens) if isinstance(value, tuple)]
        rows = len(counts[0]) if counts else 1
        most, least = of_rows(self.max_new_tokens, rows), of_rows(self.min_new_tokens, rows)
        for number in most:
            check_size("max_new_tokens", number, "counts new tokens")
        for number in least:
            check_count("min_new_tokens", number, 0, "counts new tokens before the end", None)
        if len(most) != len(least):
            raise InputError(
                f"`max_new_tokens` and `min_new_tokens` must have a number for each row, got {len(most)} and "
                f"{len(least)}"
            )
        for low, high in zip(least, most, strict=True):
            if low > high:
                raise InputError(
                    f"`min_new_tokens` ({low}) cannot be above `max_new_tokens` ({high}): "
                    "raise `max_new_tokens`, or lower `min_new_tokens`"
                )


def of_rows(value: int | tuple[int, ...], rows: int) -> list[int]:
    """Return the number of each row.

    >>> of_rows(5, rows=2), of_rows((3, 4), rows=2)
    ([5, 5], [3, 4])
    """
    return list(value) if isinstance(value, tuple) else [value] * rows


@dataclass(frozen=True)
class GeneratedSequence:
    """What was generated after a prompt.

    Args:
        tokens: The new tokens, the end token included where one came.
        score: Sum of the log-probabilities that the model itself gives to them; for beams that of transformers: forced
            tokens cost nothing, and the sum is divided by length ** length_penalty.
        margin: Smallest difference of two texts' scores that a choice on the way depended on; infinity for sampling.
            While no score changes by half of it, as by the rounding of another batch, the tokens are the same.
    """

    tokens: tuple[int, ...]
    score: float
    margin: float = torch.inf


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


@dataclass(frozen=True, eq=False)
class Rules:
    """What the limits make of the scores of the next token, row by row: −∞ for what may not come, 0 for what must.

    A text's row alone decides, never the rows beside it.

    Args:
        limits: The limits.
        prompt: The tokens before, −1 before shorter ones; without a column where no rule asks for them.
        max_new_tokens, min_new_tokens: Of each row.
        begins: Of each row, whether its prompt is one token.
        eos_token_id: The tokens that end a text.
        always, ends_of_texts, first: Flags of the tokens that never come, that end a text, and that do not come first.

    >>> limits = GenerationLimits(
    ...     max_new_tokens=3, eos_token_id=(2,), min_new_tokens=1, forced_eos_token_id=2, suppress_tokens=(0,)
    ... )
    >>> rules, new = Rules.of(limits, torch.zeros(1, 3), torch.tensor([[1]])), torch.zeros(1, 3, dtype=torch.int64)
    >>> [rules(torch.zeros(1, 3), new[:, :written]).tolist() for written in range(3)]
    [[[-inf, 0.0, -inf]], [[-inf, 0.0, 0.0]], [[-inf, -inf, 0.0]]]
    """

    limits: GenerationLimits
    prompt: Int[Tensor, "rows n"]
    max_new_tokens: list[int]
    min_new_tokens: list[int]
    begins: list[bool]
    eos_token_id: Int[Tensor, " ends"]
    always: Bool[Tensor, " vocabulary"] | None
    ends_of_texts: Bool[Tensor, " vocabulary"]
    first: Bool[Tensor, " vocabulary"] | None

    @classmethod
    def of(
        cls,
        limits: GenerationLimits,
        logits: Float[Tensor, "rows vocabulary"],
        prompt: Int[Tensor, "rows n"],
        attention_mask: Bool[Tensor, "rows n"] | None = None,
    ) -> Self:
        """Return the rules for these prompts; the first logits have the size of the vocabulary and the device.

        Raises:
            InputError: A token lies outside the vocabulary, or there are limits for another number of rows.
        """
        rows, vocabulary = logits.shape
        named = [(name, getattr(limits, name)) for name in ("forced_bos_token_id", "forced_eos_token_id")]
        for name in ("eos_token_id", "suppress_tokens", "begin_suppress_tokens"):
            named += [(name, token) for token in getattr(limits, name)]
        for name, token in named:
            if token is not None and token >= vocabulary:
                raise InputError(
                    f"`{name}` must be of the model's vocabulary of {vocabulary}, got {token}: take it from the "
                    "model's own tokenizer"
                )
        most, least = of_rows(limits.max_new_tokens, rows), of_rows(limits.min_new_tokens, rows)
        for name, numbers in (("max_new_tokens", most), ("min_new_tokens", least)):
            if len(numbers) != rows:
                raise InputError(f"`{name}` must have a number for each of the {rows} rows, got {len(numbers)}")
        lengths = [prompt.shape[1]] * rows if attention_mask is None else attention_mask.sum(1).tolist()
        suppressed, not_first = limits.suppress_tokens, limits.begin_suppress_tokens
        return cls(
            limits,
            prompt=_without_padding(prompt, attention_mask) if limits.rules else prompt[:, :0],
            max_new_tokens=most,
            min_new_tokens=least,
            begins=[length == 1 for length in lengths],
            eos_token_id=torch.tensor(limits.eos_token_id, dtype=torch.int64, device=logits.device),
            always=_flags(suppressed, logits) if suppressed else None,
            ends_of_texts=_flags(limits.eos_token_id, logits),
            first=_flags(not_first, logits) if not_first else None,
        )

    def select(self, rows: Sequence[int]) -> Self:
        """Return the rules of these rows."""
        index = torch.tensor(rows, dtype=torch.int64, device=self.prompt.device)
        return replace(
            self,
            prompt=self.prompt[index],
            max_new_tokens=[self.max_new_tokens[row] for row in rows],
            min_new_tokens=[self.min_new_tokens[row] for row in rows],
            begins=[self.begins[row] for row in rows],
        )

    def __call__(
        self, scores: Float[Tensor, "texts vocabulary"], new: Int[Tensor, "texts n"]
    ) -> Float[Tensor, "texts vocabulary"]:
        """Apply the limits to texts with these new tokens, of which each row has equally many."""
        written, copies = new.shape[1], len(scores) // max(len(self.begins), 1)
        if self.limits.rules:
            tokens = torch.cat([self.prompt.repeat_interleave(copies, 0), new], 1)
            for rule in self.limits.rules:
                scores = rule(scores, tokens)
        if self.always is not None:
            scores = scores.masked_fill(self.always, -torch.inf)
        forced = self.limits.forced_bos_token_id is not None
        early = [written < least for least in self.min_new_tokens] if self.limits.eos_token_id else []
        scores = _excluded(scores, self.ends_of_texts, early)
        if self.first is not None:
            scores = _excluded(scores, self.first, [written == int(forced and one) for one in self.begins])
        if forced:
            at_begin = [one and written == 0 for one in self.begins]
            scores = _forced(scores, self.limits.forced_bos_token_id, at_begin)
        last = [written == most - 1 for most in self.max_new_tokens]
        return _forced(scores, self.limits.forced_eos_token_id, last)  # at a limit of one token it wins

    def ends(self, tokens: Int[Tensor, "*rows"]) -> Bool[Tensor, "*rows"]:
        """Which tokens end a text."""
        return torch.isin(tokens, self.eos_token_id)

    def at_limit(self, written: int) -> list[bool]:
        """Which rows have so many tokens as they may have."""
        return [written >= most for most in self.max_new_tokens]

    @staticmethod
    def log_softmax(logits: Float[Tensor, "rows vocabulary"]) -> Float[Tensor, "rows vocabulary"]:
        """Log-probabilities in float32 at least; a row with NaN or +inf is NaN everywhere."""
        return functional.log_softmax(logits, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))


def _without_padding(prompt: Int[Tensor, "rows n"], attention_mask: Tensor | None) -> Int[Tensor, "rows n"]:
    """The prompts with −1 in place of padding, which comes before the tokens."""
    if attention_mask is None:
        return prompt
    order = attention_mask.int().argsort(dim=1, stable=True)
    return prompt.masked_fill(~attention_mask, -1).gather(1, order)


def _texts(scores: Tensor, rows: list[bool]) -> Bool[Tensor, "texts one"]:
    """Which texts are of these rows, each of which has equally many."""
    flags = torch.tensor(rows, device=scores.device)
    return flags.repeat_interleave(len(scores) // len(rows))[:, None]


def _excluded(scores: Tensor, tokens: Bool[Tensor, " vocabulary"], rows: list[bool]) -> Tensor:
    """−∞ at these tokens in these rows."""
    if not any(rows):
        return scores
    return scores.masked_fill(tokens if all(rows) else tokens & _texts(scores, rows), -torch.inf)


def _forced(scores: Tensor, token: int | None, rows: list[bool]) -> Tensor:
    """0 at this token in these rows, −∞ elsewhere."""
    if token is None or not any(rows):
        return scores
    only = torch.full_like(scores, -torch.inf)
    only[:, token] = 0.0
    return only if all(rows) else torch.where(_texts(scores, rows), only, scores)


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
