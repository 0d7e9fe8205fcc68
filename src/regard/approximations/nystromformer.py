"""Nyströmformer: softmax attention through landmarks, means of segments of the sequence, in O(n · landmarks)."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from regard.approximations.approximate import (
    Approximate,
    check_heads,
    check_padding,
    check_padding_of_keys,
    check_tokens,
)
from regard.checks import check_flag, check_size
from regard.errors import InputError
from regard.tensors import without_autocast

__all__ = ["NystromformerAttention", "nystromformer_attention"]


def nystromformer_attention(
    q: Float[Tensor, "*batch tokens dim"],
    k: Float[Tensor, "*batch tokens dim"],
    v: Float[Tensor, "*batch tokens value_dim"],
    num_landmarks: int,
    *,
    pinv_iterations: int = 6,
    inv_coeff_init_option: bool = False,
    key_padding_mask: Bool[Tensor, "*#batch tokens"] | None = None,
) -> Approximate:
    """Estimate softmax(q·k/√d) v by softmax(q·k̃/√d) softmax(q̃·k̃/√d)⁺ softmax(q̃·k/√d) v (Xiong et al. 2021).

    The tokens are divided into `num_landmarks` segments of consecutive tokens, and the landmarks q̃ and k̃ are the
    means of these segments (arXiv:2102.03902). If the tokens cannot be divided evenly, each of the last segments has
    one token more, as in the authors' code. The pseudo-inverse ⁺ is computed iteratively (equation 11 of the paper).
    The iteration starts from the transposed matrix divided by its largest column sum. If there are no more tokens than
    landmarks, the result is exact.

    Computed in float32 for narrower types, whatever autocast has.

    Args:
        q: Queries, of the same positions as the keys: this is self-attention.
        num_landmarks: Number of segments; with more landmarks the error is smaller, and time and memory are larger.
        pinv_iterations: Steps of the iteration for the pseudo-inverse.
        inv_coeff_init_option: As in transformers: False takes the largest column sum of the whole batch and all heads,
            as the authors do, so that what is not yet converged depends on the neighbours in the batch; True takes each
            matrix's own, which converges faster.
        key_padding_mask: True for tokens that are padding: they are in no landmark and no query sees them, as if they
            were not there (transformers keeps them in the landmarks). Where all tokens are padding the output is 0.

    Raises:
        InputError: Shapes do not fit, `key_padding_mask` is not boolean, or a number is less than 1.

    >>> q, k, v = torch.zeros(3, 4, 2).unbind()
    >>> nystromformer_attention(q, k, v, num_landmarks=2)
    Approximate(Nyströmformer, 2 landmarks for 4 tokens: output (4, 2))
    >>> nystromformer_attention(q, k, v, num_landmarks=4)
    Approximate(Nyströmformer, a landmark for each of 4 tokens, exact: output (4, 2))
    """
    check_size("num_landmarks", num_landmarks)
    check_size("pinv_iterations", pinv_iterations)
    check_flag("inv_coeff_init_option", inv_coeff_init_option)
    _check(q, k, v, key_padding_mask)
    wide = torch.promote_types(q.dtype, torch.float32)
    tokens = q.shape[-2]
    with without_autocast(q.device):
        parts = (q.to(wide), k.to(wide), v.to(wide))
        if key_padding_mask is not None:
            output = _padded(*parts, num_landmarks, pinv_iterations, inv_coeff_init_option, ~key_padding_mask)
        elif tokens <= num_landmarks:
            output = functional.scaled_dot_product_attention(*parts)
        else:
            output = _estimate(*parts, num_landmarks, pinv_iterations, inv_coeff_init_option)
    exact = tokens <= num_landmarks
    how = (
        f"a landmark for each of {tokens} tokens, exact" if exact else f"{num_landmarks} landmarks for {tokens} tokens"
    )
    return Approximate(output.to(q.dtype), f"Nyströmformer, {how}")


class NystromformerAttention(nn.Module):
    """Self-attention by `nystromformer_attention`, heads apart; `output` mixes them.

    With `conv_kernel_size`, an odd number, a depthwise convolution of the values over the tokens is added to the output
    of each head, with one filter per head (the paper's skip connection, section 4.2). `query`, `key`, `value` and
    `conv` are the layers of transformers' NystromformerSelfAttention; without padding, both modules have the same
    output. `output` is the layer `dense` of NystromformerSelfOutput.

    `key_padding_mask` hides padding. There is no causal form and no other mask over pairs, because each landmark is the
    mean of a whole segment: through the landmark a query would see later tokens of the segment.

    The following relative errors were measured with benchmarks/approximations.py for 8, 32 and 128 landmarks. For 256
    tokens that resemble their neighbours, the error is 0.25, 0.036 and 0.021. For standard normal tokens, the error is
    0.79, 0.70 and 0.49.

    Cost: O(n · num_landmarks · embed_dim) time, O(n · embed_dim + num_landmarks²) memory a head.

    Raises:
        InputError: `num_heads` does not divide `embed_dim`; a number is less than 1 or the kernel's is even; a mask is
            passed.

    >>> attend = NystromformerAttention(16, num_heads=2, num_landmarks=4)
    >>> attend(torch.zeros(1, 9, 16))
    Approximate(Nyströmformer, 4 landmarks for 9 tokens: output (1, 9, 16))
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        num_landmarks: int = 64,
        conv_kernel_size: int | None = None,
        pinv_iterations: int = 6,
        inv_coeff_init_option: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__()
        check_heads(embed_dim, num_heads)
        check_flag("bias", bias)
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.num_landmarks = check_size("num_landmarks", num_landmarks)
        self.pinv_iterations = check_size("pinv_iterations", pinv_iterations)
        self.inv_coeff_init_option = check_flag("inv_coeff_init_option", inv_coeff_init_option)
        self.query = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.key = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.value = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.output = nn.Linear(embed_dim, embed_dim)
        self.conv = None if conv_kernel_size is None else _convolution(num_heads, conv_kernel_size)

    def forward(
        self,
        x: Float[Tensor, "batch tokens embed_dim"],
        *,
        key_padding_mask: Bool[Tensor, "batch tokens"] | None = None,
        mask: object = None,
    ) -> Approximate:
        """Attend from x to itself; `key_padding_mask` is True for padding, any `mask` is refused."""
        if mask is not None:
            raise InputError(
                f"Nyströmformer has no mask over pairs, causal or other, got {type(mask).__name__}: each landmark is a "
                "mean of its whole segment. Pass `key_padding_mask=` for padding, or use "
                "PerformerAttention(causal=True) or regard.attention with the mask"
            )
        check_tokens("x", x, self.embed_dim)
        if key_padding_mask is not None:
            check_padding(key_padding_mask, x)
        padding = None if key_padding_mask is None else key_padding_mask[:, None]
        q, k, v = (
            layer(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        result = nystromformer_attention(
            *(q, k, v, self.num_landmarks),
            pinv_iterations=self.pinv_iterations,
            inv_coeff_init_option=self.inv_coeff_init_option,
            key_padding_mask=padding,
        )
        heads = result.output
        if self.conv is not None:
            heads = heads + self.conv(v if padding is None else v.masked_fill(padding[..., None], 0.0))
        return Approximate(self.output(heads.transpose(1, 2).flatten(-2)), result.method)


def _estimate(
    q: Tensor, k: Tensor, v: Tensor, num_landmarks: int, iterations: int, own: bool
) -> Float[Tensor, "*batch tokens value_dim"]:
    q_landmarks, k_landmarks = _segment_means(q, num_landmarks), _segment_means(k, num_landmarks)
    middle = (q_landmarks @ k_landmarks.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1)
    context = _pseudo_inverse(middle, iterations, own) @ functional.scaled_dot_product_attention(q_landmarks, k, v)
    return functional.scaled_dot_product_attention(q, k_landmarks, context)


def _padded(
    q: Tensor, k: Tensor, v: Tensor, num_landmarks: int, iterations: int, own: bool, real: Tensor
) -> Float[Tensor, "*batch tokens value_dim"]:
    """The same over the tokens of each sequence that are real; those with no more of them than landmarks are exact."""
    some = real.any(-1, keepdim=True)
    real = real | ~some  # a softmax needs something to see; what it gives there is hidden at the end
    segments = _segments(real, num_landmarks).to(q.dtype)
    count = segments.sum(-1, keepdim=True)
    means, used = segments / count.clamp(min=1), count.transpose(-2, -1) > 0
    v = v.masked_fill(~real[..., None], 0.0)
    q_landmarks, k_landmarks = means @ q, means @ k
    few = real.sum(-1)[..., None, None] <= num_landmarks
    middle = (q_landmarks @ k_landmarks.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1)
    middle = middle.masked_fill(few | ~some[..., None], 0.0)  # it has no part in the largest sum of the others
    context = functional.scaled_dot_product_attention(q_landmarks, k, v, attn_mask=real[..., None, :])
    context = _pseudo_inverse(middle, iterations, own) @ context
    context = torch.where(few, means @ v, context)
    output = functional.scaled_dot_product_attention(q, k_landmarks, context, attn_mask=used)
    return output.masked_fill(~some[..., None], 0.0)


def _segment_means(x: Float[Tensor, "*batch tokens dim"], count: int) -> Float[Tensor, "*batch count dim"]:
    """Means of `count` runs of tokens, the last of which have one more where it does not divide them."""
    size, longer = divmod(x.shape[-2], count)
    edge = (count - longer) * size
    short: Tensor = x[..., :edge, :].unflatten(-2, (count - longer, size)).mean(-2)
    if not longer:
        return short
    return torch.cat([short, x[..., edge:, :].unflatten(-2, (longer, size + 1)).mean(-2)], -2)


def _segments(real: Bool[Tensor, "*batch tokens"], count: int) -> Bool[Tensor, "*batch count tokens"]:
    """Which real token is in which of `count` segments, cut as `_segment_means` cuts a sequence of the real ones."""
    tokens = real.sum(-1, keepdim=True)
    size, longer = tokens // count, tokens % count
    rank, edge = real.cumsum(-1) - 1, (count - longer) * size
    early, late = rank // size.clamp(min=1), count - longer + (rank - edge) // (size + 1)
    segment = torch.where(rank < edge, early, late)
    return (segment[..., None, :] == torch.arange(count, device=real.device)[:, None]) & real[..., None, :]


def _pseudo_inverse(a: Float[Tensor, "*batch n n"], iterations: int, own: bool) -> Float[Tensor, "*batch n n"]:
    """Iterate z towards the pseudo-inverse of `a`, whose rows sum to 1 (Razavi et al. 2014)."""
    sums = a.sum(-2)
    largest = sums.amax(-1)[..., None, None] if own else sums.max()
    z: Tensor = a.transpose(-2, -1) / largest.clamp(min=torch.finfo(a.dtype).tiny)  # 0 where all is padding
    one = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    for _ in range(iterations):
        az = a @ z
        z = 0.25 * z @ (13 * one - az @ (15 * one - az @ (7 * one - az)))
    return z


def _convolution(num_heads: int, kernel: int) -> nn.Conv2d:
    if check_size("conv_kernel_size", kernel) % 2 == 0:
        raise InputError(f"`conv_kernel_size` must be odd, so that a token is in the middle, got {kernel}")
    return nn.Conv2d(num_heads, num_heads, (kernel, 1), padding=(kernel // 2, 0), bias=False, groups=num_heads)


def _check(q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None) -> None:
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if not q.dtype == k.dtype == v.dtype or not q.is_floating_point():
        raise InputError(
            f"q, k and v must have one floating-point type, got {q.dtype}, {k.dtype} and {v.dtype}: convert with .to()"
        )
    if min(one.ndim for one in (q, k, v)) < 2 or 0 in q.shape[-2:]:
        raise InputError(f"q, k and v must be (..., tokens, width), neither of them 0, got {shapes}: write q[None]")
    if q.shape != k.shape or k.shape[:-1] != v.shape[:-1]:
        raise InputError(
            f"q, k and v must have one batch and one length, and q and k one width, got {shapes}: Nyströmformer is "
            "self-attention; for a source of another length use performer_attention or regard.attention, and repeat "
            "grouped heads with repeat_interleave"
        )
    if padding is not None:
        check_padding_of_keys(padding, k.shape[:-1])
