"""Choose the words of a long text to show: the surroundings of the words in question."""

from collections.abc import Iterable

__all__ = ["excerpt"]


def excerpt(count: int, anchors: Iterable[int], limit: int = 60) -> list[range]:
    """Return the ranges of word numbers to show: all words up to `limit`, else a range around each anchor.

    >>> excerpt(5, [2])
    [range(0, 5)]
    >>> excerpt(100, [3, 90], limit=8)
    [range(1, 6), range(88, 93)]
    """
    if count <= limit:
        return [range(count)]
    wanted = sorted(set(anchors))
    reach = max(1, limit // (2 * max(1, len(wanted))))
    shown: list[range] = []
    for anchor in wanted:
        start, stop = max(0, anchor - reach), min(count, anchor + reach + 1)
        if shown and start <= shown[-1].stop + 1:  # an ellipsis would replace at most one word
            shown[-1] = range(shown[-1].start, stop)
        else:
            shown.append(range(start, stop))
    return shown
