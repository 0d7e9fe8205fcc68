"""Training and data written from memory by somebody who knows transformers and PyTorch: each snippet runs as it is."""

import math
import tomllib

import pytest
import torch

import regard
from regard.data import (
    Copy,
    Tokenizer,
    batches,
    chunk_tokens,
    collate_packed,
    mask_tokens,
    pack_sequences,
    pad,
    shard_batch,
)

TOML = """
[task]
type = "clm"
train_file = "texts.txt"
validation_size = 4
block_size = 16
tokenizer = {model_type = "char", vocab_size = 60}

[model]
type = "transformer"
hidden_size = 16
num_attention_heads = 2
intermediate_size = 32
num_hidden_layers = 1

[training]
output_dir = "run"
learning_rate = 3e-4
weight_decay = 0.1
max_grad_norm = 0.5
lr_scheduler_type = "cosine"
warmup_steps = 2
gradient_accumulation_steps = 2
max_tokens_per_batch = 128
max_steps = 3
eval_steps = 3
save_total_limit = 1
seed = 42
"""
TEXTS = [f"the cat sat on mat {number}" for number in range(24)]


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS), "utf-8")
    (tmp_path / "run.toml").write_text(TOML, "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def tokenizer():
    return Tokenizer.train(TEXTS, model_type="bpe", vocab_size=60)


def test_a_toml_file_trains_a_model(here):
    from regard.train import read_config, train

    ended = train(read_config("run.toml"))
    assert (ended.step, ended.reason) == (3, "max_steps")
    assert math.isfinite(ended.scores["perplexity"])
    assert (here / "run" / "model" / "model.safetensors").is_file()


def test_options_need_no_prefix_as_with_the_scripts_of_transformers(here):
    from regard.train import read_config

    given = ["--learning_rate", "1e-3", "--num_train_epochs", "1.5", "--max_steps=none", "--output_dir", "other"]
    training = read_config("run.toml", [*given, "--label_smoothing", "0.1"]).training
    assert (training.learning_rate, training.num_train_epochs, training.output_dir) == (1e-3, 1.5, "other")


def test_a_configuration_is_written_in_python(here):
    from regard.train import Config
    from regard.train.config import Training
    from regard.train.tasks import CausalLMSettings

    training = Training(output_dir="run", max_steps=10, learning_rate=5e-5, adam_beta2=0.999, adam_epsilon=1e-8)
    config = Config(task=CausalLMSettings(train_file="texts.txt", block_size=32), training=training)
    assert config.training.weight_decay == tomllib.loads("x = 0.01")["x"]


def test_callbacks_see_the_loss_and_stop_training(here):
    from regard.train import read_config, train

    losses = []

    def callback(event):
        if type(event).__name__ == "Stepped":
            losses.append((event.loss, event.learning_rate, event.grad_norm))

    ended = train(read_config("run.toml"), callbacks=[callback], should_stop=lambda: len(losses) == 2)
    assert (len(losses), ended.reason) == (2, "should_stop")


def test_a_batch_size_in_rows_says_what_to_write(here):
    from regard.train import read_config

    with pytest.raises(regard.InputError, match=r"set `training\.max_tokens_per_batch`"):
        read_config("run.toml", ["--per_device_train_batch_size", "8"])


def test_a_tokenizer_is_called_as_those_of_transformers(tokenizer):
    inputs = tokenizer(["the cat sat", "mat"], padding=True, return_tensors="pt")
    assert inputs["input_ids"].shape == inputs["attention_mask"].shape
    assert inputs["attention_mask"].sum(1).tolist() == [
        len(tokenizer(text)["input_ids"]) for text in ("the cat sat", "mat")
    ]
    assert tokenizer.decode(inputs["input_ids"][0].tolist()) == "the cat sat"


def test_a_tokenizer_agrees_with_transformers_on_its_own_file(tokenizer, tmp_path):
    from transformers import PreTrainedTokenizerFast

    path = tokenizer.save(tmp_path)
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(path), pad_token="<pad>", eos_token="</s>")
    texts = ["the cat sat on mat 7", "cat"]
    offsets = {"return_offsets_mapping": True}
    for options in ({}, {"padding": True}, offsets, {"padding": True} | offsets, {"truncation": True, "max_length": 3}):
        ours, expected = tokenizer(texts, **options), theirs(texts, **options)
        for name, values in ours.items():
            assert values == expected[name], (options, name)
    assert tokenizer("the cat")["input_ids"] == theirs("the cat")["input_ids"]
    assert (len(tokenizer), tokenizer.vocab_size) == (len(theirs), theirs.vocab_size)
    assert tokenizer.convert_ids_to_tokens([5, 6]) == theirs.convert_ids_to_tokens([5, 6])


