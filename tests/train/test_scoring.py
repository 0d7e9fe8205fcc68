"""BLEU and chrF as sacreBLEU counts them, in the language's own tokens."""

import pytest

from regard.errors import InputError
from regard.metrics import translation_scores
from sweeps import sweep

SAID = ["图书馆在哪里？", "我喜欢深度学习。"]
MEANT = [["图书馆在哪儿？"], ["我爱深度学习。"]]


def test_chinese_is_counted_in_characters():
    """With 13a a sentence without spaces is one word; the number is sacreBLEU's own for its zh tokenizer."""
    from sacrebleu import corpus_bleu

    ranks = [[one[0] for one in MEANT]]
    found = translation_scores(SAID, MEANT, "zh")
    assert found.bleu == pytest.approx(corpus_bleu(SAID, ranks, tokenize="zh").score)
    assert found.bleu > 40 > 1 > corpus_bleu(SAID, ranks, tokenize="13a").score
    assert "tok:zh" in found.bleu_signature
    assert "nc:6" in found.chrf_signature


def test_each_language_has_its_tokenizer():
    for case in sweep([("en", "13a"), ("ZH", "zh"), ("zh_Hant", "zh"), ("ja", "char"), ("ko", "char"), ("fr", "13a")]):
        with case as (language, name):
            assert f"tok:{name}|" in translation_scores(SAID, MEANT, language).bleu_signature


def test_any_reference_may_be_met():
    one = translation_scores(["我爱你。", "你好吗？"], [["我爱你。"], ["你怎么样？"]], "zh").bleu
    both = translation_scores(["我爱你。", "你好吗？"], [["我爱你。"], ["你怎么样？", "你好吗？"]], "zh").bleu
    assert both == pytest.approx(100)
    assert one < both


def test_a_translation_without_reference_is_refused():
    with pytest.raises(InputError, match="each of 2 translations needs a reference, got 1"):
        translation_scores(["a", "b"], [["a"], []], "en")
