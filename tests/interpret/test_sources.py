"""Where an answer came from: scores against dense eager weights, removal against the model itself, and bad input."""

import dataclasses
from typing import ClassVar

import numpy as np
import pytest
import torch

from regard import HeadSet, sources
from regard.errors import InputError
from regard.heads.answer_sources import Sources
from regard.interpret.source_examples import draw_question
from regard.interpret.source_prompt import prompt_of, token_ranges
from sweeps import sweep

transformers = pytest.importorskip("transformers")
safetensors_numpy = pytest.importorskip("safetensors.numpy")
tokenizers = pytest.importorskip("tokenizers")

HEADS = HeadSet([(1, 2), (0, 1)], weights=(0.75, 0.25))
TEXT = "The cat is grey. 我爱你。 The dog is red.\n\nWhat is grey?"
WORDS = "The cat is grey . 我 爱 你 。 dog red What ? user answer : \n [UNK] [BOS]".split(" ")


@pytest.fixture(scope="module")
def tokenizer():
    words = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    split = tokenizers.Regex(r"[A-Za-z]+|[^\sA-Za-z]")
    words.pre_tokenizer = tokenizers.pre_tokenizers.Split(split, "removed", invert=True)
    words.post_processor = tokenizers.processors.TemplateProcessing(
        single="[BOS] $A", special_tokens=[("[BOS]", len(WORDS) - 1)]
    )
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", bos_token="[BOS]")


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(WORDS), hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.5, pad_token_id=0, eos_token_id=None,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def dense(model, tokenizer, text):
    """The weights of the heads by eager attention, (heads, queries, keys), and the log-probabilities of each token."""
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            out = model(ids, output_attentions=True)
    finally:
        model.set_attn_implementation("sdpa")
    weights = torch.stack([out.attentions[layer][0, head] for layer, head in HEADS.heads]).double().numpy()
    return weights, out.logits[0, :-1].double().log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0].numpy(), ids[0]


def test_scores_are_weighted_sums_of_dense_weights(model, tokenizer):
    found = sources(model, tokenizer, TEXT, "The cat.", heads=HEADS, parts="sentence")
    assert [found.text(part) for part in found.parts] == [
        "The cat is grey.", "我爱你。", "The dog is red.", "What is grey?",
    ]  # fmt: skip
    weights, log_probs, _ = dense(model, tokenizer, TEXT + " The cat.")
    # [BOS], then 5 tokens, 4, 5 and 4; the answer's three tokens are predicted by positions 18 to 20
    spans = [(1, 6), (6, 10), (10, 15), (15, 19)]
    expected = np.stack([weights[:, 18:21, a:b].sum(-1) for a, b in spans], -1)
    np.testing.assert_allclose(found.token_scores, np.einsum("h,htp->tp", [0.75, 0.25], expected), atol=1e-6)
    np.testing.assert_allclose(found.log_probs, log_probs[18:], atol=1e-5)
    assert [found.answer[a:b] for a, b in found.token_spans] == ["The", "cat", "."]
    assert found.from_nowhere is None
    assert found.strength == pytest.approx(found.token_scores.max(1).mean())
    scored = dataclasses.replace(HEADS, head_scores=(-0.1, 0.2), threshold=0.0)  # the second head alone has a strength
    found = sources(model, tokenizer, TEXT, "The cat.", heads=scored, parts="sentence")
    assert found.strength == pytest.approx(expected[1].max(1).mean(), abs=1e-6)
    assert found.from_nowhere is False
    assert dataclasses.replace(found, threshold=found.strength + 1e-6).from_nowhere is True


def test_the_first_token_of_the_answer_is_in_no_part_though_it_takes_the_prompts_last_space(model):
    """As in byte-level BPE: "The cat. " alone ends with the token " ", and before "dog" there is the token " dog"."""
    words = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"The": 0, " cat.": 1, " ": 2, " dog": 3, "?": 4}, unk_token="?")
    )
    words.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r" ?[^ ]+| "), "isolated")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?")
    found = sources(model, tokenizer, "The cat. ", "dog cat. dog", heads=HEADS, parts=[(0, 3), (3, 9)])
    weights, _, ids = dense(model, tokenizer, "The cat. dog cat. dog")
    assert ids.tolist() == [0, 1, 3, 1, 3]
    weights[:, :, 0] = 0  # of the first token of the text, which counts for no part
    expected = np.einsum("h,htp->tp", [0.75, 0.25], weights[:, 1:4, :2])
    np.testing.assert_allclose(found.token_scores, expected, atol=1e-6)


