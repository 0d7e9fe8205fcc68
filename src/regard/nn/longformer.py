"""Longformer: a window for all tokens, and a few global tokens that see all tokens with separate projections."""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.checks import check_flag, check_probability, check_size
from regard.errors import InputError
from regard.masks import Mask, Padding, Window
from regard.nn.checks import check_padding, check_width, public_module
from regard.nn.projections import attend_heads, check_groups, check_local, check_out_proj, split_heads
from regard.problem import DEFAULT_MAX_BYTES

__all__ = ["LongformerAttention"]


@public_module(
    mask="the window and the global tokens are its mask: key_padding_mask= hides padding, and MultiHeadAttention with "
    "mask=masks.longformer(...) & … takes any",
    is_causal="its window has both sides: SlidingWindowAttention(embed_dim, num_heads, sliding_window) is causal",
    attention_mask="key_padding_mask=attention_mask == 0 is meant (True hides)",
)
class LongformerAttention(nn.Module):
    """Multi-head self-attention in a window, with global tokens (Beltagy et al. 2020, 3.1 and 3.2, arXiv:2004.05150).

    A token sees window/2 tokens on either side and the global tokens. It uses the projections q_proj, k_proj and
    v_proj. A global token sees all tokens. It uses the projections q_global (of the global token), k_global and
    v_global (of all tokens). The output for padding is 0. out_proj is the dense layer after attention in the paper's
    model (`attention.output.dense` in transformers).

    Args:
        embed_dim: Width of the tokens.
        num_heads: Number of heads.
        window: Tokens seen besides the own one, half of them on either side; even.
        bias: Whether the projections add a vector.
        dropout: The probability with which a weight is dropped, in training mode only.

    Cost: O(n · (window + globals)) time.

    Raises:
        InputError: Widths and heads do not divide, the window is odd, or flags are missing.

    >>> attend = LongformerAttention(8, num_heads=2, window=4)
    >>> attend(torch.zeros(1, 10, 8), global_attention_mask=torch.arange(10)[None] == 0).shape
    torch.Size([1, 10, 8])
    """

    def __init__(self, embed_dim: int, num_heads: int, window: int, *, bias: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed_dim = check_size("embed_dim", embed_dim, "is that of the tokens")
        self.num_heads = check_size("num_heads", num_heads, "counts heads")
        if embed_dim % num_heads:
            raise InputError(
                f"`embed_dim` must be a multiple of `num_heads`, got {embed_dim} and {num_heads}: choose a divisor of "
                f"{embed_dim}"
            )
        if check_size("window", window, "counts the tokens on both sides") % 2:
            raise InputError(
                f"`window` counts the tokens on both sides and must be even, got {window}: take {window + 1}"
            )
        self.head_dim = embed_dim // num_heads
        self.window, self.dropout = window, check_probability("dropout", dropout)
        bias = check_flag("bias", bias)
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.k_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.v_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.q_global = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.k_global = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.v_global = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)

    def forward(
        self,
        x: Float[Tensor, "batch tokens embed_dim"],
        *,
        global_attention_mask: Bool[Tensor, "batch tokens"] | Int[Tensor, "batch tokens"] | None = None,
        key_padding_mask: Bool[Tensor, "batch tokens"] | None = None,
        need_weights: bool = False,
        backend: str = "auto",
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return the output (batch, tokens, embed_dim), or a tuple of it and the weights.

        Args:
            x: The tokens, any number of them.
            global_attention_mask: True, or 1 (transformers'), for the global ones; none by default.
            key_padding_mask: True for padding, which is seen by no token and sees none, flagged as global or not.
            need_weights: Return the weights too, dense (batch, heads, tokens, tokens) and before dropout: a global
                token's row has those of q_global and k_global, a row of padding has zeros.
            backend, max_bytes: As in regard.attention.
        """
        check_width("x", x, self.embed_dim, "embed_dim")
        if x.ndim != 3:
            raise InputError(
                f"`x` must be (batch, tokens, {self.embed_dim}), got shape {tuple(x.shape)}: write x[None] for one "
                "sequence, x.flatten(0, -3) for more dimensions"
            )
        if global_attention_mask is not None:
            global_attention_mask = check_padding(x, _flags(global_attention_mask), "global_attention_mask")
        real = None if key_padding_mask is None else ~check_padding(x, key_padding_mask)
        half = self.window // 2
        mask: Mask = Window(left=half, right=half)
        if global_attention_mask is not None:
            mask = mask | Padding(global_attention_mask)  # columns alone: the rows are replaced below
        mask = mask if real is None else mask & Padding(real)
        rows, seen = self._attend(x, x, ("q_proj", "k_proj", "v_proj"), mask, need_weights, backend, max_bytes)
        if global_attention_mask is not None and bool(global_attention_mask.any()):
            rows, seen = self._with_global_rows(rows, seen, x, global_attention_mask, real, backend, max_bytes)
        check_out_proj(self.out_proj, rows)
        output: Tensor = self.out_proj(rows)
        if real is not None:
            output = output.masked_fill(~real[..., None], 0.0)
            seen = None if seen is None else seen.masked_fill(~real[:, None, :, None], 0.0)
        return output if seen is None else (output, seen)

    def _with_global_rows(
        self,
        rows: Float[Tensor, "batch tokens embed_dim"],
        seen: Float[Tensor, "batch heads tokens tokens"] | None,
        x: Float[Tensor, "batch tokens embed_dim"],
        global_attention_mask: Bool[Tensor, "batch tokens"],
        real: Bool[Tensor, "batch tokens"] | None,
        backend: str,
        max_bytes: int,
    ) -> tuple[Tensor, Tensor | None]:
        """Gather as many tokens a sequence as the most global ones, let them see all, and put back those that count."""
        check_local("global_attention_mask", rows)
        counts = global_attention_mask.sum(1)
        most = int(counts.max())
        places: Int[Tensor, "batch most"] = global_attention_mask.int().argsort(dim=1, descending=True, stable=True)[
            :, :most
        ]
        chosen = x.gather(1, places[..., None].expand(-1, -1, self.embed_dim))
        mask = None if real is None else Padding(real)
        found, weights = self._attend(
            chosen, x, ("q_global", "k_global", "v_global"), mask, seen is not None, backend, max_bytes
        )
        if found.shape[-1] != rows.shape[-1]:
            raise InputError(
                f"`q_global`, `k_global` and `v_global` must have the heads of `q_proj`, `k_proj` and `v_proj`, "
                f"{rows.shape[-1] // self.head_dim}, got {found.shape[-1] // self.head_dim}: shard or prune them alike"
            )
        sequence, slot = (torch.arange(most, device=x.device) < counts[:, None]).nonzero(as_tuple=True)
        at = (sequence, places[sequence, slot])
        if seen is not None and weights is not None:
            seen = seen.transpose(1, 2).index_put(at, weights.transpose(1, 2)[sequence, slot]).transpose(1, 2)
        return rows.index_put(at, found[sequence, slot]), seen

    def _attend(
        self,
        queries: Float[Tensor, "batch queries embed_dim"],
        tokens: Float[Tensor, "batch tokens embed_dim"],
        projections: tuple[str, str, str],
        mask: Mask | None,
        need_weights: bool,
        backend: str,
        max_bytes: int,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend with three of the projections.

        Give (batch, queries, embed_dim), and on request the weights (batch, heads, queries, tokens).
        """
        q, k, v = (
            split_heads(name, getattr(self, name)(x), self.head_dim)
            for name, x in zip(projections, (queries, tokens, tokens), strict=True)
        )
        check_groups(q.shape[1], k.shape[1], v.shape[1], self.num_heads, self.num_heads)
        dropout = self.dropout if self.training else 0.0
        found: Any = attend_heads(
            self.num_heads,
            q,
            k,
            v,
            mask=mask,
            dropout=dropout,
            return_weights=need_weights,
            backend=backend,
            max_bytes=max_bytes,
        )
        heads, seen = found if need_weights else (found, None)
        return heads.transpose(1, 2).flatten(-2), seen


def _flags(given: Tensor) -> Tensor:
    """Zeros and ones, as transformers has them, as booleans; anything else stays, and is refused."""
    whole = isinstance(given, Tensor) and given.dtype != torch.bool and not given.is_floating_point()
    return given == 1 if whole and bool(((given == 0) | (given == 1)).all()) else given
