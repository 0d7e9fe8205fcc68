"""Claim 13: bytes by the formula, verdicts turned by other numbers; speed is measured, never asserted."""

import pytest
import torch

from regard.positions import RoPE
from regard_lab import characters
from regard_lab.claims import kv_heads
from regard_lab.experiment import Setting
from sweeps import sweep


def verdicts(cache, loss):
    numbers = {
        kv_heads.BYTES: dict(zip(kv_heads.KINDS, cache, strict=True)),
        kv_heads.LOSS: dict(zip(kv_heads.KINDS, ([one] for one in loss), strict=True)),
    }
    return [str(part.verdict) for part in kv_heads.judge(numbers)]


def test_kv_heads_are_judged_to_the_byte_and_by_the_rise_of_the_loss():
    assert verdicts((4000, 2000, 1000), (1.0, 1.019, 0.9)) == ["holds"] * 4
    assert verdicts((4000, 2001, 999), (1.0, 1.021, 1.03)) == ["does not hold"] * 4


def test_a_cache_holds_a_key_and_a_value_of_each_layer_head_and_character():
    for case in sweep([(4, 1, 100), (2, 3, 7), (1, 2, 1000)]):
        with case as (heads, texts, read):
            torch.manual_seed(0)
            model = characters.language_model(positions=RoPE(16), num_key_value_heads=heads).eval()
            assert kv_heads.cache_bytes(model, texts, read) == 2 * 2 * texts * heads * read * 16 * 4


def test_long_texts_go_on_where_they_were_and_one_writes_as_much_as_is_asked():
    torch.manual_seed(0)
    model = characters.language_model(positions=RoPE(16), num_key_value_heads=2).eval()
    seen = []
    model.register_forward_hook(
        lambda _, args, kwargs, __: seen.append((*args[0].shape, kwargs["past_key_values"].length)), with_kwargs=True
    )
    call = kv_heads._goes_on(model)
    call()
    assert seen[0] == (64, 512, 512)
    assert seen[1:] == [(64, 1, 512 + at) for at in range(1, 9)]
    assert kv_heads._writes(model)().shape == (1, 64 + 64)


@pytest.mark.slow
def test_all_of_it_runs(monkeypatch):
    monkeypatch.setattr(kv_heads, "STEPS", {True: 2})
    monkeypatch.setattr(kv_heads, "REPEATS", {True: 1})
    monkeypatch.setattr(kv_heads, "ROWS", 40)
    finding = kv_heads.run(Setting(quick=True, threads=1))
    assert [str(part.verdict) for part in finding.parts[::2]] == ["holds", "holds"]
    assert finding.numbers[kv_heads.BYTES] == {"MHA": 1024 * 1024, "GQA": 512 * 1024, "MQA": 256 * 1024}
    assert finding.numbers["parameters"]["MHA"] - finding.numbers["parameters"]["MQA"] == 2 * 2 * 65 * 48
    (chart,) = finding.charts
    assert len(chart.series) == 4
    assert all(row[0] == pytest.approx(1) for row in chart.values)
