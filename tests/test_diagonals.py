"""Diagonals as matrices: what a compiler is given is what runs without one."""

import pytest
import torch

from regard.diagonals import spread, sum_diagonals


@pytest.mark.parametrize("compiling", [False, True])
def test_each_diagonal_holds_its_number_also_where_a_compiler_traces(compiling, monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
    found = spread(torch.tensor([[7.0, 8.0, 9.0, 10.0], [1.0, 2.0, 3.0, 4.0]]), rows=2)
    assert found.tolist() == [[[8, 9, 10], [7, 8, 9]], [[2, 3, 4], [1, 2, 3]]]
    assert sum_diagonals(found).tolist() == [[7, 16, 18, 10], [1, 4, 6, 4]]
