"""Tokens of every kind of tokenizer on texts of many scripts: what is shown, and which characters each covers."""

import functools
import itertools
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import regard
from regard.errors import InputError, ObservationError
from regard.hub import Loaded
from regard.record.tokens import Token, words_of
from regard.record.tokens_from_tokenizer import text_between, tokens_of, tokens_of_names
from sweeps import sweep
from tokenizer_table import BUNDLED, TEXTS, TOKENIZERS, Made, Tiktoken, trimmed

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

Span = tuple[int, int]
MARKS = ("Ġ", "▁", "�", "##", "</w>", "<0x", "@@", "Ċ")  # of vocabularies, and of broken characters
SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹"
BLANKS = str.maketrans("␣⇥↵␍", "    ")  # the pictures of white space


def ids_of(made: Made, text: str) -> list[int]:
    before, after = made.around
    return [*before, *made.cut(text)[0], *after]


def own(made: Made, tokens: Sequence[Token]) -> Sequence[Token]:
    """The tokens without the special ones around them."""
    before, after = made.around
    assert all(
        token.special and token.span is None for token in (*tokens[: len(before)], *tokens[len(tokens) - len(after) :])
    )
    return tokens[len(before) : len(tokens) - len(after)]


def bundled(load: Any, name: str) -> Made:
    tokenizer = load(name).tokenizer
    backend = tokenizer.backend_tokenizer

    def cut(text: str) -> tuple[list[int], list[Span]]:
        encoded = backend.encode(text, add_special_tokens=False)
        marks = [index for index, token in enumerate(encoded.tokens) if token == "▁"]
        lone = [index for index in marks if text[slice(*encoded.offsets[index])].strip()]
        return encoded.ids, [(0, 0) if index in lone else span for index, span in enumerate(encoded.offsets)]

    around = {"me5": ((0,), (2,)), "minilm": ((101,), (102,)), "smollm2": ((), ())}[name]
    return Made(tokenizer, cut, around=around)


def check_spans(made: Made, text: str) -> None:
    """Check the characters of tokens, and that each shows its own."""
    ids, spans = made.cut(text)
    tokens = own(made, tokens_of(made.tokenizer, ids_of(made, text), text))
    expected = [trimmed(text, span, spans) for span in spans]
    assert len(tokens) == len(ids)
    only_decodes = not hasattr(made.tokenizer, "encode") and not callable(made.tokenizer)
    for token, span in zip(tokens, expected, strict=True):
        if span is None or (only_decodes and not text[slice(*span)].strip()):
            continue  # what is decoded does not show which white space is dropped
        assert token.span == span
        is_part = (
            sum(other is not None and other[0] <= span[0] < other[1] for other in expected) > 1
            or sum(other is not None and other[0] < span[1] <= other[1] for other in expected) > 1
        )
        characters = text[slice(*span)]
        assert (token.text.rstrip(SUPERSCRIPTS) if is_part else token.text.translate(BLANKS).strip()) == (
            characters.rstrip(SUPERSCRIPTS) if is_part else characters.strip()
        )
        assert token.special is (token.word is None)
    covered = {index for token in tokens if token.span for index in range(*token.span)}
    assert [
        mark for index, mark in enumerate(text) if index not in covered and not mark.isspace() and mark != "▁"
    ] == []


def check_marks(tokens: Sequence[Token], text: str) -> None:
    for token in tokens:
        assert token.special or not any(mark in token.text and mark not in text for mark in MARKS), token


@pytest.mark.parametrize("name", TOKENIZERS)
def test_each_token_has_and_shows_the_characters_that_its_tokenizer_reports(name: str) -> None:
    made = TOKENIZERS[name]()
    for case in sweep(made.texts):
        with case as key:
            check_spans(made, TEXTS[key])
            check_marks(tokens_of(made.tokenizer, ids_of(made, TEXTS[key]), TEXTS[key]), TEXTS[key])


