"""Scores of heads, and of word pairs, against dense eager weights of small random models, in plain loops."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from regard.errors import InputError
from regard.heads.scores import MEASURES, RULES
from regard.hub import Loaded
from regard.interpret.head_loss import head_loss
from regard.interpret.head_scores import Probe, default_texts, head_scores, repeated_tokens, text_scores, watched
from regard.interpret.look import prepare
from regard.interpret.word_pairs import pair_of, score_heads_for_pairs
from sweeps import sweep

transformers = pytest.importorskip("transformers", reason="transformers is not installed (the extra `models`)")

WORDS = "[PAD] [UNK] [CLS] [SEP] the cat sat on a mat . , it was tired because dog and two birds".split()
TEXT = "the cat sat on a mat , because it was tired ."
SIZES = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 32}


def tokenizer(*, special: bool) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    ids = {word: number for number, word in enumerate(WORDS)}
    backend = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    if special:
        ends = [("[CLS]", 2), ("[SEP]", 3)]
        backend.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **names)


@pytest.fixture(scope="module", params=["encoder", "decoder"])
def loaded(request: pytest.FixtureRequest) -> Loaded:
    torch.manual_seed(3)
    sizes = SIZES | {"vocab_size": len(WORDS), "max_position_embeddings": 64}
    if request.param == "encoder":
        model = transformers.BertModel(transformers.BertConfig(**sizes), add_pooling_layer=False)
    else:
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, num_key_value_heads=1))
    for weight in model.parameters():  # sharp weights, so that heads differ
        torch.nn.init.normal_(weight, std=0.5)
    return Loaded(f"small {request.param}", model.eval(), tokenizer(special=request.param == "encoder"), request.param)


def eager(loaded: Loaded, ids: torch.Tensor) -> np.ndarray:
    """Dense weights of transformers' own: (layers, batch, heads, n, n)."""
    loaded.model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            return torch.stack(loaded.model(input_ids=ids, output_attentions=True).attentions).double().numpy()
    finally:
        loaded.model.set_attn_implementation("sdpa")


def expected_of_text(p: np.ndarray, ids: list[int], *, causal: bool) -> dict[str, float]:
    """The scores of one head from its matrix, by their definitions."""
    n = len(ids)
    special = [j for j in range(n) if ids[j] in (2, 3)]
    rows = [i for i in range(n) if i not in special and not (causal and i == 0)]
    text = [i for i in range(n) if i not in special]
    separators = [j for j in range(n) if WORDS[ids[j]] in ("[SEP]", ".", ",")]

    def mean(values: list[float]) -> float:
        return sum(values) / len(values) if values else math.nan

    return {
        "previous": mean([p[i, i - 1] for i in rows if i - 1 in text]),
        "next": math.nan if causal else mean([p[i, i + 1] for i in rows if i + 1 in text]),
        "self": mean([p[i, i] for i in rows]),
        "separators": mean([sum(p[i, j] for j in separators) for i in rows]),
        "first": mean([p[i, text[0]] for i in text]),
        "special_tokens": mean([sum(p[i, j] for j in special) for i in rows]) if special else math.nan,
        "sink": mean([p[i, 0] for i in range(n)]),
        "entropy": mean([-sum(x * math.log(x) for x in p[i] if x > 0) for i in rows]),
        "distance": mean([sum(p[i, j] * abs(i - j) for j in range(n)) for i in rows]),
        "confidence": mean([max(p[i]) for i in rows]),
    }


