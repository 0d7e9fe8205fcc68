"""What a tensor was made of: parameters only, the positions of a text, image or memory, or the output of attention.

Each activation that is not computed inside the watch (an embedding's result, an image, a memory) is a root, and
results have the roots of their inputs. An attention's output has the roots of its queries but not of its keys, because
its positions are those of the queries. That distinguishes self-attention from cross-attention.

Outputs are followed up to the next projection, to detect those that are not sums of values over tokens: differences of
two softmaxes, and outputs that are the values of another softmax, so that both are over landmarks (Nyström, agents).
"""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import count

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from regard.observe.intercept.call_names_and_products import TorchCall, is_inexact, read_lookup
from regard.observe.intercept.operation_kinds import (
    ADDED,
    DROPOUTS,
    JOINS,
    LINEAR,
    LOOKUPS,
    NORMS,
    PRODUCTS,
    RECURRENT,
    SHAPES,
    WRITES,
)

__all__ = [
    "LearnedTensors",
    "Origin",
    "Origins",
    "crosses",
    "storage_of",
]


_ACTIVATES = DROPOUTS | LINEAR | PRODUCTS | {"__setitem__"}  # projections of parameters are activations
_JAGGED = {"_nested_view_from_jagged"}  # a view of its first argument; the others are its lengths


class LearnedTensors:
    """Tracks parameters through casts, reshapes and merges."""

    def __init__(self, is_parameter: Callable[[Tensor], bool]) -> None:
        self._is_parameter = is_parameter
        self._constants = WeakIdKeyDictionary()  # tensors computed from parameters; True if without a product

    def holds(self, one: Tensor) -> bool:
        """Return whether it is a parameter or buffer of the model, or computed only from these without a projection."""
        return bool(self._constants.get(one, False)) or self._is_parameter(one)

    def is_constant(self, one: Tensor) -> bool:
        """Return whether it is computed only from parameters, such as the merged weight of a linear layer."""
        return one in self._constants or self._is_parameter(one)

    def activations(self, call: TorchCall) -> list[Tensor]:
        """Return the activations among a call's arguments."""
        return [one for one in call.tensors if is_inexact(one) and not self.is_constant(one)]

    def carry(self, call: TorchCall, results: list[Tensor]) -> bool:
        """Process one call that has returned, and return whether its result is learned."""
        tensors = call.tensors
        if not tensors or not all(map(self.is_constant, tensors)):
            return False
        learned = call.name not in _ACTIVATES and all(map(self.holds, tensors))
        for result in results:
            self._constants[result] = learned
        return learned


# Functions that make queries of learned latents. Rows that are looked up in a table are a text of their own.
_CARRIES_LATENTS = (SHAPES | _JAGGED | LINEAR | NORMS | DROPOUTS | {"repeat", "tile"}) - {"embedding", "__getitem__"}
_MOST = 64  # maximum number of stored roots: the latest ones, since a cache adds one per step


@dataclass(frozen=True)
class Origin:
    """The roots of a tensor, whether learned parameters contributed to it, and the roots of ids that it embeds.

    Single learned vectors among its positions, such as a class token, are no roots: towers may share one.
    """

    roots: frozenset[int]
    learned: bool = False
    ids: frozenset[int] = frozenset()
    vectors: frozenset[int] = frozenset()

    def joined(self, other: "Origin") -> "Origin":
        """Return the origin of a tensor made of two."""
        roots, ids = (frozenset(sorted(one)[-_MOST:]) for one in (self.roots | other.roots, self.ids | other.ids))
        return Origin(roots, self.learned or other.learned, ids, self.vectors | other.vectors)


def crosses(queries: Origin, keys: Origin) -> bool | None:
    """Return whether keys and queries have different origins; None if a function received both and computed neither."""
    if not queries.roots.isdisjoint(keys.roots | keys.vectors):  # a class token attends to itself and to patches
        return False
    embedded = bool(queries.ids or keys.ids) and queries.ids.isdisjoint(keys.ids)  # other ids, or none
    return True if queries.learned or keys.learned or embedded else None


