"""Claim 16: the small world's sentences by their grammar, looks by hand-made weights, verdicts by other numbers."""

import re

import numpy as np
import pytest

from regard.record.tokens import Word
from regard.render.word_alignment import Alignment
from regard_lab import aligned_words, cat_and_mat
from regard_lab.aligned_words import Reading, WordLook, looks_of
from regard_lab.cat_and_mat import ASKED, LEXICON, content_words, pairs
from regard_lab.claims import alignment
from regard_lab.experiment import Setting

SOURCE = ("The", "cat", "sat", "on", "the", "mat", ".", "</s>")


def aligned(said, rows, source=SOURCE):
    """Each character's weight on the words of the source that `rows` names, and a row behind the end."""
    weights = np.full((len(said) + 1, len(source)), 0.01)
    for row, places in enumerate(rows):
        for place, weight in places.items():
            weights[row, place] = weight
    target = (*(Word(sign, (at,)) for at, sign in enumerate(said)), Word("?", (len(said),), special=True))
    words = tuple(Word(text, (at,), special=text == "</s>") for at, text in enumerate(source))
    return Alignment(target, words, weights, ((0, 0),), "written")


def test_pairs_are_different_and_say_each_word():
    found = pairs(600, seed=0)
    assert len({english for english, _ in found}) == 600
    assert pairs(600, seed=0) == found != pairs(600, seed=1)
    for english, chinese in found:
        words = content_words(english)
        assert len(words) == len(set(words)) >= 3
        assert all(LEXICON[word][0] in chinese for word in words)
    assert {word for english, _ in found for word in content_words(english)} == set(LEXICON)


def test_no_cat_sits_on_a_mat_in_training():
    every = [set(content_words(english)) for english, _ in pairs(8000, seed=2)]
    assert sum({"cat", "sat"} <= one for one in every) > 20
    assert not any({"cat", "sat", "mat"} <= one for one in every)


def test_chinese_has_its_own_order():
    staying = {LEXICON[one][0] for one in ("sat", "stood", "lay", "slept", "waited")}
    seen = set()
    for english, chinese in pairs(600, seed=0):
        if match := re.search(r" (yesterday|today)\.$", english):
            assert chinese.startswith(LEXICON[match[1]][0])
            seen.add("day")
        if match := re.search(r" (sang|ate|danced) (?:on|under|in|beside) the \w+", english):
            assert chinese.endswith(LEXICON[match[1]][0] + "。")
            seen.add("doing")
        if match := re.search(r" (sat|stood|slept) ", english):
            assert any(f"{one}在" in chinese for one in staying)
            seen.add("staying")
        if match := re.search(r"^The (?:\w+ )?(\w+) in the (\w+) (?:saw|chased) the ", english):
            who, where = (LEXICON[match[at]][0] for at in (1, 2))
            assert chinese.index(f"{where}里的") < chinese.index(who)
            seen.add("where")
    assert seen == {"day", "doing", "staying", "where"}


def test_a_word_looks_where_its_characters_look_together():
    rows = [{1: 0.6, 2: 0.2}, {1: 0.5, 2: 0.3}, {3: 0.9}, {2: 0.5, 5: 0.4}, {5: 0.9}, {3: 0.9}, {7: 0.9}]
    cat, sat, mat = looks_of(aligned("猫坐在垫子上。", rows), ASKED[0])
    assert cat == WordLook("cat", "猫", "cat", 0.6, (0,))
    assert sat == WordLook("sat", "坐", "cat", 0.3, (1,))
    assert (mat.chinese, mat.most, mat.rows) == ("垫子", "mat", (3, 4))
    assert mat.weight == pytest.approx(0.65)
    assert [one.right for one in (cat, sat, mat)] == [True, False, True]


def test_words_that_are_not_said_are_left_out_and_other_words_for_them_are_found():
    (cat, mat) = looks_of(aligned("猫在地毯上。", [{7: 0.9}] + [{5: 0.9}] * 5), ASKED[0])
    assert (cat.english, cat.most, mat.chinese, mat.most) == ("cat", "</s>", "地毯", "mat")


