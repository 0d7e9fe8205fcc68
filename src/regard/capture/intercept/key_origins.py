"""Determine the origin of a tensor's positions (text, image, memory), to distinguish self-attention from
cross-attention.

Each activation that is not computed inside the watch (an embedding's result, an image, a memory) is a root, and
results have the roots of their inputs. An attention's output has the roots of its queries but not of its keys, because
its positions are those of the queries.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from regard.capture.intercept.call_names import TorchCall
from regard.capture.intercept.operation_kinds import ADDED, JOINS, LINEAR, PRODUCTS, RECURRENT, WRITES

__all__ = ["Origin", "Origins", "crosses"]

_MOST = 64  # maximum number of stored roots: the latest ones, since a cache adds one per step


@dataclass(frozen=True)
class Origin:
    """The roots of a tensor, and whether learned parameters contributed to it."""

    roots: frozenset[int]
    learned: bool = False


def crosses(queries: Origin, keys: Origin) -> bool | None:
    """Return whether keys and queries have different origins; None if a function received both and computed neither."""
    if not queries.learned and not keys.learned:
        return None
    return queries.roots.isdisjoint(keys.roots)


class Origins:
    """Tracks roots through the calls of a forward pass."""

    def __init__(self, is_learned: Callable[[Tensor], bool]) -> None:
        self._is_learned = is_learned
        self._known = WeakIdKeyDictionary()
        self._numbers = count()

    def of(self, tensor: Tensor) -> Origin:
        """Return the origin of a tensor; an unknown tensor is a root itself."""
        origin: Origin | None = self._known.get(tensor)
        if origin is None:
            origin = self._known[tensor] = Origin(frozenset([next(self._numbers)]))
        return origin

    def give(self, tensor: Tensor, origin: Origin) -> None:
        """Set the origin of a tensor."""
        self._known[tensor] = origin

    def carry(self, call: TorchCall, results: Iterable[Tensor]) -> None:
        """Process one call that has returned."""
        floating = [one for one in call.tensors if one.is_floating_point()]
        learned = [self._is_learned(one) for one in floating]
        sources = [one for one, parameter in zip(floating, learned, strict=True) if not parameter]
        if not sources:
            return
        if call.name in RECURRENT:
            sources, results = sources[:1], list(results)[:1]  # a state has no positions, even if it summarizes a text
        elif call.name in PRODUCTS or call.name in LINEAR:
            sources = sources[1:2] if call.name in ADDED and len(sources) > 2 else sources[:1]
        elif call.name not in JOINS and call.name not in WRITES:
            most = max(one.numel() for one in sources)
            sources = [one for one in sources if one.numel() == most]  # not what is broadcast over them
        origins = [self.of(one) for one in sources]
        roots = origins[0].roots.union(*(one.roots for one in origins[1:]))
        if len(roots) > _MOST:
            roots = frozenset(sorted(roots)[-_MOST:])
        joined = Origin(roots, any(learned) or any(one.learned for one in origins))
        for result in results:
            if result.is_floating_point():
                self._known[result] = joined
