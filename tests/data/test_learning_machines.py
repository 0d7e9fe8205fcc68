"""The sentences of examples/data: what is asked was never said, but all its parts were."""

import importlib.util
import re
import subprocess
import sys
from collections import Counter

import pytest

from documents import ROOT
from regard.data import read_corpus
from regard.train.config import read_config

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


def test_the_configuration_names_these_sentences_and_what_regard_data_hsk_writes():
    config = read_config(ROOT / "examples/learning_machines.toml", [])
    assert (ROOT / config.task.extra_train_file).samefile(ROOT / "examples/data/learning-machines.tsv")
    assert config.task.train_file == "data/hsk.tsv"
    assert config.training.output_dir == "runs/learning-machines"


@pytest.fixture
def judge():
    """The script, as a module."""
    found = importlib.util.spec_from_file_location("judge", ROOT / "examples/data/judge.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_the_judge_shows_all_thirty_and_counts_those_that_are_right(judge, monkeypatch, capsys, tmp_path):
    pytest.importorskip("sacrebleu", reason="pip install 'regard[train]'")
    known = dict(zip(ASKED["source"], ASKED["target"], strict=True))

    class Forgetful:
        """Knows all but the last three."""

        def translate(self, texts):
            return [known[text] for text in texts[:-3]] + ["我不知道。"] * 3

    monkeypatch.setattr(judge.Translator, "load", lambda run: Forgetful())
    judge.main("anywhere")
    lines = capsys.readouterr().out.splitlines()
    assert [line[0] for line in lines[:30]] == ["="] * 27 + [" "] * 3
    assert lines[0] == "= I love deep learning. → 我爱深度学习。"
    assert lines[29] == "  The teacher is explaining attention. → 我不知道。   (老师正在讲注意力。)"
    assert lines[30].startswith("27 of 30 are as they were written; BLEU ")
    assert "tok:zh" in lines[31]
    more = tmp_path / "asked.tsv"
    more.write_text("Hello.\t你好。\nHello.\t您好。\nHi.\t嗨。\n", "utf-8")
    known |= {"Hello.": "您好。", "Hi.": "嗨。"}
    monkeypatch.setattr(judge, "ASKED", more)
    monkeypatch.setattr(Forgetful, "translate", lambda self, texts: [known[text] for text in texts])
    judge.main("anywhere")
    assert capsys.readouterr().out.splitlines()[2].startswith("2 of 2 are as they were written; ")


@pytest.mark.slow
def test_the_judge_says_in_one_sentence_that_there_is_no_run(tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / "examples/data/judge.py", tmp_path / "none"], capture_output=True, encoding="utf-8"
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("there is no folder ")
    assert len(done.stderr.splitlines()) == 1
