"""Masking of tokens for masked language modeling (Devlin et al. 2019, 3.1)."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Generator, Tensor

from regard.errors import InputError

__all__ = ["mask_tokens"]

_IGNORED = -100  # the label that PyTorch's cross-entropy leaves out


def mask_tokens(
    input_ids: Int[Tensor, "batch n"],
    attention_mask: Shaped[Tensor, "batch n"],
    vocab_size: int,
    mask_token_id: int,
    *,
    all_special_ids: Sequence[int],
    generator: Generator,
    mlm_probability: float = 0.15,
) -> tuple[Int[Tensor, "batch n"], Int[Tensor, "batch n"]]:
    """Return masked inputs and their labels: of the chosen tokens 80 % are masked, 10 % random, 10 % unchanged.

    The shares and the labels are those of transformers' DataCollatorForLanguageModeling. Two details differ, as in
    Devlin's own code. In each row exactly round(mlm_probability × its tokens) tokens are selected, but at least one;
    transformers selects each token independently and may leave a short row without a label. Random tokens are never
    special tokens.

    Args:
        input_ids: Token ids.
        attention_mask: True or 1 for tokens, False or 0 for padding.
        vocab_size: Number of ids.
        mask_token_id: The id of the mask token.
        all_special_ids: The ids that are never chosen and never put in; `mask_token_id` is one in any case.
        generator: A generator on the CPU.
        mlm_probability: Fraction of the tokens that are chosen.

    Returns:
        The inputs (batch, n), and the labels (batch, n): the token where one was chosen, −100 elsewhere.

    Raises:
        InputError: `mlm_probability` is not between 0 and 1, or all tokens are special.

    Source: https://arxiv.org/abs/1810.04805

    >>> ids = torch.tensor([[1, 7, 8, 9, 2, 0]])
    >>> inputs, labels = mask_tokens(
    ...     ids, ids != 0, 10, 4, all_special_ids=(0, 1, 2, 3, 4), generator=torch.Generator().manual_seed(0),
    ...     mlm_probability=0.5,
    ... )
    >>> inputs, labels
    (tensor([[1, 7, 4, 4, 2, 0]]), tensor([[-100, -100,    8,    9, -100, -100]]))
    """
    if not 0 < mlm_probability < 1:
        raise InputError(f"`mlm_probability` must be above 0 and below 1, got {mlm_probability}: 0.15 is usual")
    hidden = torch.tensor(sorted({*all_special_ids, mask_token_id}))
    texts = torch.arange(vocab_size)[~torch.isin(torch.arange(vocab_size), hidden)]
    if not len(texts):
        raise InputError(f"`vocab_size` must be above the special tokens ({len(hidden)}), got {vocab_size}")
    ids = input_ids
    eligible = attention_mask.bool() & ~torch.isin(ids, hidden.to(ids.device))
    chosen = _chosen(eligible.cpu(), mlm_probability, generator)
    fate = torch.rand(ids.shape, generator=generator)
    other = texts[torch.randint(len(texts), ids.shape, generator=generator)]
    chosen, fate, other = (one.to(ids.device) for one in (chosen, fate, other))
    inputs = torch.where(chosen & (fate < 0.8), mask_token_id, ids)
    inputs = torch.where(chosen & (fate >= 0.9), other, inputs)
    return inputs, torch.where(chosen, ids, _IGNORED)


def _chosen(eligible: Bool[Tensor, "batch n"], mlm_probability: float, generator: Generator) -> Bool[Tensor, "batch n"]:
    """Return in each row the eligible places with the smallest random numbers."""
    counts = eligible.sum(1, keepdim=True)
    wanted = (mlm_probability * counts).round().clamp(min=1)
    ranks = torch.rand(eligible.shape, generator=generator).masked_fill(~eligible, 2.0).argsort(1).argsort(1)
    return (ranks < wanted) & eligible
