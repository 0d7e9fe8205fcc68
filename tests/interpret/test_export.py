"""Whatever is exported is read back by csv and numpy as what the record answers."""

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import regard
from regard.errors import InputError, ObservationError
from regard.interpret.observation import Observation
from regard.observe import statistics
from sweeps import sweep

WORDS = ["=1+1", "貓", "a,b", 'say "x"', "two\nlines", "cat"]


@pytest.fixture(scope="module")
def seen() -> Observation:
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2).eval()
    asked = ["distance", "value_norm", statistics.Rows([1, 4])]
    with torch.no_grad(), regard.watch(model, tokens=WORDS, statistics=asked) as watched:
        model(torch.randn(1, 6, 16))
    return watched


@pytest.fixture(scope="module")
def pooled() -> Observation:
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = torch.randn(1, 700, 8)
    with torch.no_grad(), regard.watch(attention) as watched:
        attention(x, x, x)
    return watched


def read(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.reader(file))


def test_weights_as_csv_have_tokens_on_both_sides(seen: Observation, tmp_path: Path) -> None:
    seen.export(tmp_path / "it.csv", layer=1, head=0)
    cells = read(tmp_path / "it.csv")
    names = ["'=1+1", "貓", "a,b", 'say "x"', "two\\nlines", "cat"]
    assert cells[0] == ["query", *names]
    assert [line[0] for line in cells[1:]] == names
    numbers = np.array([line[1:] for line in cells[1:]], dtype=np.float32)
    np.testing.assert_array_equal(numbers, seen.weights(layer=1, head=0)[0])


def test_weights_as_arrays(seen: Observation, tmp_path: Path) -> None:
    seen.export(tmp_path / "one.npy", layer=1, head=0)
    seen.export(tmp_path / "all.npz", layer=1)
    np.testing.assert_array_equal(np.load(tmp_path / "one.npy"), seen.weights(layer=1, head=0)[0])
    with np.load(tmp_path / "all.npz", allow_pickle=False) as found:
        np.testing.assert_array_equal(found["weights"], np.stack([seen.weights(layer=1, head=h)[0] for h in (0, 1)]))
        assert found["keys"].tolist()[:2] == ["=1+1", "貓"]


def test_a_statistic_has_a_row_for_each_position_and_a_column_for_each_head(seen: Observation, tmp_path: Path) -> None:
    for name in ("entropy", "received", "distance", "value_norm"):
        seen.export(tmp_path / "it.csv", name, layer=0)
        cells = read(tmp_path / "it.csv")
        assert cells[0] == [name, "layer 0 head 0", "layer 0 head 1"]
        assert [line[0] for line in cells[1:]][1] == "貓"
        numbers = np.array([line[1:] for line in cells[1:]], dtype=np.float32)
        np.testing.assert_array_equal(numbers, seen.statistic(name, layer=0)[0].T)
    seen.export(tmp_path / "rows.csv", "rows", layer=0, head=1)
    np.testing.assert_array_equal(
        np.array([line[1:] for line in read(tmp_path / "rows.csv")[1:]], dtype=np.float32),
        seen.weights(layer=0, head=1)[0][[1, 4]],
    )
    with pytest.raises(ObservationError, match="'sink' was not kept"):
        seen.export(tmp_path / "it.csv", "sink", layer=0)


