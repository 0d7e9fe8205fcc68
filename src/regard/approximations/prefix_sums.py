"""Causal attention over features: sums over the keys so far, in chunks, with O(n) memory forward and backward."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

__all__ = ["prefix_sums"]

_CHUNK = 128


def prefix_sums(
    q: Float[Tensor, "*batch tokens count"],
    k: Float[Tensor, "*batch tokens count"],
    v: Float[Tensor, "*batch tokens width"],
    level: Float[Tensor, "*batch tokens"],
) -> Float[Tensor, "*batch tokens width"]:
    """Return Σ_{j ≤ i} (q_i·k_j) exp(level_j − level_i) v_j, where `level` is non-decreasing.

    Within a chunk, the sums are computed by a triangular matrix of products, and earlier chunks contribute by their
    sum of k vᵀ, the state. The backward pass stores the state at the start of each chunk (tokens/128 of count × width)
    and computes the triangles again.

    >>> one = torch.ones(3, 1)
    >>> prefix_sums(one, one, torch.tensor([[1.0], [2.0], [3.0]]), torch.zeros(3)).T
    tensor([[1., 3., 6.]])
    """
    state = q.new_zeros(*q.shape[:-2], q.shape[-1], v.shape[-1])
    before = level[..., :1]
    rows = []
    chunks = (part.split(_CHUNK, -2) for part in (q, k, v, level.unsqueeze(-1)))
    for q_part, k_part, v_part, level_part in zip(*chunks, strict=True):
        step = (q_part, k_part, v_part, level_part.squeeze(-1), state, before)
        if torch.is_grad_enabled():
            out, state = checkpoint(_chunk, *step, use_reentrant=False, preserve_rng_state=False)
        else:
            out, state = _chunk(*step)
        rows.append(out)
        before = level_part[..., -1, :]
    return torch.cat(rows, -2)


def _chunk(
    q: Tensor, k: Tensor, v: Tensor, level: Tensor, state: Tensor, before: Tensor
) -> tuple[Float[Tensor, "*batch chunk width"], Float[Tensor, "*batch count width"]]:
    """Return the sums of one chunk, and the state after it."""
    inside = (q @ k.transpose(-2, -1) * _fall(level[..., None, :], level[..., :, None])).tril()
    rows = inside @ v + _fall(before, level)[..., None] * (q @ state)
    end = level[..., -1:]
    after = _fall(before, end)[..., None] * state + (k * _fall(level, end)[..., None]).transpose(-2, -1) @ v
    return rows, after


def _fall(earlier: Tensor, later: Tensor) -> Tensor:
    """exp(earlier − later), which is 1 at most for pairs that count; the others are cut off above by the triangle."""
    return (earlier - later).clamp(max=0).exp()
