"""Every file that regard 0.2 wrote opens with its meaning: `fixtures_0_2/write.py` wrote both with the code of 0.2."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import regard
from regard import models, serialization
from regard.models.loading import load_saved
from regard.train import Config, Translator, read_log, train

FILES = Path(__file__).with_name("fixtures_0_2")
EXPECTED = dict(np.load(FILES / "expected.npz"))
# The kinds of 0.2 by the names that its files have, which no release may forget, whatever its classes are called.
MASKS = """And Axial BlockLocal Causal Dense DilatedWindow Document Global Inside LocalMonotonic LocalPredictive
    Neighborhood Not Or Padding Prefix RandomBlocks Sinks Strided Window _Ends""".split()
BIASES = "ALiBi DenseBias Gaussian RelativePositionBias RelativePositionBiasND T5Bias".split()
SCORES = "Additive Bilinear Concat Cosine DeBERTa Dot RelativeKeyQuery ScaledDot Shaw TransformerXL _Looked".split()
KINDS = [*MASKS, *BIASES, *SCORES, "Sigmoid", "Softmax"]
# What a call prepares before it is recorded, so that no atlas has it.
NEVER_RECORDED = {"Bilinear", "Concat", "Cosine", "TransformerXL", "_Ends"}
CONFIGURED = """TransformerConfig SpecialTokens Sinusoidal Learned RoPE LinearScaling NTK DynamicNTK YaRN Llama3
    LanguageModel MaskedLanguageModel SentenceEmbedding SequenceClassification TokenClassification""".split()


def named(kind):
    return f'"kind": "{kind}"'


def test_the_files_have_every_kind_of_0_2():
    assert len(KINDS) == 40
    values = (FILES / "values.json").read_text("utf-8")
    assert [kind for kind in KINDS if named(kind).replace(" ", "") not in values] == []
    atlas = (FILES / "calls.atlas").read_bytes().decode("latin-1").replace("\\", "")
    assert {kind for kind in KINDS if named(kind) not in atlas} == NEVER_RECORDED
    configs = "".join(path.read_text("utf-8") for path in FILES.glob("models/*/config.json"))
    assert [kind for kind in CONFIGURED if named(kind) not in configs] == []


def test_an_atlas_of_0_2_has_the_weights_that_were_recorded():
    record = regard.load_atlas(FILES / "calls.atlas")
    expected = {name.removeprefix("atlas/"): one for name, one in EXPECTED.items() if name.startswith("atlas/")}
    assert [layer.name for layer in record.layers] == list(expected)
    for layer in record.layers:
        wanted = expected[layer.name]
        _, heads, queries, keys = wanted.shape
        np.testing.assert_allclose(record.weights(layer=layer), wanted, atol=4e-3, err_msg=layer.name)
        assert layer.qk is not None
        for batch_index, matrices in enumerate(wanted):
            for head in range(heads):
                found = layer.qk.tile(batch_index, head, slice(0, queries), slice(0, keys))
                np.testing.assert_allclose(found, matrices[head], atol=1e-5, err_msg=layer.name)
                part = layer.qk.tile(batch_index, head, slice(1, 3), slice(2, 5))
                np.testing.assert_allclose(part, matrices[head, 1:3, 2:5], atol=1e-5, err_msg=layer.name)


def test_an_atlas_of_0_2_that_is_saved_again_has_the_same_weights(tmp_path):
    before = regard.load_atlas(FILES / "calls.atlas")
    before.save(tmp_path / "again.atlas")
    for old, new in zip(before.layers, regard.load_atlas(tmp_path / "again.atlas").layers, strict=True):
        whole = slice(0, old.queries), slice(0, old.keys)
        assert np.array_equal(old.qk.tile(1, 1, *whole), new.qk.tile(1, 1, *whole))


VALUES = json.loads((FILES / "values.json").read_text("utf-8"))


@pytest.mark.parametrize("name", VALUES)
def test_a_value_of_0_2_means_what_it_meant(name):
    about, arrays = VALUES[name], np.load(FILES / "values.npz")
    value = serialization.read(about["form"], arrays.__getitem__)
    q, k = (torch.tensor(EXPECTED[f"values/{one}"], dtype=torch.float64) for one in "qk")
    wanted = EXPECTED[f"values/{name}"]
    if about["role"] == "mask":
        found = value.bind(about["queries"], k.shape[2]).dense(*q.shape[:2])
        assert np.array_equal(found.numpy(), wanted)
        # Without scores each key that is seen has the same weight.
        q = torch.zeros_like(q[:, :, -about["queries"] :])
        wanted = np.broadcast_to(wanted / np.maximum(wanted.sum(-1, keepdims=True), 1), (*q.shape[:3], k.shape[2]))
    found = regard.attention(q, k, k, return_weights=True, **{about["role"]: value})[1]
    np.testing.assert_allclose(found.numpy(), wanted, atol=1e-6)


def check_config(found, saved):
    """Compare a configuration with the JSON of it."""
    assert type(found).__name__ == saved["kind"]
    for name, one in saved.items():
        value = getattr(found, name, None)
        if isinstance(one, dict):
            check_config(value, one)
        elif name != "kind":
            assert (list(value) if isinstance(value, tuple) else value) == one, name


@pytest.mark.parametrize("name", sorted(path.name for path in (FILES / "models").iterdir()))
def test_a_model_that_0_2_saved_has_its_logits(name):
    saved = json.loads((FILES / "models" / name / "config.json").read_text("utf-8"))["regard"]
    kind = models.RecurrentSeq2Seq if saved["kind"] == "RecurrentConfig" else models.Transformer
    model, ids = kind.from_pretrained(FILES / "models" / name), torch.tensor(EXPECTED["models/ids"])
    check_config(model.config, saved)
    with torch.no_grad():
        pairs = kind is models.RecurrentSeq2Seq or model.config.kind == "encoder-decoder"
        output = model(ids, decoder_input_ids=ids) if pairs else model(ids)
    found = output.last_hidden_state if output.logits is None else output.logits
    np.testing.assert_allclose(found.numpy(), EXPECTED[f"models/{name}"], rtol=1e-4, atol=1e-5)


def check_weights(model, path):
    saved, weights = load_file(path), model.state_dict()
    assert weights.keys() == saved.keys()
    assert all(torch.equal(weights[name], one) for name, one in saved.items())


def test_a_run_that_0_2_began_goes_on_with_the_losses_that_it_would_have_had(tmp_path):
    run = tmp_path / "run"
    shutil.copytree(FILES / "run", run)
    losses = EXPECTED["run/losses"]
    before = [one["loss"] for one in read_log(run / "log.jsonl") if one["event"] == "stepped"]
    np.testing.assert_allclose(before, losses[:4], rtol=1e-4)
    checkpoint = run / "checkpoints" / "step-00000004"
    for opened in (run, checkpoint):  # which 0.2 saved without the configuration of its model
        with pytest.raises(regard.InputError, match=f"`regard train FILE --output-dir {run}`"):
            models.Transformer.from_pretrained(opened)
    tables, told = json.loads((run / "run.json").read_text("utf-8"))["config"], []
    tables["training"]["output_dir"] = str(run)

    def hears(event):
        told.append(event)
        if type(event).__name__ == "Started":  # from here on they open
            model = models.Transformer.from_pretrained(checkpoint)
            check_weights(model, checkpoint / "model.safetensors")
            assert model.config.position_bias == "t5"

    ended = train(Config.from_dict(tables), [hears])
    after = [one.loss for one in told if type(one).__name__ == "Stepped"]
    np.testing.assert_allclose(after, losses[4:], rtol=1e-4)
    assert (ended.step, models.Transformer.from_pretrained(run / "model").config.position_bias) == (6, "t5")


TEXTS = [f"{one} {other}{one}" for one in "abcdef" for other in ("g", "hi", "jkl")]
OF_TEXTS = json.loads((FILES / "texts" / "expected.json").read_text("utf-8"))


@pytest.mark.parametrize("name", [name for name, found in OF_TEXTS.items() if "source" in found])
def test_a_translator_that_0_2_trained_reads_and_translates_as_it_did(name):
    expected, translator = OF_TEXTS[name], Translator.load(FILES / "texts" / name)
    assert translator.encode(TEXTS[0]) == expected["source"]
    assert translator.translate(TEXTS, num_beams=2) == expected["translations"]
    loaded = load_saved(str(FILES / "texts" / name))
    for source, target in expected["rows"]:
        text, translated = translator.src_tokenizer.decode(source), translator.decode(target)
        assert loaded.tokenizer(text)["input_ids"] == source
        assert loaded.target_tokenizer(translated)["input_ids"] == [*target, 2]


@pytest.mark.parametrize("name", [name for name, found in OF_TEXTS.items() if "source" not in found])
def test_a_model_of_texts_that_0_2_trained_reads_what_it_was_trained_on(name):
    loaded = load_saved(str(FILES / "texts" / name))
    rows = [row if isinstance(row[0], int) else row[0] for row in OF_TEXTS[name]["rows"]]
    if loaded.kind == "decoder":  # running text: its first document, without the end
        rows = [rows[0][: rows[0].index(2)]]
    letters = loaded.tokenizer.convert_ids_to_tokens
    for row in rows:
        text = "".join(token for token in letters(row) if len(token) == 1)
        assert loaded.tokenizer(text)["input_ids"] == row
