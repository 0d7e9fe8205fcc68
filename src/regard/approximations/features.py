"""Random features of the softmax kernel, and causal sums over them, chunk by chunk."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from regard.checks import check_size
from regard.errors import InputError

__all__ = ["positive_features", "prefix_sums", "random_features"]


def random_features(
    num_features: int,
    dim: int,
    *,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Float[Tensor, "num_features dim"]:
    """Draw directions w (num_features, dim), each N(0, I), orthogonal in blocks of `dim` (Choromanski 2021, 2.4).

    A block of features is the matrix Q of a QR decomposition, multiplied by the signs of R's diagonal. The signs make Q
    uniform over rotations. Without the signs the estimates are biased: for dim = count = 8 their mean is 1.16 times the
    true value. Each row is scaled to the length of an independent normal vector. Features are drawn in float64 on the
    CPU, so a seed gives the same features on every device.

    Raises:
        InputError: `num_features` or `dim` is less than 1.

    >>> w = random_features(2, 2, generator=torch.Generator().manual_seed(0))
    >>> w.shape, bool((w[0] @ w[1]).abs() < 1e-6)
    (torch.Size([2, 2]), True)
    """
    check_size("num_features", num_features)
    check_size("dim", dim)
    blocks = -(-num_features // dim)
    normal = torch.randn(blocks, dim, dim, generator=generator, dtype=torch.float64, device="cpu")
    q, r = torch.linalg.qr(normal)
    rotations = q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None]
    lengths = torch.randn(num_features, dim, generator=generator, dtype=torch.float64, device="cpu").norm(
        dim=-1, keepdim=True
    )
    directions: Tensor = rotations.reshape(-1, dim)[:num_features] * lengths
    return directions.to(device=device, dtype=dtype)


def positive_features(
    x: Float[Tensor, "*batch tokens dim"], features: Float[Tensor, "num_features dim"]
) -> tuple[Float[Tensor, "*batch tokens num_features"], Float[Tensor, "*batch tokens 1"]]:
    """Return w·x' and |x'|²/2 for x' = x/d^(1/4), from which φ(x) = exp(w·x' − |x'|²/2)/√m is computed.

    The mean of φ(q)·φ(k) over draws of w is exp(q·k/√d) (Choromanski et al. 2021, lemma 1, arXiv:2009.14794). The two
    parts are returned separately, because attention subtracts maxima from the first part before it exponentiates it.

    >>> x, w = torch.tensor([[2.0]]), torch.tensor([[1.0], [3.0]])
    >>> positive_features(x, w)
    (tensor([[2., 6.]]), tensor([[2.]]))
    """
    if features.ndim != 2 or features.shape[1] != x.shape[-1]:
        raise InputError(
            f"`features` must be (num_features, {x.shape[-1]}) for this width, got {tuple(features.shape)}: draw "
            f"them with random_features(num_features, {x.shape[-1]})"
        )
    x = x * x.shape[-1] ** -0.25
    return x @ features.to(x.dtype).T, x.square().sum(-1, keepdim=True) / 2


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
