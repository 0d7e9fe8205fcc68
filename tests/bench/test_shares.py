"""Shares of the machine's limits: by hand, as text, and through the file."""

import json
from dataclasses import replace

import numpy as np
import pytest

from regard_bench.page import page
from regard_bench.report import as_json, limits_table, processor, read, regressions, table, write_json
from regard_bench.rows import Row, at_most
from regard_bench.shares import Peaks, Resource, Work, shown_peaks
from regard_bench.timing import Ratio
from regard_lab.machine import here
from sweeps import sweep

ADDED = "work", "rate", "share"  # to rows, after the first results were saved
PEAKS = Peaks(
    {Resource.FLOAT32: Ratio(200e9, 190e9, 210e9, 50), Resource.MEMORY: Ratio(20e9, 19e9, 21e9, 50)},
    {Resource.FLOAT32: Ratio(150e9, 149e9, 151e9, 50)},
    {Resource.BFLOAT16: "the processor has no AVX-512 BF16"},
    cache_bytes=32 << 20,
)


BARE = Row("case", "512 tokens", "time / SDPA's", Ratio(0.9, 0.85, 0.95, 20), at_most(0.8))


def row(resource=Resource.FLOAT32, rate=(50e9, 49e9, 52e9), amount=1e9):
    return replace(BARE, work=Work(resource, amount), rate=Ratio(*rate, 20))


def test_a_share_and_its_interval_by_hand():
    (found,) = as_json([row()], {}, PEAKS)["rows"]
    below, above = (0.02**2 + 0.05**2) ** 0.5, (0.04**2 + 0.05**2) ** 0.5
    share = found["share"]
    assert (share["of"], share["median"], share["rounds"], share["in_cache"]) == ("float32", 0.25, 20, False)
    assert (share["low"], share["high"]) == pytest.approx((0.25 * (1 - below), 0.25 * (1 + above)))
    assert found["work"] == {"resource": "float32", "amount": 1e9}
    assert found["rate"] == {"median": 50e9, "low": 49e9, "high": 52e9, "rounds": 20}


def test_the_interval_of_a_share_holds_the_true_share_about_nineteen_times_in_twenty():
    generator, held = np.random.default_rng(0), 0
    for _ in range(1000):
        rate, peak = Ratio.of(list(generator.normal(50, 3, 15))), Ratio.of(list(generator.normal(200, 12, 30)))
        share = Peaks({Resource.FLOAT32: peak}).share(Work(Resource.FLOAT32, 1), rate)
        held += share.low <= 0.25 <= share.high
    assert 0.9 < held / 1000 < 0.99


def test_without_work_or_without_its_limit_there_is_no_share():
    rows = BARE, row(Resource.BFLOAT16), row()
    assert [bool(one["share"]) for one in as_json(rows, {}, PEAKS)["rows"]] == [False, False, True]
    assert as_json(rows, {})["rows"][2]["share"] is None


FITTING = [
    (Resource.MEMORY, 32 << 20, 32 << 20, True),
    (Resource.MEMORY, (32 << 20) + 1, 32 << 20, False),
    (Resource.MEMORY, 1, None, False),
    (Resource.FLOAT32, 1, 32 << 20, False),
]


def test_bytes_that_fit_the_cache_are_marked():
    for case in sweep(FITTING):
        with case as (resource, amount, cache, fits):
            assert Peaks(cache_bytes=cache).fits_cache(Work(resource, amount)) is fits


def test_a_table_states_shares_and_limits_beside_machines_that_have_none():
    new = as_json([row(), row(Resource.MEMORY, (28e9, 27e9, 29e9), amount=6e6)], here(2), PEAKS) | {
        "machine": {"cpu": "New"}
    }
    new["rows"][1]["at"] = "4,096 keys"
    old = {"machine": {"cpu": "Old(R)"}, "rows": [{k: v for k, v in new["rows"][0].items() if k != "share"}]}
    columns = {processor(one): one for one in (new, old)}
    assert table(columns).splitlines() == [
        "| case | at | what | New | share of its limit | Old |",
        "|---|---|---|---:|---:|---:|",
        "| case | 512 tokens | time / SDPA's | 0.90 × (0.85 – 0.95) | 25 % of peak (24 – 27) | 0.90 × (0.85 – 0.95) |",
        "| case | 4,096 keys | time / SDPA's | 0.90 × (0.85 – 0.95) | 140 % of memory (131 – 149), in cache "
        "| not measured |",
    ]
    assert limits_table(columns).splitlines() == [
        "| limit | New | Old |",
        "|---|---:|---:|",
        "| float32 peak | 200 GFLOP/s (190 – 210); matrix products 150 (149 – 151) | not measured |",
        "| bfloat16 peak | not measured: the processor has no AVX-512 BF16 | not measured |",
        "| memory's speed | 20.0 GB/s (19.0 – 21.0) | not measured |",
    ]
    assert limits_table({"Old": old}) == ""


def test_the_file_holds_shares_and_limits(tmp_path):
    path = tmp_path / "bench.json"
    write_json(path, [row(Resource.MEMORY)], here(2), PEAKS)
    found = read(path)
    assert found == json.loads(json.dumps(as_json([row(Resource.MEMORY)], here(2), PEAKS) | {"made": found["made"]}))
    assert found["peaks"]["cache_bytes"] == 32 << 20
    assert found["rows"][0]["share"]["of"] == "memory"
    assert shown_peaks(found["peaks"])["memory's speed"] == "20.0 GB/s (19.0 – 21.0)"


def test_files_without_peaks_are_read_shown_and_compared(tmp_path):
    old = as_json([BARE], here(2))
    del old["peaks"]
    old["rows"] = [{name: one for name, one in row.items() if name not in ADDED} for row in old["rows"]]
    (tmp_path / "old.json").write_text(json.dumps(old), "utf-8")
    old = read(tmp_path / "old.json")
    assert "%" not in table({"Old": old})
    assert limits_table({"Old": old}) == ""
    assert "share of the limit" not in page(old)
    assert regressions([row()], old) == []


def test_the_page_states_shares_and_limits():
    drawn = page(as_json([row(), BARE], here(2), PEAKS))
    assert "<th scope=col>share of the limit</th>" in drawn
    assert "<td>25 % of peak (24 – 27)</td>" in drawn
    assert "<td></td>" in drawn
    assert "<td>float32 peak</td><td>200 GFLOP/s (190 – 210); matrix products 150 (149 – 151)</td>" in drawn
    assert "not measured: the processor has no AVX-512 BF16" in drawn
