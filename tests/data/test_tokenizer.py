"""Vocabularies: what is encoded is decoded, training has one result, and checkpoints' files are understood."""

import contextlib
import gc
import hashlib
import json
import pickle
import re

import pytest

from regard import InputError
from regard.data import Tokenizer
from regard.data.open_tokenizer import _check_vocabulary
from regard.strict_json import parse_json
from sweeps import sweep

tokenizers = pytest.importorskip("tokenizers", reason="pip install 'regard[train]'")

TEXTS = (
    "I love deep learning.",
    "Don't you love it, too?",
    'He said: "I love (most) machines"; we didn’t!',
    "我爱深度学习。",
    "圖書館在哪裡？",
    "私は機械学習が大好きです。コンピューターも！",
    "저는 기계 학습을 좋아합니다.",
    "他在 Google 工作了10年，used PyTorch 2.0。",
    "Great 👍🏽 👩‍👩‍👧 work 🎉!!",
    "Привет, мир! Ça va, naïve café? Ελλάδα",
    "two  spaces, 3,141.59 and a\ttab",
    " leading and trailing ",
    "हिन्दी में नमस्ते",
)
KINDS = ("bpe", "unigram", "char")


def trained(kind, vocab_size=400, texts=TEXTS, **options):
    return Tokenizer.train(texts * 3, model_type=kind, vocab_size=vocab_size, **options)


def test_what_is_encoded_is_decoded():
    for case in sweep(KINDS):
        with case as kind:
            vocabulary = trained(kind)
            rows = vocabulary.encode(TEXTS)
            assert vocabulary.decode(rows) == list(TEXTS)
            assert all(vocabulary.unk_token_id not in row for row in rows)
            others = ("learning you deep", "学習 deep 爱", "", " ", "  I", "기계")
            assert vocabulary.decode(vocabulary.encode(others)) == list(others)


def test_special_tokens_come_first_and_are_left_out_of_text():
    for case in sweep(KINDS):
        with case as kind:
            vocabulary = trained(kind)
            assert (
                vocabulary.pad_token_id,
                vocabulary.bos_token_id,
                vocabulary.eos_token_id,
                vocabulary.unk_token_id,
                vocabulary.mask_token_id,
            ) == (0, 1, 2, 3, 4)
            assert vocabulary.convert_ids_to_tokens(range(5)) == ["<pad>", "<s>", "</s>", "<unk>", "<mask>"]
            assert vocabulary.all_special_ids == [0, 1, 2, 3, 4]
            (plain,), (both,) = vocabulary.encode([TEXTS[0]]), vocabulary.encode([TEXTS[0]], bos=True, eos=True)
            assert both == [1, *plain, 2]
            assert vocabulary.decode([*both, 0, 0, 4]) == TEXTS[0]


def test_special_tokens_that_a_text_spells_out_are_text():
    for case in sweep(KINDS):
        with case as kind:
            vocabulary = trained(kind, texts=(*TEXTS, "</s> <pad> <unk>"))
            (row,) = vocabulary.encode(["love </s> it <pad>"])
            assert not set(row) & {0, 1, 2, 3, 4}
            assert vocabulary.decode(row) == "love </s> it <pad>"


def test_what_is_unknown_shows():
    for case in sweep(KINDS):
        with case as kind:
            vocabulary = trained(kind, texts=("我爱你。", "I love you."))
            (row,) = vocabulary.encode(["我爱她。"])
            assert row.count(vocabulary.unk_token_id) == 1
            assert vocabulary.decode(row) == "我爱<unk>。"