def test_the_first_token_and_special_ones_count_for_no_part(model, tokenizer):
    """Heads rest on them when they find nothing, so that the first part of a prompt had the largest score of all."""
    text = "The cat is grey.[BOS] The dog is red."
    chat = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer.from_str(tokenizer.backend_tokenizer.to_str()),
        unk_token="[UNK]",
        bos_token="[BOS]",
    )
    chat.backend_tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single="$A", special_tokens=[])
    found = sources(model, chat, text, "The cat.", heads=HEADS, parts=[(0, 16), (16, len(text))])
    weights, _, ids = dense(model, chat, text + " The cat.")
    assert ids[5] == chat.bos_token_id
    expected = np.stack([weights[:, 10:13, 1:5].sum(-1), weights[:, 10:13, 6:11].sum(-1)], -1)
    np.testing.assert_allclose(found.token_scores, np.einsum("h,htp->tp", [0.75, 0.25], expected), rtol=1e-5)
    with pytest.raises(InputError, match="no part of the prompt has a token besides the first"):
        sources(model, chat, "cat", "red", heads=HEADS)


JOINS = {
    ('She said: "', "Hello."): 'She said: "Hello.',
    ('She said "no"', "and left"): 'She said "no" and left',
    ("(x", ") = 1"): "(x) = 1",
    ("f(", "x)"): "f(x)",
    ("https://", "a.b"): "https://a.b",
    ("Total: -", "5"): "Total: -5",
    ("Answer:", "It is."): "Answer: It is.",
    ("Answer:", "\n\nIt is. \n"): "Answer:\n\nIt is.",
    ("def f():\n", "    return 1"): "def f():\n    return 1",
    ("我爱你", "The cat"): "我爱你The cat",
}


class Reading(transformers.PreTrainedTokenizerFast):
    """A tokenizer that remembers the texts it has read."""

    texts: ClassVar[list[str]] = []

    def __call__(self, text, **options):
        self.texts.append(text)
        return super().__call__(text, **options)


def test_prompt_and_answer_are_joined_as_they_are_written(model):
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0}, unk_token="?"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex("."), "isolated")
    tokenizer = Reading(tokenizer_object=words, unk_token="?")
    for case in sweep(JOINS):
        with case as (prompt, answer):
            tokenizer.texts.clear()
            found = sources(model, tokenizer, f"a {prompt}", answer, heads=HEADS, parts="line")
            assert max(tokenizer.texts, key=len) == f"a {JOINS[prompt, answer]}"
            assert found.answer == answer.strip()


def test_at2s_coefficients_give_at2s_scores(model, tokenizer, tmp_path):
    """AT2: features (target tokens, tokens, layers · heads), a linear layer, sums over a source's tokens, and the mean
    over the target's.
    """
    coefficients = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)
    safetensors_numpy.save_file({"coefficients": coefficients}, tmp_path / "at2.safetensors")
    found = sources(
        model, tokenizer, TEXT, "The cat.", heads=HeadSet.load_at2(tmp_path / "at2.safetensors"), parts="sentence"
    )
    ids = tokenizer(TEXT + " The cat.", return_tensors="pt")["input_ids"]
    model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            attentions = torch.stack(model(ids, output_attentions=True).attentions)[:, 0]
    finally:
        model.set_attn_implementation("sdpa")
    features = attentions[:, :, 18:21].permute(2, 3, 0, 1).reshape(3, 22, 8)
    linear = torch.nn.functional.linear(features, torch.tensor(coefficients).reshape(1, 8))[..., 0]
    expected = [float(linear[:, a:b].sum(-1).mean()) for a, b in [(1, 6), (6, 10), (10, 15), (15, 19)]]
    np.testing.assert_allclose(found.scores, expected, atol=1e-6)


