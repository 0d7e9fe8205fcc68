"""What is reported, and what is not: the table, the JSON, the comparison with an earlier run."""

import json
from dataclasses import replace

import pytest

from regard.errors import InputError
from regard_bench.page import page
from regard_bench.report import as_json, read, regressions, table, targets_table, write_json
from regard_bench.rows import Outcome, Row, at_least, at_most
from regard_bench.timing import Ratio
from regard_lab.machine import here
from sweeps import sweep


def row(median, spread=0.01, target=None, **more):
    ratio = Ratio(median, median - spread, median + spread, 20)
    return Row("case", "512 tokens", "time / SDPA's", ratio, target or at_most(1.0), **more)


OUTCOMES = [
    (at_most(1.0), 0.9, 0.05, Outcome.REACHED),
    (at_most(1.0), 1.1, 0.05, Outcome.MISSED),
    (at_most(1.0), 1.1, 0.2, Outcome.UNSURE),
    (at_most(1.0), 0.9, 0.2, Outcome.UNSURE),
    (at_least(2.0), 2.5, 0.1, Outcome.REACHED),
    (at_least(2.0), 1.5, 0.1, Outcome.MISSED),
    (at_least(2.0), 2.5, 1.0, Outcome.UNSURE),
]


def test_nothing_is_said_where_the_spread_is_larger_than_the_difference():
    for case in sweep(OUTCOMES):
        with case as (target, median, spread, expected):
            assert row(median, spread, target).outcome is expected


def test_a_number_without_spread_is_judged_as_it_is():
    assert row(2.2, 0.0, at_most(2.2)).outcome is Outcome.REACHED


def test_worse_by_a_quarter_beyond_the_spread_is_a_regression_in_either_direction():
    before = as_json([row(1.0), row(3.0, target=at_least(2.0), size=1)], {})
    before["rows"][1]["key"] = "up"
    slower, noisy, same = row(1.3), row(1.3, 0.2), row(1.2)
    assert [found[0] for found in regressions([slower], before)] == [slower]
    assert regressions([noisy], before) == []
    assert regressions([same], before) == []
    assert regressions([row(1.3)], as_json([row(1.0, 0.05)], {})) == []  # 1.29 may be 1.05 × 1.23
    up = as_json([row(3.0, target=at_least(2.0))], {})
    assert regressions([row(2.0, target=at_least(2.0))], up)[0][1] == pytest.approx(2.99 / 2.01)
    assert regressions([row(4.0, target=at_least(2.0))], up) == []


def test_without_a_target_what_is_divided_by_what_says_which_way_is_worse():
    def peer(median):
        return Row("case", "512 tokens", "dense time / time", Ratio(median, median, median, 20))

    before = as_json([peer(6.0)], {})
    assert regressions([peer(3.0)], before)[0][1] == pytest.approx(2.0)
    assert regressions([peer(9.0)], before) == []


def test_what_was_not_measured_stays_not_measured():
    missing = Row("peer", "512 tokens", "its time / time", why="x is not installed")
    told = as_json([missing], here(1))
    assert "x is not installed" in table({"One": told})
    assert "x is not installed" in page(told)
    assert regressions([missing], as_json([row(1.0)], {})) == []


def test_the_file_is_read_as_it_was_written_and_nonsense_is_refused(tmp_path):
    path = tmp_path / "bench.json"
    write_json(path, [row(1.0, size=512)], here(2))
    assert read(path)["rows"][0]["median"] == 1.0
    for text in ("{", "[]", json.dumps({"version": 99, "rows": []})):
        path.write_text(text)
        with pytest.raises(InputError, match=r"bench\.json"):
            read(path)
    with pytest.raises(InputError, match="cannot read"):
        read(tmp_path / "none.json")


def test_the_page_draws_sides_over_the_length_and_says_every_number():
    rows = [row(1.0 + n / 1e5, size=n, seconds=(("regard", n * 1e-6), ("sdpa", n * 2e-6))) for n in (512, 1024)]
    drawn = page(as_json(rows, here(2)))
    assert "<svg" in drawn
    assert "1.01 × (1.00 – 1.02)" in drawn
    assert "reached 0" not in drawn
    assert "<script" not in drawn


def test_a_table_has_the_rows_of_its_cases_in_their_order_and_no_column_without_any():
    rows = [replace(row(1.0), case=case) for case in ("b", "a", "c")]
    run = as_json(rows, here(1))
    assert table({"One": run, "Other": as_json([rows[2]], here(1))}, ["a", "b"]).splitlines() == [
        "| case | at | what | One |",
        "|---|---|---|---:|",
        "| a | 512 tokens | time / SDPA's | 1.00 × (0.99 – 1.01) |",
        "| b | 512 tokens | time / SDPA's | 1.00 × (0.99 – 1.01) |",
    ]


def test_targets_that_are_not_reached_are_named_with_their_sizes():
    at = {"512 tokens": row(1.2), "1,024 tokens": row(1.0), "2,048 tokens": row(0.5), "4,096 tokens": row(1.3)}
    unmeasured = Row("case", "8,192 tokens", "time / SDPA's", None, at_most(1.0), why="too long")
    free = Row("case", "16 tokens", "time / limit", Ratio(3.0, 2.9, 3.1, 9))
    rows = [*(replace(one, at=size) for size, one in at.items()), unmeasured, free]
    assert targets_table({"One": as_json(rows, here(1)), "Other": as_json(rows[:1], here(1))}).splitlines() == [
        "- One: 1 of 4 targets reached, 2 not reached, 1 inconclusive.",
        "- Other: 0 of 1 targets reached, 1 not reached.",
        "",
        "| case | what | target | One | Other |",
        "|---|---|---:|---|---|",
        "| case | time / SDPA's | ≤ 1 | not reached: 512 / 4,096 tokens; inconclusive: 1,024 tokens; "
        "reached: 2,048 tokens; not measured: 8,192 tokens | not reached: 512 tokens; "
        "not measured: 1,024 / 2,048 / 4,096 / 8,192 tokens |",
    ]