def test_added_tokens_count_in_len_only_as_in_transformers(tokenizer, tmp_path):
    from transformers import PreTrainedTokenizerFast

    theirs = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer.save(tmp_path)))
    theirs.add_tokens(["a new one"])
    theirs.backend_tokenizer.save(str(tmp_path / "tokenizer.json"))
    ours = Tokenizer.load(tmp_path)
    assert (len(ours), ours.vocab_size) == (len(theirs), theirs.vocab_size) == (len(tokenizer) + 1, len(tokenizer))


def test_a_role_is_special_though_its_token_is_not(tokenizer):
    index = next(one for one in range(len(tokenizer)) if one not in tokenizer.all_special_ids)
    assert Tokenizer(tokenizer.json, eos_token_id=index).all_special_ids == [*tokenizer.all_special_ids, index]


def test_a_tokenizer_names_the_tokens_of_a_watched_model(tokenizer):
    from regard.models import Transformer, TransformerConfig

    ids = tokenizer("the cat sat", return_tensors="pt")["input_ids"]
    config = TransformerConfig(vocab_size=len(tokenizer), hidden_size=16, num_attention_heads=2, decoder_layers=1)
    model = Transformer(config).eval()
    with regard.watch(model, tokenizer=tokenizer) as seen:
        model(ids)
    words = [token.text for token in next(iter(seen.record.tokens.values()))[0]]
    assert "".join(words) == "thecatsat"


def test_special_tokens_have_their_usual_ids(tokenizer):
    (ids,) = tokenizer.encode(["the cat"], bos=True, eos=True)
    assert (ids[0], ids[-1]) == (tokenizer.bos_token_id, tokenizer.eos_token_id)
    assert tokenizer.pad_token_id in tokenizer.all_special_ids


def test_batches_are_read_as_from_a_data_loader(tokenizer):
    rows = tokenizer(TEXTS)["input_ids"]
    seen = 0
    for batch in batches([len(row) for row in rows], max_tokens_per_batch=64, seed=0, epoch=0):
        input_ids, attention_mask = pad([rows[index] for index in batch], tokenizer.pad_token_id, pad_to_multiple_of=8)
        assert input_ids.numel() <= 64 + 8 * len(batch)
        assert input_ids.shape[1] % 8 == 0
        assert bool((input_ids[~attention_mask] == tokenizer.pad_token_id).all())
        seen += len(batch)
    assert seen == len(TEXTS)
    assert shard_batch((0, 1, 2, 3, 4), num_shards=2) == [(0, 2, 4), (1, 3)]


def test_text_is_chunked_and_packed():
    assert [len(chunk) for chunk in chunk_tokens(list(range(10)), block_size=4)] == [5, 5, 2]
    sequences = [[5, 6, 7], [8], [9, 5]]
    rows = pack_sequences([len(one) for one in sequences], block_size=4)
    input_ids, documents = collate_packed(sequences, rows, block_size=4, pad_token_id=0)
    assert input_ids.shape == documents.shape == (2, 4)


def test_masked_tokens_have_the_labels_of_transformers_collator():
    (sources, _) = Copy(num_symbols=50).sample(8, length_range=(30, 40), generator=torch.Generator().manual_seed(0))
    input_ids, attention_mask = pad(sources, Copy.pad_token_id)
    generator = torch.Generator().manual_seed(0)
    inputs, labels = mask_tokens(
        input_ids, attention_mask.long(), 55, mask_token_id=4, all_special_ids=range(5), generator=generator,
        mlm_probability=0.15,
    )  # fmt: skip
    chosen = labels != -100
    assert torch.equal(labels[chosen], input_ids[chosen])
    assert torch.equal(inputs[~chosen], input_ids[~chosen])
    assert not (chosen & ~attention_mask).any()
    assert float(chosen.sum() / attention_mask.sum()) == pytest.approx(0.15, abs=0.02)