def test_generated_answers_are_the_models_own(model, tokenizer):
    found = sources(model, tokenizer, TEXT, heads=HEADS, max_new_tokens=5)
    ids = tokenizer(TEXT, return_tensors="pt")["input_ids"]
    written = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=5, do_sample=False)[
        0, ids.shape[1] :
    ]
    assert found.answer == tokenizer.decode(written, skip_special_tokens=True).strip()
    assert len(found.token_spans) == 5
    assert "".join(found.answer[a:b] for a, b in found.token_spans) == found.answer
    with torch.no_grad():
        logits = model(torch.cat([ids[0], written])[None]).logits[0, ids.shape[1] - 1 : -1]
    expected = logits.double().log_softmax(-1).gather(1, written[:, None])[:, 0]
    np.testing.assert_allclose(found.log_probs, expected.numpy(), atol=1e-5)


def test_blank_tokens_around_a_generated_answer_are_none_of_its_tokens(model, tokenizer, monkeypatch):
    def generating(written):
        ids = tokenizer.convert_tokens_to_ids(written)
        return lambda before, **_: torch.cat([before, torch.tensor([ids])], 1)

    given = sources(model, tokenizer, TEXT, "The cat.", heads=HEADS, parts="sentence", verify=True)
    monkeypatch.setattr(model, "generate", generating(["The", "cat", ".", "\n", "\n"]))
    found = sources(model, tokenizer, TEXT, heads=HEADS, parts="sentence", verify=True)
    assert found.answer == "The cat ."
    assert found.token_spans == ((0, 3), (3, 7), (7, 9))
    np.testing.assert_allclose(found.token_scores, given.token_scores, atol=1e-6)
    np.testing.assert_allclose(found.log_probs, given.log_probs, atol=1e-5)
    assert found.strength == pytest.approx(given.strength, abs=1e-6)
    assert [one.drop for one in found.removals] == pytest.approx([one.drop for one in given.removals], abs=1e-5)

    monkeypatch.setattr(model, "generate", generating(["\n", "\n", "The", "cat", "."]))
    found = sources(model, tokenizer, TEXT, heads=HEADS, parts="sentence")
    ids = torch.tensor(
        [tokenizer(TEXT)["input_ids"] + tokenizer.convert_tokens_to_ids(["\n", "\n", "The", "cat", "."])]
    )
    with torch.no_grad():  # the model has the blanks before the answer, which begins after them
        logits = model(ids).logits[0, -4:-1].double()
    expected = logits.log_softmax(-1).gather(1, ids[0, -3:, None])[:, 0]
    np.testing.assert_allclose(found.log_probs, expected.numpy(), atol=1e-5)
    assert found.answer == "The cat ."
    assert found.token_spans == ((0, 3), (3, 7), (7, 9))
    assert found.token_scores.shape == (3, 4)


def test_removal_is_a_run_without_the_part(model, tokenizer):
    found = sources(model, tokenizer, TEXT, "The cat.", heads=HEADS, parts="sentence", verify=True, num_removals=4)
    assert [one.part for one in found.removals] == [part.id for part, _ in found.ranked()]
    without = {
        "1.1": "我爱你。 The dog is red.\n\nWhat is grey? The cat.",
        "1.2": "The cat is grey. The dog is red.\n\nWhat is grey? The cat.",
        "1.3": "The cat is grey. 我爱你。 \n\nWhat is grey? The cat.",
        "1.4": "The cat is grey. 我爱你。 The dog is red.\n\n The cat.",
    }
    whole = found.log_probs.sum()
    drops = {part: whole - dense(model, tokenizer, text)[1][-3:].sum() for part, text in without.items()}
    for one in found.removals:
        assert one.drop == pytest.approx(drops[one.part], abs=1e-5)
        assert one.control != one.part
        assert one.control_drop == pytest.approx(drops[one.control], abs=1e-5)


def test_a_control_is_no_part_that_is_removed_for_its_score(model, tokenizer):
    for seed in range(20):
        options = {"heads": HEADS, "parts": "sentence", "verify": True, "num_removals": 2, "seed": seed}
        found = sources(model, tokenizer, TEXT, "The cat.", **options)
        assert {one.part for one in found.removals}.isdisjoint(one.control for one in found.removals)