@pytest.fixture(scope="module", params=["live", "saved"])
def chosen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Statistics of chosen queries, keys and spans, of which as many are asked as there are tokens."""
    torch.manual_seed(1)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 1).eval()
    asked = [
        statistics.Columns([3, 2, 1, 0], name="four"),
        statistics.Columns([2, 9], name="two"),
        statistics.Rows([3, 1]),
        statistics.Rectangle(slice(2, 4), slice(1, 3)),
        statistics.Rows([1], name="positions"),
    ]
    spans = {"a": (0, 2), "b": (2, None), "c": [0], "d": [3]}
    with torch.no_grad(), regard.watch(model, tokens="the cat sat on".split(), statistics=asked, keys=spans) as watched:
        model(torch.randn(1, 4, 16))
    if request.param == "live":
        return watched
    path = tmp_path_factory.mktemp("atlas") / "chosen.atlas"
    watched.save(path)
    return regard.load_atlas(path)


def test_chosen_rows_columns_and_spans_have_their_own_names(chosen: Any, tmp_path: Path) -> None:
    words, weights = "the cat sat on".split(), chosen.weights(layer=0, head=1)[0]
    expected = {
        "four": (words, ["on", "sat", "cat", "the"], weights[:, [3, 2, 1, 0]]),
        "two": (words, ["sat", "9"], np.stack([weights[:, 2], np.full(4, np.nan)], 1)),
        "rows": (["on", "cat"], words, weights[[3, 1]]),
        "rectangle": (["sat", "on"], ["cat", "sat"], weights[2:4, 1:3]),
        "key_spans": (
            words, ["a", "b", "c", "d"],
            np.stack([weights[:, :2].sum(1), weights[:, 2:].sum(1), weights[:, 0], weights[:, 3]], 1),
        ),
    }  # fmt: skip
    for name, (rows, columns, numbers) in expected.items():
        chosen.export(tmp_path / "it.csv", name, layer=0, head=1)
        header, *lines = read(tmp_path / "it.csv")
        assert (header, [line[0] for line in lines]) == ([name, *columns], rows), name
        found = np.array([[cell or "nan" for cell in line[1:]] for line in lines], dtype=np.float32)
        np.testing.assert_allclose(found, numbers, rtol=1e-6, err_msg=name)
        chosen.export(tmp_path / "it.npz", name, layer=0)
        with np.load(tmp_path / "it.npz") as arrays:
            assert (arrays["row_positions"].tolist(), arrays["positions"].tolist()) == (rows, columns), name
            np.testing.assert_allclose(arrays[name][1], numbers, rtol=1e-6, err_msg=name)
        chosen.export(tmp_path / "it.svg", name, layer=0, head=1)
        drawn = re.findall(r"<!-- (.*?) -->", (tmp_path / "it.svg").read_text("utf-8"))
        assert drawn[: len(columns) + len(rows)] == [*columns, *rows], name


def test_a_statistic_may_have_the_name_of_its_labels(chosen: Any, tmp_path: Path) -> None:
    chosen.export(tmp_path / "it.npz", "positions", layer=0, head=0)
    with np.load(tmp_path / "it.npz") as arrays:
        np.testing.assert_array_equal(arrays["positions"], chosen.weights(layer=0, head=0)[0][[1]])


class Seen(statistics.PerKey):
    """The sum of each column."""

    name = "seen"

    def of(self, rows: Any) -> torch.Tensor:
        return rows.weights.sum(1)


def test_a_number_for_each_key_has_the_keys_names_where_there_are_as_many_queries(tmp_path: Path) -> None:
    torch.manual_seed(2)
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    texts = {"source": ["le", "chat", "dort"], "target": ["the", "cat", "sleeps"]}
    with torch.no_grad(), regard.watch(attention, tokens=texts, statistics=[Seen()]) as watched:
        attention(torch.randn(1, 3, 8), *(torch.randn(1, 3, 8),) * 2)
    watched.export(tmp_path / "it.csv", "seen", layer=0)
    cells = read(tmp_path / "it.csv")
    assert [line[0] for line in cells[1:]] == ["le", "chat", "dort"]
    numbers = np.array([line[1:] for line in cells[1:]], dtype=np.float32)
    np.testing.assert_allclose(numbers, watched.weights(layer=0)[0].sum(1).T, rtol=1e-6)


class Pairs(Seen):
    """Two numbers for each key, by a class whose own axes are not given."""

    name = "pairs"

    def finish(self, extent: Any) -> Any:
        sums = next(iter(super().finish(extent).values()))
        return {self.name: np.stack([sums, -sums], -1)}


def test_axes_that_do_not_fit_are_left_out_and_names_that_are_no_text_are_spelled_out(tmp_path: Path) -> None:
    """The record is saved and loaded all the same."""
    attention, x = nn.MultiheadAttention(8, 2, batch_first=True).eval(), torch.randn(1, 3, 8)
    columns = statistics.Columns(np.array([2, 0]))
    with (
        torch.no_grad(),
        regard.watch(attention, statistics=[Pairs(), columns], keys={"\ud800": (0, 2), "b\r\nc": (2, 3)}) as watched,
    ):
        attention(x, x, x)
    watched.save(tmp_path / "it.atlas")
    for one in (watched, regard.load_atlas(tmp_path / "it.atlas")):
        one.export(tmp_path / "it.csv", "pairs", layer=0, head=0)
        assert [line[0] for line in read(tmp_path / "it.csv")] == ["pairs", "0", "1", "2"]
        one.export(tmp_path / "it.csv", "columns", layer=0, head=0)
        assert read(tmp_path / "it.csv")[0] == ["columns", "2", "0"]
        one.export(tmp_path / "it.csv", "key_spans", layer=0, head=0)
        assert read(tmp_path / "it.csv")[0] == ["key_spans", "\\ud800", r"b\r\nc"]


def test_the_strongest_keys_are_one_row_each(seen: Observation, tmp_path: Path) -> None:
    seen.export(tmp_path / "top.csv", "top")
    cells = read(tmp_path / "top.csv")
    assert cells[0] == ["layer", "head", "query", "from", "rank", "key", "to", "weight"]
    assert len(cells) == 1 + 2 * 2 * 6 * 6
    line = next(line for line in cells[1:] if line[:3] == ["1", "1", "3"])
    key, weight = seen.top(layer=1, head=1, query=3)[0]
    assert (int(line[5]), float(line[7])) == (key, weight)
    assert line[3] == 'say "x"'
    seen.export(tmp_path / "top.npz", "top", layer=1, head=1)
    with np.load(tmp_path / "top.npz") as found:
        assert found["keys"][3, 0] == key
        assert float(found["weights"][3, 0]) == weight


def test_maps_of_long_texts_name_their_bins(pooled: Observation, tmp_path: Path) -> None:
    pooled.export(tmp_path / "map.csv", "map.max", layer=0, head=1)
    cells = read(tmp_path / "map.csv")
    size = pooled.record.layers[0].query_bin
    assert size > 1
    assert cells[0][1:3] == [f"0:{size}", f"{size}:{2 * size}"]
    assert cells[0][-1].endswith(":700")
    numbers = np.array([line[1:] for line in cells[1:]], dtype=np.float32)
    np.testing.assert_array_equal(numbers, pooled.heatmap(layer=0, head=1, pool="max")[0])
    with pytest.raises(ObservationError, match="kept as a pooled map"):
        pooled.export(tmp_path / "it.csv", layer=0, head=0)


@pytest.mark.parametrize(
    "kinds",
    [
        ["weights.png", "map.png", "heads.png", "entropy.png", "received.png", "rows.png", "weights.svg", "rows.svg"],
        pytest.param(["map.svg", "heads.svg", "entropy.svg", "received.svg"], marks=pytest.mark.slow),
    ],
)
def test_pictures_of_all_of_them(seen: Observation, tmp_path: Path, kinds: list[str]) -> None:
    starts = {"png": b"\x89PNG", "svg": b"<?xml"}
    for case in sweep(kinds):
        with case as name:
            what, suffix = name.split(".")
            seen.export(tmp_path / name, what, layer=1, head=1)
            assert (tmp_path / name).read_bytes().startswith(starts[suffix])
    assert len(list(tmp_path.iterdir())) == len(kinds), "one file each"


NOT_WRITTEN: list[tuple[str, str, dict[str, Any], str]] = [
    ("it.txt", "weights", {"layer": 0, "head": 0}, r"must end in \.csv, \.npy, \.npz, \.png or \.svg, got it\.txt"),
    ("it.csv", "weights", {"layer": 0}, r"'weights' cannot end in \.csv: write \.npz or \.npy, or name a `head`"),
    ("it.png", "weights", {"layer": 0}, r"'weights' cannot end in \.png: write \.npz or \.npy, or name a `head`"),
    ("it.csv", "weights", {}, r"`layer` must be given to export 'weights', its number or the name"),
    ("it.csv", "weights", {"layer": 0, "head": 2}, r"`head` must be from 0 to 1"),
    ("it.csv", "top", {"head": -3}, r"`head` must be from 0 to 1"),
    ("it.csv", "heads", {}, r"'heads' cannot end in \.csv: write \.png or \.svg$"),
    ("it.png", "top", {}, r"'top' cannot end in \.png: write \.npz, \.npy or \.csv$"),
    ("it.csv", "entropy", {"layer": 2}, r"`layer` must be from 0 to 1"),
    ("it.csv", "entropy", {"layer": 0, "batch_index": 1}, r"`batch_index` must be from 0 to 0"),
    ("no/it.csv", "entropy", {"layer": 0}, r"a folder that exists"),
]


def test_what_cannot_be_written_is_refused_and_leaves_nothing(seen: Observation, tmp_path: Path) -> None:
    for case in sweep(NOT_WRITTEN):
        with case as (name, what, given, words):
            with pytest.raises(InputError, match=words):
                seen.export(tmp_path / name, what, **given)
            assert list(tmp_path.iterdir()) == []


def test_an_alignment_has_both_texts(tmp_path: Path) -> None:
    model = nn.Transformer(16, 2, 1, 1, 32, batch_first=True).eval()
    with torch.no_grad(), regard.watch(model) as watched:
        model(torch.randn(1, 5, 16), torch.randn(1, 3, 16))
    watched.export(tmp_path / "it.csv", "alignment")
    cells = read(tmp_path / "it.csv")
    assert (cells[0], [line[0] for line in cells]) == (["target", *"01234"], ["target", *"012"])
    cross = next(one.name for one in watched.record if one.kind == "cross")
    mean = watched.weights(layer=cross)[0].mean(0)
    np.testing.assert_allclose(np.array([line[1:] for line in cells[1:]], dtype=float), mean, rtol=1e-6)
    watched.export(tmp_path / "it.png", "alignment", layer=cross, head=1)
