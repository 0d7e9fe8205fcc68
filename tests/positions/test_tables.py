"""Learned numbers for distances and offsets, against Swin's in transformers."""

import pytest
import torch

from regard import attention
from regard.errors import InputError
from regard.positions import RelativePositionBias, RelativePositionBiasND
from sweeps import sweep


def test_a_grid_bias_is_swins():
    for case in sweep([(1, 1), (7, 7), (3, 5), (4, 1)]):
        with case as shape:
            swin = pytest.importorskip("transformers.models.swin.modeling_swin")
            torch.manual_seed(0)
            theirs = swin.SwinRelativePositionBias(3, shape)
            table = theirs.relative_position_bias_table
            torch.nn.init.normal_(table)
            at = torch.arange(shape[0] * shape[1])
            ours = RelativePositionBiasND(table, shape).tile(slice(0, 1), slice(0, 3), at, at)
            assert torch.equal(ours, theirs())
            up = torch.randn_like(ours)
            gradients = [torch.autograd.grad((one * up).sum(), table)[0] for one in (ours, theirs())]
            torch.testing.assert_close(*gradients)


def test_a_relative_table_is_swins_along_one_axis():
    for case in sweep([1, 2, 6]):
        with case as cells:
            swin = pytest.importorskip("transformers.models.swin.modeling_swin")
            theirs = swin.SwinRelativePositionBias(2, (1, cells))
            torch.nn.init.normal_(theirs.relative_position_bias_table)
            at = torch.arange(cells)
            table = theirs.relative_position_bias_table
            assert torch.equal(RelativePositionBias(table).tile(slice(0, 1), slice(0, 2), at, at), theirs())


def test_beyond_its_reach_all_is_alike():
    table = torch.arange(5.0)[:, None]
    assert RelativePositionBias(table).max_distance == 2
    far = torch.tensor([-100, -3, -2, -1, 0, 1, 2, 3, 100])
    assert RelativePositionBias(table).diagonals(far).tolist() == [[0, 0, 0, 1, 2, 3, 4, 4, 4]]


def test_more_tokens_than_cells_are_refused_at_the_door():
    x = torch.zeros(1, 2, 5, 4)
    with pytest.raises(InputError, match=r"a cell for each token, got 4 cells in \(2, 2\) for 5 queries and 5 keys"):
        attention(x, x, x, bias=RelativePositionBiasND(torch.zeros(9, 2), (2, 2)))


def test_a_wrong_table_says_what_is_right():
    cases = [
        (lambda: RelativePositionBias(torch.zeros(4, 2)), r"2 · max_distance \+ 1 rows, .* got 4 in shape \(4, 2\)"),
        (
            lambda: RelativePositionBias(torch.zeros(5)),
            r"\(2 · max_distance \+ 1, heads\) .* got shape \(5,\): .* table\[:, None\]",
        ),
        (
            lambda: RelativePositionBiasND(torch.zeros(8, 2), (2, 2)),
            r"each of 9 offsets in a grid of \(2, 2\), .* got 8",
        ),
        (
            lambda: RelativePositionBiasND(torch.zeros(9, 2), [2, 2]),
            r"`grid` must be a tuple of sizes, .* got \[2, 2\]",
        ),
        (lambda: RelativePositionBiasND(torch.zeros(9, 2), ()), r"got \(\)"),
        (lambda: RelativePositionBiasND(torch.zeros(9, 2), (0, 2)), "`grid` counts the cells .* at least 1, got 0"),
        (
            lambda: RelativePositionBiasND(torch.zeros(9, 2), (2, 2)).resolve(2, 2, 3),
            "for 2 queries and 2 keys, the first query at 3",
        ),
    ]
    for case in sweep(cases):
        with case as (make, words), pytest.raises(InputError, match=words):
            make()
