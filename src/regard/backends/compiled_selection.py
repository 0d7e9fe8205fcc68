"""Which backend compiled and exported code takes: no comparison of sizes may limit the length of exported programs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from regard.problem import Problem
from regard.torch_private import is_exporting, statically_known_true

if TYPE_CHECKING:
    from regard.backends.base import Backend, Selection

__all__ = ["choose", "smallest"]

_WHOLE = 2**24  # pairs of which compiled code holds tensors rather than leave the graph


def choose(backends: "Selection", problem: Problem) -> "Backend | None":
    """Return the backend that compiled code takes for a problem, or None if all refuse it.

    Compiled code takes the shortcuts that eager code takes. Exported programs are for any length, and may run on a
    machine that has no native kernels.
    """
    if is_exporting():
        if (found := _of_any_length(backends.usual, problem)) is not None:
            return found
    else:
        for one in backends.shortcuts_for(problem):
            if one.refuses(problem) is None:
                return one
    ready = [one for one in backends.usual if one.refuses(problem) is None]
    return smallest(ready, problem) if ready else None


def smallest(ready: "Sequence[Backend]", problem: Problem) -> "Backend":
    """A compiler does not follow the planning of blocks: whole tensors where they are small, blocks eagerly if not."""
    blocks = [one for one in ready if one.name == "blockwise"]
    whole = [one for one in ready if one.name != "blockwise"]
    if whole and (_pairs(problem) <= _WHOLE or not blocks or whole[0].bytes(problem) == 0):
        return whole[0]
    return blocks[0]


def _of_any_length(usual: "Sequence[Backend]", problem: Problem) -> "Backend | None":
    """Return what needs no comparison of symbolic lengths, which would be a guard of the program.

    None where all lengths are known to be small, or where neither the kernel without a tensor for the mask nor blocks
    will do.
    """
    if statically_known_true(_pairs(problem) <= _WHOLE):
        return None
    for one in usual:
        needs = 0 if one.name == "blockwise" else one.bytes(problem)
        if type(needs) is int and needs == 0 and one.refuses(problem) is None:
            return one
    return None


def _pairs(problem: Problem) -> int:
    return problem.batch * problem.heads * problem.queries * problem.keys