@pytest.mark.models
@pytest.mark.parametrize("name", BUNDLED)
def test_each_token_of_a_bundled_model_has_and_shows_its_characters(load, name: str) -> None:
    made = bundled(load, name)
    for case in sweep(TEXTS.values()):
        with case as text:
            check_spans(made, text)
            check_marks(tokens_of(made.tokenizer, ids_of(made, text), text), text)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokens_of_an_unknown_text_spell_it_as_the_tokenizer_reads_it(name: str) -> None:
    made = TOKENIZERS[name]()
    for case in sweep(made.texts):
        with case as key:
            text, ids = TEXTS[key], ids_of(made, TEXTS[key])
            tokens = own(made, tokens_of(made.tokenizer, ids))
            assert all(token.span is None for token in tokens)
            if made.unknown in ids:
                continue
            check_marks(tokens, made.normalize(text))
            spelled = "".join(word.text for word in words_of(tokens) if not word.special).translate(BLANKS)
            read = made.normalize(text)
            assert "".join(spelled.split()) in ("".join(read.split()), "".join(read.replace("▁", " ").split()))


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokens_of_a_truncated_or_padded_text_are_those_of_the_text(name: str) -> None:
    made = TOKENIZERS[name]()
    for case in sweep(made.texts):
        with case as key:
            text, ids = TEXTS[key], made.cut(TEXTS[key])[0]
            whole = tokens_of(made.tokenizer, ids, text)
            before, after = made.around
            cuts = [(0, len(ids)), (0, len(ids) // 2), (0, 1), (len(ids) // 2, len(ids))]
            if not hasattr(made.tokenizer, "encode"):
                cuts = cuts[:2]  # what only decodes has no ids of the text to find others in
            for first, last in cuts:
                tokens = tokens_of(made.tokenizer, [*before, *ids[first:last], *after], text)
                cut = own(made, tokens)
                assert [(token.span, token.special) for token in cut] == [
                    (token.span, token.special) for token in whole[first:last]
                ]
                if made.pad is not None:
                    pads = [made.pad] * 3
                    right = tokens_of(made.tokenizer, [*before, *ids[first:last], *after, *pads], text)
                    left = tokens_of(made.tokenizer, [*pads, *before, *ids[first:last], *after], text)
                    assert right[:-3] == left[3:] == tokens
                    assert [token.span for token in right[:-3]] == [token.span for token in tokens]
                    assert all(token.special and token.span is None for token in (*right[-3:], *left[:3]))


def goes_with(text: str, before: Span, span: Span) -> bool:
    """Whether a token of a script without spaces shares a character with the one before it, begins with a mark, or is
    written below the letter before it.
    """
    is_below = text[before[1] - 1] in "\N{KHMER SIGN COENG}\N{MYANMAR SIGN VIRAMA}"
    return span[0] < before[1] or unicodedata.category(text[span[0]])[0] == "M" or is_below


@pytest.mark.parametrize("name", TOKENIZERS)
def test_each_token_of_a_script_without_spaces_is_a_word_with_its_marks(name: str) -> None:
    made = TOKENIZERS[name]()
    for case in sweep(("Thai", "Lao", "Khmer", "Burmese", "Tibetan", "Chinese", "Japanese")):
        with case as key:
            text = TEXTS[key]
            if key not in made.texts:
                continue
            tokens = [token for token in tokens_of(made.tokenizer, made.cut(text)[0], text) if token.span is not None]
            for before, token in itertools.pairwise(tokens):
                assert (token.word == before.word) == goes_with(text, before.span, token.span), (before, token)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_each_token_of_a_sequence_is_a_word_and_long_words_stay_words(name: str) -> None:
    made = TOKENIZERS[name]()
    fasta = "MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQAPILSRVGDGTQDNLSGAEKAVQVKVK"
    for case in sweep([TEXTS["DNA"], TEXTS["protein"], f"Protein: {fasta}"]):
        with case as text:
            if name.startswith("ESM") and ":" in text:
                continue
            ids = made.cut(text)[0]
            tokens = [one for one in tokens_of(made.tokenizer, ids, text) if one.span is not None]
            pieces = [one for one in tokens if text[slice(*one.span)] in text.split()[-1]]
            assert len({one.word for one in pieces}) == len(pieces)
    for case in sweep(key for key in ("compounds", "English", "a word three times", "DNA") if key in made.texts):
        with case as key:
            text = TEXTS[key]
            words = words_of(tokens_of(made.tokenizer, made.cut(text)[0], text))
            expected = text.replace(",", " ,").replace(".", " .").split()
            if key != "DNA" and made.unknown not in made.cut(text)[0]:
                assert [word.text for word in words if not word.special and word.text.strip("␣")] == expected


@pytest.mark.parametrize("name", ["ByT5, in Python", "CANINE, in Python", "bytes without merges", "decodes characters"])
def test_an_emoji_of_several_characters_is_one_word(name: str) -> None:
    made = TOKENIZERS[name]()
    expected = {
        "emoji": ["I", "😀", "like", "🐱", "🐱", "cats"],
        "joined emoji": ["a", "👨‍👩‍👧", "b", "❤️", "c", "👍🏽", "!"],
        "flags": ["from", "🇩🇪", "🇫🇷", "to", "🏴󠁧󠁢󠁳󠁣󠁴󠁿"],
        "decomposed accents": TEXTS["decomposed accents"].split(),
        "Hebrew with points": TEXTS["Hebrew with points"].split(),
        "Hindi": TEXTS["Hindi"].split(),
    }
    for case in sweep(expected):
        with case as key:
            ids = made.cut(TEXTS[key])[0]
            for text in (TEXTS[key], None):
                words = [word.text for word in words_of(tokens_of(made.tokenizer, ids, text))]
                assert [word for word in words if word.strip("␣")] == expected[key]


def test_bytes_of_one_character_in_one_token_with_other_characters_spell_their_word_once() -> None:
    tokens = [Token("a👨¹", word=0), Token("👨\u200d👩²", word=0), Token("👩³", word=0), Token("x²", word=0)]
    assert [word.text for word in words_of(tokens)] == ["a👨\u200d👩x²"]
    tokens = [Token("x¹", word=0, span=(0, 2)), Token("x²", word=0, span=(2, 4))]
    assert [word.text for word in words_of(tokens)] == ["x¹x²"]


class Attending(nn.Module):
    """One attention over embedded ids, of any vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(0x110000, 4)
        self.calls = 0

    def forward(self, input_ids: Tensor) -> Tensor:
        self.calls += 1
        x = self.embedding(input_ids)[:, None]
        return nn.functional.scaled_dot_product_attention(x, x, x)


@pytest.fixture(scope="module")
def attending() -> Attending:
    torch.manual_seed(0)
    return Attending()


@pytest.mark.parametrize("name", TOKENIZERS)
def test_watch_names_positions_by_any_tokenizer(name: str, attending: Attending) -> None:
    made = TOKENIZERS[name]()
    text = TEXTS["protein"] if name.startswith("ESM") else TEXTS["a word three times"]
    ids = ids_of(made, text)
    with torch.no_grad(), regard.watch(attending, tokenizer=made.tokenizer, statistics=["separators"]) as seen:
        attending(torch.tensor([ids]))
    tokens = own(made, seen.record.stream("text"))
    if made.unknown not in ids:
        spelled = "".join(token.text for token in tokens if not token.special and token.text != "␣")
        assert spelled == made.normalize(text).replace(" ", "")


@pytest.mark.parametrize("given", ["gpt2", Tiktoken, object(), 3, nn.Linear(1, 1), {"input_ids": [1]}])
def test_what_is_no_tokenizer_is_refused_before_the_model_runs(given: Any, attending: Attending) -> None:
    calls = attending.calls
    way = "from_pretrained" if isinstance(given, str) else "tokens="
    with pytest.raises(InputError, match=f"`tokenizer` must be a tokenizer.*{way}"):  # noqa: SIM117
        with regard.watch(attending, tokenizer=given):
            attending(torch.tensor([[1, 2]]))
    assert attending.calls == calls


def test_a_processor_names_by_its_tokenizer_and_numbers_without_tokens_cost_nothing() -> None:
    words = {"[UNK]": 0, "cat": 7, "mat": 50}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")
    for given in (tokenizer, backend, SimpleNamespace(tokenizer=tokenizer)):
        assert [token.text for token in tokens_of(given, [50, 7])] == ["mat", "cat"]
        with pytest.raises(InputError, match="no token 8"):
            tokens_of(given, [7, 8])


class Raising:
    def decode(self, ids: list[int]) -> str:
        raise RuntimeError("out of order")


UNNAMED = {
    **{name: (lambda name=name: TOKENIZERS[name]().tokenizer) for name in TOKENIZERS if "decodes" not in name},
    "raises": Raising,
}


@pytest.mark.parametrize("name", UNNAMED)
def test_a_tokenizer_that_cannot_name_an_id_does_not_cost_the_record(
    name: str, attending: Attending, tmp_path: Path
) -> None:
    outside = 0x10FFFF  # in no vocabulary but CANINE's
    ids = torch.tensor([[5, 6, outside, 7]])
    with torch.no_grad(), regard.watch(attending) as plain:
        attending(ids)
    with torch.no_grad(), regard.watch(attending, tokenizer=UNNAMED[name](), statistics=["separators"]) as seen:
        attending(ids)
    assert (seen.weights(layer=0) == plain.weights(layer=0)).all()
    if name.startswith("CANINE"):
        return
    assert not seen.tokens
    seen.save(tmp_path / "seen.atlas")
    for record in (seen, regard.load_atlas(tmp_path / "seen.atlas")):
        for ask in (lambda record=record: record.words(), lambda record=record: record.rank_heads("a", "b")):
            with pytest.raises(ObservationError, match="out of order" if name == "raises" else str(outside)):
                ask()


def test_tokens_name_each_sequence_of_a_batch(attending: Attending) -> None:
    ids = torch.tensor([[1, 2, 3, 4], [5, 6, 0, 0], [0, 0, 7, 8]])
    names = [["the", "cat", ".", "the"], ["it", "sat", None, None], [None, "", "a", "dog"]]
    statistics = ["separators", "duplicate_token", "special_tokens"]
    with torch.no_grad(), regard.watch(attending, tokens=names, statistics=statistics) as seen:
        attending(ids)
    assert [[token.text for token in row if not token.special] for row in seen.tokens["text"]] == [
        ["the", "cat", ".", "the"],
        ["it", "sat"],
        ["a", "dog"],
    ]
    assert [word.text for word in seen.words(batch_index=2) if not word.special] == ["a", "dog"]
    weights = seen.weights(layer=0, head=0)
    separators = seen.statistic("separators", layer=0, head=0)
    torch.testing.assert_close(torch.tensor(separators[0]), torch.tensor(weights[0, :, 2]))
    assert (separators[1:] == 0).all()
    padding = seen.statistic("special_tokens", layer=0, head=0)
    of_padding = np.stack([0 * weights[0, 0], weights[1, :, 2:].sum(1), weights[2, :, :2].sum(1)])
    np.testing.assert_allclose(padding, of_padding, atol=1e-6)
    np.testing.assert_allclose(seen.statistic("duplicate_token", layer=0, head=0)[0], [0, 0, 0, weights[0, 3, 0]])
    assert seen.rank_heads("dog", "a", batch_index=2)[0].weight == pytest.approx(weights[2, 3, 2])


@pytest.mark.parametrize(
    "tokens",
    [
        ["the", "cat"],
        [["the", "cat", "sat"]],
        [["the", "cat", "sat"], ["it"]],
        [["the", "cat", "sat"], ["a", "dog", 3]],
        [["the", "cat", "sat"], "dog"],
        {"text": [["the", "cat", "sat"]] * 3},
    ],
)
def test_tokens_of_another_count_than_the_batch_are_refused(tokens: Any, attending: Attending) -> None:
    with pytest.raises(InputError, match="`tokens` must"), torch.no_grad(), regard.watch(attending, tokens=tokens):
        attending(torch.tensor([[1, 2, 3], [4, 5, 6]]))


def test_an_atlas_keeps_the_characters_of_tokens(attending: Attending, tmp_path: Path) -> None:
    from dataclasses import replace

    from regard.record.atlas import read_atlas, save_atlas

    made = TOKENIZERS["bytes"]()
    text = TEXTS["emoji"]
    ids = made.cut(text)[0]
    with torch.no_grad(), regard.watch(attending) as seen:
        attending(torch.tensor([ids]))
    tokens = tokens_of(made.tokenizer, ids, text)
    save_atlas((replace(seen.record, tokens={"text": (tokens,)}),), tmp_path / "seen.atlas")
    (record,) = read_atlas(tmp_path / "seen.atlas")
    assert [token.span for token in record.stream("text")] == [token.span for token in tokens]
    assert record.stream("text") == tokens


@pytest.mark.parametrize("name", [name for name in TOKENIZERS if "decodes" not in name and "ESM" not in name])
def test_ids_of_another_text_are_refused(name: str) -> None:
    made = TOKENIZERS[name]()
    for case in sweep([("English", "code"), ("Chinese", "protein"), ("protein", "compounds")]):
        with case as (read, other), pytest.raises(InputError, match=r"`text` must be the text that .* text=None"):
            tokens_of(made.tokenizer, ids_of(made, TEXTS[read]), TEXTS[other])


@pytest.mark.parametrize("name", [name for name in TOKENIZERS if "decodes" not in name])
def test_a_part_of_a_text_is_cut_by_any_tokenizer(name: str) -> None:
    made = TOKENIZERS[name]()
    text = TEXTS["protein"] if name.startswith("ESM") else TEXTS["English"]
    spans = made.cut(text)[1]
    first, last = (span for span in (spans[1], spans[-2]))
    assert text_between(made.tokenizer, text, 2, len(spans) - 1).strip() == text[first[0] : last[1]].strip()


def esm() -> tuple[Loaded, str]:
    config = transformers.EsmConfig(
        vocab_size=25, pad_token_id=1, mask_token_id=24, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, position_embedding_type="rotary",
    )  # fmt: skip
    tokenizer = TOKENIZERS["ESM, in Python"]().tokenizer
    return Loaded("esm", transformers.EsmModel(config).eval(), tokenizer, "encoder"), "MKTAYIAKQR"


def byt5() -> tuple[Loaded, str]:
    config = transformers.T5Config(
        vocab_size=384, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    model = transformers.T5ForConditionalGeneration(config).eval()
    return Loaded("byt5", model, TOKENIZERS["ByT5, in Python"]().tokenizer, "encoder-decoder"), "The cat sat down"


def gpt2(name: str) -> tuple[Loaded, str]:
    config = transformers.GPT2Config(vocab_size=1000, n_positions=64, n_embd=32, n_layer=1, n_head=2)
    tokenizer = TOKENIZERS[name]().tokenizer
    return Loaded("gpt2", transformers.GPT2Model(config).eval(), tokenizer, "decoder"), "The cat sat down"


LOOKED = {
    "ESM": (esm, [*"MKTAYIAKQR"]),
    "ByT5": (byt5, ["The", "cat", "sat", "down"]),
    **{
        name: (functools.partial(gpt2, name), ["The", "cat", "sat", "down"])
        for name in ("tiktoken", "SentencePiece's processor", "bytes of tokenizers", "WordPiece of tokenizers")
    },
}


@pytest.mark.parametrize("name", LOOKED)
def test_look_works_with_any_tokenizer(name: str) -> None:
    torch.manual_seed(0)
    make, words = LOOKED[name]
    loaded, text = make()
    found = regard.look(text, model=loaded, target="a cat" if name == "ByT5" else None)
    stream = "source" if name == "ByT5" else "text"
    assert [word.text for word in found.record.words(stream) if not word.special and word.text != "␣"] == words
    for token in found.record.stream(stream):
        assert token.span is None or text[slice(*token.span)].strip() == token.text.strip("␣")
    if name == "ByT5":
        assert [token.text for token in found.record.stream("target")] == ["<pad>", *"a␣cat"]
        assert [token.span for token in found.record.stream("target")] == [None, *((at, at + 1) for at in range(5))]


@pytest.mark.models
def test_a_word_of_thai_is_the_token_that_was_named(load) -> None:
    loaded = load("me5")
    text = TEXTS["Thai"]
    with torch.no_grad(), regard.watch(loaded.model, tokenizer=loaded.tokenizer) as seen:
        loaded.model(**{name: torch.tensor([ids]) for name, ids in loaded.tokenizer(text).items()})
    names = loaded.tokenizer.convert_ids_to_tokens(loaded.tokenizer(text)["input_ids"])
    weights = np.stack([seen.weights(layer=number)[0] for number in range(len(seen.layers))])
    for case in sweep([("มัน", "แมว"), ("แมว", "มัน"), ("เหนื่อย", "บน")]):
        with case as (query, key):
            expected = weights[:, :, names.index(query), names.index(key)].max()
            assert seen.rank_heads(query, key)[0].weight == pytest.approx(expected)


COPIED = [
    "The animal didn't cross the street because it was too tired.",
    "它很累，因为天气太热了。",
    "  unbelievable 貓追老鼠 tokenizers!",
    "Žluťoučký kůň, café naïve",
    "def f(x):\n    return x + 1\n",
    "小狗🐶看见了小猫🐱，它很开心😀👨\u200d👩\u200d👧。",
]


@pytest.mark.parametrize("name", ["minilm", "me5", "smollm2"])
def test_names_copied_from_a_vocabulary_are_read_as_its_tokenizer_reads_the_ids(name: str) -> None:
    tokenizer = regard.load_model(name).tokenizer
    for text in [*COPIED, "Hello world"]:
        ids = tokenizer(text)["input_ids"]
        names = tokenizer.convert_ids_to_tokens(ids)
        assert tokens_of_names([names]) == (tokens_of(tokenizer, ids),), text
    batch = [tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"]) for text in ("it", COPIED[0])]
    padded = tokens_of_names([[*one, *[None] * (len(batch[1]) - len(one))] for one in batch])
    assert [token.text for token in padded[0] if not token.special] == ["it"]
    assert [token.text for token in padded[1] if not token.special][-4:] == ["was", "too", "tired", "."]


@pytest.mark.parametrize(
    "names",
    ["the mark Ġ is", "use Ġcat in text", "the ##ing form", "a▁b ▁c ▁d", "Ã © x", "[CLS] is a token", "▁ is a mark"],
)
def test_given_tokens_that_are_a_text_about_marks_are_shown_as_they_are(names: str) -> None:
    (tokens,) = tokens_of_names([names.split()])
    assert [token.text for token in tokens] == names.split()
    assert not any(token.special for token in tokens)
    for mark in ("Ġ", "▁", "##"):
        assert tokens_of_names([["New York", f"{mark}cat", f"{mark}sat"]])[0][1].text == f"{mark}cat"


def test_tokens_copied_from_a_vocabulary_name_a_record_as_its_tokenizer_does() -> None:
    loaded = regard.load_model("minilm")
    inputs = loaded.tokenizer("The tokenizers slept because it was tired", return_tensors="pt")
    names = loaded.tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])
    changed = ["New York" if name == "it" else name for name in names]  # not of a vocabulary
    seen = []
    for given in (
        {"tokenizer": loaded.tokenizer},
        {"tokens": names},
        {"tokenizer": loaded.tokenizer, "tokens": changed},
    ):
        with torch.no_grad(), regard.watch(loaded.model, statistics=["special_tokens"], **given) as one:
            loaded.model(**inputs)
        seen.append(one)
    by_tokenizer, by_names, by_both = seen
    assert by_names.tokens == by_tokenizer.tokens
    assert [token.text for token in by_names.stream("text") if token.special] == ["[CLS]", "[SEP]"]
    assert [token.special for token in by_both.stream("text")] == [name in ("[CLS]", "[SEP]") for name in names]
    assert [token.text for token in by_both.stream("text")].count("New York") == 1
    for one in seen:
        weights = one.record.weights(layer=0, head=0)
        found = one.statistic("special_tokens", layer=0, head=0)
        np.testing.assert_allclose(found, weights[..., [0, -1]].sum(-1), atol=1e-6)


def test_a_tokenizer_says_what_given_tokens_are_that_it_calls_so() -> None:
    loaded = regard.load_model("minilm")
    inputs = loaded.tokenizer("the tokenizer slept", add_special_tokens=False, return_tensors="pt")
    names = loaded.tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])
    assert sum(name.startswith("##") for name in names) == 1  # too little to tell a vocabulary by
    for given, texts in ((names, ["the", "token", "izer", "slept"]), (["a", *names[1:]], ["a", *names[1:]])):
        with torch.no_grad(), regard.watch(loaded.model, tokenizer=loaded.tokenizer, tokens=given) as seen:
            loaded.model(**inputs)
        assert [token.text for token in seen.stream("text")] == texts


class OfBytes:
    """A tokenizer that only decodes."""

    def decode(self, ids: list[int]) -> str:
        return bytes(ids).decode("utf-8", "replace")


def test_the_bytes_of_a_character_that_is_cut_off_are_text() -> None:
    cut = "貓".encode()[:2]
    for ids in ([97, *cut], [97, *cut, 98], [255, *cut, 98], [97, *"😀".encode()[:3], 98, *cut]):
        tokens = tokens_of(OfBytes(), list(ids))
        assert not any(token.special for token in tokens), ids
        assert "".join(word.text for word in words_of(tokens)) == bytes(ids).decode("utf-8", "replace")


def test_the_same_tokens_are_text_with_the_text_and_without_it() -> None:
    tokenizer = regard.load_model("me5").tokenizer
    for text in COPIED:
        ids = tokenizer(text)["input_ids"]
        with_text, without = (tokens_of(tokenizer, ids, given) for given in (text, None))
        assert [token.special for token in with_text] == [token.special for token in without]
        assert [number for number, token in enumerate(without) if token.special][1:] in (
            [len(ids) - 1],
            [1, len(ids) - 1],
        )
