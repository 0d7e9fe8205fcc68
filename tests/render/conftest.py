"""Records made by hand: a seeded softmax with known heads, so that a picture of it has a known content."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

from regard.record.highlight import Focus, Look
from regard.record.minimal_pair import MinimalPair, choose_pair
from regard.record.records import Layer, Record
from regard.record.tokens import Token, words_of


class Case(NamedTuple):
    record: Record
    focus: Focus


ENGLISH = ["The", "animal", "didn't", "cross", "the", "street", "because", "it", "was", "too", "tired"]
CHINESE = ["貓", "追", "老鼠", "，", "因為", "它", "餓", "了"]


def tokens(words: list[str], *, space: bool = True, ends: bool = True) -> tuple[Token, ...]:
    inner = [Token(word, word=number, space=space and number > 0) for number, word in enumerate(words)]
    return (Token("[CLS]", special=True), *inner, Token("[SEP]", special=True)) if ends else tuple(inner)


def softmax(scores: np.ndarray) -> np.ndarray:
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    return scores / scores.sum(-1, keepdims=True)


def pooled(weights: np.ndarray, size: int, how: Callable) -> np.ndarray:
    *before, rows, columns = weights.shape  # multiples of the size
    return how(weights.reshape(*before, rows // size, size, columns // size, size), axis=(-1, -3))


def make_layer(weights: np.ndarray, name: str, *, size: int = 1, top: int = 8, streams=("text", "text")) -> Layer:
    """The statistics of dense weights (heads, queries, keys), computed the slow way."""
    weights = weights[None].astype(np.float32)
    keys = np.argsort(-weights, axis=-1, kind="stable")[..., :top]
    logs = np.log(np.where(weights > 0, weights, 1))
    return Layer(
        name=name,
        kind="self" if streams[0] == streams[1] else "cross",
        query_tokens=streams[0],
        key_tokens=streams[1],
        query_bin=size,
        key_bin=size,
        mean=weights if size == 1 else pooled(weights, size, np.mean),
        max=weights if size == 1 else pooled(weights, size, np.max),
        top_keys=keys.astype(np.int32),
        top_weights=np.take_along_axis(weights, keys, -1),
        entropy=-(weights * logs).sum(-1),
        received=weights.sum(-2),
    )


def head_weights(queries: int, keys: int, habit: str, generator: np.random.Generator) -> np.ndarray:
    scores = generator.normal(0, 1.0, (queries, keys))
    rows = np.arange(queries)
    if habit in ("previous", "next", "self"):
        step = {"previous": -1, "next": 1, "self": 0}[habit]
        scores[rows, np.clip(rows + step, 0, keys - 1)] += 3 + np.log(keys)
    if habit == "special_tokens":
        scores[:, keys - 1] += 4 + np.log(keys)
    if habit == "spread":
        scores *= 0.1
    return softmax(scores)


HABITS = ("previous", "next", "self", "special_tokens", "other", "spread")


def make_record(
    streams: dict[str, tuple[Token, ...]], looks: dict[tuple[int, int], tuple[int, int]], **shape
) -> Record:
    """Layers of heads with the habits in turn; `looks` (layer, head) → (query, key) get a strong weight there."""
    layers, heads, size = shape["layers"], shape["heads"], shape.get("size", 1)
    names = tuple(streams)
    source, target = (names[0], names[-1]) if len(names) > 1 else (names[0], names[0])
    generator = np.random.default_rng(shape.get("seed", 0))
    built = []
    for layer in range(layers):
        weights = np.stack(
            [
                head_weights(len(streams[target]), len(streams[source]), HABITS[(layer + head) % 6], generator)
                for head in range(heads)
            ]
        )
        for (at, head), (query, key) in looks.items():
            if at == layer:
                row = generator.uniform(0, 1, len(streams[source])) ** 4
                row[key] = 0
                row *= 0.4 / row.sum()
                row[key] = 0.6
                weights[head, query] = row
        built.append(make_layer(weights, f"layer.{layer}", size=size, streams=(target, source)))
    return Record(tuple(built), {name: (stream,) for name, stream in streams.items()}, model="made by hand")


def make_focus(record: Record, word: str, heads: list[tuple[int, int, str]]) -> Focus:
    seen = record.layers[heads[0][0]]
    queries, keys = record.words(seen.query_tokens), record.words(seen.key_tokens)
    at = [one.text for one in queries].index(word)
    looks = []
    for layer, head, target in heads:
        to = [one.text for one in keys].index(target)
        looks.append(Look(layer, head, to, float(record.word_weight(layer, queries[at], keys[to])[head])))
    return Focus(queries, keys, at, tuple(looks))


@pytest.fixture(scope="session")
def english() -> Case:
    record = make_record({"text": tokens(ENGLISH)}, {(5, 11): (8, 2), (5, 3): (8, 6)}, layers=6, heads=12)
    return Case(record, make_focus(record, "it", [(5, 11, "animal"), (5, 3, "street")]))


@pytest.fixture(scope="session")
def measured(english) -> Case:
    """A record whose last layer has a statistic for each row, one for each key shared by all heads, and one of both."""
    layer, generator = english.record.layers[5], np.random.default_rng(3)
    largest = generator.random((layer.batch, layer.heads, layer.queries))
    statistics = {"largest": largest, "shared": np.full((layer.batch, 1, layer.keys), 0.125)}
    statistics["pairs"] = np.ones((layer.batch, layer.heads, layer.queries, 2))
    record = dataclasses.replace(
        english.record, layers=(*english.record.layers[:5], dataclasses.replace(layer, statistics=statistics))
    )
    return Case(record, english.focus)


@pytest.fixture(scope="session")
def chinese() -> Case:
    record = make_record({"text": tokens(CHINESE, space=False)}, {(5, 2): (6, 1), (4, 7): (6, 3)}, layers=6, heads=12)
    return Case(record, make_focus(record, "它", [(5, 2, "貓"), (4, 7, "老鼠")]))


@pytest.fixture(scope="session")
def cross() -> Case:
    streams = {
        "source": tokens(["Das", "Tier", "ist", "müde", "."]),
        "target": tokens(["the", "animal", "is", "tired", "."]),
    }
    record = make_record(streams, {(1, 0): (2, 2), (1, 3): (2, 4)}, layers=3, heads=4)
    return Case(record, make_focus(record, "animal", [(1, 0, "Tier"), (1, 3, "müde")]))


HOSTILE = (
    "<script>alert(1)</script>",
    "-->",
    "[red]x",
    "\x1b[31mred\x07",
    "a\u202eb",
    "$x^2$",
    "\u2028",
    "&amp;",
    "]]>",
)


@pytest.fixture(scope="session")
def hostile() -> Case:
    record = make_record({"text": tokens(list(HOSTILE))}, {(0, 0): (3, 1), (0, 1): (3, 6)}, layers=2, heads=3)
    return Case(record, make_focus(record, "[red]x", [(0, 0, HOSTILE[0]), (0, 1, "$x^2$")]))


@pytest.fixture(scope="session")
def pieces() -> Case:
    """Words in pieces, so that words and tokens differ."""
    stream = (
        Token("[CLS]", special=True),
        Token("un", word=0),
        Token("believ", word=0),
        Token("able", word=0),
        Token("token", word=1, space=True),
        Token("izer", word=1),
        Token("[SEP]", special=True),
    )
    record = make_record({"text": stream}, {(0, 0): (5, 2)}, layers=1, heads=2, seed=4)
    return Case(record, make_focus(record, "tokenizer", [(0, 0, "unbelievable")]))


def long_case(count: int, layers: int, heads: int, size: int) -> Case:
    words = [f"{ENGLISH[number % 11]}{number}" for number in range(count - 2)]
    words[100], words[20], words[300] = "it", "animal", "street"
    looks = {(layers - 1, 1): (101, 21), (layers - 1, 2): (101, 301)}
    record = make_record({"text": tokens(words)}, looks, layers=layers, heads=heads, size=size)
    return Case(record, make_focus(record, "it", [(layers - 1, 1, "animal"), (layers - 1, 2, "street")]))


@pytest.fixture(scope="session")
def long_text() -> Case:
    """512 tokens, 6 layers × 12 heads, pooled by 4: what a MiniLM run leaves."""
    return long_case(512, 6, 12, 4)


@pytest.fixture(scope="session")
def very_long() -> Case:
    """4096 tokens, 30 layers × 9 heads, pooled by 16, without ever holding the dense weights."""
    generator = np.random.default_rng(1)
    count, layers, heads, size = 4096, 30, 9, 16
    bins = count // size
    built = []
    for number in range(layers):
        share = np.sort(generator.dirichlet(np.full(9, 0.4), (1, heads, count)), axis=-1)[..., ::-1][..., :8]
        keys = generator.integers(0, count, (1, heads, count, 8)) * generator.integers(0, 2, (1, heads, count, 8))
        peaks = np.zeros((1, heads, bins, bins), np.float32)
        at = np.arange(count)[None, None, :, None] // size
        where = np.broadcast_arrays(0, np.arange(heads)[None, :, None, None], at, keys // size)
        np.maximum.at(peaks, tuple(where), share.astype(np.float32))
        ones = np.ones((1, heads, count), np.float32)
        ends = ("self", "text", "text", size, size)
        strongest = keys.astype(np.int32), share.astype(np.float32)
        built.append(Layer(f"layer.{number}", *ends, peaks / size, peaks, *strongest, ones, ones))
    stream = tokens([f"{ENGLISH[number % 11]}" for number in range(count - 2)])
    record = Record(tuple(built), {"text": (stream,)}, model="made by hand")
    words = words_of(stream)
    return Case(record, Focus(words, words, 2000, (Look(29, 0, 5, 0.3), Look(29, 1, 3000, 0.2))))


@pytest.fixture(scope="session")
def nameless() -> Case:
    """A record whose tokens are not known: everything goes by position."""
    record = make_record({"text": tokens(ENGLISH)}, {(1, 0): (8, 2)}, layers=2, heads=3)
    bare = Record(record.layers)
    words = words_of(tuple(Token(str(number)) for number in range(13)))
    return Case(bare, Focus(words, words, 8, (Look(1, 0, 2, 0.6),)))


# --- one head over two texts

PAIR_ENGLISH = "The animal didn't cross the street because it was too tired".split()
PAIR_CHINESE = "貓 追 老鼠 ， 因為它 餓 了".split()


def pair_record(words, looks, *, space=True):
    """One layer of two heads that give 0.01 everywhere, and what is asked for: (head, row, key)."""
    weights = np.full((2, len(words) + 2, len(words) + 2), 0.01)
    for at, weight in looks.items():
        weights[at] = weight
    return Record((make_layer(weights, "layer.0"),), {"text": (tokens(words, space=space),)}, model="made by hand")


@pytest.fixture
def english_pair() -> MinimalPair:
    before = {(0, 8, 2): 0.6, (0, 8, 6): 0.1, (1, 8, 2): 0.3, (1, 8, 6): 0.2}
    after = {(0, 8, 2): 0.5, (0, 8, 6): 0.2, (1, 8, 2): 0.2, (1, 8, 6): 0.3}
    return choose_pair(pair_record(PAIR_ENGLISH, before), pair_record([*PAIR_ENGLISH[:-1], "wide"], after))


@pytest.fixture
def chinese_pair() -> MinimalPair:
    looks = {(0, 5, 1): 0.6, (0, 5, 3): 0.3}
    return choose_pair(
        pair_record(PAIR_CHINESE, looks, space=False), pair_record([*PAIR_CHINESE[:5], "跑", "了"], looks, space=False)
    )
