"""Languages by all their codes, in one place: script, tokenizer and BLEU's tokenizer."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from regard.data import find_language
from regard.errors import InputError
from sweeps import sweep

CHINESE = {
    "zh": None,
    "ZH": None,
    "cmn": None,  # Tatoeba
    "zho": None,  # ISO 639-3
    "chi": None,  # ISO 639-2
    "__zh__": None,  # M2M-100
    "zh-Hans": "hans",
    "zho_Hans": "hans",  # FLORES-200, NLLB
    "zh-CN": "hans",
    "zh_CN": "hans",  # mBART
    "zh_CN.UTF-8": "hans",
    "cmn-Hans-SG": "hans",
    "zh-Hant": "hant",
    "zho_Hant": "hant",
    "zh-TW": "hant",
    "zh-Hans-TW": "hans",
    "cmn_HK": "hant",
}


def test_chinese_is_chinese_by_each_of_its_codes() -> None:
    for case in sweep(CHINESE.items()):
        with case as (code, script):
            language = find_language(code)
            found = language.code, language.script, language.bleu_tokenizer, language.model_type, language.is_chinese
            assert found == ("zh", script, "zh", "char", True)


def test_codes_of_one_language_are_one_language() -> None:
    codes = {
        "de": "de deu ger DE de-AT de_DE deu_Latn de-1996 __de__",
        "fr": "fr fra fre fr_XX fr-CA",
        "nl": "nl nld dut nl_XX",
        "he": "he heb iw heb_Hebr",
        "fa": "fa fas per pes pes_Arab",
        "pt": "pt por pt-BR por_Latn",
        "es": "es spa es-419 es_XX",
        "yue": "yue zh-yue yue_Hant",
        "und": "und",
    }
    for case in sweep((main, code) for main, every in codes.items() for code in every.split()):
        with case as (main, code):
            assert find_language(code).code == main


def test_each_code_of_nllb_mbart_and_m2m_is_known() -> None:
    """The lists are those of transformers' tokenizers."""
    folder = Path(str(find_spec("transformers").origin)).parent / "models"  # type: ignore[union-attr]
    codes: set[str] = set()
    for name in ("nllb", "mbart", "m2m_100"):
        text = (folder / name / f"tokenization_{name}.py").read_text("utf-8")
        codes |= set(re.findall(r"""["']([a-z]{2,3}(?:_[A-Z][A-Za-z]{1,3})?)["'][,\]]""", text.split("class ")[0]))
    assert len(codes) > 300
    for case in sweep(sorted(codes)):
        with case as code:
            find_language(code)


def test_what_has_no_spaces_is_characters_for_the_tokenizer_and_for_bleu() -> None:
    unspaced = "ja jpn_Jpan ko th tha_Thai lo km khm_Khmr my mya_Mymr bo bod_Tibt dz"
    for case in sweep(unspaced.split()):
        with case as code:
            assert (find_language(code).bleu_tokenizer, find_language(code).model_type) == ("char", "char")
    for case in sweep("en de ru ar hi vi und ja-Latn zh-Latn nan_Latn".split()):
        with case as code:
            assert (find_language(code).bleu_tokenizer, find_language(code).model_type) == ("13a", "bpe")
    for case in sweep("yue wuu lzh nan".split()):
        with case as code:
            assert (find_language(code).bleu_tokenizer, find_language(code).model_type) == ("zh", "char")


def test_what_is_no_code_is_refused_with_the_nearest_one() -> None:
    nearest = {
        "German": '"de"',
        "Chinese": '"zh"',
        "Chinese (simplified)": '"zh"',
        "cn": '"zh"',
        "jp": '"ja"',
        "engl": '"en"',
        "en-zh": '"en"',
        "xq": '"und"',
        "": '"und"',
        "zh-": '"zh"',
    }
    for case in sweep(nearest.items()):
        with case as (code, near), pytest.raises(InputError, match=near):
            find_language(code)