def test_characters_are_single_and_the_most_frequent_stay():
    vocabulary = Tokenizer.train(["aab bb", "你好你", "好你"], model_type="char", vocab_size=5 + 4)
    assert vocabulary.convert_ids_to_tokens(range(5, 9)) == ["b", "你", "a", "好"]
    assert vocabulary.encode(["你a 好c"]) == [[6, 7, 3, 8, 3]]
    assert len(vocabulary) == 9


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_words_are_one_token_at_the_start_and_within(kind):
    vocabulary = trained(kind, texts=("love machines love", "we love machines and love learning"))
    (word,), (text,) = vocabulary.encode(["love"]), vocabulary.encode(["love  we love"])
    assert text[: len(word)] == text[-len(word) :] == word
    assert vocabulary.convert_ids_to_tokens(word)[0].startswith("▁l")
    assert kind == "unigram" or vocabulary.convert_ids_to_tokens(text) == ["▁love", "▁", "▁we", "▁love"]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_no_token_joins_scripts_words_or_digits(kind):
    vocabulary = trained(kind, vocab_size=2000)
    scripts = {
        "han": "一-鿿", "hiragana": "ぁ-ゟ", "katakana": "゠-ヿ", "hangul": "가-힣", "latin": "A-Za-zÇçïé",
        "digits": "0-9", "cyrillic": "А-я", "marks": ",.!?。，？：；",
    }  # fmt: skip
    for token in vocabulary.convert_ids_to_tokens(range(5, len(vocabulary))):
        assert sum(bool(re.search(f"[{range_}]", token)) for range_ in scripts.values()) <= 1, token
        assert "▁" not in token[1:] or set(token) == {"▁"}, token
        assert len(re.findall("[0-9]", token)) <= 1
        assert not re.match("▁[一-鿿ぁ-ヿ]", token)


def test_small_letters_if_asked():
    for case in sweep(KINDS):
        with case as kind:
            vocabulary = trained(kind, lowercase=True)
            assert vocabulary.decode(vocabulary.encode(["I LOVE Deep learning."])) == ["i love deep learning."]
            assert vocabulary.encode(["LOVE"]) == vocabulary.encode(["love"])


def test_both_spellings_of_an_accent_are_one():
    for case in sweep(KINDS):
        with case as kind:
            vocabulary = trained(kind)
            assert vocabulary.encode(["cafe\u0301"]) == vocabulary.encode(["caf\u00e9"])
            assert vocabulary.encode(["，"]) != vocabulary.encode([","])


def test_training_again_gives_the_same_bytes():
    for case in sweep(KINDS):
        with case as kind:
            # Each training has hash tables of its own, seeded anew, so one process shows what several would.
            texts = [f"{TEXTS[i % 9]} {TEXTS[(i * 7) % 9]} word{i * i}" for i in range(300)]
            assert len({Tokenizer.train(texts, model_type=kind, vocab_size=300).sha256 for _ in range(6)}) == 1


def test_a_vocabulary_goes_to_another_process_and_is_the_same_there():
    for case in sweep(KINDS):
        with case as kind:
            vocabulary = trained(kind)
            copy = pickle.loads(pickle.dumps(vocabulary))
            assert copy.sha256 == vocabulary.sha256
            assert copy.encode([*TEXTS, "</s>"], bos=True) == vocabulary.encode([*TEXTS, "</s>"], bos=True)
            assert copy.eos_token_id == 2


def test_what_is_saved_is_loaded(tmp_path_factory):
    for case in sweep(KINDS):
        with case as kind:
            tmp_path = tmp_path_factory.mktemp("case")
            vocabulary = trained(kind)
            path = vocabulary.save(tmp_path)
            assert path == tmp_path / "tokenizer.json"
            assert hashlib.sha256(path.read_bytes()).hexdigest() == vocabulary.sha256
            for loaded in (Tokenizer.load(tmp_path), Tokenizer.load(path)):
                assert loaded.sha256 == vocabulary.sha256
                assert loaded.encode(TEXTS, bos=True, eos=True) == vocabulary.encode(TEXTS, bos=True, eos=True)
                assert (
                    loaded.pad_token_id,
                    loaded.bos_token_id,
                    loaded.eos_token_id,
                    loaded.unk_token_id,
                    loaded.mask_token_id,
                ) == (0, 1, 2, 3, 4)
            assert [one.name for one in tmp_path.iterdir()] == ["tokenizer.json"]


