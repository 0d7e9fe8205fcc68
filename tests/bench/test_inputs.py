"""What figures are held against: the limit does as many operations as attention."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from regard_bench.cases import few_queries, full_and_causal, sparse_masks
from regard_bench.cases.inputs import HEADS, inputs, products
from regard_bench.rows import Effort
from regard_bench.shares import Work
from sweeps import sweep


def flops(call):
    with FlopCounterMode(display=False) as counted:
        call()
    return counted.get_total_flops()


def test_the_window_is_held_against_the_pairs_that_it_sees(monkeypatch):
    asked, works, n = [], [], 700
    monkeypatch.setattr(sparse_masks, "products", lambda pairs, dtype: asked.append(pairs))
    monkeypatch.setattr(sparse_masks, "compare_all", lambda *_, work, **__: works.append(work) or ())
    list(sparse_masks._window_at(Effort(max_tokens=n), n))
    i, j = torch.arange(n)[:, None], torch.arange(n)
    seen = HEADS * int(((j <= i) & (j > i - sparse_masks.WIDTH)).sum())
    assert asked == 2 * [seen]
    operations = 2 * 2 * 64 * seen  # two products of 64 numbers, each a multiplication and an addition
    assert works == [Work(one, operations) for one in ("float32", "float32", "bfloat16", "bfloat16")]


@pytest.mark.parametrize(
    ("module", "rows", "dtype", "products_count"),
    [
        (full_and_causal, "_dense", "float32", 2),
        (full_and_causal, "_bf16", "bfloat16", 2),
        (full_and_causal, "_training", "float32", 7),
        (sparse_masks, "_sparse", "float32", 7),
    ],
)
def test_the_work_of_a_row_is_that_of_its_limit_and_of_attention(monkeypatch, module, rows, dtype, products_count):
    found, n = [], 512

    def compared(_, case, *others, work, **__):
        found.append((case, others[-1], work))
        return ()

    monkeypatch.setattr(module, "compare_all", compared)
    monkeypatch.setattr(module, "compare", lambda *_, **__: None)
    monkeypatch.setattr(full_and_causal, "_error", lambda *_, **__: 1.0)
    list(getattr(module, rows)(Effort(max_tokens=n)))
    assert found
    q, k, v = inputs(n)
    for case, sides, work in found:
        assert work.resource == dtype
        assert flops(sides["limit"]) == pytest.approx(work.amount, abs=2 * 1024**2)
        if not case.startswith(("Longformer", "BigBird")):
            share = 1 if case.startswith(("full", "documents")) else (n + 1) / (2 * n)
            assert work.amount == pytest.approx(share * products_count / 2 * flops(lambda: (q @ k.mT) @ v))


def test_decoding_reads_keys_and_values_once(monkeypatch):
    works = []
    monkeypatch.setattr(few_queries, "compare_all", lambda *_, work, **__: works.append(work) or ())
    list(few_queries._decoding(Effort(max_tokens=4096)))
    assert works == [Work("memory", 2 * 3 * 4096 * 64 * 4)]  # keys and values, heads, keys, numbers, bytes


@pytest.mark.slow  # 25 s
def test_a_backward_is_held_against_the_forward_that_it_follows(monkeypatch):
    """Without gradients the default path may be another, several times as fast."""
    rows = []
    monkeypatch.setattr(sparse_masks, "compare", lambda _, case, at, what, sides, **__: rows.append((what, sides)))
    list(sparse_masks._sparse(Effort(max_tokens=512)))
    forward = [sides["forward"] for what, sides in rows if what == "backward / forward"]
    assert len(forward) == 4
    assert all(call().requires_grad for call in forward)


def attention_flops(n):
    q, k, v = inputs(n)
    return flops(lambda: (q @ k.mT) @ v)


def test_the_limit_multiplies_as_often_as_attention_does():
    for case in sweep([16, 512, 700, 1024, 1500]):
        with case as n:
            attention = attention_flops(n)
            row = 2 * 1024**2
            assert attention > 0
            assert flops(products(HEADS * n * n)) == pytest.approx(attention, abs=row)
