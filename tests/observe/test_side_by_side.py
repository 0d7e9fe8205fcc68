"""Heads that are folded side by side give what they give one after the other, and leave no trace."""

import threading

import numpy as np
import pytest
import torch
from torch import nn

import regard
from oracles import dense
from regard.masks import Causal
from regard.observe import run_statistics as module
from regard.observe import statistics
from regard.observe.run_statistics import is_worth_it, side_by_side
from regard.observe.statistics import of_weights
from regard.observe.weight_rows import RowBlock
from sweeps import sweep


@pytest.fixture
def threads(monkeypatch):
    """Three threads of PyTorch, and no call too short for them."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    monkeypatch.setattr(module, "_FEW", 0)
    yield 3
    torch.set_num_threads(before)


class Model(nn.Module):
    def forward(self, x):
        return regard.attention(x, x[:, :2], x[:, :2], mask=Causal())


def seen(x, **asked):
    model = Model()
    with regard.watch(model, **asked) as found:
        model(x)
    return found


def x(heads=6, n=700):
    return torch.randn(2, heads, n, 4, generator=torch.Generator().manual_seed(0))


def test_the_numbers_are_those_of_one_after_the_other(threads, monkeypatch):
    asked = {"statistics": ["distance", "confidence", "previous", "sink"], "keep": "maps"}
    together = seen(x(), **asked).record.layers[0]
    monkeypatch.setattr("regard.observe.run_statistics.is_worth_it", lambda *_: False)
    alone = seen(x(), **asked).record.layers[0]
    for name in ("mean", "max", "entropy", "received", "top_keys", "top_weights"):
        np.testing.assert_allclose(getattr(together, name), getattr(alone, name), rtol=1e-5, atol=1e-7, err_msg=name)
    for name, found in alone.statistics.items():
        np.testing.assert_allclose(together.statistics[name], found, rtol=1e-5, atol=1e-7, err_msg=name)
    q, k = x().double(), x()[:, :2].double()
    weights = dense(q, k, k, visible=np.tril(np.ones((700, 700), bool))).weights
    np.testing.assert_allclose(together.received, weights.sum(-2), rtol=1e-4, atol=1e-4)


def test_several_threads_are_at_work_and_the_callers_number_stays(threads):
    names, meet = set(), threading.Barrier(threads, timeout=20)

    def portion():
        yield RowBlock(0, slice(0, 1), 0, 0, torch.ones(1, 1, 1))

    def fold(rows):
        meet.wait()  # nobody passes unless all are here at once
        names.add(threading.get_ident())
        assert torch.get_num_threads() == 1
        assert not torch.is_grad_enabled()

    side_by_side([portion] * threads, fold, torch.no_grad)
    assert len(names) == threads
    assert torch.get_num_threads() == threads
    later = []
    other = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    other.start()
    other.join()
    assert later == [threads]


def test_a_failure_stops_all_and_is_told(threads):
    folded = []

    def portion(number):
        def rows():
            for block in range(1000):
                yield RowBlock(number, slice(0, 1), block, 0, torch.ones(1, 1, 1))

        return rows

    def fold(rows):
        folded.append(rows)
        if rows.batch_index == 1:
            raise ValueError("the second portion fails")

    with pytest.raises(ValueError, match="the second portion fails"):
        side_by_side([portion(number) for number in range(50)], fold, torch.no_grad)
    assert len(folded) < 40_000
    assert torch.get_num_threads() == threads
    assert not [one for one in threading.enumerate() if one.name.startswith("regard")]


class Counter:
    """A statistic of one's own that says nothing of threads: it counts, which two at once would get wrong."""

    name = "counter"

    def start(self, extent):
        self.threads = set()

    def fold(self, rows):
        self.threads.add(threading.get_ident())

    def finish(self, extent):
        return {self.name: np.full((extent.batch, extent.heads), len(self.threads))}


def test_a_statistic_that_says_nothing_is_folded_in_one_thread(threads):
    assert (seen(x(), statistics=[Counter()]).statistic("counter", layer=0) == 1).all()


def test_every_statistic_that_may_be_folded_by_head_says_so_on_purpose():
    kinds = [getattr(statistics, name) for name in statistics.__all__]
    by_head = {one.__name__ for one in kinds if getattr(one, "by_head", False)}
    assert {"HeatMap", "Top", "Entropy", "Received", "Distance"} <= by_head
    assert "Rollout" not in by_head


def test_short_calls_and_other_devices_stay_in_one_thread():
    call = type("Call", (), {"batch": 1, "heads": 9, "queries": 1, "keys": 4096})
    assert not is_worth_it(call, 9, torch.device("cpu"))
    call.queries = 4096
    assert not is_worth_it(call, 9, torch.device("cuda"))
    assert not is_worth_it(call, 1, torch.device("cpu"))


def test_small_distances_lose_nothing_beside_large_ones():
    """Σ p·i − Σ p·j would be wrong in the second digit: rows near 3,000 that look `far` away on average."""
    for case in sweep([0.0, 0.001, 3.0, 400.0]):
        with case as far:
            n = 3000
            weights = np.zeros((n, n))
            weights[np.arange(n), np.arange(n)] = 1
            at = np.arange(n) - 1 - int(far)
            share = far / (1 + int(far))
            rows = np.arange(n)[at >= 0]
            weights[rows, at[rows]], weights[rows, rows] = share, 1 - share
            expected = (weights * abs(np.arange(n)[:, None] - np.arange(n))).sum(-1)
            narrow = weights.astype(np.float32)
            found = of_weights(statistics.Distance(), narrow)["distance"]
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-9)
