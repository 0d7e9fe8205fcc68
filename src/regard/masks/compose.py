"""Masks that papers are known by, composed of the others."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from regard.checks import check_count
from regard.errors import InputError
from regard.masks.base import Mask
from regard.masks.block_local import BlockLocal
from regard.masks.causal_and_window import Causal, Window
from regard.masks.dilated_and_strided import Strided
from regard.masks.padding_and_global import Global
from regard.masks.prefix_and_sinks import Prefix
from regard.masks.random_blocks import RandomBlocks

__all__ = ["bigbird", "longformer", "prefix_lm", "sparse_transformer"]


def prefix_lm(length: int | Int[Tensor, " batch"]) -> Mask:
    """Let all see the prefix, and later keys only from the past (T5: Raffel et al. 2020, arXiv:1910.10683).

    UniLM (2019, arXiv:1905.03197) trains with it too.

    Formula: Causal() | Prefix(length)

    Cost: half of all pairs and half of those in the prefix, O((n² + length²)/2 · dim) time; no memory.

    >>> prefix_lm(2).bind(4, 4).dense()[0, 0].int()
    tensor([[1, 1, 0, 0],
            [1, 1, 0, 0],
            [1, 1, 1, 0],
            [1, 1, 1, 1]], dtype=torch.int32)
    """
    return Causal() | Prefix(length)


def sparse_transformer(stride: int) -> Mask:
    """See the last `stride` keys and, further back, every `stride`-th (Child et al. 2019, 4.3, arXiv:1904.10509).

    Formula: Causal() & (Window(stride) | Strided(stride))

    This combines the paper's two patterns in one head. The paper's factorized heads are `Causal() & Window(stride)` and
    `Causal() & Strided(stride)`. The first pattern of the paper reaches from i − stride to i. Its end, i − stride, is
    also in the second pattern.

    Cost: about n · (stride + n/(2 · stride)) pairs, which is least for stride = √(n/2). The distant pairs are spread
    out: if the stride is less than a block, the time is that of `Causal()`, O(n²/2 · dim). No memory.

    >>> sparse_transformer(2).bind(5, 5).dense()[0, 0].int()
    tensor([[1, 0, 0, 0, 0],
            [1, 1, 0, 0, 0],
            [1, 1, 1, 0, 0],
            [0, 1, 1, 1, 0],
            [1, 0, 1, 1, 1]], dtype=torch.int32)
    """
    return Causal() & (Window(stride) | Strided(stride))


def longformer(window: int, global_positions: Sequence[int] = ()) -> Mask:
    """See window/2 keys on either side and the global tokens, which see all (Beltagy et al. 2020, arXiv:2004.05150).

    Formula: Window(left=window/2, right=window/2) | Global(global_positions)

    `window` is even, as in the authors' code (`attention_window`): the query sees window + 1 keys, including itself. By
    default no token is global. If the global tokens differ between sequences, use `masks.Window(left=w, right=w) |
    masks.Global(flags)`.

    Cost: O(n · (window + 2 g) · dim) time for g global tokens that stand together; at most one flag a position.

    >>> longformer(2, global_positions=[0]).bind(5, 5).dense()[0, 0].int()
    tensor([[1, 1, 1, 1, 1],
            [1, 1, 1, 0, 0],
            [1, 1, 1, 1, 0],
            [1, 0, 1, 1, 1],
            [1, 0, 0, 1, 1]], dtype=torch.int32)
    """
    check_count("window", window, 0, "counts the keys on both sides")
    if window % 2:
        raise InputError(f"`window` counts the keys on both sides and must be even, got {window}")
    near = Window(left=window // 2, right=window // 2)
    return near | Global(global_positions) if len(global_positions) else near


def bigbird(
    num_window_blocks: int = 3,
    num_global_blocks: int = 1,
    num_random_blocks: int = 3,
    *,
    seed: int = 0,
    block: int = 64,
    heads: int = 1,
) -> Mask:
    """See near, global and random blocks: BigBird-ITC (Zaheer et al. 2020, arXiv:2007.14062).

    Formula: BlockLocal(block, look_backward=w//2, look_forward=w//2) | global blocks | RandomBlocks(r, block=block)

    All counts are in blocks of `block` positions. With w = `num_window_blocks` (odd), g = `num_global_blocks` and r =
    `num_random_blocks`, a block row i sees:

    - the w blocks around block i;
    - the first g blocks and the last g blocks;
    - r blocks that are drawn for it.

    The first g block rows and the last g block rows see all blocks. With the defaults and without the random blocks,
    row 1 sees the blocks {0, 1, 2, last}, row i sees {0, i − 1, i, i + 1, last}, and the row before the last one sees
    block 0 and the last three blocks.

    With `heads` greater than 1, each head has a draw of its own; with `heads=1` all heads share one draw. There are two
    differences from the authors' code. In the authors' code, a row draws only blocks that it does not already see.
    Here, a row may draw a block that it already sees (each pair counts once), so it sees at most r additional blocks.
    The authors' code requires a length that fills whole blocks; here the last block may be shorter.

    Cost: O(n · (w + 4 · g + r) · block · dim) time; a number for each block that is drawn, and one flag
    a position.

    >>> bigbird(num_random_blocks=1, block=1, seed=1).bind(7, 7).dense()[0, 0].int()
    tensor([[1, 1, 1, 1, 1, 1, 1],
            [1, 1, 1, 1, 0, 0, 1],
            [1, 1, 1, 1, 1, 0, 1],
            [1, 0, 1, 1, 1, 0, 1],
            [1, 0, 0, 1, 1, 1, 1],
            [1, 0, 0, 0, 1, 1, 1],
            [1, 1, 1, 1, 1, 1, 1]], dtype=torch.int32)
    """
    check_count("num_window_blocks", num_window_blocks, 1, "counts the blocks around a query, its own included,")
    if num_window_blocks % 2 == 0:
        raise InputError(
            f"`num_window_blocks` counts a block and as many on either side and must be odd, got {num_window_blocks}"
        )
    check_count("num_global_blocks", num_global_blocks, 0, "counts the global blocks at each end")
    check_count("num_random_blocks", num_random_blocks, 0, "counts the random blocks of each row")
    near = BlockLocal(block, look_backward=num_window_blocks // 2, look_forward=num_window_blocks // 2)
    seen = near | _Ends(block, num_global_blocks)
    drawn = RandomBlocks(num_random_blocks, block=block, seed=seed, heads=heads) if num_random_blocks else None
    return seen | drawn if drawn else seen


@dataclass(frozen=True)
class _Ends(Mask):
    """The first and the last `count` blocks are global; which the last are is known when the mask is bound."""

    block: int
    count: int

    def resolve(self, q_len: int, kv_len: int, q_offset: int) -> Mask:
        """Flag the positions in those blocks."""
        blocks = -(-kv_len // self.block)
        place = torch.arange(kv_len, device="cpu") // self.block
        return Global(((place < self.count) | (place >= blocks - self.count))[None])
