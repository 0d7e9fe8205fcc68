"""What cases measure: queries, keys and values, real tokens, calls of ours and of PyTorch, the machine's limit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import regard
from regard.errors import InputError
from regard.masks import Mask
from regard.values import tensors as held
from regard_bench.shares import Resource, Work
from regard_bench.timing import Call

__all__ = [
    "DIM",
    "HEADS",
    "backward",
    "flops",
    "forward",
    "forward_of_training",
    "fused",
    "fused_training",
    "inputs",
    "products",
    "real_tokens",
    "training",
    "visible_pairs",
    "without_gradients",
]

HEADS, DIM = 8, 64
_SOURCES = Path(regard.__file__).parent


def inputs(
    n: int, *, heads: int = HEADS, dtype: torch.dtype = torch.float32, value_dim: int = DIM
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v of one sequence, (1, heads, n, 64)."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, heads, n, dim, generator=generator).to(dtype) for dim in (DIM, DIM, value_dim))
    return q, k, v


def real_tokens(tokenizer: Any, count: int) -> Int[Tensor, "1 count"]:
    """The first tokens of regard's own source code: what is attended to decides what top-k costs, and random tokens
    are attended to by chance.

    Raises:
        InputError: It has fewer.
    """
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(_SOURCES.rglob("*.py")))
    ids = tokenizer(text[: 12 * count], verbose=False)["input_ids"][:count]
    if len(ids) < count:
        raise InputError(f"`count` must be at most {len(ids):,}, the tokens of regard's sources, got {count:,}")
    return torch.tensor([ids])


def forward(tensors: tuple[Tensor, ...], **options: Any) -> Call:
    """A forward call of `regard.attention`, without gradients."""
    return without_gradients(lambda: regard.attention(*tensors, **options))


def fused(tensors: tuple[Tensor, ...], **options: Any) -> Call:
    """PyTorch's own call, without gradients."""
    q, k, v = tensors
    return without_gradients(lambda: scaled_dot_product_attention(q, k, v, **options))


def visible_pairs(n: int, *, causal: bool) -> int:
    """The pairs of query and key that the heads of `inputs` see."""
    return HEADS * (n * (n + 1) // 2 if causal else n * n)


def flops(pairs: float, dtype: torch.dtype = torch.float32) -> Work:
    """The operations of attention over so many pairs: two products, each of 64 multiplications and additions."""
    return Work(Resource.BFLOAT16 if dtype is torch.bfloat16 else Resource.FLOAT32, 4.0 * DIM * pairs)


def products(pairs: int, dtype: torch.dtype = torch.float32) -> Call:
    """The limit: matrix products with as many FLOPs as attention over so many pairs, in matrices that stay in cache."""
    a, b, c = (torch.randn(1024, 1024).to(dtype) for _ in range(3))
    # Rows of such products: 2 · 64 multiplications a pair in attention, 1024² a row here.
    whole, rest = divmod(max(1, round(2 * pairs * DIM / 1024**2)), 1024)
    some, into = a[:rest], c[:rest]

    def call() -> None:
        for _ in range(whole):
            torch.mm(a, b, out=c)
        if rest:
            torch.mm(some, b, out=into)

    return without_gradients(call)


def training(tensors: tuple[Tensor, ...], **options: Any) -> Call:
    """Forward and backward, to the gradients of q, k, v and of what the options hold that learns."""
    leaves = [one.detach().requires_grad_() for one in tensors]
    learned = [one for one in held(options) if one.requires_grad]
    up = torch.randn_like(leaves[2])
    return lambda: torch.autograd.grad(regard.attention(*leaves, **options), (*leaves, *learned), up)


def fused_training(tensors: tuple[Tensor, ...], **options: Any) -> Call:
    """Forward and backward of PyTorch's own call, to the gradients of q, k and v."""
    q, k, v = (one.detach().requires_grad_() for one in tensors)
    up = torch.randn_like(v)
    return lambda: torch.autograd.grad(scaled_dot_product_attention(q, k, v, **options), (q, k, v), up)


def forward_of_training(tensors: tuple[Tensor, ...], *, mask: Mask) -> Call:
    """The forward call that a backward follows: the default path takes another one without gradients."""
    leaves = [one.detach().requires_grad_() for one in tensors]
    return lambda: regard.attention(*leaves, mask=mask)


def backward(tensors: tuple[Tensor, ...], *, mask: Mask) -> Call:
    """The backward alone, of a forward call that has been made."""
    leaves = [one.detach().requires_grad_() for one in tensors]
    output = regard.attention(*leaves, mask=mask)
    up = torch.randn_like(output)
    return lambda: torch.autograd.grad(output, leaves, up, retain_graph=True)


def without_gradients(call: Callable[[], object]) -> Call:
    """The same call in inference mode."""

    def quiet() -> object:
        with torch.inference_mode():
            return call()

    return quiet
