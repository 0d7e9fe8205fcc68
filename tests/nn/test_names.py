"""The public names of the modules, pinned; each says what it is and shows it by an example."""

import inspect

import pytest

from regard import approximations, nn
from regard.nn import tutorials


def test_the_public_names_are_these():
    assert nn.__all__ == [
        "AdditiveAttention",
        "AttentionDecoderCell",
        "AxialAttention",
        "BigBirdAttention",
        "BilinearAttention",
        "DecoderBlock",
        "DecoderState",
        "Elman",
        "ElmanCell",
        "EncoderBlock",
        "FeedForward",
        "Held",
        "LearnedPositions",
        "LocalAttention",
        "LongformerAttention",
        "MultiHeadAttention",
        "NeighborhoodAttention",
        "PositionalEncoding",
        "SlidingWindowAttention",
        "SoftAttention",
        "Summary",
        "summary",
        "tutorials",
    ]
    assert approximations.__all__ == [
        "Approximate",
        "Compression",
        "LinformerAttention",
        "PerformerAttention",
        "performer_attention",
        "positive_features",
        "random_features",
    ]
    assert tutorials.__all__ == [
        "DotProductAttention",
        "EncoderLayer",
        "FeedForward",
        "MultiHeadAttention",
        "PositionalEncoding",
        "TransformerEncoder",
    ]


@pytest.mark.parametrize("module", [nn, approximations, tutorials], ids=lambda one: one.__name__)
def test_every_public_name_exists_and_says_what_it_is(module):
    for name in module.__all__:
        assert inspect.getdoc(getattr(module, name)), name


# What is returned, and a module, say what they are without one; these two name the module that has it.
WITHOUT = {"DecoderState", "Summary", "tutorials", "PositionalEncoding", "FeedForward"}


@pytest.mark.parametrize("module", [nn, approximations, tutorials], ids=lambda one: one.__name__)
def test_every_public_name_shows_itself_by_an_example(module):
    thin = WITHOUT if module is tutorials else WITHOUT - {"PositionalEncoding", "FeedForward"}
    for name in sorted(set(module.__all__) - thin):
        assert ">>>" in inspect.getdoc(getattr(module, name)), name
