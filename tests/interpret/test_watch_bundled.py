"""The three real models on five texts, against transformers' eager weights and a dense softmax of the same q and k."""

import pytest
import torch

import regard
from regard.heads import find_sinks, head_patterns
from regard.hub import Loaded
from sweeps import sweep

LONG = "The cat that the dog chased ran up the tree, and 貓 looked at def f(x): return x. " * 40
TEXTS = {
    "English": ["The animal didn't cross the street because it was too tired"],
    "Chinese": ["貓追老鼠，因為它餓了"],
    "code": ["def mean(xs):\n    return sum(xs) / len(xs)  # x̄"],
    "512 tokens": [LONG],
    "a padded batch": ["A cat.", "The cat sat on the mat because it was warm.", "貓"],
}


CASES = [(name, text) for name in ("minilm", "me5", "smollm2") for text in TEXTS]
KEPT = [(name, text) for name, text in CASES if name == "minilm" and text != "512 tokens"]


def encoded(loaded: Loaded, texts: list[str]):
    tokenizer = loaded.tokenizer
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    tokenizer.padding_side = "left" if loaded.kind == "decoder" else "right"
    return tokenizer(texts, return_tensors="pt", padding=True, truncation=True, max_length=512)


def check(load, kernel_calls, far, name: str, text: str) -> None:
    loaded = load(name)
    model, ids = loaded.model, encoded(loaded, TEXTS[text])
    if text == "512 tokens":
        assert ids["input_ids"].shape[1] == 512
    with torch.no_grad():
        plain = model(**ids)[0]
        with kernel_calls() as dense, regard.watch(model, keep="weights", max_bytes=2**32) as seen:
            assert torch.equal(model(**ids)[0], plain)
        model.set_attn_implementation("eager")
        try:
            eager = model(**ids, output_attentions=True).attentions
        finally:
            model.set_attn_implementation("sdpa")
    assert len(seen.record) == len(dense) == len(eager)
    to_eager = max(far(ours.weights, theirs) for ours, theirs in zip(seen.record, eager, strict=True))
    to_dense = max(far(ours.weights, theirs) for ours, theirs in zip(seen.record, dense, strict=True))
    print(f"{name}, {text}: {to_eager:.1e} to eager, {to_dense:.1e} to a dense softmax")  # noqa: T201
    assert to_eager < 2e-5
    assert to_dense < 5e-6  # two orders of the same sums: 1.9e-6 in products of two threads, 2.4e-6 of one
    hidden = ids["attention_mask"] == 0
    if hidden.any():
        for layer in seen.record:
            weights = torch.from_numpy(layer.weights).permute(0, 2, 3, 1)
            visible = ids["attention_mask"].bool()
            assert (weights.transpose(1, 2)[hidden] == 0).all()  # nobody looks at padding
            torch.testing.assert_close(weights.sum(2)[visible], torch.ones_like(weights.sum(2)[visible]))


@pytest.mark.models
def test_every_weight_of_a_real_model_agrees(load, kernel_calls, far) -> None:
    for case in sweep(KEPT):
        with case as (name, text):
            check(load, kernel_calls, far, name, text)


@pytest.mark.slow
@pytest.mark.models
def test_every_weight_of_the_larger_models_agrees(load, kernel_calls, far) -> None:
    for case in sweep([row for row in CASES if row not in KEPT]):
        with case as (name, text):
            check(load, kernel_calls, far, name, text)


@pytest.mark.models
def test_left_padding_that_sees_nothing_has_weight_0(load) -> None:
    loaded = load("smollm2")
    ids = encoded(loaded, ["A cat sat on the mat.", "Hi"])
    hidden = ids["attention_mask"] == 0
    assert hidden[1, 0]
    with torch.no_grad(), regard.watch(loaded.model) as seen:
        loaded.model(**ids)
    assert (torch.from_numpy(seen.layer(0).exact).transpose(1, 2)[hidden] == 0).all()
    assert (torch.from_numpy(seen.layer(-1).entropy).transpose(1, 2)[hidden] == 0).all()


@pytest.mark.models
def test_words_of_a_real_text_are_found_and_kept_in_an_atlas(load, tmp_path) -> None:
    loaded = load("minilm")
    ids = encoded(loaded, TEXTS["English"])
    with torch.no_grad():
        with regard.watch(loaded.model, tokenizer=loaded.tokenizer) as seen:
            loaded.model(**ids)
        loaded.model.set_attn_implementation("eager")
        eager = loaded.model(**ids, output_attentions=True).attentions
        loaded.model.set_attn_implementation("sdpa")
    pieces = loaded.tokenizer.convert_ids_to_tokens(ids["input_ids"][0])
    at, to = pieces.index("it"), pieces.index("animal")
    ranked = seen.rank_heads("it", "animal")
    best = ranked[0]
    assert len(ranked) == sum(layer.shape[1] for layer in eager)
    assert best.weight == pytest.approx(max(float(layer[0, :, at, to].max()) for layer in eager), abs=2e-5)
    assert best.weight == pytest.approx(float(eager[best.layer][0, best.head, at, to]), abs=2e-5)
    seen.save(tmp_path / "it.atlas")
    again = regard.load_atlas(tmp_path / "it.atlas")
    assert again.rank_heads("it", "animal") == ranked
    assert (again.weights(layer=2, head=3) == seen.weights(layer=2, head=3)).all()


def _looked_at(loaded: Loaded, texts: list[str], side: str):
    tokenizer = loaded.tokenizer
    tokenizer.pad_token, tokenizer.padding_side = tokenizer.pad_token or tokenizer.eos_token, side
    given = tokenizer(texts, padding=True, return_tensors="pt")
    if loaded.kind == "encoder":  # absolute positions count from the first token
        given["position_ids"] = (given["attention_mask"].cumsum(1) - 1).clamp_min(0)
    first = int(given["attention_mask"][0].argmax())
    with torch.no_grad(), regard.watch(loaded.model, tokenizer=tokenizer) as seen:
        loaded.model(**given)
    return seen.record, first


@pytest.mark.models
@pytest.mark.parametrize("name", ["minilm", "smollm2"])
def test_padding_and_an_end_of_text_change_no_name_of_a_head(load, name: str) -> None:
    loaded, text = load(name), "The dog was hungry because it"
    end = [("with an end of text", [f"{text}<|endoftext|>"], "left")] if name == "smollm2" else []
    cases = [
        ("in a batch", [text, text], "left"),
        ("left", [text, text * 2], "left"),
        ("right", [text, text * 2], "right"),
    ]
    record, _ = _looked_at(loaded, [text], "right")
    names = [head_patterns(record, layer) for layer in record]
    sinks = [[one.key for one in find_sinks(layer)] for layer in record]
    for case in sweep([*cases, *end]):
        with case as (kind, texts, side):
            padded, first = _looked_at(loaded, texts, side)
            assert [head_patterns(padded, layer) for layer in padded] == names
            if kind != "with an end of text":
                assert [[one.key - first for one in find_sinks(layer)] for layer in padded] == sinks
    if name == "smollm2":  # of its rows beside the first, which sees only itself, as many give the first token most
        most = sum(int((layer.exact[0, :, 1:, 0].mean(-1) > 0.5).sum()) for layer in record)
        assert abs(sum(layer.count("first") for layer in names) - most) < 0.06 * most
