"""Records that the tests of the server and of its page share."""

import pytest

from regard.record.records import Record
from regard.record.tokens import Token
from web.cases import HOSTILE, SINK, Case, attention, layer_of, words


@pytest.fixture(scope="session")
def small() -> Case:
    """300 tokens, every weight at hand; layer 0 rests on token 37, layer 1 on none."""
    dense = [
        attention(3, 300, 300, causal=True, sinks=(SINK,), seed=1),
        attention(3, 300, 300, causal=False, seed=2),
    ]
    layers = tuple(layer_of(one, name=f"layers.{at}") for at, one in enumerate(dense))
    return Case(Record(layers, {"text": (words(300),)}, "handmade"), dense)


@pytest.fixture(scope="session")
def pooled_record() -> Case:
    """1,000 tokens, kept as a map with cells of 4; two sinks."""
    dense = [attention(2, 1000, 1000, causal=True, sinks=(SINK, 90), seed=3)]
    layers = (layer_of(dense[0], step=4),)
    return Case(Record(layers, {"text": (words(1000),)}, "pooled"), dense)


@pytest.fixture(scope="session")
def crossing() -> Case:
    """Cross-attention of 5 words to 9."""
    dense = [attention(2, 5, 9, causal=False, seed=4)]
    layers = (layer_of(dense[0], kind="cross", streams=("target", "source")),)
    tokens = {"target": (words(5, "wort"),), "source": (words(9, "word"),)}
    return Case(Record(layers, tokens, "translator"), dense)


@pytest.fixture(scope="session")
def hostile() -> Case:
    """Tokens that would do harm if a page took them for HTML."""
    dense = [attention(1, len(HOSTILE), len(HOSTILE), causal=False, seed=5)]
    tokens = tuple(Token(text, space=True) for text in HOSTILE)
    return Case(Record((layer_of(dense[0]),), {"text": (tokens,)}, "<i>model</i>"), dense)
