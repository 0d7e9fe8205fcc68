"""The compiled training step of the benchmark: its sides, its target, and the reason where nothing compiles."""

import shutil

import torch

from regard_bench.cases import whole_models
from regard_bench.rows import Effort, at_most

EFFORT = Effort(max_seconds=0.01)


def test_both_sides_take_steps_of_equal_models_and_one_is_compiled(monkeypatch):
    made, models = [], []

    def compiles(model, **options):
        made.append(options)
        return model

    class Kept(whole_models.Transformer):
        def __init__(self, config):
            super().__init__(config)
            models.append((self, self.embedding.weight.detach().clone()))

    monkeypatch.setattr(torch, "compile", compiles)
    monkeypatch.setattr(whole_models, "Transformer", Kept)
    monkeypatch.setattr(whole_models, "_GPT_LAYERS", 1)
    monkeypatch.setattr(whole_models, "_GPT_TEXTS", 2)
    monkeypatch.setattr(whole_models, "_GPT_TOKENS", 8)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    row = whole_models._compiled(EFFORT)
    assert made == [{"fullgraph": True}]
    assert [name for name, _ in row.seconds] == ["eager", "compiled"]
    assert row.target == at_most(1.0)
    assert row.ratio is not None
    (one, before), (other, equal) = models
    assert torch.equal(before, equal)
    assert not torch.equal(one.embedding.weight, before)
    assert not torch.equal(other.embedding.weight, before)


def test_without_a_compiler_the_row_has_a_reason_and_nothing_runs(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(whole_models, "_gpt", None)
    row = whole_models._compiled(EFFORT)
    assert row.ratio is None
    assert row.why == "there is no C++ compiler: apt-get install g++"