def test_transformers_reads_what_is_saved(tmp_path):
    transformers = pytest.importorskip("transformers", reason="pip install 'regard[models]'")
    vocabulary = trained("bpe")
    fast = transformers.PreTrainedTokenizerFast(tokenizer_file=str(vocabulary.save(tmp_path)))
    assert fast(TEXTS[0])["input_ids"] == vocabulary.encode([TEXTS[0]])[0]


def foreign(tmp_path, specials, config=None):
    """A checkpoint's tokenizer.json: other special tokens, truncation, padding and a template."""
    words = tokenizers.models.WordLevel({"hello": 0, "world": 1, "what": 2}, unk_token="what")
    tokenizer = tokenizers.Tokenizer(words)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(specials)
    tokenizer.enable_truncation(1)
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    if config is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    return tmp_path


def test_special_tokens_come_from_the_settings_of_the_checkpoint_and_from_no_usual_name(tmp_path_factory):
    usual = ["<pad>", "<s>", "</s>", "[MASK]", "<|endoftext|>"]  # 3 to 7
    model = {"pad_token_id": 3, "bos_token_id": 4, "eos_token_id": 5}
    cases = [
        # pad, bos, eos, unk, mask; the unknown token is the tokenizer.json's own
        ({}, (None, None, None, 2, None)),
        ({"tokenizer_config": {"eos_token": {"content": "[MASK]"}, "mask_token": "</s>"}}, (None, None, 6, 2, 5)),
        ({"special_tokens_map": {"cls_token": "<pad>", "sep_token": "<s>"}}, (None, 3, 4, 2, None)),
        (
            {"special_tokens_map": {"eos_token": "<s>", "pad_token": "<s>"}, "tokenizer_config": {"eos_token": "</s>"}},
            (4, None, 4, 2, None),
        ),
        (  # a configuration of a later time
            {
                "special_tokens_map": {"eos_token": "<s>", "pad_token": "<s>"},
                "tokenizer_config": {"eos_token": "</s>", "added_tokens_decoder": {}},
            },
            (4, None, 5, 2, None),
        ),
        (
            {"tokenizer_config": {"bos_token": "<s>", "cls_token": "</s>", "unk_token": "hello"}},
            (None, 4, None, 0, None),
        ),
        ({"config": model}, (3, 4, 5, 2, None)),
        ({"config": model, "generation_config": {"eos_token_id": [7], "bos_token_id": None}}, (3, 4, 7, 2, None)),
        ({"config": model | {"eos_token_id": [5, 7]}}, (3, 4, None, 2, None)),  # which of them is not said
        ({"config": model, "tokenizer_config": {"eos_token": "<|endoftext|>"}}, (3, 4, 7, 2, None)),
        ({"config": model | {"eos_token_id": 99, "pad_token_id": -1}}, (None, 4, None, 2, None)),  # no tokens of it
        ({"tokenizer_config": {"pad_token": "<absent>"}, "config": model}, (3, 4, 5, 2, None)),
        (
            {"config": {"regard": {"kind": "TransformerConfig", "special_tokens": {"eos_token_id": 6}}}},
            (None, None, 6, 2, None),
        ),
    ]
    for case in sweep(cases):
        with case as (files, roles):
            folder = foreign(tmp_path_factory.mktemp("case"), usual)
            for name, values in files.items():
                (folder / f"{name}.json").write_text(json.dumps(values), "utf-8")
            found = Tokenizer.load(folder)
            assert tuple(getattr(found, f"{role}_token_id") for role in ("pad", "bos", "eos", "unk", "mask")) == roles
            assert found.encode(["hello world hello"]) == [[0, 1, 0]]  # neither cut nor filled up


