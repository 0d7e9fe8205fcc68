"""The limits as a rule on log-probabilities, as transformers' logits processors apply them."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from regard.errors import InputError
from regard.models.decoding.base import GenerationLimits

__all__ = ["Rules", "cut"]


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
