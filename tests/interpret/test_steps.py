"""A captured head worked out: every row of a short text, one row of a long one."""

import numpy as np

from regard.interpret.head_vectors import head_steps
from regard.lessons.steps import CapturedHead
from regard.record.tokens import Token


def captured(count):
    random = np.random.default_rng(0)
    q, k, v = (random.normal(size=(count, 4)) for _ in range(3))
    tokens = tuple(Token(f"w{index}", word=index) for index in range(count))
    return CapturedHead(tokens, q, k, v, visible=np.tril(np.ones((count, count), dtype=bool)))


def test_a_long_text_is_worked_out_for_one_row_only():
    head = captured(600)
    found = head_steps(head, "w400")
    assert (found.row, found.worked.first_query, found.worked.query_tokens) == (0, 400, ("w400",))
    powers = np.exp(head.keys[:401] @ head.queries[400] / 2)
    np.testing.assert_allclose(found.worked.weights[0, :401], powers / powers.sum(), rtol=1e-12)
    assert not found.worked.weights[0, 401:].any()


def test_a_short_text_is_worked_out_whole():
    found = head_steps(captured(5), "w3")
    assert (found.row, found.worked.weights.shape) == (3, (5, 5))
