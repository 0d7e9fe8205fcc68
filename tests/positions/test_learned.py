"""A learned table gives its rows and gets their gradients, and never fewer rows than asked."""

import pytest
import torch

from regard.errors import InputError
from regard.positions import learned
from sweeps import sweep


def test_it_is_the_embedding_of_the_positions():
    table = torch.randn(9, 4)
    at = torch.arange(3, 8)
    assert torch.equal(learned(table, 5, start=3), torch.nn.functional.embedding(at, table))
    assert torch.equal(learned(table, 9), table)


def test_the_rows_asked_for_get_the_gradient():
    table = torch.zeros(4, 2, requires_grad=True)
    learned(table, 2, start=1).sum().backward()
    assert table.grad.tolist() == [[0.0, 0.0], [1.0, 1.0], [1.0, 1.0], [0.0, 0.0]]


def test_beyond_the_table_it_says_so():
    cases = [
        (lambda: learned(torch.zeros(512, 4), 600), "the table has 512 positions, 600 asked: cut the text"),
        (lambda: learned(torch.zeros(512, 4), 1, start=512), r"513 asked \(1 from 512 on\)"),
        (
            lambda: learned(torch.zeros(512), 1),
            r"`table` must be a tensor \(positions, dim\), got torch.Size\(\[512\]\)",
        ),
        (lambda: learned([1.0], 1), r"must be a tensor \(positions, dim\), got \[1.0\]"),
        (lambda: learned(torch.zeros(5, 4), -1), "`length` counts positions and .* at least 0, got -1"),
        (lambda: learned(torch.zeros(5, 4), 1, start=-1), "`start` .* at least 0, got -1"),
    ]
    for case in sweep(cases):
        with case as (make, words), pytest.raises(InputError, match=words):
            make()
