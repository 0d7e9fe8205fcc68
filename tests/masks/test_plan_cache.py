"""What is kept of the plans of masks: how many, how many bytes, and for how long."""

import gc
from dataclasses import dataclass

import torch

import regard
from regard import masks
from regard.masks.plan_cache import PLANS, PlanCache


@dataclass(frozen=True)
class Plan:
    nbytes: int


def test_the_last_used_are_kept_up_to_a_number_and_up_to_bytes():
    made = []

    def ask(cache, size):
        def make():
            made.append(size)
            return Plan(size)

        return cache.of(masks.Window(size).bind(8, 8), "plan", make)

    few = PlanCache(2, 100)
    for size in (1, 2, 1, 3, 1, 2):  # 2 was used longest ago when 3 comes
        ask(few, size)
    assert made == [1, 2, 3, 2]
    made.clear()
    light = PlanCache(9, 10)
    for size in (4, 6, 4, 5, 6, 4):  # 4 and 6 fit; 6 goes for 5, then 4 and 5 go for 6
        ask(light, size)
    assert made == [4, 6, 5, 6, 4]
    made.clear()
    assert ask(light, 20) is ask(light, 20)  # the latest is kept whatever its size
    assert made == [20]


def test_the_plan_of_a_mask_whose_tensors_are_gone_is_made_anew_and_equal_masks_without_tensors_share_theirs():
    cache, made = PlanCache(2, 100), []
    for _ in range(3):
        padding = masks.Padding(torch.ones(1, 8, dtype=torch.bool))
        cache.of(padding.bind(8, 8), "plan", lambda: made.append(1) or Plan(1))
        cache.of((padding & masks.Causal()).bind(8, 8), "plan", lambda: made.append(2) or Plan(1))
        del padding
        gc.collect()
    assert made == [1, 2] * 3
    plans = [cache.of((masks.Causal() & masks.Window(3)).bind(8, 8), "plan", lambda: Plan(1)) for _ in range(2)]
    assert plans[0] is plans[1]
    assert cache.of((masks.Causal() & masks.Window(3)).bind(7, 8), "plan", lambda: Plan(2)) is not plans[0]


def test_what_is_planned_in_inference_mode_serves_training():
    q, k, v = torch.randn(1, 8, 3, 16), torch.randn(1, 8, 320, 16), torch.randn(1, 8, 320, 16)
    PLANS.clear()
    mask = masks.Causal() & (masks.Window(20) | masks.Sinks(4))
    with torch.inference_mode():
        expected = regard.attention(q, k, v, mask=mask)
    output = regard.attention(q, k.requires_grad_(), v, mask=mask)
    output.sum().backward()
    torch.testing.assert_close(output, expected)
    assert k.grad.any()
