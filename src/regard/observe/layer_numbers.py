"""The number of a layer in lists of modules, which may hold lists."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

__all__ = ["children", "number_in_lists"]

ModuleAt = Callable[[Sequence[str]], nn.Module | None]


def children(module: nn.Module | None) -> list[nn.Module]:
    """Return the modules directly within a module."""
    return [] if module is None else list(module.children())


def number_in_lists(parts: Sequence[str], at: int, module_at: ModuleAt) -> tuple[int, int]:
    """Return the number of a layer and the number of layers.

    Args:
        parts: Path of the attention module.
        at: Index of the first number in it.
        module_at: Returns the module with a path.

    Where lists within the list have several blocks with attention, the last among them (the stages of Swin), blocks
    are counted; otherwise such a list is part of a layer.
    """
    number, stages = int(parts[at]), range(len(children(module_at(parts[:at]))))
    for inner in reversed(range(at + 1, len(parts))):
        if not parts[inner].isdigit():
            continue
        own = _traits(parts, inner, module_at)
        paths = [[*parts[:at], str(stage), *parts[at + 1 : inner]] for stage in stages]
        lists = [(path, children(module_at(path))) for path in paths]
        ends = [[[*path, str(one), *parts[inner + 1 :]] for one in range(len(blocks))] for path, blocks in lists]
        found = [[not own.isdisjoint(_traits(end, inner, module_at)) for end in of_list] for of_list in ends]
        if any(sum(some) > 1 and some[-1] for some in found):  # a layer ends with a feed-forward
            with_attention = [blocks for (_, blocks), some in zip(lists, found, strict=True) if any(some)]
            kinds = {type(one) for blocks in with_attention for one in blocks}
            counts = [len(blocks) if kinds.intersection(map(type, blocks)) else 0 for _, blocks in lists]
            return sum(counts[:number]) + int(parts[inner]), sum(counts)
    return number, len(stages)


def _traits(parts: Sequence[str], inner: int, module_at: ModuleAt) -> set[Any]:
    """Return what blocks have in common that are alike: the class of the attention within, and their own if they have
    weights beside it; a wrapper of attention or of a feed-forward has none.
    """
    block, attention = module_at(parts[: inner + 1]), module_at(parts)
    if block is None or attention is None:
        return set()
    beside = (one for name, one in block.named_children() if [name] != parts[inner + 1 : inner + 2])
    whole = any(weight.ndim > 1 for one in beside for weight in one.parameters())
    return {("attention", type(attention)), *([("block", type(block))] if whole else [])}
