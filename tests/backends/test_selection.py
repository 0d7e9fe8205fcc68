"""The choice among backends: what they declare is what they do, and the least cost wins."""

import inspect
import itertools

import pytest
import torch

import regard
from regard import masks, normalizers, positions, scores
from regard.backends.base import FEATURES
from regard.backends.selection import BACKENDS, choose, named
from regard.masks.plan_cache import PlanCache
from regard.problem import DEFAULTS, Problem

LENGTHS = {"short": 16, "strips": 400, "long": 2048}
OPTIONS = {
    "nothing": {},
    "causal": {"mask": masks.Causal()},
    "causal elsewhere": {"mask": masks.Causal(align="start").bind(16, 16, 3)},
    "window": {"mask": masks.Causal() & masks.Window(64)},
    "scattered": {"mask": masks.MaskMod(lambda batch, head, i, j: (i + j) % 7 == 0)},
    "bias": {"bias": positions.ALiBi(2)},
    "softcap": {"score": scores.ScaledDot(softcap=9.0)},
    "dot": {"score": scores.Dot()},
    "additive": {"score": scores.Additive(None, None, torch.ones(16))},
    "sigmoid": {"normalizer": normalizers.Sigmoid()},
    "sink": {"normalizer": normalizers.Softmax(torch.zeros(2))},
    "dropout": {"dropout": 0.5},
    "weights": {"return_weights": True},
    "log-sum-exp": {"return_lse": True},
}


def problems():
    for (size, n), (name, asked), learns in itertools.product(LENGTHS.items(), OPTIONS.items(), (False, True)):
        if name != "causal elsewhere" or n == 16:
            x = torch.zeros(1, 2, n, 16, requires_grad=learns)
            yield f"{size}, {name}, {learns}", Problem.of(x, x, x, **asked)


def test_the_least_cost_of_all_that_do_not_refuse_is_chosen_whatever_bounds_they_have():
    chosen = set()
    for name, problem in problems():
        ready = [backend for backend in BACKENDS if backend.suits(problem) and backend.refuses(problem) is None]
        least = min(backend.cost(problem) for backend in ready)
        assert choose(problem) is next(backend for backend in ready if backend.cost(problem) == least), name
        chosen.add(choose(problem).name)
    assert chosen >= {"sdpa", "strips", "reference"}


def test_no_backend_costs_less_than_its_bound():
    for name, problem in problems():
        for backend in BACKENDS:
            if backend.suits(problem) and backend.refuses(problem) is None:
                assert backend.cost(problem) >= backend.least_cost(problem), (name, backend.name)


def test_many_short_sequences_take_the_fused_kernel_and_nothing_is_planned(monkeypatch):
    """A plan for each of 8,192 masks took twenty times as long as the kernel."""
    monkeypatch.setattr(PlanCache, "of", lambda *_: pytest.fail("planned"))
    n = 16
    x = torch.randn(8192, 2, n, 4)
    tokens = torch.arange(n) < torch.arange(1, 8193)[:, None] % n + 1
    pairs = tokens[:, None, None] & tokens[:, None, :, None] | torch.eye(n, dtype=torch.bool)
    for mask in (
        masks.Padding(tokens),
        masks.Causal() & masks.Padding(tokens),
        masks.Window(4),
        pairs,
        masks.Dense(pairs),
    ):
        assert choose(Problem.of(x, x, x, mask=mask)).name == "sdpa"
        regard.attention(x, x, x, mask=mask)


def test_every_feature_that_is_declared_exists_and_its_sentence_names_what_is_needed():
    for backend in named().values():
        assert backend.lacks.keys() <= FEATURES.keys(), backend.name
    x = torch.zeros(1, 2, 4, 16)
    refused = named()["sdpa"].refuses(Problem.of(x, x, x, normalizer=normalizers.Sigmoid()))
    assert "no Sigmoid, only the softmax" in refused


def test_signatures_show_every_argument_with_type_and_default():
    for function, own in ((regard.attention, {}), (regard.explain, {"ranks": None})):
        named_ = dict(inspect.signature(function).parameters)
        assert list(named_)[:4] == ["q", "k", "v", "backend"]
        assert {name: one.default for name, one in named_.items() if name not in ("q", "k", "v")} == {
            "backend": "auto", **own, **DEFAULTS,
        }  # fmt: skip
        assert all(one.kind is one.KEYWORD_ONLY for one in list(named_.values())[3:])
        assert all(one.annotation is not one.empty for one in named_.values())


def test_an_unknown_argument_is_refused_as_python_does():
    x = torch.zeros(1, 1, 2, 4)
    for function in (regard.attention, regard.explain):
        with pytest.raises(TypeError, match="unexpected keyword argument 'masks'"):
            function(x, x, x, masks=None)
