"""`regard explain`: what attention over several processes sends and computes, read from the mask's plan."""

import ast
from contextlib import suppress
from typing import Annotated, Any

import typer
from rich.table import Table

from regard.cli.console import TextConsole
from regard.errors import InputError

__all__ = ["explain"]

_MANY = 16  # ranks that are listed one by one


def explain(
    *,
    ranks: Annotated[int, typer.Option(min=1, max=512, help="Number of processes over which the sequence is sharded.")],
    tokens: Annotated[int, typer.Option(min=1, max=2**27, help="Length of the sequence.")],
    mask: Annotated[
        str, typer.Option(metavar="MASK", help="A mask of regard.masks, such as 'Causal() & Window(512)'.")
    ] = "Causal()",
    num_attention_heads: Annotated[int, typer.Option(min=1, help="Number of query heads.")] = 32,
    num_key_value_heads: Annotated[
        int | None, typer.Option(min=1, help="Number of key–value heads; as many as query heads if not given.")
    ] = None,
    head_dim: Annotated[int, typer.Option(min=1, help="Width of a head.")] = 128,
    dtype: Annotated[str, typer.Option(help="Type of q, k and v: float32, bfloat16, float16 or float64.")] = "bfloat16",
    batch_size: Annotated[int, typer.Option(min=1, help="Number of sequences.")] = 1,
) -> None:
    """Show what one attention layer sends and computes over several processes.

    Nothing is run: bytes, rounds and work come from the plan that the mask
    gives, as `regard.attention` follows it for q, k and v that are DTensors.
    """
    screen = TextConsole()
    with TextConsole(stderr=True).status("planning"):
        import torch

        from regard.backends.sharded.sequence_layout import contiguous
        from regard.backends.sharded.shard_plan import TensorSizes, plan_shards

        kinds = ("float32", "bfloat16", "float16", "float64")
        if dtype not in kinds:
            raise InputError(f"`--dtype` must be one of {', '.join(kinds)}, got {dtype!r}")
        layout = contiguous(tokens, ranks)
        plan = plan_shards(mask_from_text(mask).bind(tokens, tokens), layout, layout, moves_rows=True)
        kv_heads = num_key_value_heads or num_attention_heads
        if num_attention_heads % kv_heads:
            raise InputError(
                f"`--num-attention-heads` must be a multiple of `--num-key-value-heads`, got {num_attention_heads} and "
                f"{kv_heads}"
            )
        itemsize = getattr(torch, dtype).itemsize
        sizes = TensorSizes(batch_size, num_attention_heads, kv_heads, head_dim, head_dim, head_dim, itemsize)
        lines = plan.summary(sizes)
        rows = [plan.row(rank, sizes) for rank in range(ranks)] if ranks <= _MANY else []
    for line in lines:
        screen.print(line, soft_wrap=True)
    if rows:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for name in ("rank", "rows", "work / mean", "keys from", "forward", "backward"):
            table.add_column(name, justify="left" if name == "keys from" else "right")
        for row in rows:
            table.add_row(*row)
        screen.print(table)


def mask_from_text(text: str) -> Any:
    """Give the mask that an expression of regard.masks' names, numbers and `& | ~` describes.

    >>> mask_from_text("Causal() & Window(left=3, right=0)")
    And(left=Causal(align='end', shift=0), right=Window(left=3, right=0))
    """
    found = None
    with suppress(SyntaxError, RecursionError, MemoryError):  # the last two of deep nesting
        found = _value(ast.parse(text.replace("\0", "?"), mode="eval").body)
    from regard.masks import Mask

    if not isinstance(found, Mask):
        raise InputError(
            f"`--mask` must be a mask of regard.masks, such as 'Causal() & Window(512)', got {text[:200]!r}"
        )
    return found


def _value(node: ast.expr) -> Any:
    """The value of a part of an expression: masks of regard.masks, literals, and the operators of masks."""
    from regard import masks

    match node:
        case ast.BinOp(left, ast.BitAnd(), right):
            return _value(left) & _value(right)
        case ast.BinOp(left, ast.BitOr(), right):
            return _value(left) | _value(right)
        case ast.UnaryOp(ast.Invert(), operand):
            return ~_value(operand)
        case ast.Call(ast.Name(name), args, keywords) if name in masks.__all__:
            named = {one.arg: _value(one.value) for one in keywords if one.arg is not None}
            return getattr(masks, name)(*map(_value, args), **named)
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise InputError(
            f"`--mask` takes names of regard.masks, numbers and the operators & | ~, got {ast.unparse(node)!r}"
        ) from None
