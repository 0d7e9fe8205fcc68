"""The loop of small models: the optimizer's steps by hand, when it looks, and that nothing of it stays behind."""

import pytest
import torch
from torch import nn

from regard.train.loss_and_optimizer import Schedule
from regard_lab.training import fit, seeded


def line(start=2.0):
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, start)
    return model


def test_the_first_steps_of_adam_are_the_rate_of_the_schedule():
    # Of a constant gradient Adam's step is the rate itself.
    for schedule, moved in ((None, 0.3), (Schedule("cosine", 2), 0.1 * (0.5 + 1.0 + 0.0))):
        model = line()
        fit(model, lambda model=model: model(torch.ones(1, 1)).sum(), 3, learning_rate=0.1, schedule=schedule)
        assert model.weight.item() == pytest.approx(2 - moved, abs=1e-6)


def test_gradients_are_cut_to_their_norm():
    model, seen = line(), []
    model.weight.register_post_accumulate_grad_hook(lambda one: seen.append(one.grad))
    fit(model, lambda: 30 * model(torch.ones(1, 1)).sum(), 1, max_grad_norm=0.5)
    assert float(seen[0]) == pytest.approx(0.5, rel=1e-4)  # the same tensor, cut in place


def test_it_looks_between_steps_in_evaluation_mode_without_gradients():
    model, seen = line(), []

    def loss():
        assert model.training
        return model(torch.ones(1, 1)).sum()

    fit(
        model, loss, 7, evaluate=lambda step: seen.append((step, model.training, torch.is_grad_enabled())), eval_steps=3
    )
    assert seen == [(3, False, False), (6, False, False)]
    assert not model.training


def test_generators_and_threads_are_as_before(monkeypatch):
    threads = [2]
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads[-1])
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with seeded(1) as generator:
        first = torch.rand(2), torch.rand(2, generator=generator)
    assert threads == [2, 1, 2]
    assert torch.equal(torch.rand(3), expected)
    with seeded(1) as generator:
        again = torch.rand(2), torch.rand(2, generator=generator)
    assert all(torch.equal(*pair) for pair in zip(first, again, strict=True))
