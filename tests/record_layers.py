"""Records made by hand for tests of what is shown: dense weights of heads, on a sentence of twelve tokens."""

import numpy as np

from regard.record.records import Layer, Record
from regard.record.tokens import Token

__all__ = ["WORDS", "N", "heads", "layer", "record", "seen", "tokens"]

# row    0      1     2         3         4        5     6       7          8     9      10     11
WORDS = ["[CLS]", "The", "animal", "didn't", "cross", "the", "street", "because", "it", "was", "tired", "[SEP]"]
N = len(WORDS)


def tokens(words):
    inner = [Token(word, word=i, space=i > 0) for i, word in enumerate(words)]
    return tuple(Token(one.text, special=True) if one.text in ("[CLS]", "[SEP]") else one for one in inner)


def layer(weights, *, name="layer", exact=True, streams=("text", "text"), top=8):
    """The record of dense weights (heads, queries, keys); without `exact`, of their strongest keys and one bin."""
    weights = np.asarray(weights, np.float32)[None]
    keys = np.argsort(-weights, -1, kind="stable")[..., :top].astype(np.int32)
    best = np.take_along_axis(weights, keys, -1)
    mean = weights if exact else weights.mean((-1, -2), keepdims=True)
    return Layer(
        name=name,
        kind="self" if streams[0] == streams[1] else "cross",
        query_tokens=streams[0],
        key_tokens=streams[1],
        query_bin=1 if exact else weights.shape[2],
        key_bin=1 if exact else weights.shape[3],
        mean=mean,
        max=mean if exact else weights.max((-1, -2), keepdims=True),
        top_keys=np.where(best > 0, keys, -1),
        top_weights=best,
        entropy=np.zeros(weights.shape[:3], np.float32),
        received=weights.sum(2),
    )


def heads(count, n=N):
    """Weights of heads that look at nothing yet; a row without any was not seen, so each has one on itself."""
    return np.tile(np.eye(n) / 100, (count, 1, 1))


def record(*layers, words=WORDS, **streams):
    return Record(tuple(layers), streams or {"text": (tokens(words),)})


def seen(focus):
    words = [word.text for word in focus.keys]
    return focus.queries[focus.word].text, [(look.layer, look.head, words[look.target]) for look in focus.looks]
