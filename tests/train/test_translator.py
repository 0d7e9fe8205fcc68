"""One source has one translation, whatever is beside it; texts come as a stream, and unknown tokens are replaced."""

import random
import re
from dataclasses import replace
from itertools import groupby

import pytest
import torch

from regard.data import Tokenizer
from regard.errors import InputError
from regard.models import RecurrentConfig, RecurrentSeq2Seq
from regard.train import Translation, Translator, train
from sweeps import sweep
from train.runs import tiny

SUBJECTS = {"I": "Ich", "you": "du", "we": "wir", "they": "sie"}
VERBS = {"see": "sehe", "like": "mag", "buy": "kaufe"}
OBJECTS = {"the cat": "die Katze", "a house": "ein Haus", "the red car": "das rote Auto", "two books": "zwei Bücher"}
PAIRS = [
    (f"{s} {v} {o} {t}".strip(), f"{ich} {sehe} {ding} {jetzt}".strip())
    for s, ich in SUBJECTS.items()
    for v, sehe in VERBS.items()
    for o, ding in OBJECTS.items()
    for t, jetzt in (("now", "jetzt"), ("here", "hier"), ("", ""))
]
SOURCES = [source for source, _ in random.Random(0).sample(PAIRS, 20)]


@pytest.fixture(scope="module", params=["transformer", "recurrent"])
def translator(request, tmp_path_factory):
    """A model of forty steps: some of its translations end, and others repeat themselves up to their limit."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS), "utf-8")
    task = {"type": "translation", "train_file": str(folder / "pairs.tsv"), "validation_size": 9, "target_lang": "de"}
    words = {"src_tokenizer": {"vocab_size": 90}, "tgt_tokenizer": {"vocab_size": 90}}
    model = {"hidden_size": 24, "num_attention_heads": 2, "intermediate_size": 32, "num_hidden_layers": 1}
    if request.param == "recurrent":
        model = {"type": "recurrent", "hidden_size": 24, "embedding_dim": 16}
    steps = {"training__max_steps": 40, "training__eval_steps": 40, "training__learning_rate": 5e-3}
    train(tiny(folder / "run", task=task | words, model=model, training__max_tokens_per_batch=512, **steps))
    return Translator.load(folder / "run")


def alone(translator, **options):
    return {source: next(translator.stream([source], **options)).texts for source in SOURCES}


def orders():
    by_length, shuffled = sorted(SOURCES, key=len), random.Random(1).sample(SOURCES, 20)
    return {"as they are": SOURCES, "sorted": by_length, "reversed": by_length[::-1], "shuffled": shuffled}


def test_twenty_sources_have_twenty_translations_in_any_company(translator):
    long = "they like the red car and " * 6
    for options in ({"num_beams": 4}, {"num_beams": 1}, {"num_beams": 3, "n_best": 3, "length_penalty": 0.6}):
        expected = alone(translator, **options)
        for case in sweep([(name, size, more) for name in orders() for size in (7, 64) for more in (False, True)]):
            with case as (name, batch_size, with_a_long_one):
                sources = [*orders()[name], *([long] if with_a_long_one else [])]
                found = list(translator.stream(sources, batch_size=batch_size, **options))
                assert [one.texts for one in found[:20]] == [expected[source] for source in orders()[name]]


def test_no_translation_is_longer_than_its_own_limit(translator):
    """Twice the tokens of the source and ten, the end tokens counted; some texts of a model so young reach it."""
    text = "the red car " * 8
    limits = [2 * len(translator.encode(source)) + 10 for source in [*SOURCES, text]]
    found = translator.translate([*SOURCES, text])
    lengths = [len(translator.tgt_tokenizer.encode([one])[0]) for one in found]
    assert all(length <= limit for length, limit in zip(lengths, limits, strict=True))


@pytest.mark.parametrize("translator", ["transformer"], indirect=True)  # the output layer of the other is another one
def test_rounding_that_depends_on_the_batch_changes_nothing(translator):
    """Every other token is as likely as the one before it, but for a rounding error that each size of a batch has."""

    def round_otherwise(module, inputs, logits):
        logits = logits.clone()
        logits[..., 11::2] = logits[..., 10:-1:2]
        ulps = torch.randint(-2, 3, logits.shape[-1:], generator=torch.Generator().manual_seed(len(logits)))
        return logits * (1 + ulps * torch.finfo(torch.float32).eps)

    hook = translator.model.output_head.register_forward_hook(round_otherwise)
    try:
        sources = [translator.encode(source) for source in SOURCES]
        batched = translator.model.generate(sources, max_new_tokens=40)
        single = [translator.model.generate([source], max_new_tokens=40)[0] for source in sources]
        assert any(one.tolist() != row[: len(one)].tolist() for one, row in zip(single, batched, strict=True))
        for num_beams in (1, 4):
            expected = alone(translator, num_beams=num_beams)
            found = translator.stream(SOURCES, num_beams=num_beams, batch_size=7)
            assert [one.texts for one in found] == [expected[source] for source in SOURCES]
    finally:
        hook.remove()


def test_a_stream_yields_a_text_when_those_before_it_are_done(translator):
    read = []

    def arriving():
        for number, source in enumerate([*SOURCES, "", "now"]):
            read.append(number)
            yield source

    stream = translator.stream(arriving(), ready=lambda: False)
    for number in range(22):  # no text is asked for before the one before it is translated
        found = next(stream)
        assert read == list(range(number + 1))
        assert (found == Translation()) == (number == 20)
    assert next(stream, None) is None


def test_a_stream_reads_no_further_than_its_window(translator):
    read = []

    def many():
        for number in range(10_000):
            read.append(number)
            yield SOURCES[number % 20]

    stream = translator.stream(many(), num_beams=1, batch_size=4)
    for number in range(100):
        next(stream)
        assert len(read) <= number + 1 + 16 * 4


def test_what_fails_comes_after_the_translations_of_the_texts_before(translator):
    def breaking():
        yield from SOURCES[:3]
        raise InputError("line 4 is no text")

    stream, found = translator.stream(breaking()), []
    with pytest.raises(InputError, match="line 4 is no text"):
        found.extend(stream)
    assert [one.texts for one in found] == [alone(translator)[source] for source in SOURCES[:3]]


@pytest.mark.parametrize("translator", ["transformer"], indirect=True)  # the other has no positions
def test_a_text_that_is_too_long_is_left_empty_and_the_others_are_not(translator):
    long = "the red car " * 3000
    found = list(translator.stream([SOURCES[0], long, SOURCES[1]]))
    assert [one.problem is None for one in found] == [True, False, True]
    assert found[1].texts == ("",)
    assert "this model has positions for 5000" in found[1].problem
    assert found[2].texts == alone(translator)[SOURCES[1]]
    with pytest.raises(InputError, match=r"text 2 has .* shorten it"):
        translator.translate([SOURCES[0], long])


def test_several_translations_are_ordered_and_different(translator):
    for one in translator.stream(SOURCES, num_beams=5, n_best=5):
        assert len(set(one.texts)) > 1
        assert list(one.scores) == sorted(one.scores, reverse=True)
    for num_beams in (1, 4):  # Σ log p / length, of the tokens that were generated
        for source, one in zip(SOURCES, translator.stream(SOURCES, num_beams=num_beams), strict=True):
            assert one.scores[0] == pytest.approx(mean_log_probability(translator, source, num_beams), abs=1e-4)
    best = [one.texts[0] for one in translator.stream(SOURCES, num_beams=5, n_best=5)]
    assert best == translator.translate(SOURCES, num_beams=5)
    with pytest.raises(InputError, match="num_return_sequences"):
        translator.stream(SOURCES, num_beams=2, n_best=3)


def mean_log_probability(translator, source, num_beams):
    ids, options = translator.encode(source), {} if num_beams == 1 else {"num_beams": num_beams}
    target = translator.model.generate([ids], max_new_tokens=2 * len(ids) + 10, **options)
    with torch.no_grad():
        logits = translator.model(torch.tensor([ids]), decoder_input_ids=target).logits
    return logits[0, :-1].log_softmax(-1).gather(1, target[0, 1:, None]).mean().item()


@pytest.fixture(scope="module", params=["transformer", "recurrent"])
def copier(request, tmp_path_factory):
    """It says the names of its sources, of which some are unknown to it."""
    folder = tmp_path_factory.mktemp("copier")
    names = [first + last for first in "Ab Bo Cy Di Ed Fa Gu Ha".split() for last in "ra lo ni me".split()]
    rare = "Žž Şş Őő Ŵŵ Ķķ Ťť Ůů Ŗŗ".split()  # letters that the target's vocabulary has no place for
    lines = [f"{name} sees it\t看{name[0]}" for name in names] + [f"it sees {name}\t它看{name[0]}" for name in names]
    lines += [f"{name} sees it\t看{name}\nit sees {name}\t它看{name}" for name in rare]
    (folder / "pairs.tsv").write_text("\n".join(lines * 2) + "\n", "utf-8")
    task = {"type": "translation", "train_file": str(folder / "pairs.tsv"), "validation_size": 4, "target_lang": "zh"}
    words = {
        "src_tokenizer": {"model_type": "char", "vocab_size": 100},
        "tgt_tokenizer": {"model_type": "char", "vocab_size": 15},
    }
    model = {"hidden_size": 32, "num_attention_heads": 1, "intermediate_size": 32, "num_hidden_layers": 1}
    if request.param == "recurrent":
        model = {"type": "recurrent", "hidden_size": 32, "embedding_dim": 32}
    steps = {"training__max_steps": 200, "training__eval_steps": 200, "training__learning_rate": 1e-2}
    train(tiny(folder / "run", task=task | words, model=model, training__max_tokens_per_batch=512, **steps))
    return Translator.load(folder / "run")


@pytest.mark.parametrize("bos", [False, True])
def test_an_unknown_token_is_replaced_by_the_word_with_the_most_attention(copier, bos):
    """Also where a start token is before the text, as in a source of BART."""
    copier = replace(copier, src_tokenizer=copier.src_tokenizer.with_template(bos=bos, eos=True))
    sources = [f"{name} sees it" for name in "Žž Şş Őő Ŵŵ".split()]
    for num_beams in (1, 4):
        plain = [one.texts[0] for one in copier.stream(sources, num_beams=num_beams)]
        found = [one.texts[0] for one in copier.stream(sources, num_beams=num_beams, replace_unk=True)]
        assert all("<unk>" in one for one in plain), plain
        for source, with_unknown, replaced in zip(sources, plain, found, strict=True):
            assert "<unk><unk>" in with_unknown  # a name of two letters
            words = [word for word, _ in groupby(most_attended(copier, source, num_beams))]
            pieces = re.split("(?:<unk>)+", with_unknown)
            assert len(pieces) == 2, with_unknown
            assert replaced == pieces[0] + "".join(words) + pieces[1]


def most_attended(copier, source, num_beams):
    """The words of the source that the alignment, the record of all weights, shows for each unknown token."""
    record = copier.align(source, num_beams=num_beams)
    target = [token.text for token in record.tokens["target"][0]]
    rows = [record.weights(layer=layer)[0].mean(0) for layer in record.layers if layer.kind == "cross"]
    for place in (place for place, text in enumerate(target) if text == "<unk>"):
        row, words, at = sum(rows)[place - 1, len(copier.src_tokenizer.template[0]) :], {}, 0
        for word in source.split():  # one token a character; a space is no word
            at = source.index(word, at)
            words[word] = row[at : at + len(word)].sum()
            at += len(word)
        yield max(words, key=words.get)


def test_unknown_tokens_are_replaced_only_where_they_are(copier):
    known = ["Abra sees it", "it sees Cyni"]
    for options in ({}, {"replace_unk": True}):
        assert not any("<unk>" in one.texts[0] for one in copier.stream(known, **options))


def test_an_unknown_token_that_ends_texts_too_is_not_shown_and_not_replaced(translator):
    """As in GPT-2, whose <|endoftext|> is both."""
    target = translator.tgt_tokenizer
    both = replace(translator, tgt_tokenizer=replace(target, unk_token_id=target.eos_token_id))
    plain = [one.texts for one in both.stream(SOURCES)]
    assert [one.texts for one in both.stream(SOURCES, replace_unk=True)] == plain
    assert plain == [one.texts for one in translator.stream(SOURCES)]


def test_a_text_is_encoded_once(translator, monkeypatch):
    read, encode = [], Translator.encode
    monkeypatch.setattr(Translator, "encode", lambda self, text: read.append(text) or encode(self, text))
    translator.translate(SOURCES, num_beams=1)
    assert read == SOURCES


def test_a_model_without_attention_replaces_nothing():
    letters = Tokenizer.train(["abc"], model_type="char", vocab_size=20)
    config = RecurrentConfig(
        src_vocab_size=len(letters), tgt_vocab_size=len(letters), embedding_dim=4, hidden_size=4, attention=None
    )
    without = Translator(RecurrentSeq2Seq(config).eval(), letters, letters, "en", "en")
    with pytest.raises(InputError, match="`replace_unk` needs the attention"):
        without.stream(["abc"], replace_unk=True)
