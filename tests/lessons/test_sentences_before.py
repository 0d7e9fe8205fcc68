"""What step 9 says of the steps before attention is what was measured, in both languages."""

import pytest

from chromium import chromium, needs_chromium
from regard.render.browser_script import modules, one_script

pytestmark = [pytest.mark.browser, needs_chromium]

PLAIN, ROTATED = {"bias": False, "then": []}, {"bias": True, "then": ["rotated"]}


@pytest.fixture(scope="module")
def sentences():
    """The sentences of a layer in a language; a text that is missing, or not filled, is an error."""
    with chromium() as browser:
        tab = browser.new_page()
        for entry in ("lessons/page/real_before.js", "lessons/page/real_words.js"):
            names = ", ".join(f"m{number}" for number in range(len(modules(entry))))
            tab.evaluate(f"() => {{ {one_script(entry)}\nObject.assign(window.lesson ??= {{}}, {names}); }}")

        def of(positions, language="en", **layer):
            layer = {"name": "layers.0", "kind": "self", "sizes": {}, "before": None} | layer
            return tab.evaluate(
                """([positions, layer, language]) => {
                  const lesson = Object.assign({}, ...Object.values(window.lesson), window.lesson);
                  const speak = (name, filled = {}) => lesson.REAL_WORDS[language][name].replace(
                    /\\{(\\w+)\\}/g, (_, key) => { if (filled[key] === undefined) throw key; return filled[key]; });
                  return lesson.sentencesBefore(positions, layer, speak);
                }""",
                [positions, layer, language],
            )

        yield of


def layer_of(query, key=None, value=None, **others):
    return {"query": query, "key": query if key is None else key, "value": query if value is None else value, **others}


def test_sides_that_were_treated_alike_share_a_sentence(sentences):
    text = sentences({}, before=layer_of(ROTATED, value=PLAIN, input="RMSNorm"))
    assert text[:3] == [
        "The model was not seen to look up a table of positions.",
        "x was normalized (RMSNorm).",
        "Then q = x W_Q + b, k = x W_K + b, v = x W_V.",
    ]
    assert text[4].startswith("The direction of q and k was changed at each position")
    assert text[5].startswith("Nothing else was done to v (measured")
    (last,) = sentences({}, before=layer_of(PLAIN))[3:]
    assert last.startswith("Nothing else was done to q, k and v")


def test_what_could_not_be_compared_is_not_called_another_step(sentences):
    text = " ".join(sentences({}, before=layer_of({"bias": False}, value={"bias": False, "then": None})))
    assert "What was done to q and k after the projection is not known: the two could not be compared." in text
    assert "Something else was done to v after the projection" in text


def test_what_follows_from_the_code_of_a_class_is_not_called_measured(sentences):
    bias = {"bias": True}
    text = " ".join(sentences({}, before=layer_of(bias, **{"class": "nn.MultiheadAttention"})))
    assert "within nn.MultiheadAttention, and were not compared" in text
    assert "Nothing else was done" not in text


def test_a_bias_is_said_to_come_from_a_table_only_where_a_layer_has_one_and_it_was_measured(sentences):
    measured = layer_of(PLAIN, bias_table="encoder.relative_attention_bias")
    with_bias = sentences({}, sizes={"bias": [4, 3, 3]}, before=measured)
    assert "encoder.relative_attention_bias; measured" in with_bias[1]
    assert "is not known" in sentences({}, sizes={"bias": [4, 3, 3]}, before=layer_of(PLAIN))[1]
    assert not [text for text in sentences({}, before=layer_of(PLAIN), kind="cross") if "bias on the scores" in text]


def test_tables_of_positions_are_those_of_the_layers_side_and_never_called_measured_to_be_learned(sentences):
    positions = {"encoder.embed_positions": "sinusoidal", "decoder.embed_positions": "other"}
    encoder = sentences(positions, name="encoder.layers.0.self_attn", before=layer_of(PLAIN))
    assert "encoder.embed_positions); its numbers are sines and cosines (measured)" in encoder[0]
    assert "was not measured" in encoder[1]
    assert "decoder" not in " ".join(encoder)
    cross = " ".join(sentences(positions, name="decoder.layers.0.encoder_attn", kind="cross", before=layer_of(PLAIN)))
    assert "decoder.embed_positions); its numbers are no sines and cosines (measured)" in cross
    assert "encoder.embed_positions" in cross
    assert "k = y W_K" in cross


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_note_has_a_sentence_in_both_languages(sentences, language):
    changes = [[], None, ["turned"], ["rotated", "scaled"], [["norm", "RMSNorm"], "rotated"]]
    sides = [{"bias": True}, *({"bias": False, "then": then} for then in changes)]
    for side in sides:
        for kind in ("self", "cross"):
            for kinds in ({}, {"wpe": "other", "p": "sinusoidal"}):
                text = sentences(kinds, language, kind=kind, sizes={"bias": [1]}, before=layer_of(side, value=PLAIN))
                assert len(text) >= 5
    assert len(sentences(None, language)) == 1
    assert len(sentences({}, language)) == 2