def test_a_file_of_settings_that_cannot_be_read_is_refused(tmp_path):
    folder = foreign(tmp_path, ["</s>"])
    for text, words in (
        ('{"eos_token": ', "Expecting value"),
        ("[]", "must be a JSON object"),
        ('{"a":1,"a":2}', "twice"),
    ):
        (folder / "tokenizer_config.json").write_text(text, "utf-8")
        with pytest.raises(InputError, match=rf"cannot read .*tokenizer_config\.json: .*{words}"):
            Tokenizer.load(folder)


def test_the_settings_that_hold_are_those_of_transformers(tmp_path_factory):
    transformers = pytest.importorskip("transformers", reason="pip install 'regard[models]'")
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}
    for more, token in (({}, "<s>"), ({"added_tokens_decoder": {}}, "</s>")):
        folder = foreign(tmp_path_factory.mktemp("case"), ["<s>", "</s>"], kind | more)
        (folder / "special_tokens_map.json").write_text(json.dumps({"eos_token": "<s>"}), "utf-8")
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
        assert theirs.eos_token == token
        assert Tokenizer.load(folder).eos_token_id == theirs.eos_token_id


def test_a_broken_download_is_named_by_its_cause(tmp_path):
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        folder = tmp_path / name[:-5]
        folder.mkdir()
        foreign(folder, ["</s>"])
        for content, words in (
            ("version https://git-lfs.github.com/spec/v1\n", "it is a pointer of Git LFS"),
            ("<!DOCTYPE html><html></html>", "it is a web page"),
            ("", "it is empty, as a download that was cut off"),
        ):
            (folder / name).write_text(content, "utf-8")
            with pytest.raises(InputError, match=rf"cannot read .*{name}: {words}"):
                Tokenizer.load(folder)


def test_five_tokens_in_another_order_are_not_those_of_regard(tmp_path):
    own = trained("char")
    own.save(tmp_path)
    assert Tokenizer.load(tmp_path).eos_token_id == 2
    other = json.loads(own.json)
    for one in (*other["added_tokens"],):
        one["id"] = {1: 2, 2: 1}.get(one["id"], one["id"])
    vocabulary = other["model"]["vocab"]
    vocabulary["<s>"], vocabulary["</s>"] = 2, 1
    (tmp_path / "tokenizer.json").write_text(json.dumps(other), "utf-8")
    assert Tokenizer.load(tmp_path).eos_token_id is None


def test_a_text_stands_between_the_tokens_of_the_post_processor(tmp_path_factory):
    transformers = pytest.importorskip("transformers", reason="pip install 'regard[models]'")
    processors = tokenizers.processors
    specials = ["[A]", "[B]", "[C]"]  # 3, 4, 5
    ids = [(name, 3 + index) for index, name in enumerate(specials)]
    cases = [
        None,
        processors.TemplateProcessing("[A] $A [B]", special_tokens=ids),
        processors.TemplateProcessing("[A] [C] $A", special_tokens=ids),
        processors.TemplateProcessing("$A:0 [C]:0 [C]:0", special_tokens=ids),
        processors.BertProcessing(("[B]", 4), ("[A]", 3)),
        processors.RobertaProcessing(("[C]", 5), ("[A]", 3)),
        processors.ByteLevel(trim_offsets=True),
        processors.Sequence(
            [
                processors.TemplateProcessing("[A] $A", special_tokens=ids),
                processors.TemplateProcessing("[B] $A [C]", special_tokens=ids),
            ]
        ),
        processors.Sequence([processors.ByteLevel(), processors.TemplateProcessing("[A] $A", special_tokens=ids)]),
    ]
    for case in sweep(cases):
        with case as processor:
            tmp_path = tmp_path_factory.mktemp("case")
            raw = tokenizers.Tokenizer.from_file(str(foreign(tmp_path, specials) / "tokenizer.json"))
            raw.no_truncation()
            raw.no_padding()
            raw.post_processor = processor
            raw.save(str(tmp_path / "tokenizer.json"))
            theirs, ours = transformers.PreTrainedTokenizerFast(tokenizer_object=raw), Tokenizer.load(tmp_path)
            for text in ("hello", "hello world hello world"):
                options = {"return_offsets_mapping": True}
                # Of two templates tokenizers adds one, and leaves room for both.
                cuts = (
                    ({},)
                    if str(processor).count("TemplateProcessing") == 2
                    else ({}, {"truncation": True, "max_length": 3})
                )
                for cut in cuts:
                    expected = theirs(text, **options, **cut)
                    found = ours(text, **options, **cut)
                    assert found["input_ids"] == expected["input_ids"]
                    assert found["offset_mapping"] == expected["offset_mapping"]
                assert ours.build_inputs_with_special_tokens(ours.encode([text])[0]) == theirs(text)["input_ids"]
                assert ours(text, add_special_tokens=False)["input_ids"] == ours.encode([text])[0]