class Origins:
    """Tracks roots through the calls of a forward pass."""

    def __init__(self, is_learned: Callable[[Tensor], bool]) -> None:
        self._is_learned = is_learned
        self._known = WeakIdKeyDictionary()
        self._numbers = count()
        self.latents: dict[int, int] = {}  # roots that are learned vectors, and the number of these

    def of(self, tensor: Tensor) -> Origin:
        """Return the origin of a tensor; an unknown tensor is a root itself."""
        origin: Origin | None = self._known.get(tensor)
        if origin is None:
            number = next(self._numbers)
            origin = self._known[tensor] = Origin(frozenset([number]))
            if self._is_learned(tensor):
                self.latents[number] = _vectors_of(tensor)
        return origin

    def begin(self, tensor: Tensor) -> None:
        """Make a tensor that was computed from others a root."""
        self._known[tensor] = Origin(frozenset([next(self._numbers)]), self.of(tensor).learned)

    def give(self, tensor: Tensor, origin: Origin) -> None:
        """Set the origin of a tensor."""
        self._known[tensor] = origin

    def carry(self, call: TorchCall, results: Iterable[Tensor]) -> None:
        """Process one call that has returned."""
        floating = [one for one in call.tensors_and_nested if is_inexact(one)]
        if call.name == "broadcast_tensors":
            for one, result in zip(floating, results, strict=True):
                self._known[result] = self.of(one)
            return
        learned = [self._is_learned(one) for one in floating]
        sources = self._sources(call, floating, learned)
        if not sources:
            self._look_up(call, results)
            return
        if call.name in RECURRENT:  # a state has no positions, even if it summarizes a text
            results = list(results)[:1]
        joined = functools.reduce(Origin.joined, map(self.of, sources))
        alone = [one for one, constant in zip(floating, learned, strict=True) if constant and _vectors_of(one) == 1]
        vectors = frozenset().union(*(self.of(one).roots for one in alone if call.name in JOINS))
        joined = replace(joined, learned=any(learned) or joined.learned, vectors=joined.vectors | vectors)
        for result in results:
            if is_inexact(result):
                self._known[result] = joined
        if call.name in WRITES:
            for whole in self._parts_of(floating[0]):
                self._known[whole] = self.of(whole).joined(joined)

    def _look_up(self, call: TorchCall, results: Iterable[Tensor]) -> None:
        """Process rows that are looked up in a table: those of other ids are another text."""
        for result in results if call.name in LOOKUPS else ():
            found = read_lookup(call, result)
            if found is not None and not found[0].is_inference() and not self._is_learned(found[0]):
                ids = found[0] if found[0]._base is None else found[0]._base
                self._known[result] = Origin(self.of(result).roots, ids=self.of(ids).roots)

    def _sources(self, call: TorchCall, floating: list[Tensor], learned: list[bool]) -> list[Tensor]:
        """Return the arguments whose origin the results of a call have."""
        if call.name in SHAPES or call.name in _JAGGED:  # the second of `expand_as` gives a shape
            floating, learned = floating[:1], learned[:1]
        sources = [one for one, constant in zip(floating, learned, strict=True) if not constant]
        if not sources:
            return floating[:1] if call.name in _CARRIES_LATENTS else []
        if call.name in RECURRENT:
            return sources[:1]
        if call.name in PRODUCTS or call.name in LINEAR:
            return sources[1:2] if call.name in ADDED and len(sources) > 2 else sources[:1]
        if call.name in JOINS:  # the keys of a resampler are those of an image and its own latents
            return [
                one for one, constant in zip(floating, learned, strict=True) if not constant or _vectors_of(one) > 1
            ]
        if call.name in WRITES:
            return sources
        most = max(one.numel() for one in sources)
        return [one for one in sources if one.numel() == most]  # not what is broadcast over them

    def _parts_of(self, written: Tensor) -> list[Tensor]:
        """Return the tensors that a written tensor is a part of, such as a cache whose slice is filled."""
        if not written.is_inference():
            return [] if written._base is None else [written._base]
        memory = storage_of(written)  # views are not tracked in inference mode
        known = [] if memory < 0 else list(self._known)
        return [one for one in known if one is not written and storage_of(one) == memory]


def _vectors_of(tensor: Tensor) -> int:
    """Return the number of vectors that a tensor has in memory, before one is broadcast; 0 if it is unknown."""
    if tensor.is_nested or tensor.ndim < 2 or storage_of(tensor) < 0:
        return 0
    return tensor.untyped_storage().nbytes() // max(1, tensor.shape[-1] * tensor.element_size())


def storage_of(tensor: Tensor) -> int:
    """Return the storage of a tensor, which views of a parameter (its transpose, a slice) share."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):  # sparse and nested tensors have no storage of their own
        return -1
