"""Masks over the cells of an image: who is near, in one row, and how many blocks that leaves."""

from itertools import product

import numpy as np
import pytest
import torch

from regard import masks
from regard.errors import InputError
from regard.masks.rectangles import EMPTY, FULL, PARTIAL, Rectangles, edges
from sweeps import sweep


def _kinds(mask, cells, block):
    """EMPTY, PARTIAL or FULL of whole blocks, and what counting pairs says."""
    bound = mask.bind(cells, cells)
    dense = bound.dense()[0, 0].numpy().reshape(cells // block, block, cells // block, block)
    truth = PARTIAL + dense.all((1, 3)) - ~dense.any((1, 3))
    return bound.blocks(edges(cells, block), edges(cells, block))[0, 0].numpy(), truth


def test_a_shifted_window_holds_the_same_number_of_cells_for_all():
    for case in sweep([(3,), (3, 5), (3, 5, 3)]):
        with case as size:
            shape = (7, 9, 6)[: len(size)]
            cells = int(np.prod(shape))
            seen = masks.Neighborhood(shape, size).bind(cells, cells).dense()[0, 0]
            assert seen.sum(1).tolist() == [int(np.prod(size))] * cells
            assert seen.diagonal().all()


def test_a_cropped_window_loses_cells_at_the_border():
    seen = masks.Neighborhood((4, 4), 3, boundary="crop").bind(16, 16).dense()[0, 0]
    assert seen.sum(1).view(4, 4).tolist() == [[4, 6, 6, 4], [6, 9, 9, 6], [6, 9, 9, 6], [4, 6, 6, 4]]
    assert torch.equal(seen, seen.T)


def test_a_row_and_a_column_meet_in_the_cell_itself():
    row, column = masks.Axial((5, 7), axis=1), masks.Axial((5, 7), axis=0)
    both = (row & column).bind(35, 35).dense()[0, 0]
    assert torch.equal(both, torch.eye(35, dtype=torch.bool))
    assert (row | column).bind(35, 35).dense()[0, 0].sum(1).tolist() == [5 + 7 - 1] * 35


def test_lists_are_as_good_as_tuples():
    assert masks.Neighborhood([4, 5], [3, 1]) == masks.Neighborhood((4, 5), (3, 1))


def test_fewer_queries_are_the_last_cells():
    whole = masks.Neighborhood((4, 5), 3).bind(20, 20).dense()[0, 0]
    assert torch.equal(masks.Neighborhood((4, 5), 3).bind(7, 20).dense()[0, 0], whole[-7:])


def test_blocks_that_divide_the_rows_are_known_exactly():
    cases = product(
        [8, 32],
        [
            masks.Neighborhood((32, 32), 7),
            masks.Neighborhood((32, 32), 7, boundary="crop"),
            masks.Neighborhood((32, 32), (5, 25)),
            masks.Axial((32, 32), axis=0),
            masks.Axial((32, 32), axis=1),
            masks.Neighborhood((16, 8, 8), (3, 5, 7)),
            masks.Neighborhood((1024,), 301),
            masks.Neighborhood((1024,), 301, boundary="crop"),
        ],
    )
    for case in sweep(cases):
        with case as (block, mask):
            kinds, truth = _kinds(mask, 1024, block)
            np.testing.assert_array_equal(kinds, truth)


def test_a_window_of_7_in_64_rows_of_64_leaves_a_tenth_of_the_blocks():
    kinds, truth = _kinds(masks.Neighborhood((64, 64), 7), 4096, 64)
    np.testing.assert_array_equal(kinds, truth)
    assert (kinds != EMPTY).mean() == 64 * 7 / 64**2


ON_GRIDS = {
    "near": lambda shape: masks.Neighborhood(shape, 7),
    "far": lambda shape: masks.Neighborhood(shape, 19),
    "cropped": lambda shape: masks.Neighborhood(shape, 3, boundary="crop"),
    "columns": lambda shape: masks.Axial(shape, axis=0),
    "rows": lambda shape: masks.Axial(shape, axis=1),
}


def test_blocks_across_the_ends_of_rows_are_known_exactly():
    for case in sweep(product(ON_GRIDS, [((30, 30), 20), ((28, 35), 28), ((25, 44), 11), ((20, 60), 16)])):
        with case as (name, (shape, block)):
            kinds, truth = _kinds(ON_GRIDS[name](shape), int(np.prod(shape)), block)
            np.testing.assert_array_equal(kinds, truth)


def test_blocks_across_the_ends_of_planes_leave_little_more_than_counting_does():
    kinds, truth = _kinds(masks.Neighborhood((15, 12, 12), 5), 2160, 40)
    assert (truth[kinds == EMPTY] == EMPTY).all()
    assert (truth[kinds == FULL] == FULL).all()
    assert (truth != EMPTY).sum() <= (kinds != EMPTY).sum() <= 1.05 * (truth != EMPTY).sum()
    assert (truth != EMPTY).mean() < 0.3


def test_every_rectangle_of_a_small_grid_keeps_its_promise():
    cases = [
        masks.Axial((3, 4), axis=0),
        masks.Axial((3, 4), axis=1),
        masks.Neighborhood((3, 4), (1, 3)),
        masks.Neighborhood((3, 4), (3, 1), boundary="crop"),
        masks.Axial((2, 2, 3), axis=1),
    ]
    for case in sweep(cases):
        with case as mask:
            first, end = np.array([(a, b) for a in range(12) for b in range(a + 1, 13)]).T
            top, bottom = torch.tensor(first)[:, None], torch.tensor(end)[:, None]
            kinds = mask.blocks(Rectangles(top, bottom, top.T, bottom.T))[0, 0].numpy()
            sums = np.pad(mask.bind(12, 12).dense()[0, 0].numpy().cumsum(0).cumsum(1), ((1, 0), (1, 0)))
            rows = sums[end] - sums[first]
            seen = rows[:, end] - rows[:, first]
            pairs = np.outer(end - first, end - first)
            assert (seen[kinds == EMPTY] == 0).all()
            assert (seen == pairs)[kinds == FULL].all()
            assert (kinds == PARTIAL).sum() <= 1.1 * ((seen > 0) & (seen < pairs)).sum()


def test_rows_are_full_blocks_of_the_own_row_alone():
    kinds, _ = _kinds(masks.Axial((8, 16), axis=1), 128, 16)
    np.testing.assert_array_equal(kinds, np.where(np.eye(8, dtype=bool), FULL, EMPTY))


def test_a_wrong_grid_says_what_is_right():
    cases = [
        (lambda: masks.Neighborhood((), 3), r"the cells along each axis of the grid, for example \(14, 14\), got \(\)"),
        (lambda: masks.Neighborhood(14, 3), r"for example \(14, 14\), got 14"),
        (lambda: masks.Neighborhood((4, 4), 3.0), r"one for each axis of the grid \(4, 4\), got 3.0"),
        (lambda: masks.Neighborhood((4, 0), 3), r"got \(4, 0\)"),
        (lambda: masks.Neighborhood((4, 4.0), 3), r"got \(4, 4.0\)"),
        (lambda: masks.Neighborhood((4, 4), (3, 3, 3)), r"one for each axis of the grid \(4, 4\), got \(3, 3, 3\)"),
        (lambda: masks.Neighborhood((4, 4), 2), r"as many on either side, so it must be odd, got \(2, 2\)"),
        (lambda: masks.Neighborhood((4, 4), -3), "must be odd"),
        (lambda: masks.Neighborhood((4, 4), 5), r'window of \(5, 5\) does not fit .* \(4, 4\): .* boundary="crop"'),
        (lambda: masks.Neighborhood((4, 4), 3, boundary="wrap"), '`boundary` must be "shift" or "crop", got \'wrap\''),
        (lambda: masks.Axial((4, 4), axis=2), r"one of the 2 axes of the grid \(4, 4\), got 2"),
        (lambda: masks.Neighborhood((4, 4), 3).bind(17, 17), "a grid of 4 × 4 has 16 cells, got 17 keys: .* class"),
        (lambda: masks.Neighborhood((4, 4), 3).bind(17, 16), "on one of the 16 cells .* 17 queries from position -1"),
        (lambda: masks.Axial((4, 4), 0).bind(4, 16, q_offset=13), "4 queries from position 13 on"),
    ]
    for case in sweep(cases):
        with case as (make, words), pytest.raises(InputError, match=words):
            make()