def test_an_id_of_the_model_is_above_the_token_of_the_template(tmp_path):
    folder = foreign(tmp_path, ["[A]", "[B]", "[C]"])
    raw = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    raw["post_processor"] = {"type": "BertProcessing", "sep": ["[B]", 4], "cls": ["[A]", 3]}
    (folder / "tokenizer.json").write_text(json.dumps(raw), "utf-8")
    assert (Tokenizer.load(folder).bos_token_id, Tokenizer.load(folder).eos_token_id) == (3, 4)
    (folder / "config.json").write_text(json.dumps({"eos_token_id": 5}), "utf-8")
    assert (Tokenizer.load(folder).bos_token_id, Tokenizer.load(folder).eos_token_id) == (3, 5)


def test_a_template_is_saved_with_the_tokenizer(tmp_path):
    for kind in KINDS:
        framed = trained(kind).with_template(bos=True, eos=True)
        framed.save(tmp_path)
        raw = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
        assert [raw.encode(text).ids for text in TEXTS] == trained(kind).encode(TEXTS, bos=True, eos=True)
        assert Tokenizer.load(tmp_path).template == ((1,), (2,))
        assert framed.with_template().template == ((), ())


def test_special_tokens_can_be_named(tmp_path):
    folder = foreign(tmp_path, ["<odd>", "</s>"])
    assert Tokenizer.load(folder, eos_token="<odd>").eos_token_id == 3
    with pytest.raises(InputError, match=r"`eos_token` must be a token of .*tokenizer.json, got '<even>'"):
        Tokenizer.load(folder, eos_token="<even>")
    with pytest.raises(InputError, match=r'no bos token: name it, Tokenizer.load\(path, bos_token="…"\)'):
        Tokenizer.load(folder).encode(["hello"], bos=True)


def test_what_is_no_tokenizer_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"cannot read the tokenizer .*tokenizer.json: No such file"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}", "utf-8")
    with pytest.raises(InputError, match=r"must be a tokenizer.json of the package tokenizers, but "):
        Tokenizer.load(tmp_path)
    with pytest.raises(InputError, match=r"must lie in a folder that exists"):
        trained("char").save(tmp_path / "none" / "tokenizer.json")


def test_a_vocabulary_that_contradicts_itself_is_refused(tmp_path_factory):
    cases = [
        ('"world": 1', '"world": 0', "'hello' and 'world' have one id, 0"),
        ('"world": 1', '"world": 1000000000', "'world' has the id 1000000000, beyond the largest"),
        ('"world": 1', '"hello": 1', "an object names 'hello' twice"),
        ('"unk_token": "what"', '"unk_token": "whet"', "its `unk_token`, 'whet', is not in the vocabulary"),
        ('{"hello": 0, "world": 1, "what": 2}', "{}", "its vocabulary is empty"),
        ('"id": 3', '"id": 1', "'world' and '<odd>' have one id, 1"),
    ]
    for case in sweep(cases):
        with case as (old, new, words):
            tmp_path = tmp_path_factory.mktemp("case")
            path = foreign(tmp_path, ["<odd>"]) / "tokenizer.json"
            text = json.dumps(json.loads(path.read_text("utf-8")))
            assert old in text
            path.write_text(text.replace(old, new), "utf-8")
            with pytest.raises(
                InputError, match=rf"cannot read the tokenizer .*tokenizer\.json: .*{re.escape(words)}"
            ) as caught:
                Tokenizer.load(path)
            assert "\n" not in str(caught.value)


