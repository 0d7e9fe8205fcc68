"""Tiles, lines and weights against the dense matrix, with the sinks and without them."""

import dataclasses
import itertools

import numpy as np
import pytest

from regard.errors import InputError, ObservationError
from regard.web import HeadTiles
from sweeps import sweep
from web.cases import SINK, blocks

ALL = slice(0, 300), slice(0, 300)


def without(weights: np.ndarray, sinks: list[int]) -> np.ndarray:
    """p / (1 − s) with 0 in the columns of the sinks, by loops."""
    clean = np.zeros_like(weights)
    for query, row in enumerate(weights):
        rest = 1 - sum(row[key] for key in sinks)
        if rest > 1e-6:
            clean[query] = [0 if key in sinks else weight / rest for key, weight in enumerate(row)]
    return clean


def test_a_tile_is_the_dense_matrix_pooled(small) -> None:
    for case in sweep(itertools.product(["mean", "max"], [1, 2, 8, 64, 512])):
        with case as (pool, step):
            cells = HeadTiles(small.record.layers[0], 2).tile(*ALL, step, pool)
            np.testing.assert_allclose(cells, blocks(small.weights[0][2], step, pool), rtol=1e-5, atol=1e-8)


def test_without_sinks_rows_are_divided_by_what_remains(small) -> None:
    for case in sweep(itertools.product(["mean", "max"], [1, 4, 32])):
        with case as (pool, step):
            sheet = HeadTiles(small.record.layers[0], 1)
            assert sheet.sinks.tolist() == [SINK]
            expected = without(small.weights[0][1], [SINK])
            np.testing.assert_allclose(expected[40:].sum(-1), 1)
            cells = sheet.tile(*ALL, step, pool, sinks=False)
            np.testing.assert_allclose(cells, blocks(expected, step, pool), rtol=1e-4, atol=1e-7)


def test_a_part_without_sinks_is_that_part_of_the_whole(small) -> None:
    sheet = HeadTiles(small.record.layers[0], 0)
    whole = sheet.tile(*ALL, 2, "mean", sinks=False)
    part = sheet.tile(slice(100, 150), slice(20, 60), 2, "mean", sinks=False)
    np.testing.assert_array_equal(part, whole[50:75, 10:30])


def test_a_layer_without_sinks_is_shown_as_it_is(small) -> None:
    sheet = HeadTiles(small.record.layers[1], 0)
    assert sheet.found == ()
    np.testing.assert_array_equal(sheet.tile(*ALL, 1, "mean", sinks=False), sheet.tile(*ALL, 1, "mean"))


def test_rows_and_columns_are_those_of_the_dense_matrix(small) -> None:
    for case in sweep([True, False]):
        with case as sinks:
            sheet = HeadTiles(small.record.layers[0], 2)
            dense = small.weights[0][2] if sinks else without(small.weights[0][2], [SINK])
            np.testing.assert_allclose(sheet.line("row", 200, sinks=sinks), dense[200], rtol=1e-4)
            np.testing.assert_allclose(sheet.line("column", 60, sinks=sinks), dense[:, 60], rtol=1e-4)
            np.testing.assert_allclose(sheet.line("column", SINK, sinks=sinks), dense[:, SINK], rtol=1e-4)


def test_a_weight_is_told_with_the_sinks_and_without_them(small) -> None:
    sheet, dense = HeadTiles(small.record.layers[0], 2), small.weights[0][2]
    said = sheet.weight(200, 100)
    assert said["weight"] == pytest.approx(dense[200, 100], rel=1e-5)
    assert said["without"] == pytest.approx(dense[200, 100] / (1 - dense[200, SINK]), rel=1e-4)
    assert sheet.weight(200, SINK)["without"] == 0
    assert HeadTiles(small.record.layers[1], 0).weight(3, 4)["without"] is None


def test_cells_of_a_map_without_sinks_divide_their_rows_together(pooled_record) -> None:
    sheet, dense = HeadTiles(pooled_record.record.layers[0], 0), pooled_record.weights[0][0]
    assert sheet.sinks.tolist() == [SINK, 90]
    cells = sheet.tile(slice(0, 1000), slice(0, 1000), 8, "mean", sinks=False)
    rest = (1 - dense[:, SINK] - dense[:, 90]).reshape(-1, 8).mean(-1)
    clean = dense.copy()
    clean[:, [SINK, 90]] = 0
    expected = blocks(clean, 8, "mean") / rest[:, None]
    np.testing.assert_allclose(cells[6:], expected[6:], rtol=2e-3, atol=2e-6)  # the first rows see no sink


def test_the_largest_weight_of_a_cell_that_holds_a_sink_is_not_known(pooled_record) -> None:
    sheet = HeadTiles(pooled_record.record.layers[0], 0)
    cells = sheet.tile(slice(0, 1000), slice(0, 1000), 8, "max", sinks=False)
    assert np.isnan(cells[:, [SINK // 8, 90 // 8]]).all()
    assert np.isfinite(np.delete(cells, [SINK // 8, 90 // 8], axis=1)).all()


def test_of_a_map_only_the_strongest_weights_are_known(pooled_record) -> None:
    sheet, dense = HeadTiles(pooled_record.record.layers[0], 1), pooled_record.weights[0][1]
    row = sheet.line("row", 500)
    assert set(np.flatnonzero(~np.isnan(row))) == set(np.argsort(-dense[500])[:8])
    column = sheet.line("column", SINK)
    np.testing.assert_allclose(column[SINK:], dense[SINK:, SINK], rtol=1e-5)
    weak = int(np.argmin(dense[500, :501]))
    said = sheet.weight(500, weak)
    assert said["weight"] is None
    assert dense[500, weak] <= said["below"] == pytest.approx(np.sort(dense[500])[-8], rel=1e-5)
    with pytest.raises(ObservationError, match="qk"):
        sheet.tile(slice(0, 8), slice(0, 8), 2, "max")


def test_the_top_of_a_step_is_its_largest_cell(small) -> None:
    for case in sweep(itertools.product([True, False], ["mean", "max"])):
        with case as (sinks, pool):
            tops = HeadTiles(small.record.layers[0], 0).tops(sinks=sinks)[pool]
            dense = small.weights[0][0] if sinks else without(small.weights[0][0], [SINK])
            assert list(tops) == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
            for step in (1, 4, 256):
                # Cells at an edge, of fewer positions, weigh as much as others where they are merged again.
                assert tops[step] == pytest.approx(blocks(dense, step, pool).max(), rel=0.05)


def test_rectangles_outside_and_steps_that_are_no_power_of_two_are_refused(small) -> None:
    sheet = HeadTiles(small.record.layers[0], 0)
    for sinks in (True, False):
        with pytest.raises(InputError, match="rows"):
            sheet.tile(slice(0, 301), slice(0, 4), 1, "mean", sinks=sinks)
        with pytest.raises(InputError, match="power of two"):
            sheet.tile(slice(0, 6), slice(0, 6), 3, "mean", sinks=sinks)


def test_between_single_weights_and_the_map_the_top_is_interpolated(pooled_record) -> None:
    dense = pooled_record.weights[0]
    layer = dataclasses.replace(pooled_record.record.layers[0], weights=dense[None].astype(np.float32))
    tops = HeadTiles(layer, 1).tops()
    assert tops["mean"][1] == tops["max"][1] == pytest.approx(dense[1].max(), rel=1e-5)
    assert tops["mean"][4] == pytest.approx(blocks(dense[1], 4, "mean").max(), rel=1e-5)
    assert tops["mean"][2] == pytest.approx((tops["mean"][1] * tops["mean"][4]) ** 0.5, rel=1e-5)