def test_hidden_keys_have_weight_0_and_positions_stay(model, tokenizer):
    """Without its keys, the tokens of a part neither are attended to nor move those behind them."""
    (one,) = sources(model, tokenizer, TEXT, "The cat.", heads=HEADS, parts="sentence", verify=True).removals
    at = int(one.part.split(".")[1]) - 1
    first, last = [(1, 6), (6, 10), (10, 15), (15, 19)][at]
    _, log_probs, ids = dense(model, tokenizer, TEXT + " The cat.")
    n = len(ids)
    mask = torch.ones(n, n).tril().bool()
    mask[:, first:last] = False
    mask[range(n), range(n)] = True  # rows of the part itself; nothing attends to these
    with torch.no_grad():
        logits = model(ids[None], attention_mask=mask[None, None], position_ids=torch.arange(n)[None]).logits[0, :-1]
    expected = logits.double().log_softmax(-1).gather(1, ids[1:, None])[-3:, 0].sum()
    assert one.hidden == pytest.approx(log_probs[-3:].sum() - float(expected), abs=1e-4)


def test_documents_have_their_own_offsets(model, tokenizer):
    texts = {"a.txt": "  The cat is grey. The dog is red.\n", "b.txt": "我爱你。"}
    found = sources(model, tokenizer, documents=texts, question="What is red?", answer="dog", heads=HEADS)
    assert [(part.id, found.text(part)) for part in found.parts] == [
        ("1.1", "The cat is grey."), ("1.2", "The dog is red."), ("2.1", "我爱你。"),
    ]  # fmt: skip
    assert [texts[found.documents[part.document].name][part.start : part.end] for part in found.parts] == [
        found.text(part) for part in found.parts
    ]
    assert found.document_scores[0] == pytest.approx(found.scores[:2].sum())
    a_list = sources(
        model, tokenizer, documents=list(texts.values()), question="What is red?", answer="dog", heads=HEADS
    )
    assert [one.name for one in a_list.documents] == ["document 1", "document 2"]


def test_messages_are_found_in_the_chat(model, tokenizer):
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer._tokenizer, bos_token="[BOS]", unk_token="[UNK]"
    )
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['role'] }} : {{ m['content'] | trim }} \n{% endfor %}"
        "{% if add_generation_prompt %}answer : {% endif %}"
    )
    chat = [
        {"role": "user", "content": "The cat is grey. \n"},
        {"role": "answer", "content": "grey"},
        {"role": "user", "content": "What is grey?"},
    ]
    found = sources(model, tokenizer, messages=chat, answer="The cat.", heads=HEADS, parts="sentence")
    assert [(found.documents[part.document].name, found.text(part)) for part in found.parts] == [
        ("user 1", "The cat is grey."), ("answer 2", "grey"), ("user 3", "What is grey?"),
    ]  # fmt: skip
    with pytest.raises(InputError, match="must end before the answer"):
        sources(model, tokenizer, messages=[*chat, {"role": "assistant", "content": "x"}], answer="y", heads=HEADS)
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] | upper }}{% endfor %}"
    with pytest.raises(InputError, match="the chat template changes the messages"):
        sources(model, tokenizer, messages=chat, answer="The cat.", heads=HEADS)


def test_a_message_is_not_looked_for_in_the_words_of_the_template(tokenizer):
    """SmolLM2's template begins with a system prompt of its own: "You are a helpful AI assistant …"."""
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer._tokenizer)
    tokenizer.chat_template = "Be helpful .\n{% for m in messages %}{{ m['role'] }} : {{ m['content'] }}\n{% endfor %}"
    chat = [{"role": "user", "content": one} for one in ("help", "user", " Be ")]
    made = prompt_of(tokenizer, prompt=None, documents=None, question=None, messages=chat, parts="document")
    assert made.text == "Be helpful .\nuser : help\nuser : user\nuser :  Be \n"
    assert made.places == ((20, 24), (32, 36), (45, 47))
    tokenizer.chat_template = "{{ 'Be . ' if 'Be' in messages[-1]['content'] }}{{ messages[-1]['content'] }}"
    with pytest.raises(InputError, match="no certain place"):
        prompt_of(tokenizer, prompt=None, documents=None, question=None, messages=chat[2:], parts="document")


