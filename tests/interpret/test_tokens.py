"""Tokens as people read them, from small tokenizers made here and from the three bundled ones."""

import itertools
from typing import Any

import pytest

from regard.errors import InputError
from regard.record.tokens import Token, words_of
from regard.record.tokens_from_tokenizer import tokens_of, unknown_share
from sweeps import sweep
from tiers import slow_but

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

CHINESE = "貓追老鼠，因為它餓了"
TEXTS = [
    "The cat didn't chase the mouse, unbelievably.",
    CHINESE,
    "猫追老鼠，因为它饿了。",
    "👨‍👩‍👧 hi 😀❤️👍🏽",
    "def foo_bar(x):\n\treturn  x**2",
    "a\tb  c",
    " lead and trail ",
    "<script>alert('x')</script>",
    "[CLS] </s> [UNK] <|im_end|> x",
    "naïve Café 안녕하세요 日本語カタカナ สวัสดี हिन्दी",
    "a\x1b[31mred\x07\x00",
    "½ ㎏ ﬁsh ～ ｆｕｌｌ x²",
    "‮right to left‬ \u2028 \u00a0 \ue000",
    "",
    "   ",
]


def wordpiece() -> Any:
    """A BERT tokenizer that knows a few words."""
    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "quick",
        "##ly",
        "didn",
        "'",
        "t",
        "s",
        "the",
        "cat",
        "(",
        ")",
        ".",
        "n",
    ]
    pieces += ["rock", "_", "foo", "貓", "追", "，", "カ", "##タ"]
    model = tokenizers.models.WordPiece({piece: index for index, piece in enumerate(pieces)}, unk_token="[UNK]")
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    backend.decoder = tokenizers.decoders.WordPiece()
    backend.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]"
    )


def byte_level() -> Any:
    """A GPT-2 tokenizer of bytes, with two merges that end within a character."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ġ", "è"), ("Ġ", "c"), ("Ġc", "a"), ("Ġca", "t"), ("ĵ", "è")]
    pieces = [*alphabet, *("".join(pair) for pair in merges), "<|endoftext|>"]
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({piece: n for n, piece in enumerate(pieces)}, merges))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    end = "<|endoftext|>"
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, unk_token=end, eos_token=end)


def byte_fallback() -> Any:
    """A Llama-2 tokenizer: SentencePiece pieces, and <0x..> for the bytes of what it does not know."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a"]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    model = tokenizers.models.BPE(vocabulary, [("▁", "a")], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.Prepend("▁"), tokenizers.normalizers.Replace(" ", "▁")]
    )
    fallback, fuse = tokenizers.decoders.ByteFallback(), tokenizers.decoders.Fuse()
    backend.decoder = tokenizers.decoders.Sequence([tokenizers.decoders.Replace("▁", " "), fallback, fuse])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


def seen(tokenizer: Any, text: str, *, known: bool = True) -> tuple[Token, ...]:
    return tokens_of(tokenizer, tokenizer(text)["input_ids"], text if known else None)


def shown(tokens: tuple[Token, ...]) -> list[str]:
    return [token.text for token in tokens]


def spelled(tokens: tuple[Token, ...]) -> list[str]:
    return [word.text for word in words_of(tokens)]


def test_wordpieces_show_the_text_as_it_stands_there() -> None:
    tokens = seen(wordpiece(), "The CAT quickly.")
    assert shown(tokens) == ["[CLS]", "The", "CAT", "quick", "ly", ".", "[SEP]"]
    assert [token.special for token in tokens] == [True, *[False] * 5, True]
    assert [token.word for token in tokens] == [None, 0, 1, 2, 2, 3, None]
    assert [token.space for token in tokens] == [False, False, True, True, False, False, False]


def test_an_unknown_token_shows_the_text_it_covers() -> None:
    tokens = seen(wordpiece(), "the Zebra.")
    assert tokens[2] == Token("Zebra", word=1, space=True)
    assert seen(wordpiece(), "the Zebra.", known=False)[2] == Token("[UNK]", word=1, space=True)


def test_an_apostrophe_between_letters_joins_and_another_does_not() -> None:
    tokenizer = wordpiece()
    assert spelled(seen(tokenizer, "didn't")) == ["[CLS]", "didn't", "[SEP]"]
    assert spelled(seen(tokenizer, "didn't", known=False)) == ["[CLS]", "didn't", "[SEP]"]
    assert spelled(seen(tokenizer, "'the' n' rock")) == ["[CLS]", "'", "the", "'", "n", "'", "rock", "[SEP]"]
    assert spelled(seen(tokenizer, "rock 'n' rock", known=False)) == ["[CLS]", "rock", "'", "n", "'", "rock", "[SEP]"]


