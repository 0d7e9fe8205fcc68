"""A checkpoint is trained from the token that it generates from: its own, as in transformers, not its tokenizer's."""

import json
import shutil
from dataclasses import replace

import pytest
import torch

from regard.errors import InputError
from regard.models import Transformer
from regard.train import Translator, train
from regard.train.config import task_of
from train.runs import tiny

transformers = pytest.importorskip("transformers", reason="transformers is not installed (the extra `models`)")
tokenizers = pytest.importorskip("tokenizers")

PAIRS = [(f"{one} {other}", f"{other}{one}.") for one in "abcdef" for other in ("g", "hi", "jkl")]
SIZES = {"vocab_size": 300, "d_model": 16, "max_position_embeddings": 64} | {
    f"{side}_{name}": value
    for side in ("encoder", "decoder")
    for name, value in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 16))
}
BART = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2, "forced_eos_token_id": 2}
T5 = {"vocab_size": 300, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}


def _bart(forced_bos_token_id=None):
    model = transformers.BartForConditionalGeneration(transformers.BartConfig(**SIZES | BART))
    model.generation_config.forced_bos_token_id = forced_bos_token_id
    return model


# With the special tokens of the tokenizer, and what comes before a target.
CHECKPOINTS = {
    "bart": (_bart, ("<s>", "<pad>", "</s>"), (2,)),
    "bart that is forced to begin with <s>": (lambda: _bart(forced_bos_token_id=0), ("<s>", "<pad>", "</s>"), (2, 0)),
    "bart forced to a language": (lambda: _bart(forced_bos_token_id=7), ("<s>", "<pad>", "</s>"), (2, 7)),
    "marian": (
        lambda: transformers.MarianMTModel(
            transformers.MarianConfig(
                **SIZES | {"pad_token_id": 1, "eos_token_id": 0, "forced_eos_token_id": 0, "decoder_start_token_id": 1}
            )
        ),
        ("</s>", "<pad>"),  # there is no token for a begin
        (1,),
    ),
    "t5": (
        lambda: transformers.T5ForConditionalGeneration(
            transformers.T5Config(**T5, pad_token_id=0, eos_token_id=1, decoder_start_token_id=0)
        ),
        ("<pad>", "</s>"),
        (0,),
    ),
}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """A folder for each, with a tokenizer of letters."""
    found = {}
    for number, (name, (make, special, _)) in enumerate(CHECKPOINTS.items()):
        folder = tmp_path_factory.mktemp("checkpoint") / str(number)
        torch.manual_seed(number)
        found[name] = make().eval(), folder
        found[name][0].save_pretrained(folder)
        letters = tokenizers.Tokenizer(tokenizers.models.BPE())
        letters.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        letters.decoder = tokenizers.decoders.ByteLevel()
        alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=270, special_tokens=list(special), initial_alphabet=alphabet, show_progress=False
        )
        letters.train_from_iterator(["abcdefghijkl"], trainer)
        letters.save(str(folder / "tokenizer.json"))
    return found


@pytest.fixture
def config(tmp_path, checkpoints):
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS), "utf-8")

    def of(name, **options):
        task = {"type": "translation", "train_file": str(pairs), "validation_size": 4, "target_lang": "de"}
        task |= {"num_completions_to_print": 1, "max_predict_samples": 0}
        model = {"type": "checkpoint", "model_name_or_path": str(checkpoints[name][1])}
        return tiny(tmp_path / "run", task=task, model=model, **options)

    return of


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_training_reads_what_transformers_makes_of_the_labels_and_generates_after_the_same_tokens(
    tmp_path, checkpoints, config, name
):
    theirs, folder = checkpoints[name]
    made = task_of(config(name), tmp_path / "words")
    batch = made.rows([0, 1, 2, 3])
    read, labels = batch.inputs["decoder_input_ids"], batch.labels
    expected = theirs.prepare_decoder_input_ids_from_labels(labels)
    counted = labels != -100
    assert torch.equal(read[counted], expected[counted])  # what is read after the end has no label
    prefix = CHECKPOINTS[name][2]
    assert torch.equal(read[:, : len(prefix)], torch.tensor([prefix] * 4))
    ours = Transformer.from_pretrained(folder)
    assert ours.generate(batch.inputs["input_ids"][:1], max_new_tokens=4)[0, : len(prefix)].tolist() == list(prefix)
    assert all(row[row != -100][-1] == theirs.config.eos_token_id for row in labels)
    assert made.lengths[:4] == [
        (int((ids != ours.config.special_tokens.pad_token_id).sum()), int(one.sum()))
        for ids, one in zip(batch.inputs["input_ids"], counted, strict=True)
    ]


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_the_held_out_loss_is_that_of_transformers(tmp_path, checkpoints, config, name):
    theirs, _ = checkpoints[name]
    made = task_of(config(name), tmp_path / "words")
    summed, count = 0.0, 0
    for row in range(len(made.held.rows)):
        batch = made.rows([row], held=made.held)
        with torch.no_grad():
            loss = theirs(input_ids=batch.inputs["input_ids"], labels=batch.labels).loss
        summed, count = summed + float(loss) * int(batch.num_labels), count + int(batch.num_labels)
    found = made.evaluate(made.model(config(name).model).eval(), 100)
    assert found["loss"] == pytest.approx(summed / count, rel=1e-5)


