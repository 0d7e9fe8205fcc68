"""The worked example: three tokens, 我 爱 你, with numbers small enough to check by hand."""

from regard.lessons.own_numbers import OwnNumbers
from regard.lessons.steps import Worked

__all__ = ["EXAMPLE", "example"]

_W = [[1, 0], [0, 1], [1, 0], [0, 1]]
EXAMPLE = OwnNumbers.read(
    [[1, 0, 1, 0], [0, 2, 0, 1], [1, 1, 1, 1]], w_query=_W, w_key=_W, w_value=_W, tokens=["我", "爱", "你"]
)


def example() -> Worked:
    """Work out 我 爱 你, with one matrix for W_Q, W_K and W_V: Q = K = V = [[2, 0], [0, 3], [2, 2]].

    Pages that copy this example print the weights [.43 .14 .43], [.01 .71 .28] and [.05 .26 .69]. They are not the
    softmax of these scores over √2, which is (tests/lessons/test_steps.py has the arithmetic):

    >>> example().weights.round(2).tolist()
    [[0.49, 0.03, 0.49], [0.0, 0.89, 0.11], [0.05, 0.19, 0.77]]
    """
    return EXAMPLE.work().heads[0]
