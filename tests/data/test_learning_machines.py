"""The sentences of examples/data: what is asked was never said, but all its parts were."""

import re
from collections import Counter

import pytest

from documents import ROOT
from regard.data import read_corpus

TRAINING = read_corpus(ROOT / "examples/data/learning-machines.tsv")
ASKED = read_corpus(ROOT / "examples/data/recombinations.tsv")


def bare(text):
    return "".join(filter(str.isalnum, text.casefold()))


def words(text):
    return re.findall(r"\w+", text.casefold())


def test_there_are_150_pairs_and_30_recombinations_without_a_bad_or_double_line():
    assert (str(TRAINING), str(ASKED)) == ("learning-machines.tsv: 150 lines", "recombinations.tsv: 30 lines")
    for corpus in (TRAINING, ASKED):
        assert len({bare(text) for text in corpus["source"]}) == len({*corpus["target"]}) == len(corpus)


@pytest.mark.parametrize("column", ["source", "target"])
def test_no_recombination_is_in_a_training_line(column):
    said = [bare(text) for text in TRAINING[column]]
    assert [text for text in ASKED[column] if any(bare(text) in line for line in said)] == []


def test_i_love_deep_learning_is_asked():
    assert ("I love deep learning.", "我爱深度学习。") in zip(ASKED["source"], ASKED["target"], strict=True)


def test_each_part_of_a_recombination_is_in_several_training_lines():
    said = Counter(word for text in TRAINING["source"] for word in set(words(text)))
    written = Counter(character for text in TRAINING["target"] for character in set(text))
    assert min(said[word] for text in ASKED["source"] for word in words(text)) >= 3
    assert min(written[character] for text in ASKED["target"] for character in text) >= 3
    pairs = {pair for text in TRAINING["source"] for pair in zip(words(text), words(text)[1:], strict=False)}
    new = [len(set(zip(words(text), words(text)[1:], strict=False)) - pairs) for text in ASKED["source"]]
    assert max(new) <= 2  # only where the frame meets the word


def test_chinese_is_simplified_and_of_full_width():
    opencc = pytest.importorskip("opencc", reason="pip install 'regard[train]'")
    convert = opencc.OpenCC("t2s").convert
    for text in (*TRAINING["target"], *ASKED["target"]):
        assert convert(text) == text
        assert text[-1] in "。？"
        assert not re.search(r"[ -~]", text)
