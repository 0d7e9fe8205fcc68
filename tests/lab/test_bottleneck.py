"""The bottleneck: what is measured, against counts by hand and sacreBLEU; and verdicts turned by other numbers."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from regard.data import Copy, Reverse
from regard.models import RecurrentSeq2Seq
from regard_lab import seq2seq
from regard_lab.claims import bottleneck
from regard_lab.claims.bottleneck import ATTENTION, FIXED, LONGER, WIDER
from regard_lab.drawing import svg_of
from regard_lab.experiment import Setting

pytest.importorskip("sacrebleu")

TINY = bottleneck.Trial(
    lesson=seq2seq.Lesson(task=Copy(num_symbols=3), shortest=1, longest=4, steps=2, texts=4),
    hidden=8, lengths=(4, 5, 6), beyond=6,
)  # fmt: skip


def verdicts(parts):
    return [str(part.verdict) for part in parts]


@pytest.mark.parametrize("trial", [bottleneck.COPY, bottleneck.REVERSE], ids=["copy", "reverse"])
def test_both_models_have_as_many_parameters_within_a_hundredth(trial):
    config = seq2seq.config_of(trial.lesson.task, trial.hidden)
    plain = seq2seq.without(config)
    with_it, without = (sum(p.numel() for p in RecurrentSeq2Seq(one).parameters()) for one in (config, plain))
    assert abs(without / with_it - 1) < 0.01
    assert seq2seq.parameters_of(config) == with_it
    assert (config.attention, plain.attention, plain.feed_context) == ("bahdanau", None, True)
    assert plain.embedding_dim == config.embedding_dim


def test_a_batch_has_one_length_within_the_range_and_all_come_up():
    lesson, generator = replace(TINY.lesson, task=Reverse(num_symbols=3)), torch.Generator().manual_seed(0)
    seen = set()
    for _ in range(60):
        sources, read, asked = lesson.batch(generator)
        assert torch.equal(asked[:, :-1], sources.flip(1))
        assert torch.equal(read[:, 1:], sources.flip(1))
        assert (read[:, 0] == Reverse.bos_token_id).all()
        assert (asked[:, -1] == Reverse.eos_token_id).all()
        seen.add(sources.shape[1])
    assert seen == {1, 2, 3, 4}


def test_a_token_is_right_in_its_own_place_alone():
    assert seq2seq.share_right([[5, 6, 7, 7]], [[5, 6, 7]]) == 1  # what comes behind the target counts for BLEU
    assert seq2seq.share_right([[], [5, 7]], [[5], [5, 6]]) == pytest.approx(1 / 3)


def test_bleu_is_that_of_the_tokens_as_they_are():
    from sacrebleu import corpus_bleu

    said, targets = [[5, 6, 7, 8, 9], [10, 11, 12, 13]], [[5, 6, 7, 8, 10], [10, 11, 12, 13]]
    plain = [" ".join(map(str, row)) for row in said], [[" ".join(map(str, row)) for row in targets]]
    assert seq2seq.bleu(said, targets) == pytest.approx(corpus_bleu(*plain, tokenize="none").score)
    # Of 9, 7, 5, 3 n-grams 8, 6, 4, 2 are right: the geometric mean, times 1 for a text as long as its reference.
    assert seq2seq.bleu(said, targets) == pytest.approx(100 * (8 / 9 * 6 / 7 * 4 / 5 * 2 / 3) ** 0.25)


class Fake:
    """A model that writes the source where it is short; of a longer one the first two tokens, and never stops."""

    def parameters(self):
        return [torch.zeros(2, 3)]

    def generate(self, sources, *, max_new_tokens, return_dict_in_generate):
        assert max_new_tokens == 2 * len(sources[0])
        assert return_dict_in_generate
        filled = [5] * (max_new_tokens - 2)
        return SimpleNamespace(
            new_tokens=[[*one, Copy.eos_token_id] if len(one) <= 4 else [*one[:2], *filled] for one in sources]
        )


def test_what_is_measured_is_what_the_model_writes():
    found = seq2seq.by_length(Fake(), Copy(num_symbols=1000), (4, 10), 50, seed=0)
    assert found.parameters == 6
    assert found.accuracy[4] == 1
    assert found.bleu[4] == pytest.approx(100)  # the end token is no token of the text
    assert found.accuracy[10] == pytest.approx(0.2, abs=0.02)  # the first two of ten
    assert found.bleu[10] < 10


def test_a_lesson_is_learned():
    lesson = seq2seq.Lesson(task=Copy(num_symbols=3), shortest=1, longest=2, steps=100, texts=32, rate=1e-2)
    model = seq2seq.learned(seq2seq.config_of(lesson.task, 16), lesson, seed=1)
    accuracy = seq2seq.by_length(model, lesson.task, (1, 2), 50, seed=1).accuracy
    assert min(accuracy.values()) > 0.9  # chance is below 1/3


def test_the_same_seed_gives_the_same_model_and_another_another():
    config = seq2seq.config_of(TINY.lesson.task, 8)
    first, second, other = (list(seq2seq.learned(config, TINY.lesson, seed).parameters()) for seed in (1, 1, 2))
    assert all(torch.equal(*pair) for pair in zip(first, second, strict=True))
    assert not torch.equal(first[0], other[0])


def numbers(**changed):
    table = {
        "accuracy": {"copy": {ATTENTION: {"5": 1.0, "20": 0.98, "30": 0.95}, FIXED: {"5": 1.0, "20": 0.3, "30": 0.2}}},
        "BLEU": {"copy": {ATTENTION: {"5": 100.0, "20": 97.0, "30": 90.0}, FIXED: {"5": 99.0, "20": 9.0, "30": 4.0}}},
        "trained on lengths": {"copy": [3, 20]},
        "beyond": {"copy": 30},
        "cliff": {"copy": {ATTENTION: 30, FIXED: 5}},
    }
    return {**table, **changed}


def test_each_part_is_judged_by_its_own_numbers():
    assert verdicts(bottleneck.judge(numbers())) == ["holds"] * 4
    same = {"5": 0.8, "20": 0.7, "30": 0.6}
    other = numbers(accuracy={"copy": {ATTENTION: same, FIXED: same}}, BLEU={"copy": {ATTENTION: same, FIXED: same}})
    assert verdicts(bottleneck.judge(other)) == ["does not hold"] * 4
    never = {ATTENTION: numbers()["accuracy"]["copy"][ATTENTION], FIXED: {"5": 0.4, "20": 0.3, "30": 0.2}}
    assert verdicts(bottleneck.judge(numbers(accuracy={"copy": never})))[0] == "does not hold"  # nothing gets worse
    keeps = {"5": 1.0, "20": 1.0, "30": 1.0}
    good = {"5": 100.0, "20": 100.0, "30": 100.0}
    other = numbers(accuracy={"copy": {ATTENTION: keeps, FIXED: keeps}}, BLEU={"copy": {ATTENTION: good, FIXED: good}})
    assert verdicts(bottleneck.judge(other)) == ["does not hold", "holds", "does not hold", "does not hold"]


def test_a_lead_alone_holds_within_limits():
    far = {ATTENTION: {"5": 1.0, "20": 0.98, "30": 0.6}, FIXED: {"5": 1.0, "20": 0.3, "30": 0.2}}
    assert verdicts(bottleneck.judge(numbers(accuracy={"copy": far})))[3] == "holds within limits"


def test_a_cliff_that_is_only_moved_is_before_that_of_attention():
    accuracy = numbers()["accuracy"]["copy"]
    more = {"copy": {**accuracy, LONGER: accuracy[FIXED], WIDER: accuracy[FIXED]}}
    cliffs = {"copy": {ATTENTION: 30, FIXED: 5, LONGER: 10, WIDER: 30}}
    assert verdicts(bottleneck.judge(numbers(accuracy=more, cliff=cliffs)))[4:] == ["holds", "does not hold"]
    assert bottleneck.cliff({10: 0.5, 5: 0.9, 15: 0.49, 20: 1.0}) == 10
    assert bottleneck.cliff({5: 0.4}) == 0


@pytest.mark.parametrize("quick", [True, False])
def test_a_run_trains_each_model_and_draws_it(quick, monkeypatch):
    monkeypatch.setattr(bottleneck, "TRIALS", {quick: {"copy": replace(TINY, more=not quick)}})
    monkeypatch.setattr(bottleneck, "TEXTS", {quick: 10})
    finding = bottleneck.run(Setting(quick=quick, threads=1))
    models = [ATTENTION, FIXED] if quick else [ATTENTION, FIXED, LONGER, WIDER]
    assert list(finding.numbers["accuracy"]["copy"]) == models
    assert all(list(one) == ["4", "5", "6"] for one in finding.numbers["BLEU"]["copy"].values())
    assert len(finding.parts) == 4 + 2 * (not quick)
    assert [chart.up for chart in finding.charts] == ["share of tokens right", "BLEU"]
    edge = finding.charts[0].lines[-1]
    assert (edge.x, edge.dashed) == ((4.0, 4.0), True)
    assert svg_of(finding.charts[0], "n5").startswith("<svg")
