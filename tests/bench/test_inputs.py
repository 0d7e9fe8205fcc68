"""What figures are held against: the limit does as many operations as attention."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from regard_bench.cases import sparse_masks
from regard_bench.cases.inputs import HEADS, inputs, products
from regard_bench.rows import Effort


def flops(call):
    with FlopCounterMode(display=False) as counted:
        call()
    return counted.get_total_flops()


def test_the_window_is_held_against_the_pairs_that_it_sees(monkeypatch):
    asked, n = [], 700
    monkeypatch.setattr(sparse_masks, "products", lambda pairs, dtype: asked.append(pairs))
    monkeypatch.setattr(sparse_masks, "compare_all", lambda *_, **__: ())
    list(sparse_masks._window_at(Effort(max_tokens=n), n))
    i, j = torch.arange(n)[:, None], torch.arange(n)
    assert asked == 2 * [HEADS * int(((j <= i) & (j > i - sparse_masks.WIDTH)).sum())]


def test_a_backward_is_held_against_the_forward_that_it_follows(monkeypatch):
    """Without gradients the default path may be another, several times as fast."""
    rows = []
    monkeypatch.setattr(sparse_masks, "compare", lambda _, case, at, what, sides, **__: rows.append((what, sides)))
    list(sparse_masks._sparse(Effort(max_tokens=512)))
    forward = [sides["forward"] for what, sides in rows if what == "backward / forward"]
    assert len(forward) == 4
    assert all(call().requires_grad for call in forward)


@pytest.mark.parametrize("n", [16, 512, 700, 1024, 1500])
def test_the_limit_multiplies_as_often_as_attention_does(n):
    q, k, v = inputs(n)
    attention = flops(lambda: (q @ k.mT) @ v)
    row = 2 * 1024**2
    assert attention > 0
    assert flops(products(HEADS * n * n)) == pytest.approx(attention, abs=row)
