"""Claim 8: texts, losses and rises against what they are by hand, and each verdict turned by other numbers."""

import itertools
import math
import sys

import numpy as np
import pytest
import torch

from regard.errors import InputError
from regard_lab import characters
from regard_lab.claims import length
from regard_lab.experiment import Setting
from regard_lab.texts import made_up, reference, split


def verdicts(rises, losses):
    numbers = {
        length.RISE: {"a language": dict(zip(length.KINDS, ([one] for one in rises), strict=True))},
        length.CLIP: dict(zip(map(str, length.CLIPS), ([one] for one in losses), strict=True)),
    }
    return [str(part.verdict) for part in length.judge(numbers)]


def test_length_is_judged_by_rises_and_by_the_best_clip():
    fine = (0.04, 0.6, 0.3, 0.05), (1.2, 1.04, 1.0, 1.01)
    assert verdicts(*fine) == ["holds"] * 8
    assert verdicts((0.06, 0.4, 0.5, 0.0), (1.04, 1.2, 1.0, 1.06)) == [
        "does not hold", "does not hold", "does not hold", "does not hold",
        "does not hold", "does not hold", "holds", "does not hold",
    ]  # fmt: skip
    assert verdicts((0.04, 0.6, 0.65, 0.035), fine[1])[2:4] == ["does not hold", "holds"]


def test_the_made_up_language_has_fifty_words_and_four_to_follow_each():
    words = made_up(60_000, seed=3).split(" ")[:-1]  # the last may be cut off
    follows = {}
    for one, other in itertools.pairwise(words):
        follows.setdefault(one, []).append(other)
    assert len(follows) <= 50
    assert {len(set(each)) for each in follows.values()} == {4}
    assert {len(one) for one in follows} == {2, 3, 4, 5}
    counts = [each.count(one) / len(each) for each in follows.values() if len(each) > 400 for one in set(each)]
    assert min(counts) > 0.18
    assert max(counts) < 0.32
    assert made_up(100, seed=3) == made_up(60_000, seed=3)[:100] != made_up(100, seed=4)


def test_every_tenth_part_is_held_out_and_rows_follow_on_one_another():
    text = "".join(chr(32 + (at * at + at // 95) % 95) for at in range(20 * 4096 + 17))
    found = split(text)
    assert bytes(found.held[1].tolist()).decode() == text[19 * 4096 : 20 * 4096]
    assert bytes(found.trained.tolist()).decode() == text[: 9 * 4096] + text[10 * 4096 : 19 * 4096]
    rows = found.rows(256, 1000)
    assert rows.shape == (30, 257)
    assert rows[0, -1] == rows[1, 0] == found.held[0, 256]
    assert found.rows(256, 5).shape == (5, 257)
    batch = found.batch(50, 64, torch.Generator().manual_seed(0))
    assert all(bytes(row.tolist()) in bytes(found.trained.tolist()) for row in batch)


def test_the_reference_is_ascii_prose_that_stands_there_once():
    text = reference()
    paragraphs = text.split("\n")
    assert len(set(paragraphs)) == len(paragraphs) > 1000
    assert text.isascii()
    assert 200_000 < len(text) < 1_000_000
    assert "  " not in text
    assert "Assert statements are a convenient way to insert debugging assertions into a program:" in paragraphs


def test_a_python_without_its_reference_is_told_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(InputError, match=r"reads Python's own reference .*which this Python lacks"):
        reference()


def test_losses_are_those_of_the_softmax_by_hand():
    torch.manual_seed(0)
    model = characters.language_model(position_bias="alibi").eval()
    rows = torch.randint(128, (40, 9))
    with torch.no_grad():
        logits = model(rows[:, :-1]).logits.double().numpy()
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    expected = [[-math.log(p[row, at, rows[row, at + 1]]) for at in range(8)] for row in range(40)]
    np.testing.assert_allclose(characters.losses(model, rows), expected, rtol=1e-5)


def test_the_same_characters_are_compared_with_more_and_with_less_before_them(monkeypatch):
    rows = torch.randint(128, (3, 257), generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(length, "losses", lambda _, rows: rows[:, 1:].float())
    same = length.course(None, rows)
    assert same.near == same.far == pytest.approx(float(rows[:, 65:].double().mean()))
    assert same.rise == 0
    assert same.whole == pytest.approx(0, abs=1e-12)
    np.testing.assert_allclose(same.along, rows[:, 1:].double().mean(0).view(-1, 8).mean(1), rtol=1e-6)
    monkeypatch.setattr(length, "losses", lambda _, rows: torch.arange(1.0, rows.shape[1]).expand(len(rows), -1))
    more = length.course(None, rows)
    assert (more.near, more.far) == (48.5, 160.5)  # 33 … 64 characters, the last one read counted; 65 … 256
    assert more.rise == pytest.approx(160.5 / 48.5 - 1)
    assert more.whole == pytest.approx(128.5 / 32.5 - 1)


@pytest.mark.slow
def test_training_learns_and_repeats_itself():
    text = split(made_up(60_000, seed=0))
    rows = text.rows(64, 40)
    first, again, other = (characters.trained(text, 25, seed, position_bias="alibi") for seed in (0, 0, 1))
    numbers = [characters.losses(model, rows) for model in (first, again, other)]
    assert torch.equal(numbers[0], numbers[1])
    assert not torch.equal(numbers[0], numbers[2])
    assert float(numbers[0].mean()) < 2.9 < math.log(128) < float(_untrained(rows))


def _untrained(rows):
    torch.manual_seed(0)
    return characters.losses(characters.language_model(position_bias="alibi").eval(), rows).mean()


@pytest.mark.slow
@pytest.mark.parametrize("quick", [True, False])
def test_all_of_it_runs_and_gives_numbers_of_every_kind(monkeypatch, quick):
    monkeypatch.setattr(length, "STEPS", {quick: 2})
    monkeypatch.setattr(length, "OF_CLIPS", {quick: 2})
    monkeypatch.setattr(length, "LONGER", 2)
    monkeypatch.setattr(length, "ROWS", 4)
    finding = length.run(Setting(quick=quick, threads=1))
    languages = [length.MADE_UP] if quick else [length.MADE_UP, length.PYTHON]
    assert list(finding.numbers[length.RISE]) == languages
    assert all(list(found) == list(length.KINDS) for found in finding.numbers[length.RISE].values())
    assert len(finding.parts) == 4 * len(languages) + 4
    assert [len(chart.lines) for chart in finding.charts] == [4] * (len(languages) + 1)
    assert all(len(line.y) == 32 for chart in finding.charts for line in chart.lines)
