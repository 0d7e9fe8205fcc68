"""What a tensor was made of: parameters alone, the positions of a text, image or memory, or the output of attention.

Each activation that was not computed inside the watch (an embedding's result, an image, a memory) is a root, and
results have the roots of their inputs. An attention's output has the roots of its queries but not of its keys, because
its positions are those of the queries. That tells self-attention from cross-attention.
"""

from dataclasses import dataclass

__all__ = ["Origin", "crosses", "join"]

_MOST = 64  # maximum number of stored roots: the latest ones, since a cache adds one per step
_NONE: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Origin:
    """The roots of a tensor, whether learned parameters contributed to it, and the roots of ids that it embeds.

    Single learned vectors among its positions, such as a class token, are no roots: towers may share one.
    """

    roots: frozenset[int]
    learned: bool = False
    ids: frozenset[int] = _NONE
    vectors: frozenset[int] = _NONE


def join(one: Origin, other: Origin) -> Origin:
    """Return the origin of a tensor made of two."""
    if one is other or one == other:
        return one
    roots, ids = (frozenset(sorted(some)[-_MOST:]) for some in (one.roots | other.roots, one.ids | other.ids))
    return Origin(roots, one.learned or other.learned, ids, one.vectors | other.vectors)


def crosses(queries: Origin, keys: Origin) -> bool | None:
    """Return whether keys and queries have different origins; None if a function received both and computed neither."""
    if not queries.roots.isdisjoint(keys.roots | keys.vectors):  # a class token attends to itself and to patches
        return False
    embedded = bool(queries.ids or keys.ids) and queries.ids.isdisjoint(keys.ids)  # other ids, or none
    return True if queries.learned or keys.learned or embedded else None