def test_an_end_token_of_the_tokenizer_is_in_no_part(model, tokenizer):
    """BERT's and XLM-R's add one; where it would stand, the generated answer begins."""
    ending = tokenizers.Tokenizer.from_str(tokenizer._tokenizer.to_str())
    ending.post_processor = tokenizers.processors.TemplateProcessing(
        single="[BOS] $A [UNK]", special_tokens=[("[BOS]", len(WORDS) - 1), ("[UNK]", WORDS.index("[UNK]"))]
    )
    ending = transformers.PreTrainedTokenizerFast(tokenizer_object=ending, unk_token="[UNK]", bos_token="[BOS]")
    options = {"heads": HEADS, "max_new_tokens": 5, "parts": "sentence"}
    found, plain = sources(model, ending, TEXT, **options), sources(model, tokenizer, TEXT, **options)
    assert found.answer == plain.answer
    np.testing.assert_array_equal(found.token_scores, plain.token_scores)


@pytest.mark.parametrize("template", ["{{ m['content'] }}", "{{ m['content'] | trim }}"])
def test_spans_of_a_message_are_its_own_characters(tokenizer, template):
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer._tokenizer)
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }} : " + template + "What{% endfor %}"
    chat = [{"role": "user", "content": "\n The cat.\n"}]
    spans = [(0, 4), (6, 9), (10, 11)]  # the last is white space that a template may drop
    made = prompt_of(tokenizer, prompt=None, documents=None, question=None, messages=chat, parts=spans)
    assert [made.documents[0].text[part.start : part.end] for part in made.parts] == ["\n Th", "cat", "\n"]
    trimmed = "trim" in template
    assert [made.text[start:end] for start, end in made.places] == [
        "Th" if trimmed else "\n Th",
        "cat",
        "\n" * (not trimmed),
    ]
    assert made.without(made.parts[2]) == "user : The cat.What" if trimmed else "user : \n The cat.What"


def test_a_span_of_white_space_that_the_prompt_drops_has_no_words_of_the_question(tokenizer):
    text = "The cat is grey.   \n\n\n\n\n\n"
    made = prompt_of(
        tokenizer, prompt=None, documents=[text], question="What is grey?", messages=None, parts=[(4, 7), (16, 25)]
    )
    assert [made.text[start:end] for start, end in made.places] == ["cat", ""]
    assert made.without(made.parts[1]) == made.text


def test_tokens_belong_to_the_part_that_has_their_first_letter():
    text = "a b.  c\nd"
    spans = [(0, 0), (0, 1), (1, 3), (3, 4), (4, 7), (7, 8), (8, 9)]
    assert token_ranges(text, spans, [(0, 4), (6, 7), (8, 9)]) == [(1, 4), (4, 5), (6, 7)]
    assert token_ranges("😀", [(0, 1), (0, 1)], [(0, 1)]) == [(0, 2)]


