"""Masked language models: which tokens are hidden, and what stands in their place (Devlin et al. 2019, 3.1)."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Int
from torch import Generator, Tensor

from regard.errors import InputError

__all__ = ["mask_tokens"]

_NOTHING = -100  # the label that PyTorch's cross-entropy leaves out


def mask_tokens(
    ids: Int[Tensor, "batch n"],
    real: Bool[Tensor, "batch n"],
    vocabulary_size: int,
    mask: int,
    *,
    special: Sequence[int],
    generator: Generator,
    share: float = 0.15,
) -> tuple[Int[Tensor, "batch n"], Int[Tensor, "batch n"]]:
    """Hide tokens for a model to find: of those chosen 80 % become `mask`, 10 % any token, 10 % stay as they are.

    In each row round(share × its tokens) are chosen, at least one, as in Devlin's own code; padding and special tokens
    are never chosen, and special ones never put in.

    Args:
        ids: Token ids.
        real: True for tokens, False for padding.
        vocabulary_size: How many ids there are.
        mask: The id of the mask token.
        special: The ids that mean something else than text, `mask` among them or not.
        generator: Where the randomness comes from, on the CPU.
        share: Of the tokens, how many are chosen.

    Returns:
        What the model reads (batch, n), and the labels (batch, n): the token where one was chosen, −100 elsewhere.

    Raises:
        InputError: `share` is not between 0 and 1, or the vocabulary has nothing but special tokens.

    Source: https://arxiv.org/abs/1810.04805

    >>> ids = torch.tensor([[1, 7, 8, 9, 2, 0]])
    >>> inputs, labels = mask_tokens(
    ...     ids, ids != 0, 10, 4, special=(0, 1, 2, 3, 4), generator=torch.Generator().manual_seed(0), share=0.5
    ... )
    >>> inputs, labels
    (tensor([[1, 7, 4, 4, 2, 0]]), tensor([[-100, -100,    8,    9, -100, -100]]))
    """
    if not 0 < share < 1:
        raise InputError(f"`share` must be above 0 and below 1, got {share}: 0.15 is usual")
    hidden = torch.tensor(sorted({*special, mask}))
    texts = torch.arange(vocabulary_size)[~torch.isin(torch.arange(vocabulary_size), hidden)]
    if not len(texts):
        raise InputError(f"`vocabulary_size` must be above the special tokens ({len(hidden)}), got {vocabulary_size}")
    eligible = real & ~torch.isin(ids, hidden.to(ids.device))
    chosen = _chosen(eligible.cpu(), share, generator)
    fate = torch.rand(ids.shape, generator=generator)
    other = texts[torch.randint(len(texts), ids.shape, generator=generator)]
    chosen, fate, other = (one.to(ids.device) for one in (chosen, fate, other))
    inputs = torch.where(chosen & (fate < 0.8), mask, ids)
    inputs = torch.where(chosen & (fate >= 0.9), other, inputs)
    return inputs, torch.where(chosen, ids, _NOTHING)


def _chosen(eligible: Bool[Tensor, "batch n"], share: float, generator: Generator) -> Bool[Tensor, "batch n"]:
    """In each row the eligible places with the smallest random numbers."""
    counts = eligible.sum(1, keepdim=True)
    wanted = (share * counts).round().clamp(min=1)
    ranks = torch.rand(eligible.shape, generator=generator).masked_fill(~eligible, 2.0).argsort(1).argsort(1)
    return (ranks < wanted) & eligible
