"""The public names of the modules, pinned; each says what it is and shows it by an example."""

import inspect

import pytest

from regard import approximations, nn
from regard.nn import tutorials

LESSONS = (tutorials.single_head, tutorials.multi_head, tutorials.encoder, tutorials.cross_attention)
MODULES = (nn, approximations, tutorials, *LESSONS)


def test_the_public_names_are_these():
    assert nn.__all__ == [
        "AdditiveAttention",
        "AttentionDecoderCell",
        "AttentionPooling",
        "AxialAttention",
        "BigBirdAttention",
        "BilinearAttention",
        "Decoder",
        "DecoderBlock",
        "DecoderState",
        "Elman",
        "ElmanCell",
        "Encoder",
        "EncoderBlock",
        "EncoderDecoder",
        "FeedForward",
        "LearnedPositions",
        "LoadedKeys",
        "LocalAttention",
        "LongformerAttention",
        "MultiHeadAttention",
        "NeighborhoodAttention",
        "PositionalEncoding",
        "SlidingWindowAttention",
        "Summary",
        "ValueModule",
        "load_attention_state_dict",
        "summary",
        "tutorials",
    ]
    assert approximations.__all__ == [
        "Approximate",
        "Compression",
        "LinformerAttention",
        "NystromformerAttention",
        "PerformerAttention",
        "nystromformer_attention",
        "performer_attention",
        "positive_features",
        "random_features",
    ]
    assert tutorials.__all__ == [
        "DotProductAttention",
        "EncoderLayer",
        "FeedForward",
        "PositionalEncoding",
        "TransformerEncoder",
        "cross_attention",
        "encoder",
        "multi_head",
        "scaled_dot_product_attention",
        "single_head",
        "visualize_attention",
    ]
    assert {lesson.__name__.rpartition(".")[2]: lesson.__all__ for lesson in LESSONS} == {
        "single_head": ["DotProductAttention"],
        "multi_head": ["MultiHeadAttention"],
        "encoder": [
            "EncoderLayer",
            "FeedForward",
            "MultiHeadAttention",
            "PositionalEncoding",
            "TransformerEncoder",
            "scaled_dot_product_attention",
            "visualize_attention",
        ],
        "cross_attention": ["MultiHeadAttention"],
    }


@pytest.mark.parametrize("module", MODULES, ids=lambda one: one.__name__)
def test_every_public_name_exists_and_says_what_it_is(module):
    for name in module.__all__:
        assert inspect.getdoc(getattr(module, name)), name


# What is returned, and modules, say what they are without one.
WITHOUT = {
    "DecoderState",
    "LoadedKeys",
    "Summary",
    "tutorials",
    "cross_attention",
    "encoder",
    "multi_head",
    "single_head",
}


@pytest.mark.parametrize("module", MODULES, ids=lambda one: one.__name__)
def test_every_public_name_shows_itself_by_an_example(module):
    for name in sorted(set(module.__all__) - WITHOUT):
        assert ">>>" in inspect.getdoc(getattr(module, name)), name
