"""Attention over an image: the overlay's numbers are the weights, each over its own patch."""

import dataclasses

import matplotlib
import numpy as np
import pytest

from regard.errors import InputError
from regard.record.records import Layer, Record
from regard.render.patches import PatchGrid, patch_figure, patch_weights
from sweeps import sweep

GRID = PatchGrid(2, 3, ("cls", "distillation"))
IMAGE = np.arange(20 * 30 * 3, dtype=np.uint8).reshape(20, 30, 3)


def layer(positions: int, heads: int = 2) -> Layer:
    generator = np.random.default_rng(0)
    weights = generator.dirichlet(np.ones(positions), (1, heads, positions)).astype(np.float32)
    top = {"top_keys": np.zeros((1, heads, positions, 1), np.int32), "top_weights": weights[..., :1]}
    nothing = np.zeros((1, heads, positions), np.float32)
    return Layer(f"of {positions}", "self", "text", "text", 1, 1, weights, weights, **top, entropy=nothing,
                 received=nothing)  # fmt: skip


@pytest.fixture
def record() -> Record:
    return Record((layer(5), layer(8)), model="tiny")


def overlay(figure) -> np.ndarray:
    return figure.axes[1].images[1].get_array()


def test_each_number_lies_over_its_patch(record: Record) -> None:
    figure = patch_figure(record, GRID, IMAGE, layer=1, head=0, patch=(1, 0))
    row = record.weights(layer=1, head=0)[0][2 + 1 * 3 + 0]
    for down in range(2):
        for across in range(3):
            assert overlay(figure)[down, across] == row[2 + down * 3 + across]
    for axes in figure.axes[:2]:
        assert [picture.get_extent() for picture in axes.images] == [[0, 3, 2, 0]] * len(axes.images)
        frame = axes.patches[0]
        assert (frame.get_x(), frame.get_y(), frame.get_width(), frame.get_height()) == (0, 1, 1, 1)
    np.testing.assert_array_equal(figure.axes[0].images[0].get_array(), IMAGE)


def test_no_weight_leaves_the_image_and_a_strong_one_covers_it_in_dark_orange(record: Record) -> None:
    veil = patch_figure(record, GRID, IMAGE, layer=1, head=0, patch=(1, 0)).axes[1].images[1].get_cmap()
    assert veil(0.0)[3] == 0
    red, green, blue, opaque = veil(1.0)
    assert red > green > blue
    assert opaque > 0.9


def test_cls_looks_without_a_frame_and_the_rest_of_its_weight_is_said(record: Record) -> None:
    figure = patch_figure(record, GRID, IMAGE, layer="of 8", head=1)
    row = record.weights(layer=1, head=1)[0][0]
    np.testing.assert_array_equal(overlay(figure).ravel(), row[2:])
    assert not figure.axes[0].patches
    said = " ".join(text.get_text() for text in figure.findobj(matplotlib.text.Text))
    told = f"Where [CLS] looks: {row[2:].sum():.2f} to the patches, {row[0]:.2f} to [CLS] and {row[1]:.2f} to"
    assert told in " ".join(said.split())


def test_without_a_head_it_is_their_mean(record: Record) -> None:
    found = patch_weights(record, GRID, layer=1, patch="distillation")
    mean = record.layers[1].mean[0, :, 1].astype(float).mean(0)
    np.testing.assert_allclose(found.patches.ravel(), mean[2:], rtol=1e-12)
    assert found.prefix == pytest.approx({"cls": mean[0], "distillation": mean[1]})


def test_heads_that_were_not_recorded_are_in_no_mean() -> None:
    record = Record((dataclasses.replace(layer(8, heads=4), head_numbers=(1, 3)),), model="tiny")
    expected = record.layers[0].mean[0, [1, 3], 0, 2:].astype(np.float64).mean(0)
    np.testing.assert_allclose(patch_weights(record, GRID, layer=0).patches.ravel(), expected, rtol=1e-6)
    said = [text.get_text() for text in patch_figure(record, GRID, IMAGE, layer=0).findobj(matplotlib.text.Text)]
    assert any("mean of 2 of the 4 heads of layer 0" in one for one in said)


def test_places_are_counted_row_by_row_behind_the_prefix() -> None:
    places = [GRID.position((row, column)) for row in range(2) for column in range(3)]
    assert places == [2, 3, 4, 5, 6, 7]
    assert (GRID.position("cls"), GRID.position("distillation"), GRID.positions) == (0, 1, 8)
    for patch in ((2, 0), (0, 3), (-1, 0), "register 0", (1,)):
        with pytest.raises(InputError, match=r'from \(0, 0\) to \(1, 2\), or "cls", or "distillation"'):
            GRID.position(patch)


REFUSALS = [
    ({"layer": 0}, r"8 in all, got layer 0 of 5 × 5: choose layer 1"),
    ({"layer": 1, "head": 2}, r"`head` must be from 0 to 1 \(heads: 2\), got 2"),
    ({"layer": 1, "batch_index": 1}, r"`batch_index` must be from 0 to 0"),
    ({"layer": 1, "grid": PatchGrid(4, 4)}, r"give the grid yourself: PatchGrid"),
    ({"layer": 1, "image": IMAGE[:, :20]}, r"proportions of 2 × 3 patches, got 20 × 20 pixels: resize and crop"),
]


def test_what_does_not_fit_is_refused_with_the_way_out(record: Record) -> None:
    for case in sweep(REFUSALS):
        with case as (given, words):
            asked = {"grid": GRID, "image": IMAGE} | given
            with pytest.raises(InputError, match=words):
                patch_figure(record, asked.pop("grid"), asked.pop("image"), **asked)