def test_a_checkpoint_that_names_no_token_to_start_from_is_refused_with_the_setting(tmp_path, checkpoints, config):
    folder = checkpoints["marian"][1]
    copy = tmp_path / "without"
    shutil.copytree(folder, copy)
    for name in ("config.json", "generation_config.json"):
        values = json.loads((copy / name).read_text("utf-8"))
        (copy / name).write_text(json.dumps(values | {"decoder_start_token_id": None, "bos_token_id": None}), "utf-8")
    options = config("marian")
    without = options.model_copy(update={"model": replace(options.model, model_name_or_path=str(copy))})
    with pytest.raises(InputError, match=r"without has no `decoder_start_token_id`.*config\.json"):
        task_of(without, tmp_path / "words")


def test_a_trained_bart_translates_and_is_drawn_from_its_start_token(tmp_path, config):
    options = {"training__max_steps": 60, "training__eval_steps": 60, "training__save_steps": None}
    options |= {"training__learning_rate": 1e-2, "training__max_tokens_per_batch": 200, "model__dropout": 0.0}
    train(config("bart that is forced to begin with <s>", **options))
    translator = Translator.load(tmp_path / "run")
    translated = translator.translate([source for source, _ in PAIRS], num_beams=1)
    assert all(translated)  # a model that never saw its start token ends each at once
    assert sum(one[-1] == "." for one in translated) > len(PAIRS) / 2
    record = translator.align(PAIRS[0][0], num_beams=1)
    tokens = [token.text for token in record.tokens["target"][0]]
    assert tokens[:2] == ["</s>", "<s>"]
    assert record.layers[-1].queries == len(tokens)
    assert (tmp_path / "run" / "alignment.svg").is_file()


def test_a_target_of_ones_own_is_looked_at_as_it_was_trained_on(tmp_path, config):
    import regard

    train(config("bart that is forced to begin with <s>", training__max_steps=1))
    record = regard.look(PAIRS[0][0], model=str(tmp_path / "run"), target="ga.").record
    assert [token.text for token in record.tokens["target"][0]][:3] == ["</s>", "<s>", "g"]


def test_a_t5_whose_configuration_leaves_the_start_open_begins_with_its_padding(tmp_path, checkpoints):
    folder = tmp_path / "t5"
    shutil.copytree(checkpoints["t5"][1], folder)
    for name in ("config.json", "generation_config.json"):
        settings = json.loads((folder / name).read_text("utf-8"))
        (folder / name).write_text(json.dumps(settings | {"decoder_start_token_id": None}), "utf-8")
    assert Transformer.pretrained_config(folder).start_token_id == 0


def test_a_configuration_is_read_without_weights(tmp_path, checkpoints):
    for name, (_, folder) in checkpoints.items():
        config = Transformer.pretrained_config(folder)
        assert config == Transformer.from_pretrained(folder).config, name
        Transformer.from_pretrained(folder).save_pretrained(tmp_path / name)
        (tmp_path / name / "model.safetensors").unlink()
        assert Transformer.pretrained_config(tmp_path / name) == config, name
