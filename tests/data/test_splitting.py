"""Held-out sources are not in training, whatever their case, spaces and punctuation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from documents import ROOT
from regard import InputError
from regard.data import Corpus, read_corpus, references, split
from sweeps import sweep

TATOEBA = ROOT.parent / "shared" / "data" / "tatoeba-eng-cmn.tsv"
WORDS = (
    "hi",
    "Hi.",
    "HI!",
    " hi ",
    "it's me",
    "Its me",
    "run",
    "Run!",
    "…",
    "?",
    "you & me",
    "我。",
    "我",
    "Straße",
    "STRASSE",
)


def bare(text):
    """An oracle of its own: letters and digits, or the text where there are none."""
    return "".join(filter(str.isalnum, text.casefold())) or text.strip()


@given(st.lists(st.sampled_from(WORDS), min_size=2), st.integers(0, 9), st.data())
def test_no_held_out_source_occurs_in_training_and_all_others_do(sources, seed, data):
    different = {bare(source) for source in sources}
    if len(different) < 2:
        return
    held_out = data.draw(st.integers(1, len(different) - 1))
    corpus = Corpus({"source": sources, "target": [str(index) for index in range(len(sources))]})
    training, held = split(corpus, held_out, seed=seed)
    assert len(held) == held_out == len({bare(source) for source in held["source"]})
    apart = {bare(source) for source in held["source"]}
    assert training["target"] == tuple(
        t for s, t in zip(sources, corpus["target"], strict=True) if bare(s) not in apart
    )
    firsts = [next(i for i, s in enumerate(sources) if bare(s) == bare(source)) for source in held["source"]]
    assert held["target"] == tuple(map(str, firsts))
    assert firsts == sorted(firsts)
    found = references(corpus, held)
    assert [len(one) for one in found] == [sum(bare(s) == bare(h) for s in sources) for h in held["source"]]
    assert [one[0] for one in found] == list(held["target"])


def test_the_order_of_the_lines_does_not_decide_what_is_held_out():
    sources = [f"sentence {index}" for index in range(50)]
    corpus = Corpus({"source": sources})
    turned = Corpus({"source": sources[::-1]})
    assert set(split(corpus, 9)[1]["source"]) == set(split(turned, 9)[1]["source"])
    assert set(split(corpus, 9)[1]["source"]) != set(split(corpus, 9, seed=1)[1]["source"])


def test_what_is_held_out_is_the_same_in_each_process_and_on_each_machine():
    # By `printf "5\0sentence34" | sha256sum` in the shell, over all fifty: the three smallest.
    corpus = Corpus({"source": [f"sentence {index}" for index in range(50)]})
    assert split(corpus, 3, seed=5)[1]["source"] == ("sentence 24", "sentence 33", "sentence 34")


def test_held_out_is_a_whole_number_that_leaves_something_to_train_on():
    for case in sweep([0, 2, 3, True, 1.5, 1.0, "1", None]):
        with case as held_out:
            corpus = Corpus({"source": ("Hi.", "hi", "Run.")})
            said = f"`validation_size` must be a whole number of .* has 2 different texts in `source`, got {held_out!r}"
            with pytest.raises(InputError, match=said):
                split(corpus, held_out)


def test_sources_of_punctuation_alone_are_different_when_they_differ():
    corpus = Corpus({"source": ("…", "?", "? ", "hi")})
    for seed in range(9):
        training, held = split(corpus, 1, seed=seed)
        assert len(training) + len(held) == (3 if held["source"] == ("?",) else 4)


def test_translations_that_are_the_same_are_one_reference():
    corpus = Corpus({"source": ("Hi.", "Hi.", "hi", "x"), "target": ("嗨", "嗨", "你好", "y")})
    held = corpus.select([2])
    assert references(corpus, held) == [["你好", "嗨"]]


@pytest.mark.slow
def test_a_thousand_sources_of_tatoeba_are_in_no_training_line():
    if not TATOEBA.exists():
        pytest.skip("the Tatoeba sample (../shared/data) is not here")
    corpus = read_corpus(TATOEBA)
    training, held = split(corpus, 1000)
    assert len({bare(source) for source in held["source"]}) == 1000 == len(held)
    assert {bare(source) for source in training["source"]}.isdisjoint(bare(source) for source in held["source"])
    assert len(training) + sum(len(one) for one in references(corpus, held)) <= len(corpus)
