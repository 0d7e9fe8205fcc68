"""Claim 11: the task, the scores and the count of weights by hand, and each verdict turned by other numbers."""

import numpy as np
import pytest
import torch

import regard
from regard.data import AssociativeRecall
from regard_lab import recall
from regard_lab.claims import induction
from regard_lab.experiment import Setting


def verdicts(two, one, looks):
    names = induction.TWO, induction.ONE
    numbers = {
        induction.ACCURACY: dict(zip(names, (two, one), strict=True)),
        induction.LOOKING: dict(zip(names, looks, strict=True)),
    }
    return [str(part.verdict) for part in induction.judge(numbers)]


def test_induction_is_judged_by_the_worst_of_two_layers_and_the_best_of_one():
    assert verdicts([0.96, 1.0], [0.2, 0.59], ([0.9, 0.6], [0.1, 0.4])) == ["holds"] * 4
    assert verdicts([0.95, 1.0], [0.2, 0.60], ([0.9, 0.5], [0.1, 0.6])) == ["does not hold"] * 4


def test_both_models_have_as_many_weights():
    torch.manual_seed(0)
    sizes = [sum(one.numel() for one in recall.model_of(layers).parameters()) for layers in (1, 2)]
    width, hidden = recall.WIDTH, recall.HIDDEN
    layer = 4 * width**2 + 2 * width * hidden + 2 * width
    assert sizes == [(37 + 17) * width + 2 * layer + width] * 2
    assert [len(recall.model_of(layers).decoder.layers) for layers in (1, 2)] == [1, 2]


def test_scores_are_those_of_the_dense_weights():
    torch.manual_seed(0)
    model = recall.model_of(2).eval()
    with torch.no_grad():
        for layer in model.decoder.layers:  # so that weights differ
            layer.attention.q_proj.weight.mul_(4)
    sources, answers = recall._drawn(5, torch.Generator().manual_seed(0))
    with torch.no_grad(), regard.watch(model, keep="weights") as seen:
        model(sources)
    weights = np.array([[seen.weights(layer=at, head=head) for head in range(2)] for at in range(2)])
    assert weights.shape == (2, 2, 5, 17, 17)
    asked = [row.index(row[-1]) for row in sources.tolist()]
    assert [sources[row, at + 1] for row, at in enumerate(asked)] == answers.tolist()
    behind = np.array(
        [[[weights[at, head, row, 16, asked[row] + 1] for row in range(5)] for head in range(2)] for at in range(2)]
    )
    before = weights[..., range(1, 17, 2), range(0, 16, 2)]
    with torch.no_grad():
        found = recall.scores(model, sources)
    np.testing.assert_allclose(found[0], behind.mean(2).max(1), rtol=1e-5)
    np.testing.assert_allclose(found[1], before.mean((2, 3)).max(1), rtol=1e-5)


def test_counting_names_the_most_frequent_value():
    found = recall.by_counting(0)
    sources, _ = recall._drawn(recall._TESTS, recall._tests(0))
    most = [max(np.bincount(row[1:16:2])) for row in sources.numpy()]
    assert found == pytest.approx(np.mean(most) / 8)
    # Of 8 draws from 16 the largest count is 2.1 on average (by simulation).
    rng = np.random.default_rng(0)
    simulated = np.mean([np.bincount(row).max() for row in rng.integers(0, 16, (20_000, 8))]) / 8
    assert found == pytest.approx(simulated, abs=0.01)


@pytest.mark.slow
def test_a_course_is_measured_at_its_steps_on_other_sources_and_repeats_itself():
    first, again = (recall.course(2, 6, 0, looks=3) for _ in range(2))
    assert first == again
    assert first.steps == [2, 4, 6]
    assert len(first.accuracy) == len(first.induction) == len(first.previous) == 3
    assert all(0 <= one < 0.3 for one in first.accuracy)  # 1/16 is chance
    assert all(len(one) == 2 for one in first.induction)


@pytest.mark.slow
def test_two_layers_learn_a_smaller_task_by_a_head_that_looks_behind_the_key(monkeypatch):
    monkeypatch.setattr(recall, "TASK", AssociativeRecall(num_symbols=12, num_kv_pairs=4))
    two, one = (recall.course(layers, 400, 0, looks=2) for layers in (2, 1))
    assert two.accuracy[-1] > 0.95 > 0.6 > one.accuracy[-1]
    assert two.induction[-1][1] > 0.5 > two.induction[-1][0]
    assert two.previous[-1][0] > 0.5
    assert one.parameters == two.parameters


@pytest.mark.slow
def test_all_of_it_runs_and_says_when_the_head_appears(monkeypatch):
    monkeypatch.setattr(induction, "STEPS", {True: 4})
    monkeypatch.setattr(induction, "MEASURED", {True: 2})
    finding = induction.run(Setting(quick=True, threads=1))
    assert finding.numbers["the step at which the head appears"] == [None, None]
    assert "never, never" in finding.key
    assert [len(chart.lines) for chart in finding.charts] == [2, 3]
    assert [len(line.x) for chart in finding.charts for line in chart.lines] == [2] * 5
