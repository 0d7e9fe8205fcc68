"""Models by name: a text chooses one that reads it, and a checkpoint that is not whole is refused in one sentence."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard.interpret import model_loading
from regard.interpret.look import prepare

transformers = pytest.importorskip("transformers", reason="transformers is not installed (the extra `models`)")
bundled = pytest.importorskip("regard.hub")

SIZES = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 50, "bos_token_id": 1, "eos_token_id": 2}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers

    transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZES)).save_pretrained(tmp_path)
    backend = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>").save_pretrained(tmp_path)
    return tmp_path


def test_a_whole_checkpoint_loads_in_eval_mode(checkpoint: Path) -> None:
    loaded = regard.load_model(str(checkpoint))
    assert loaded.kind == "decoder"
    assert not loaded.model.training


def test_some_tokens_of_a_text_that_is_too_long_can_be_looked_at(checkpoint: Path) -> None:
    text, loaded = "a " * 30 + "b a c " + "a " * 2000, regard.load_model(str(checkpoint))
    with pytest.raises(regard.InputError, match=r"reads at most 1,024: shorten it \(regard look --tokens 1:1024 takes"):
        prepare(text, model=loaded)
    prepared = prepare(text, model=loaded, tokens=(31, 33))
    assert [token.text for token in prepared.tokens["text"][0]] == ["b", "a", "c"]
    assert prepared.inputs["input_ids"].tolist() == [[0, 1, 0]]
    prepare(text, model=loaded, tokens=(1, 1024))
    for wrong in ((0, 3), (4, 3), (2033, 2034)):
        with pytest.raises(regard.InputError, match="within the 2,033 tokens of the text, counted from 1"):
            prepare(text, model=loaded, tokens=wrong)


def test_missing_weights_are_refused(checkpoint: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(checkpoint / "model.safetensors")
    kept = {name: value for name, value in weights.items() if ".h.1." not in name}
    assert len(kept) < len(weights)
    save_file(kept, checkpoint / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(regard.InputError, match=r"lacks \d+ weights"):
        regard.load_model(str(checkpoint))


def spoil_bytes(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])


def spoil_shapes(folder: Path) -> None:
    config = (folder / "config.json").read_text().replace('"n_embd": 32', '"n_embd": 64')
    (folder / "config.json").write_text(config)


def only_pickle(folder: Path) -> None:
    torch.save({}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (spoil_bytes, r"model\.safetensors: it has [\d,]+ of [\d,]+ bytes, so it was cut off"),
        (spoil_shapes, "cannot load the model"),
        (only_pickle, r"has no model\.safetensors: .* never pickles such as pytorch_model\.bin"),
    ],
)
def test_a_broken_checkpoint_is_one_sentence(checkpoint: Path, spoil: Any, said: str) -> None:
    spoil(checkpoint)
    with pytest.raises(regard.InputError, match=said):
        regard.load_model(str(checkpoint))


@pytest.mark.parametrize("texts", [{"text": "\ud800 cat"}, {"text": "cat", "target": "\ud800"}])
def test_half_a_surrogate_pair_in_a_text_is_one_sentence(texts: dict[str, str]) -> None:
    with pytest.raises(regard.InputError, match=r"contains half of a surrogate pair \(U\+D800\)"):
        regard.look(**texts)


def test_an_image_model_is_named_as_one(tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    transformers.ViTModel(transformers.ViTConfig(**sizes, image_size=16, patch_size=8)).save_pretrained(tmp_path)
    with pytest.raises(regard.InputError, match="reads no text"):
        regard.load_model(str(tmp_path))


@pytest.mark.parametrize(
    ("transformers_py", "said"),
    [
        (None, r"needs the package `transformers`: pip install 'regard\[models\]'$"),
        ("import gone_for_good", r"needs the package `gone_for_good`: pip install 'regard\[models\]'$"),
        (
            "from re import gone",
            r"is installed and cannot be imported \(cannot import name 'gone' from 're'.*--force-re",
        ),
        ("import re.gone", r"is installed and cannot be imported \(No module named 're.gone'.*--force-reinstall"),
    ],
)
def test_a_package_whose_import_is_broken_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transformers_py: str | None, said: str
) -> None:
    if transformers_py is None:
        monkeypatch.setitem(sys.modules, "transformers", None)
    else:
        (tmp_path / "transformers.py").write_text(transformers_py)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "transformers")
    with pytest.raises(regard.MissingExtraError, match=said):
        regard.load_model("someone/something")


@pytest.mark.slow
@pytest.mark.models
@pytest.mark.skipif(not all(map(bundled.is_installed, ("minilm", "me5"))), reason="minilm and me5 are not installed")
@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("The animal didn't cross the street because it was too tired", "minilm"),
        ("貓追老鼠，因為它餓了", "me5"),
        ("Кошка не перешла улицу, потому что она устала", "me5"),
        ("ねこはねずみをおいかけた", "me5"),
        ("القط يطارد الفأر لأنه جائع", "me5"),
    ],
)
def test_the_text_chooses_a_model_that_reads_it(text: str, name: str) -> None:
    assert model_loading.model_for(text).name == name


def test_a_model_that_regard_saved_keeps_the_tokenizer_of_transformers_beside_it(checkpoint: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    backend = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "b": 2}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
    tokenizer.chat_template = "{{ messages }}"
    expected = regard.load_model(str(checkpoint))
    ids = torch.tensor([[1, 0, 1]])
    with torch.no_grad():
        logits = expected.model(ids).logits
    regard.models.Transformer.from_pretrained(checkpoint).save_pretrained(checkpoint)
    tokenizer.save_pretrained(checkpoint)
    loaded = regard.load_model(str(checkpoint))
    assert (loaded.kind, loaded.tokenizer.chat_template) == ("decoder", "{{ messages }}")
    assert loaded.tokenizer("a b a")["input_ids"] == [1, 2, 1]
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(ids).logits, logits, rtol=1e-4, atol=1e-5)