def test_a_character_of_a_longer_word_is_not_taken_for_a_word():
    source = ("The", "small", "teacher", "saw", "the", "mouse", ".")
    looks = looks_of(
        aligned("小老师看见了老鼠。", [{1: 1.0}] + [{2: 1.0}] * 8, source), "The small teacher saw the mouse."
    )
    assert {one.english: one.chinese for one in looks} == {
        "small": "小", "teacher": "老师", "saw": "看见", "mouse": "老鼠",
    }  # fmt: skip


def test_traditional_characters_are_found_where_a_translator_writes_them():
    pytest.importorskip("opencc", reason="pip install 'regard[train]'")
    found = aligned("貓坐在墊子上。", [{1: 1.0}] + [{2: 1.0}] * 6)
    assert [one.chinese for one in looks_of(found, ASKED[0], traditional=True)] == ["貓", "坐", "墊子"]
    assert [one.chinese for one in looks_of(found, ASKED[0])] == ["坐"]


def test_order_and_share_by_hand():
    source = ("The", "bird", "sang", "in", "the", "garden", "today", ".")
    said = "今天鸟在花园里唱歌。"
    found = aligned(
        said, [{6: 1.0}, {6: 1.0}, {1: 1.0}, {3: 1.0}, {5: 1.0}, {5: 1.0}, {3: 1.0}, {1: 1.0}, {2: 0.9}], source
    )
    looks = looks_of(found, "The bird sang in the garden today.")
    reading = Reading("The bird sang in the garden today.", said, {0: found}, {0: looks})
    assert [one.right for one in looks] == [True, False, True, True]  # 唱 looks at bird more than 歌 at sang
    assert reading.in_order == [False, False, True, False]  # today bird garden sang
    assert aligned_words.share([reading, reading], 0) == 0.75


def numbers(**changed):
    looks = {"cat": {"says": "猫", "most": "cat", "weight": 0.75}, "sat": {"says": "坐", "most": "sat", "weight": 0.5}}
    one = {"share": 0.9, "content words": 200, "where its words look": looks, "says": "猫坐在垫子上。"}
    return {"translators": {"a": one | changed}}


def test_alignment_is_judged_by_the_share_and_the_two_words():
    def judged(**changed):
        return [str(part.verdict) for part in alignment.judge(numbers(**changed))]

    assert judged() == ["holds"] * 3
    assert judged(share=0.79) == ["does not hold", "holds", "holds"]
    away = {"cat": {"says": "猫", "most": "</s>", "weight": 0.3}}
    assert judged(**{"where its words look": away}) == ["holds", "does not hold", "does not hold"]
    parts = alignment.judge(numbers(**{"where its words look": away}))
    assert parts[2].text == "a: it says “猫坐在垫子上。”, in which there is no 坐"


@pytest.mark.slow
def test_a_translator_trained_for_a_moment_is_asked_and_so_is_one_in_a_folder(monkeypatch, tmp_path):
    pytest.importorskip("accelerate", reason="pip install 'regard[train]'")
    monkeypatch.setattr(alignment, "PAIRS", 300)
    monkeypatch.setattr(alignment, "EPOCHS", 2)
    monkeypatch.setattr(alignment, "SENTENCES", 5)
    kept = alignment._trained(0, ())
    kept.model.save_pretrained(tmp_path)
    kept.save(tmp_path)
    found = alignment.run(Setting(quick=True, threads=1), tmp_path)
    mine, other = found.numbers["translators"].values()
    assert set(mine["share by layer"]) == {"0", "1"}
    assert mine["content words"] + mine["content words that the translations lack"] == sum(
        len(content_words(english)) for english, _ in pairs(10, 10_000)[5:]
    )
    assert other["says"] == kept.translate([ASKED[0]], num_beams=1)[0]
    assert len(found.charts) == 4
    assert len(found.parts) == 6


def test_the_named_sentence_is_of_the_small_world():
    assert [LEXICON[word][0] for word in content_words(ASKED[0])] == ["猫", "坐", "垫子"]
    assert "".join(LEXICON["cat"][0] + LEXICON["sat"][0]) + "在" + LEXICON["mat"][0] + "上。" == ASKED[1]
    assert len(cat_and_mat.LEXICON) > 45
