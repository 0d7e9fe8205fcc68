"""Sentences that people try first: each gives a picture, and each of its weights is transformers' own eager one.

The oracle runs the model with attn_implementation="eager" and adds up the weights of the pieces of a word in plain
NumPy: the mean over the pieces that look, the sum over those that are looked at.
"""

import numpy as np
import pytest
import torch

import regard
from regard.errors import InputError
from sweeps import sweep

pytest.importorskip("transformers", reason="transformers is not installed (the extra `models`)")
bundled = pytest.importorskip("regard.hub")
models = pytest.importorskip("regard.interpret.model_loading")

pytestmark = [
    pytest.mark.models,
    pytest.mark.skipif(
        not all(map(bundled.is_installed, ("me5", "minilm"))),
        reason="the bundled models are missing: regard models get",
    ),
]

FAST = (
    "Thinking Machines", "it is", "ha ha", "The animal didn't cross the street because it was too tired", "我 爱 你",
    "貓追老鼠，因為它餓了", "🐱🐭",
)  # fmt: skip
SLOW = (
    *("jane visits africa", "I love you", "Hello world", "x = 1"),
    *("我爱你", "猫追老鼠，因为它饿了", "私は学生です", "Guten Morgen"),
    "The animal didn't cross the street because it was too wide",
    "The cat sat on the mat because it was tired",
    "Attention is all you need",
    "The quick brown fox jumps over the lazy dog",
    "The trophy doesn't fit in the brown suitcase because it is too big",
    "The doctor asked the nurse because she was late",
    "Time flies like an arrow; fruit flies like a banana.",
    "Colorless green ideas sleep furiously",
    "To be, or not to be, that is the question",
    "They said that they would come, but they never did.",
    "A robin is a bird.",
    "hello, world!",
    "No.. way",
    "The bank of the river was steep, and the bank in the town was closed, so she walked on with the money in her bag "
    "until it was dark and nobody could see what she was carrying any more",
    "don't stop",
    "New York",
    "2 + 2 = 4",
    "def f(x): return x + 1",
    "for i in range(10): print(i)",
    "SELECT name FROM users WHERE id = 3;",
    "int main() { return 0; }",
    "a[i] += b[j] * c;",
    "I ❤️ 🐱",
    "😀 😃 😄 😁",
    "👩‍💻 writes code",
    "The 🐶 chased the 🐱 because it was hungry",
    "深度学习 很 有趣",
    "小明喜欢小红，因为她很聪明",
    "他和其他人都来了，因为他们饿了。",
    "今天天气很好",
    "注意力机制就是加权求和",
    "老人养了一只猫，它每天晚上都出去。",
    "红色连衣裙",
    "老鼠追貓，因為它餓了",
    "孩子們喜歡這隻貓，因為它很可愛。",
    "深度學習很有趣",
    "臺北今天下雨嗎？",
    "那隻貓很小，但是它跑得很快。",
    "什麼是注意力？",
    "猫は魚が好きです。その猫は三毛です。",
    "彼女は猫を飼っている。それは白い。",
    "吾輩は猫である。名前はまだ無い。",
    "今日は天気がいいですね",
    "そのため彼は来なかった",
    "機械学習",
    "Der Hund jagte die Katze, weil er hungrig war",
    "Die Katze sitzt auf der Matte",
    "Das Tier überquerte die Straße nicht, weil es zu müde war",
    "Ich liebe dich",
    "Donaudampfschifffahrtsgesellschaft ist lang",
    "Wer reitet so spät durch Nacht und Wind? Es ist der Vater mit seinem Kind; er hat den Knaben wohl in dem Arm, er "
    "faßt ihn sicher, er hält ihn warm.",
)


@pytest.fixture(autouse=True)
def _each_model_is_loaded_once(load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "load_model", load)


def eager(load, name: str, text: str) -> tuple[list[str], np.ndarray]:
    """The pieces of a text, and each layer's weights (layers, heads, n, n), as transformers computes them itself."""
    loaded = load(name)
    encoded = loaded.tokenizer(text, return_tensors="pt")
    loaded.model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            output = loaded.model(**encoded, output_attentions=True)
    finally:
        loaded.model.set_attn_implementation("sdpa")
    weights = torch.stack(output.attentions)[:, 0].double().numpy()
    return loaded.tokenizer.convert_ids_to_tokens(encoded["input_ids"][0]), weights