def test_scores_of_a_text_are_those_of_the_dense_weights(loaded: Loaded) -> None:
    scores = head_scores(loaded, TEXT, probe=Probe(length=4, sequences=1))
    ids = loaded.tokenizer(TEXT)["input_ids"]
    weights = eager(loaded, torch.tensor([ids]))
    assert scores.tokens == len(ids)
    assert set(scores.scores) == {*RULES, *MEASURES}
    for layer in range(2):
        for head in range(3):
            expected = expected_of_text(weights[layer, 0, head], ids, causal=loaded.kind == "decoder")
            for name, value in expected.items():
                np.testing.assert_allclose(scores.scores[name][layer, head], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_scores_of_several_texts_are_means_over_the_rows_of_all(loaded: Loaded) -> None:
    texts = TEXT, "two birds sat .", "it was"
    scores = text_scores(*(watched(prepare(text, model=loaded)) for text in texts))
    sums: dict[str, np.ndarray] = {}
    counts: dict[str, int] = {}
    for text in texts:
        ids = loaded.tokenizer(text)["input_ids"]
        weights = eager(loaded, torch.tensor([ids]))
        rows = [i for i in range(len(ids)) if ids[i] not in (2, 3) and not (loaded.kind == "decoder" and i == 0)]
        text = [i for i in range(len(ids)) if ids[i] not in (2, 3)]
        found = {
            "sink": weights[:, 0, :, :, 0],
            "self": weights[:, 0][:, :, rows, rows],
            "confidence": weights[:, 0].max(-1)[..., rows],
            "previous": np.stack([weights[:, 0, :, i, i - 1] for i in rows if i - 1 in text], -1),
        }
        for name, of_rows in found.items():
            sums[name] = sums.get(name, 0) + of_rows.sum(-1)
            counts[name] = counts.get(name, 0) + of_rows.shape[-1]
    for name, total in sums.items():
        np.testing.assert_allclose(scores[name], total / counts[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_scores_of_random_tokens_are_means_over_the_second_copy(loaded: Loaded) -> None:
    probe = Probe(length=5, sequences=3, seed=4)
    scores = head_scores(loaded, TEXT, probe=probe)
    ids = repeated_tokens(loaded, probe).ids
    weights, start = eager(loaded, ids), 1 if loaded.kind == "encoder" else 0
    for name, behind in (("duplicate_token", 0), ("induction", 1)):
        expected = np.zeros((2, 3))
        for b in range(3):
            for i in range(start + 5, start + 10):
                (earlier,) = [j for j in range(i) if ids[b, j] == ids[b, i]]
                assert earlier == i - 5
                expected += weights[:, b, :, i, earlier + behind] / 15
        np.testing.assert_allclose(scores.scores[name], expected, rtol=1e-5, atol=1e-6)


def test_random_tokens_are_plain_different_repeated_and_the_same_for_one_seed(loaded: Loaded) -> None:
    repeated = repeated_tokens(loaded, Probe(length=6, sequences=8, seed=1))
    first, second = repeated.ids[:, repeated.first], repeated.ids[:, repeated.second]
    assert torch.equal(first, second)
    assert first.shape == (8, 6)
    assert all(len(set(row.tolist())) == 6 for row in first)
    assert int(first.min()) >= 4 or loaded.tokenizer.unk_token_id == 1  # none of [PAD], [CLS], [SEP]
    assert not set(first.unique().tolist()) & set(loaded.tokenizer.all_special_ids)
    if loaded.kind == "encoder":
        assert set(repeated.ids[:, 0].tolist()) == {2}
        assert set(repeated.ids[:, -1].tolist()) == {3}
    assert torch.equal(repeated.ids, repeated_tokens(loaded, Probe(length=6, sequences=8, seed=1)).ids)
    assert not torch.equal(repeated.ids, repeated_tokens(loaded, Probe(length=6, sequences=8, seed=2)).ids)


def test_a_probe_that_does_not_fit_says_what_does(loaded: Loaded) -> None:
    with pytest.raises(InputError, match=r"`Probe` of 40 different tokens .* has 16: choose Probe\(length=16\)"):
        repeated_tokens(loaded, Probe(length=40))
    with pytest.raises(InputError, match="a length from 2"):
        Probe(length=1)


def test_an_encoder_decoder_is_refused_with_the_way_out(loaded: Loaded) -> None:
    with pytest.raises(InputError, match=r"regard\.watch"):
        head_scores(Loaded("both", loaded.model, loaded.tokenizer, "encoder-decoder"), TEXT)


def test_the_default_texts_are_english_and_for_me5_chinese_too(loaded: Loaded) -> None:
    assert len(default_texts(loaded)) == 1
    assert len(default_texts(Loaded("me5", loaded.model, loaded.tokenizer, "encoder"))) == 2


def test_the_weight_between_words_is_that_of_the_dense_weights_over_the_sentences(loaded: Loaded) -> None:
    sentences = ["the cat sat because it was tired .", "", "the dog was tired", "a cat and a dog , it was a cat ."]
    found = score_heads_for_pairs(["it>cat"], sentences, model=loaded)
    (pair,) = found.pairs
    assert (found.sentences, found.unused, pair.missing, pair.later) == (3, 1, 1, 0)
    shift = 1 if loaded.kind == "encoder" else 0
    first = eager(loaded, torch.tensor([loaded.tokenizer(sentences[0])["input_ids"]]))[:, 0]
    second = eager(loaded, torch.tensor([loaded.tokenizer(sentences[3])["input_ids"]]))[:, 0]
    each = [
        first[:, :, 4 + shift, 1 + shift],
        second[:, :, 6 + shift, 1 + shift] + second[:, :, 6 + shift, 9 + shift],  # both cats
    ]
    np.testing.assert_allclose(pair.mean, np.mean(each, 0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(pair.spread, np.std(each, 0, ddof=1), rtol=1e-4, atol=1e-6)
    even = (1 / 5 + 1 / 7) / 2 if loaded.kind == "decoder" else (1 / 10 + 2 / 13) / 2
    assert pair.even == pytest.approx(even)


def test_a_causal_model_cannot_look_at_what_comes_later(loaded: Loaded) -> None:
    sentences = ["it was a cat", "the cat and it"]
    pair = score_heads_for_pairs(["it>cat"], sentences, model=loaded).pairs[0]
    causal = loaded.kind == "decoder"
    assert (len(pair.weights), pair.later) == ((1, 1) if causal else (2, 0))
    if causal:
        with pytest.raises(InputError, match="in 1 of them the second only comes later, where small decoder cannot"):
            score_heads_for_pairs(["it>cat"], sentences[:1], model=loaded)


def test_no_sentence_with_both_words_is_an_error_that_counts_them(loaded: Loaded) -> None:
    with pytest.raises(InputError, match="no sentence shows 'it' looking at 'birds': 2 lack one of the words"):
        score_heads_for_pairs(["it>birds"], ["the cat", "it sat"], model=loaded)
    with pytest.raises(InputError, match="there are no sentences"):
        score_heads_for_pairs(["it>birds"], [" ", ""], model=loaded)


def test_a_pair_is_two_different_words() -> None:
    for case in sweep(["it", "it>", ">", "a>b>c", "It>it"]):
        with case as text, pytest.raises(InputError, match="a pair must be two"):
            pair_of(text)


def test_a_head_that_is_not_there_is_refused_before_the_model_runs(loaded) -> None:
    ran: list[int] = []
    handle = loaded.model.register_forward_pre_hook(lambda *_: ran.append(1))
    with pytest.raises(InputError, match=r"`head` must be from 0 to 2 in layer 0, got 0\.3"):
        head_loss({(0, 3)}, model=loaded, text=TEXT, random=0, probe=Probe(4, 1))
    handle.remove()
    assert ran == []