def test_punctuation_and_underscores_stand_alone() -> None:
    assert spelled(seen(wordpiece(), "foo_cat(s).")) == ["[CLS]", "foo", "_", "cat", "(", "s", ")", ".", "[SEP]"]
    tokens = seen(wordpiece(), "foo (cat).", known=False)
    assert [token.space for token in tokens[1:-1]] == [False, True, False, False, False]


@pytest.mark.parametrize("known", [True, False])
def test_chinese_and_japanese_pieces_are_words_of_their_own(known: bool) -> None:
    tokens = seen(wordpiece(), "貓追，貓カタ貓cat", known=known)
    assert spelled(tokens)[1:-1] == ["貓", "追", "，", "貓", "カ", "タ", "貓", "cat"]
    assert not any(token.space for token in tokens[1:-2])


def test_padding_is_special() -> None:
    tokenizer = wordpiece()
    ids = tokenizer("the cat")["input_ids"]
    assert shown(tokens_of(tokenizer, [*ids, 0, 0], "the cat")) == ["[CLS]", "the", "cat", "[SEP]", "[PAD]", "[PAD]"]
    left = tokens_of(tokenizer, [0, 0, *ids], "the cat")
    assert [token.special for token in left] == [True, True, True, False, False, True]


def test_a_typed_special_token_is_special_as_it_is_for_the_model() -> None:
    tokens = seen(wordpiece(), "[CLS] cat[SEP]cat")
    assert [token.special for token in tokens] == [True, True, False, True, False, True]
    assert [token.space for token in tokens] == [False, False, True, False, False, False]


def test_a_truncated_text_is_still_the_text() -> None:
    tokenizer = wordpiece()
    ids = tokenizer("The cat quickly", truncation=True, max_length=4)["input_ids"]
    assert shown(tokens_of(tokenizer, ids, "The cat quickly")) == ["[CLS]", "The", "cat", "[SEP]"]


def test_another_text_is_refused() -> None:
    for case in sweep(["the rock", "cat", "the cat the", ""]):
        with case as text:
            tokenizer = wordpiece()
            ids = tokenizer("the cat quickly")["input_ids"]
            with pytest.raises(
                InputError, match=r"`text` must be the text that the 6 ids were made from, got .*text=None"
            ):
                tokens_of(tokenizer, ids, text)


def test_bytes_of_a_character_show_it_with_a_number_and_are_one_word() -> None:
    tokens = seen(byte_level(), "cat 貓")
    assert shown(tokens) == ["c", "a", "t", "貓¹", "貓²", "貓³"]
    assert [token.word for token in tokens] == [0, 0, 0, 1, 1, 1]
    assert [token.space for token in tokens] == [False, False, False, True, False, False]
    assert spelled(tokens) == ["cat", "貓"]


def test_characters_that_share_a_piece_are_one_word() -> None:
    tokens = seen(byte_level(), "貓貓")
    assert shown(tokens) == ["貓¹", "貓²", "貓貓³", "貓⁴", "貓⁵"]
    assert {token.word for token in tokens} == {0}


def test_bytes_that_are_no_character_are_shown_as_such() -> None:
    tokenizer = byte_level()
    ids = tokenizer("貓")["input_ids"][:2]
    assert shown(tokens_of(tokenizer, ids)) == ["�", "�"]


def test_white_space_of_its_own_is_shown_by_its_picture() -> None:
    tokens = seen(byte_level(), "a\tb\n  cat")
    assert shown(tokens) == ["a", "⇥", "b", "↵", "␣", "cat"]
    assert [token.space for token in tokens] == [False, False, True, False, True, True]
    assert len({token.word for token in tokens}) == 6


def test_bytes_of_sentencepiece_spell_their_character_with_and_without_the_text() -> None:
    tokenizer = byte_fallback()
    for known in (True, False):
        tokens = seen(tokenizer, "a 貓b", known=known)
        assert shown(tokens) == ["a", "␣", "貓¹", "貓²", "貓³", "b"]
        assert [token.word for token in tokens] == [0, 1, 2, 2, 2, 3]
        assert [token.space for token in tokens] == [False, False, True, False, False, False]