def check(load, text: str) -> None:
    looked = regard.look(text)
    _, weights = eager(load, looked.model, text)
    focus = looked.highlight
    rows = list(focus.queries[focus.word].pieces)
    assert not focus.queries[focus.word].special
    for look in focus.looks:
        target = focus.keys[look.target]
        assert look.target != focus.word
        assert not target.special
        block = weights[look.layer, look.head][np.ix_(rows, list(target.pieces))]
        assert abs(block.sum(1).mean() - look.weight) < 1e-5
    if len(focus.looks) == 2:
        assert focus.looks[0].target != focus.looks[1].target
    keys = weights.shape[-1]
    sharp = [look.weight >= max(0.1, 2 * len(focus.keys[look.target].pieces) / keys) for look in focus.looks]
    said = focus.note.casefold()
    assert any(sharp) or "is sharp" in said or "no finding" in said
    assert not any(sharp[:1]) or "is sharp" not in said


def test_a_sentence_that_people_try_first_gives_a_picture_with_the_models_own_weights(load):
    for case in sweep(FAST):
        with case as text:
            check(load, text)


@pytest.mark.slow
def test_fifty_more_sentences_give_a_picture_with_the_models_own_weights(load):
    for case in sweep(SLOW):
        with case as text:
            check(load, text)


PRONOUNS = [
    ("The animal didn't cross the street because it was too tired", "it", "", "animal", 0.65),
    ("貓追老鼠，因為它餓了", "它", "", "貓", 0.48),
    ("猫追老鼠，它饿了", "它", "", "猫", 0.43),
    ("猫追老鼠，因为它饿了", "因为它", "它", "追", 0.35),  # 11.10 gives 猫 0.28, and 0.33 from the other words
]


def test_a_pronoun_is_looked_from_first_and_at_what_comes_before_it():
    for case in sweep(PRONOUNS):
        with case as (text, word, part, target, weight):
            focus = regard.look(text).highlight
            first = focus.looks[0]
            assert (focus.queries[focus.word].text, focus.part, focus.keys[first.target].text) == (word, part, target)
            assert round(first.weight, 2) == weight


def test_one_word_is_refused_with_the_way_out():
    for case in sweep(["hello", "hello!", "猫", "unbelievable"]):
        with case as text, pytest.raises(InputError, match=r"the text is one word, .*: write two or more"):
            regard.look(text)


def tired_and_wide(load) -> np.ndarray:
    """Eager weights from "it" to "animal" and "street", (texts, words, layers, heads)."""
    found = []
    for end in ("tired", "wide"):
        pieces, weights = eager(load, "minilm", f"The animal didn't cross the street because it was too {end}")
        found.append([weights[:, :, pieces.index("it"), pieces.index(word)] for word in ("animal", "street")])
    return np.array(found)


def test_tired_and_wide_are_the_same_to_the_head_that_looks_at_the_animal(load):
    """What the README, docs/heads.md and the lab say of the sentence."""
    texts = [f"The animal didn't cross the street because it was too {end}" for end in ("tired", "wide")]
    pair = regard.compare_looks(*texts)
    assert (pair.head, pair.words) == ((5, 11), ("animal", "street"))
    theirs = tired_and_wide(load)
    ours = [[look.weight for look in focus.looks] for focus in pair.highlights]
    np.testing.assert_allclose(ours, theirs[:, :, 5, 11], atol=1e-5)
    np.testing.assert_allclose(pair.flips.weights, theirs, atol=1e-5)
    assert np.round(theirs[:, :, 5, 11], 2).tolist() == [[0.65, 0.02], [0.50, 0.04]]
    clear = (theirs.sum(1) >= 0.1).all(0)
    prefers = theirs[:, 0] > theirs[:, 1]
    turned = clear & (prefers[0] != prefers[1])
    assert (
        (pair.flips.heads, pair.flips.counted, len(pair.flips.flips)) == (72, clear.sum(), turned.sum()) == (72, 28, 4)
    )
    assert (pair.flips.prefer(0), pair.flips.prefer(1)) == (15, 9)
    lead = np.abs(theirs[:, 0] - theirs[:, 1]).min(0)[turned]
    assert lead.max() < 0.03
    assert [flip.lead for flip in pair.flips.flips] == pytest.approx(sorted(lead, reverse=True), abs=1e-5)
    assert sum(flip.to_second for flip in pair.flips.flips) == (turned & prefers[0]).sum() == 2