BAD = {
    "nothing to read": ({}, "one of `prompt`, `documents` with a `question`, and `messages`.*got none"),
    "two prompts": ({"prompt": TEXT, "documents": ["a"], "question": "b"}, "got prompt and documents"),
    "a question without documents": ({"prompt": TEXT, "question": "b"}, "`question` belongs to `documents`"),
    "documents without a question": ({"documents": ["a"]}, "`question` belongs to `documents`"),
    "one text for documents": ({"documents": "abc", "question": "b"}, r"put it in \[ \]"),
    "an empty document": ({"documents": ["a", " "], "question": "b"}, r"documents\['document 2'\].*at least one word"),
    "an empty question": ({"documents": ["a"], "question": " "}, "`question` must be a text"),
    "an answer without a word": ({"prompt": TEXT, "answer": "  "}, "`answer` must be a text"),
    "nothing without the only part": ({"prompt": "The cat.", "verify": True}, "`verify` removes a part and asks again"),
    "no chat template": ({"messages": [{"role": "user", "content": "a"}]}, "chat template"),
    "messages that are texts": ({"messages": ["a"]}, "`messages` must be a list"),
    "a kind of parts": ({"prompt": TEXT, "parts": "words"}, "`parts` must be one of"),
    "spans of two documents": ({"documents": ["a", "b"], "question": "c", "parts": [(0, 1)]}, "is for one text"),
    "a NUL byte": ({"prompt": "a\0b"}, "NUL"),
    "half of a surrogate pair": ({"documents": ["a \ud800"], "question": "b"}, r"half of a surrogate pair \(U\+D800\)"),
    "an answer with half of one": ({"prompt": TEXT, "answer": "red \udfff"}, r"`answer` contains half.*U\+DFFF"),
    "a seed that is a text": ({"prompt": TEXT, "seed": "x"}, "`seed` must be an integer of at least 0, got 'x'"),
    "a seed below 0": ({"prompt": TEXT, "seed": -1}, "`seed` must be an integer of at least 0, got -1"),
    "too long": ({"prompt": "cat " * 70, "answer": "cat"}, "have 72 tokens.*positions for 64"),
    "too long to answer": ({"prompt": "cat " * 70}, "positions for 64"),
    "heads of another model": ({"prompt": TEXT, "heads": dataclasses.replace(HEADS, fingerprint="x")}, "fingerprint"),
    "heads that are none": ({"prompt": TEXT, "heads": [(0, 1)]}, "`heads` must be a HeadSet"),
    "a head that is not there": ({"prompt": TEXT, "answer": "cat", "heads": HeadSet([(0, 9)])}, "from 0 to 3"),
    "verify is a word": ({"prompt": TEXT, "verify": "all"}, "`verify` must be"),
    "verify is a number": ({"prompt": TEXT, "verify": 3}, "`verify` must be"),
    "no removal": ({"prompt": TEXT, "num_removals": 0}, "`num_removals` must be"),
    "no new token": ({"prompt": TEXT, "max_new_tokens": 0}, "`max_new_tokens` must be a whole number from 1"),
}


def test_bad_input_is_one_sentence(model, tokenizer):
    for case in sweep(BAD):
        with case as name:
            given, said = BAD[name]
            with pytest.raises(InputError, match=said):
                sources(model, tokenizer, **{"heads": HEADS, **given})


def test_a_record_is_saved_and_shown(model, tokenizer, tmp_path):
    found = sources(model, tokenizer, TEXT, "The cat.", heads=HEADS, verify=True)
    found.save(tmp_path / "found.json")
    assert Sources.load(tmp_path / "found.json").as_dict() == found.as_dict()
    found.save_page(tmp_path / "found.html")
    assert (tmp_path / "found.html").read_text("utf-8").startswith("<!doctype html>")
    assert "The cat." in found._repr_html_()


@pytest.mark.models
@pytest.mark.slow
def test_a_prompt_that_begins_with_another_sentence_has_the_source_that_its_documents_have(load):
    facts = {
        "Boats come back in April.": ("When do boats come back?", "In April."),
        "The shop closes at six.": ("When does the shop close?", "At six."),
        "Tickets cost nine euros.": ("What do tickets cost?", "Nine euros."),
        "The museum keeps a Roman coin.": ("What does the museum keep?", "A Roman coin."),
    }
    loaded, found = load("smollm2"), []
    for question, answer in facts.values():
        prompt = f"Anna planted the first pear tree. {' '.join(facts)}\n\nQuestion: {question}\nAnswer:"
        one = sources(loaded, prompt=prompt, answer=answer)
        found.append(one.text(one.ranked()[0][0]))
    assert found == list(facts)


@pytest.mark.slow
def test_the_threshold_that_comes_with_smollm2_has_its_error_rate_on_the_held_out_examples_as_sources_reads_them(load):
    loaded, draw = load("smollm2"), np.random.default_rng(0)
    examples = [draw_question(draw) for _ in range(32)]
    nowhere = []
    for pair in examples[16:]:
        for one in pair:
            found = sources(loaded, documents=one.documents, question=one.question, answer=one.answer, parts="document")
            nowhere.append(found.from_nowhere)
    wrong = sum(nowhere[::2]) + nowhere[1::2].count(False)
    assert found.heads.error_rate == wrong / 32