def test_added_tokens_of_a_unigram_are_checked_against_its_list():
    cases = [
        ([["<unk>", 0.0], ["a", -1.0], ["b", -2.0]], [("a", 1), ("<odd>", 3)], None),
        ([["<unk>", 0.0], ["a", -1.0], ["b", -2.0]], [("<odd>", 1)], "'a' and '<odd>' have one id, 1"),
        ([["<unk>", 0.0], ["a", -1.0]], [("<odd>", 5), ("<even>", 5)], "'<odd>' and '<even>' have one id, 5"),
        ([["<unk>", 0.0], ["a", -1.0]], [("<odd>", 10**9)], "'<odd>' has the id 1000000000, beyond the largest"),
        ([], [], "its vocabulary is empty"),
    ]
    for case in sweep(cases):
        with case as (vocabulary, added, words):
            found = {"model": {"vocab": vocabulary}, "added_tokens": [{"content": one, "id": at} for one, at in added]}
            with contextlib.nullcontext() if words is None else pytest.raises(InputError, match=re.escape(words)):
                _check_vocabulary(found, None)


@pytest.mark.parametrize("collects", [True, False])
def test_parsing_leaves_the_collector_as_it_was(collects):
    before = gc.isenabled()
    try:
        (gc.enable if collects else gc.disable)()
        for text in ("[1]", "["):
            with contextlib.suppress(ValueError):
                parse_json(text)
            assert gc.isenabled() == collects
    finally:
        (gc.enable if before else gc.disable)()


def test_what_cannot_be_trained_is_refused():
    cases = [
        (TEXTS, "words", 100, "`model_type` must be one of bpe, unigram, char, got 'words'"),
        (TEXTS, "char", 5, "`vocab_size` must be a whole number above 5, the special tokens, .* got 5"),
        (TEXTS, "bpe", 2**20 + 1, r"and at most 1,048,576, got 1048577"),
        (TEXTS, "unigram", 400.0, r"`vocab_size` must be a whole number .* got 400\.0"),
        (["", ""], "bpe", 100, "`texts` must have at least one that is not empty"),
        (["ab", "a\ud800b"], "bpe", 100, r"`texts` contains half of a surrogate pair \(U\+D800\)"),
        (
            ["ab", "我b"],
            "bpe",
            8,
            r"room for the 4 different .* and 5 special tokens \(9\), got 8: .*.model_type=.char",
        ),
        (["ab", "我b"], "unigram", 8, r"room for the 4 different .* and 5 special tokens \(9\), got 8"),
    ]
    for case in sweep(cases):
        with case as (texts, kind, size, words), pytest.raises(InputError, match=words):
            Tokenizer.train(texts, model_type=kind, vocab_size=size)


@pytest.mark.parametrize("call", [lambda read, text: read.encode(["ab", text]), lambda read, text: read(text)])
def test_half_a_surrogate_pair_is_refused(call):
    with pytest.raises(InputError, match=r"contains half of a surrogate pair \(U\+DFFF\): was it decoded with errors"):
        call(trained("char"), "a\udfff")


def test_one_text_is_not_several():
    with pytest.raises(InputError, match=r"`texts` must be a list of texts, got one text: encode\(\['I love'\]\)"):
        trained("char").encode("I love")
