"""Sampling: how often each token is drawn, which are kept, and that a seed settles it."""

from itertools import product

import numpy as np
import pytest
import torch

from regard.models.decoding import GenerationLimits, Markov, Sampling
from regard.models.decoding.sampling import likeliest
from sweeps import sweep

DRAWS = 20_000


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def expected(logits, temperature, top_k, top_p):
    """Probabilities by the definition, one token at a time."""
    chances = np.exp(logits / temperature)
    chances /= chances.sum()
    order = np.argsort(-chances)
    if top_k is not None:
        chances[order[top_k:]] = 0.0
        chances /= chances.sum()
    if top_p is not None:
        for n in range(1, len(order) + 1):
            if chances[order[:n]].sum() >= top_p:
                chances[order[n:]] = 0.0
                break
    return chances / chances.sum()


def test_tokens_come_as_often_as_softmax_says():
    for case in sweep(
        product([0.5, 1.0, 2.0], [(None, None), (3, None), (None, 0.8), (5, 0.7), (1, None), (None, 1e-6)])
    ):
        with case as (temperature, (top_k, top_p)):
            logits = torch.tensor([0.3, -1.0, 2.0, 1.1, -0.2, 0.9, -2.5, 1.6])
            choose = Sampling(temperature, top_k, top_p, seeded())
            (drawn,) = choose.stream(
                Markov(logits.repeat(8, 1)),
                torch.zeros(DRAWS, 1, dtype=torch.int64),
                GenerationLimits(max_new_tokens=1),
            )
            found, chances = (
                np.bincount(drawn, minlength=8),
                expected(logits.double().numpy(), temperature, top_k, top_p),
            )
            assert not found[chances == 0].any()
            kept = chances > 0
            square = ((found - DRAWS * chances)[kept] ** 2 / (DRAWS * chances[kept])).sum()
            # The chi-square of n − 1 degrees passes n − 1 + 5 · sqrt(2 n) about once in a million draws.
            assert square < kept.sum() - 1 + 5 * np.sqrt(2 * kept.sum())


def rows(vocabulary, sharpness):
    return sharpness * torch.randn(4, vocabulary, generator=seeded(vocabulary))


SCORES = {"few": rows(20, 2.0), "flat": rows(5000, 0.1), "sharp": rows(5000, 4.0), "tied": rows(3000, 2.0).round()}


def test_the_kept_tokens_are_those_of_transformers():
    for case in sweep(product(SCORES, [None, 1, 7, 1500, 9000], [None, 0.01, 0.5, 0.93, 1.0])):
        with case as (label, top_k, top_p):
            scores = SCORES[label]
            logits_process = pytest.importorskip("transformers.generation.logits_process")
            warped = scores
            if top_k is not None:
                warped = logits_process.TopKLogitsWarper(top_k)(None, warped)
            if top_p is not None and top_p < 1:
                warped = logits_process.TopPLogitsWarper(top_p)(None, warped)
            found, tokens = likeliest(scores, top_k, top_p)
            spread = torch.full_like(scores, -torch.inf).scatter(1, tokens, found)
            if scores is SCORES["tied"]:  # which of the tokens that are equally likely comes last is free
                spread, warped = spread.sort(1).values, warped.sort(1).values
                differing = (spread != warped).sum(1)
                assert (differing <= 2).all()
            else:
                assert torch.equal(spread, warped)


def test_all_tokens_as_likely_as_the_k_th_are_kept():
    found, tokens = likeliest(torch.tensor([[1.0, 3.0, 1.0, 1.0, 0.0]]), top_k=2)
    assert set(tokens[found > -torch.inf].tolist()) == {0, 1, 2, 3}


def test_a_seed_settles_the_tokens():
    def write(seed):
        text = Markov(torch.randn(30, 30, generator=seeded(7)))
        choose = Sampling(1.3, 12, 0.9, seeded(seed))
        return choose.search(text, torch.arange(6)[:, None], GenerationLimits(max_new_tokens=10, eos_token_id=(3, 4)))

    assert write(1) == write(1)
    assert write(1) != write(2)


def test_each_row_goes_on_from_its_own_token_when_others_have_ended():
    """Token 2n leads to 2n + 1 or 2n + 2 alone, so that any mixing of rows shows."""
    size = 40
    logits = torch.full((size, size), -torch.inf)
    for token in range(size):
        logits[token, (token + torch.tensor([1, 2])) % size] = 0.0
    prompt = torch.arange(0, size, 4)[:, None]
    texts = Sampling(generator=seeded()).search(
        Markov(logits), prompt, GenerationLimits(max_new_tokens=9, eos_token_id=(5, 11, 20, 33))
    )
    assert len({len(one.tokens) for one in texts}) > 3
    for first, one in zip(prompt[:, 0].tolist(), texts, strict=True):
        assert all((b - a) % size in (1, 2) for a, b in zip((first, *one.tokens), one.tokens, strict=False))
        assert one.score == pytest.approx(-np.log(2) * len(one.tokens), rel=1e-5)


def test_limits_hold_for_drawn_tokens():
    text, limits = (
        Markov(torch.zeros(6, 6)),
        GenerationLimits(
            max_new_tokens=8, eos_token_id=(5,), suppress_tokens=(0, 1), min_new_tokens=3, forced_eos_token_id=4
        ),
    )
    texts = [one.tokens for one in Sampling(2.0, generator=seeded()).search(text, torch.zeros(200, 1).long(), limits)]
    assert not {0, 1} & {token for one in texts for token in one}
    assert min(map(len, texts)) == 4, "a stop token may be the fourth"
    assert {one[-1] for one in texts if len(one) == 8} == {4}
    assert {one[-1] for one in texts if len(one) < 8} == {5}