def test_a_byte_level_vocabulary_knows_everything() -> None:
    tokenizer = byte_level()
    assert unknown_share(tokenizer, CHINESE) == 0.0
    # Its end-of-text token is named as the unknown one too, as in GPT-2, and stays what it is.
    assert seen(tokenizer, "a<|endoftext|>")[1] == Token("<|endoftext|>", special=True)


def test_the_share_of_unknown_pieces_is_counted_over_the_text() -> None:
    assert unknown_share(wordpiece(), "the zebra zebra zebra") == 0.75
    assert unknown_share(wordpiece(), "") == 0.0


def test_no_tokens_of_no_ids() -> None:
    assert tokens_of(wordpiece(), []) == ()


@pytest.mark.models
@pytest.mark.parametrize("name", slow_but(["smollm2", "minilm"], ["me5", "minilm", "smollm2"]))
def test_every_id_is_a_token_that_can_be_shown(load, name: str) -> None:
    for case in sweep(itertools.product(TEXTS, [True, False])):
        with case as (text, known):
            tokenizer = load(name).tokenizer
            ids = tokenizer(text)["input_ids"]
            tokens = tokens_of(tokenizer, ids, text if known else None)
            assert len(tokens) == len(ids)
            numbers = [token.word for token in tokens if not token.special]
            assert numbers == sorted(numbers)
            assert set(numbers) == set(range(len(set(numbers))))
            for token in tokens:
                assert token.text
                assert token.text == token.text.strip()
                assert not any(ord(mark) < 32 or 127 <= ord(mark) < 160 for mark in token.text)
                assert token.special is (token.word is None)


@pytest.mark.models
@pytest.mark.parametrize("name", ["me5", "minilm", "smollm2"])
def test_the_words_spell_the_text(load, name: str) -> None:
    for case in sweep(TEXTS[:3]):
        with case as text:
            words = [word for word in words_of(seen(load(name).tokenizer, text)) if not word.special]
            assert "".join(word.text for word in words).removeprefix("␣") == text.replace(" ", "")


@pytest.mark.models
@pytest.mark.parametrize("name", ["me5", "minilm", "smollm2"])
def test_english_words_are_the_same_for_all_tokenizers(load, name: str) -> None:
    words = [word.text for word in words_of(seen(load(name).tokenizer, TEXTS[0])) if not word.special]
    assert words == ["The", "cat", "didn't", "chase", "the", "mouse", ",", "unbelievably", "."]


@pytest.mark.models
def test_me5_has_pieces_of_several_chinese_words(load) -> None:
    tokens = seen(load("me5").tokenizer, "猫追老鼠，因为它饿了")
    assert shown(tokens) == ["<s>", "␣", "猫", "追", "老鼠", "，", "因为它", "饿", "了", "</s>"]
    assert not any(token.space for token in tokens)


@pytest.mark.models
def test_minilm_shows_the_characters_it_does_not_know(load) -> None:
    assert shown(seen(load("minilm").tokenizer, CHINESE)) == ["[CLS]", *CHINESE, "[SEP]"]
    assert set(shown(seen(load("minilm").tokenizer, "貓追", known=False))) == {"[CLS]", "[UNK]", "[SEP]"}


@pytest.mark.models
@pytest.mark.parametrize("known", [True, False])
def test_smollm2_shows_the_bytes_of_chinese_characters(load, known: bool) -> None:
    tokens = seen(load("smollm2").tokenizer, "貓追", known=known)
    assert shown(tokens) == ["貓¹", "貓²", "貓³", "追¹", "追²"]
    assert spelled(tokens) == ["貓", "追"]


@pytest.mark.models
def test_emoji_that_belong_together_are_one_word(load) -> None:
    assert spelled(seen(load("smollm2").tokenizer, "👨‍👩‍👧 😀❤️👍🏽")) == ["👨‍👩‍👧", "😀", "❤️", "👍🏽"]


@pytest.mark.models
def test_only_minilm_does_not_know_chinese(load) -> None:
    shares = {name: unknown_share(load(name).tokenizer, CHINESE) for name in ("me5", "minilm", "smollm2")}
    assert shares["me5"] == shares["smollm2"] == 0.0
    assert shares["minilm"] >= 0.9
    assert unknown_share(load("minilm").tokenizer, TEXTS[0]) == 0.0
