"""What training feeds a checkpoint is what transformers' tokenizer and collator feed it, and generation uses the same.

The oracle is transformers: AutoTokenizer on the checkpoint's own files, its collators, and its models' own loss.
"""

import hashlib
import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from regard.cli.console import rules_not_obeyed
from regard.data import Tokenizer
from regard.errors import InputError
from regard.models import Transformer
from regard.models.loading import load_saved
from regard.train import Translator, train
from regard.train.config import task_of
from train.runs import tiny

transformers = pytest.importorskip("transformers", reason="transformers is not installed (the extra `models`)")
tokenizers = pytest.importorskip("tokenizers")

TEXTS = [f"{one} {other}{one}" for one in "abcdef" for other in ("g", "hi", "jkl")]
PAIRS = [(text, text[::-1] + ".") for text in TEXTS]
SEQ2SEQ = {"vocab_size": 300, "d_model": 16, "max_position_embeddings": 64} | {
    f"{side}_{name}": value
    for side in ("encoder", "decoder")
    for name, value in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 16))
}
STACK = {"vocab_size": 300, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
STACK |= {"intermediate_size": 16, "max_position_embeddings": 64}
T5 = {"vocab_size": 300, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
GPT2 = {"vocab_size": 300, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64}


def _bart(config=None, **generation):
    tokens = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}
    model = transformers.BartForConditionalGeneration(
        transformers.BartConfig(**SEQ2SEQ | tokens | {"forced_eos_token_id": 2} | (config or {}))
    )
    for name, value in generation.items():
        setattr(model.generation_config, name, value)
    return model


def _marian():
    tokens = {"pad_token_id": 1, "eos_token_id": 0, "forced_eos_token_id": 0, "decoder_start_token_id": 1}
    return transformers.MarianMTModel(transformers.MarianConfig(**SEQ2SEQ | tokens))


def _t5():
    config = transformers.T5Config(**T5, pad_token_id=0, eos_token_id=1, decoder_start_token_id=0)
    return transformers.T5ForConditionalGeneration(config)


def _llama(**tokens):
    tokens = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None} | tokens
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**STACK, **tokens))
    model.generation_config.eos_token_id = tokens["eos_token_id"]
    return model


def _gpt2():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2, bos_token_id=0, eos_token_id=0))


def _of_bert(kind):
    return lambda: getattr(transformers, f"Bert{kind}")(transformers.BertConfig(**STACK, pad_token_id=0))


def _of_roberta(kind):
    tokens = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    return lambda: getattr(transformers, f"Roberta{kind}")(transformers.RobertaConfig(**STACK, **tokens))


BERT = ["[PAD]", "[CLS]", "[SEP]", "[MASK]"], {"pad": 0, "cls": 1, "sep": 2, "mask": 3}, "[CLS] $A [SEP]"
ROBERTA = ["<s>", "<pad>", "</s>", "<mask>"], {"pad": 1, "bos": 0, "eos": 2, "mask": 3}, "<s> $A </s>"
# Odd names, so that none is found by a usual one; and the usual names of other roles.
ODD = ["</s>", "<s>", "[SEP]", "<pad>", "German"], {"bos": 0, "pad": 1, "eos": 2}, "</s> $A [SEP]"
LLAMA = ["<unk>", "<s>", "</s>"], {"unk": 0, "bos": 1, "eos": 2}, "<s> $A"

# The model, its tokenizer's special tokens, the roles that tokenizer_config.json names, and the template.
PAIRED = {
    "bart": (_bart, *ROBERTA),
    "bart with odd names": (_bart, *ODD),
    "bart that is forced to begin with <s>": (lambda: _bart(forced_bos_token_id=0), *ROBERTA),
    "marian": (_marian, ["</s>", "<pad>"], {"pad": 1, "eos": 0}, "$A </s>"),
    "t5": (_t5, ["<pad>", "</s>"], {"pad": 0, "eos": 1}, "$A </s>"),
}
CAUSAL = {
    "llama": (_llama, *LLAMA),
    "llama with several ends": (lambda: _llama(eos_token_id=[0, 2]), *LLAMA),
    "gpt2": (_gpt2, ["<|endoftext|>"], {"bos": 0, "eos": 0}, None),
    "a chat model": (
        lambda: _llama(pad_token_id=0),
        *(["<|endoftext|>", "<|im_start|>", "<|im_end|>"], {"pad": 0, "bos": 1, "eos": 2}, None),
    ),
}
MASKED = {"bert": (_of_bert("ForMaskedLM"), *BERT), "roberta": (_of_roberta("ForMaskedLM"), *ROBERTA)}
CLASSIFIED = {
    "bert": (_of_bert("Model"), *BERT),
    "roberta": (_of_roberta("Model"), *ROBERTA),
    "llama": (_llama, *LLAMA),
}
CLOSE = 1e-7  # in float64, but transformers computes the RMS norm of Llama and T5 in float32
CHAT = "{% for message in messages %}<|im_start|>{{ message['content'] }}<|im_end|>{% endfor %}"


def saved(folder, make, special, roles, template, *, chat=False):
    """A checkpoint as transformers saves it: the model, and a tokenizer of letters."""
    torch.manual_seed(0)
    make().eval().save_pretrained(folder)
    letters = tokenizers.Tokenizer(tokenizers.models.BPE())
    letters.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=270,
        special_tokens=special,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    letters.train_from_iterator(["abcdefghijkl"], trainer)
    if template is not None:
        used = [(one, special.index(one)) for one in template.split() if one != "$A"]
        letters.post_processor = tokenizers.processors.TemplateProcessing(single=template, special_tokens=used)
    names = {f"{role}_token": special[index] for role, index in roles.items()}
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=letters, **names)
    if chat:
        fast.chat_template = CHAT
    fast.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """The folder of a checkpoint, made once."""
    made = {}

    def of(kinds, name):
        if (key := (id(kinds), name)) not in made:
            folder = tmp_path_factory.mktemp("checkpoint") / "it"
            made[key] = saved(folder, *kinds[name], chat=name == "a chat model")
        return made[key]

    return of


@pytest.fixture
def config(tmp_path):
    (tmp_path / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS), "utf-8")
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS), "utf-8")
    labelled = "".join(f"{text}\t{'early' if text < 'd' else 'late'}\n" for text in TEXTS)
    (tmp_path / "labels.tsv").write_text(labelled, "utf-8")
    files = {"translation": "pairs.tsv", "clm": "texts.txt", "mlm": "texts.txt", "classification": "labels.tsv"}

    def of(folder, kind, run="run", task=None, **options):
        tables = {"type": kind, "train_file": str(tmp_path / files[kind]), "validation_size": 4}
        tables |= {"keep_linebreaks": False} if kind == "clm" else {}  # then each line is a document
        tables |= task or {}
        if kind == "translation":
            tables = {"target_lang": "de", "num_completions_to_print": 1, "max_predict_samples": 0} | tables
        model = {"type": "checkpoint", "model_name_or_path": str(folder)}
        steps = {"training__max_steps": 2, "training__eval_steps": 2, "training__max_tokens_per_batch": 200}
        return tiny(tmp_path / run, task=tables, model=model, **steps | options)

    return of


def theirs_of(folder):
    return transformers.AutoTokenizer.from_pretrained(folder)


def until(options, max_steps):
    return options.model_copy(update={"training": replace(options.training, max_steps=max_steps)})


def in_double(model):
    return model.double().eval()


def mean_loss(made, model, batch):
    """Our loss of a batch: in float64, over the labels that count."""
    logits = in_double(model)(**batch.inputs).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, -2), batch.labels.flatten(), ignore_index=-100)


@pytest.mark.parametrize("name", PAIRED)
def test_pairs_are_what_transformers_collates(tmp_path, checkpoint, config, name):
    folder = checkpoint(PAIRED, name)
    tokenizer, options = theirs_of(folder), config(folder, "translation")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    made = task_of(options, tmp_path / "words")
    rows = [0, 1, 2, 3]
    batch = made.rows(rows, held=made.held)
    held = [
        dict(zip(("source", "target"), one, strict=True)) for one in zip(*made.held.texts.columns.values(), strict=True)
    ]
    features = [tokenizer(held[row]["source"], text_target=held[row]["target"]) for row in rows]
    collate = transformers.DataCollatorForSeq2Seq(tokenizer, model=theirs)
    expected = collate([{key: one[key] for key in ("input_ids", "attention_mask", "labels")} for one in features])
    assert torch.equal(batch.inputs["input_ids"], expected["input_ids"])
    if "attention_mask" in batch.inputs:
        assert torch.equal(batch.inputs["attention_mask"], expected["attention_mask"].bool())
    assert torch.equal(batch.labels, expected["labels"])
    counted = batch.labels != -100
    assert torch.equal(batch.inputs["decoder_input_ids"][counted], expected["decoder_input_ids"][counted])
    with torch.no_grad():
        ours = mean_loss(made, made.model(options.model), batch)
        loss = in_double(theirs)(**expected).loss
    torch.testing.assert_close(ours, loss, rtol=CLOSE, atol=0)


def test_a_forced_language_takes_the_place_of_the_template_in_labels(tmp_path, config):
    folder = saved(tmp_path / "it", lambda: _bart(forced_bos_token_id=4), *ODD)
    made = task_of(config(folder, "translation"), tmp_path / "words")
    batch = made.rows([0, 1], held=made.held)
    assert batch.inputs["decoder_input_ids"][:, :2].tolist() == [[2, 4], [2, 4]]
    assert batch.labels[:, 0].tolist() == [4, 4]
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    generated = theirs.generate(batch.inputs["input_ids"][:1], num_beams=1, max_new_tokens=3)
    assert generated[0, :2].tolist() == [2, 4]


def test_labels_end_with_a_token_that_ends_generation(tmp_path, config):
    """Also where the template ends a text with another one."""
    special, roles, _ = ODD
    folder = saved(tmp_path / "it", _bart, special, roles, "$A <pad>")
    made = task_of(config(folder, "translation"), tmp_path / "words")
    assert [labels[-2:] for _, labels in made.held.rows] == [[3, 2]] * 4
    several = without(folder, tmp_path, generation_config={"eos_token_id": [0, 2]})
    made = task_of(config(several, "translation"), tmp_path / "words")
    assert [labels[-2:] for _, labels in made.held.rows] == [[3, 2]] * 4  # the one that the tokenizer names


@pytest.mark.parametrize("name", PAIRED)
def test_a_trained_translator_reads_and_starts_as_it_was_trained(tmp_path, checkpoint, config, name):
    folder = checkpoint(PAIRED, name)
    options = config(folder, "translation")
    train(options)
    tokenizer, theirs = theirs_of(folder), transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    translator = Translator.load(tmp_path / "run")
    loaded = load_saved(str(tmp_path / "run"))
    made = task_of(options, tmp_path / "words")
    for (source, target), (_, labels) in zip(
        zip(*made.held.texts.columns.values(), strict=True), made.held.rows, strict=True
    ):
        ids = tokenizer(source)["input_ids"]
        assert translator.encode(source) == ids == loaded.tokenizer(source)["input_ids"]
        assert loaded.target_tokenizer(target)["input_ids"] == labels == tokenizer(text_target=target)["input_ids"]
    tokens = translator.model.config.special_tokens
    for key in ("decoder_start_token_id", "eos_token_id", "forced_bos_token_id", "forced_eos_token_id"):
        assert getattr(tokens, key) == getattr(theirs.generation_config, key), key
    written = translator.model.generate([tokenizer(PAIRS[0][0])["input_ids"]], max_new_tokens=5)
    expected = theirs.generate(torch.tensor([tokenizer(PAIRS[0][0])["input_ids"]]), max_new_tokens=5, num_beams=1)
    prefix = 1 + (theirs.generation_config.forced_bos_token_id is not None)
    assert written[0, :prefix].tolist() == expected[0, :prefix].tolist()


def test_rules_about_tokens_hold_in_translation_and_the_search_and_lengths_of_a_checkpoint_do_not(
    tmp_path, checkpoint, config
):
    rules = {"no_repeat_ngram_size": 2, "bad_words_ids": [[7], [9, 11]], "begin_suppress_tokens": [20]}
    others = {"min_new_tokens": 60, "max_length": 5, "num_beams": 3, "do_sample": True, "guidance_scale": 1.5}
    folder = without(checkpoint(PAIRED, "bart"), tmp_path, generation_config=rules | others)
    lines = []
    with rules_not_obeyed(lines.append):
        ended = train(config(folder, "translation", task={"max_predict_samples": 4}))
    assert not ended.warnings
    assert {"bleu", "chrf"} <= ended.scores.keys()
    assert (tmp_path / "run" / "alignment.svg").exists()
    (line,) = lines
    assert line.startswith("warning: generation_config.json asks for `guidance_scale=1.5`, which regard does not obey")
    translator = Translator.load(tmp_path / "run")
    translator = replace(translator, model=Transformer.from_pretrained(folder))
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(checkpoint(PAIRED, "bart"))
    for num_beams in (1, 4):
        with rules_not_obeyed(lines.append):
            found = translator.translate([source for source, _ in PAIRS], num_beams=num_beams)
        for (source, _), text in zip(PAIRS, found, strict=True):
            ids = theirs_of(folder)(source)["input_ids"]
            options = rules | {"num_beams": num_beams, "max_new_tokens": 2 * len(ids) + 10}
            (expected,) = theirs.generate(torch.tensor([ids]), **options)
            assert text == theirs_of(folder).decode(expected, skip_special_tokens=True).strip()


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("name", CAUSAL)
def test_running_text_is_what_the_tokenizer_makes_of_each_document_and_an_end(
    tmp_path, checkpoint, config, name, packing
):
    folder = checkpoint(CAUSAL, name)
    tokenizer, options = theirs_of(folder), config(folder, "clm", task={"block_size": 16, "packing": packing})
    made = task_of(options, tmp_path / "words")
    held = {tuple(tokenizer(text)["input_ids"] + [tokenizer.eos_token_id]): text for text in TEXTS}
    if packing:
        rows = [
            dict(zip(("read", "labels", "documents"), row, strict=True)) for row in (*made.trained, *made.held.rows)
        ]
        documents = set()
        for row in rows:
            for number in {one for one in row["documents"] if one >= 0}:
                at = [index for index, one in enumerate(row["documents"]) if one == number]
                documents.add((row["read"][at[0]], *(row["labels"][index] for index in at)))
    else:
        stream = [row[0] + row[1][-1:] for row in made.trained]
        tokens = [token for row in stream for token in row[:-1]] + stream[-1][-1:]
        documents, rest = set(), tokens
        while rest:
            end = next(length for length in range(1, len(rest) + 1) if tuple(rest[:length]) in held)
            documents.add(tuple(rest[:end]))
            rest = rest[end:]
        assert len(documents) == len(TEXTS) - 4
    assert documents <= held.keys()
    if packing:
        assert documents == held.keys()
    batch = made.rows([0, 1])
    if not packing:
        model = transformers.AutoModelForCausalLM.from_pretrained(folder)
        with torch.no_grad():
            logits = in_double(model)(input_ids=batch.inputs["input_ids"]).logits
            expected = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), batch.labels.flatten(), ignore_index=-100
            )
            torch.testing.assert_close(mean_loss(made, made.model(options.model), batch), expected, rtol=CLOSE, atol=0)


@pytest.mark.parametrize(("kinds", "kind"), [(CAUSAL, "clm"), (CLASSIFIED, "classification")])
def test_a_token_beyond_the_vocabulary_is_named_before_training(tmp_path, config, kinds, kind):
    folder = saved(tmp_path / "model", *kinds["llama"])
    tokenizer = theirs_of(folder)
    tokenizer.add_tokens([f"<new{index}>" for index in range(50)])
    tokenizer.save_pretrained(folder)
    assert len(tokenizer) > 300
    task_of(options := config(folder, kind), tmp_path / "words").model(options.model)  # where no text has such a token
    index = tokenizer.convert_tokens_to_ids("<new49>")
    for name in ("texts.txt", "labels.tsv"):
        text = (tmp_path / name).read_text("utf-8")
        (tmp_path / name).write_text(text.replace(TEXTS[-1], "<new49>"), "utf-8")
    words = (
        rf"the token '<new49>' \({index}\) of row \d+ \((trained on|held out)\) is beyond the model's vocabulary of 300"
    )
    with pytest.raises(InputError, match=words):
        train(options)
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.parametrize("name", CAUSAL)
def test_a_trained_language_model_opens_with_the_tokenizer_of_its_checkpoint(tmp_path, checkpoint, config, name):
    folder = checkpoint(CAUSAL, name)
    train(config(folder, "clm", task={"block_size": 16}))
    before, loaded = theirs_of(folder), load_saved(str(tmp_path / "run"))
    for tokenizer in (
        loaded.tokenizer,
        theirs_of(tmp_path / "run" / "model"),
        theirs_of(tmp_path / "run" / "checkpoints"),
    ):
        assert [tokenizer(text)["input_ids"] for text in TEXTS] == [before(text)["input_ids"] for text in TEXTS]
        assert tokenizer.special_tokens_map == before.special_tokens_map
        assert tokenizer.chat_template == before.chat_template
        assert len(tokenizer) == len(before)
    model = loaded.model.model
    assert before.eos_token_id in model.config.special_tokens.eos_token_ids
    files = {one.name for one in folder.iterdir()} - {"model.safetensors", "config.json"}
    assert files >= {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}
    assert ("chat_template.jinja" in files) == (name == "a chat model")
    for file in files:
        for kept in ("model", "checkpoints"):
            assert (tmp_path / "run" / kept / file).read_bytes() == (folder / file).read_bytes(), file
    step = next((tmp_path / "run" / "checkpoints").glob("step-*"))
    assert load_saved(str(step)).tokenizer.special_tokens_map == before.special_tokens_map


@pytest.mark.parametrize("is_split", [False, True])
def test_special_tokens_in_a_text_are_what_the_tokenizer_of_the_checkpoint_makes_of_them(
    tmp_path, checkpoint, config, is_split
):
    """A conversation written by a chat template has them."""
    folder = without(checkpoint(CAUSAL, "a chat model"), tmp_path, tokenizer_config={"split_special_tokens": is_split})
    tokenizer, options = theirs_of(folder), config(folder, "clm", task={"block_size": 64, "validation_size": 1})
    line = tokenizer.apply_chat_template([{"role": "user", "content": "a g"}], tokenize=False)
    assert line == "<|im_start|>a g<|im_end|>"
    (tmp_path / "texts.txt").write_text(f"{line}\n{line} b\n{line} c\n", "utf-8")
    expected = {tuple(tokenizer(text)["input_ids"]) for text in (line, f"{line} b", f"{line} c")}
    assert ((1, *tokenizer("a g")["input_ids"], 2) in expected) != is_split
    train(options)
    made = task_of(options, tmp_path / "words")
    (row,) = made.held.rows
    text = (*row[0], row[1][-1])
    assert (text if text in expected else text[:-1]) in expected
    assert load_saved(str(tmp_path / "run")).tokenizer(line)["input_ids"] == tokenizer(line)["input_ids"]
    pairs = config(checkpoint(PAIRED, "bart"), "translation", "pairs")
    train(pairs)
    assert (
        Translator.load(tmp_path / "pairs").encode("a</s>")
        == theirs_of(checkpoint(PAIRED, "bart"))("a</s>")["input_ids"]
    )


@pytest.mark.parametrize("name", MASKED)
def test_masked_texts_are_what_the_tokenizer_makes_of_them(tmp_path, checkpoint, config, name):
    folder = checkpoint(MASKED, name)
    tokenizer, options = theirs_of(folder), config(folder, "mlm", task={"block_size": 16})
    made = task_of(options, tmp_path / "words")
    assert {tuple(row) for row in (*made.trained, *made.held.rows)} == {
        tuple(tokenizer(text)["input_ids"]) for text in TEXTS
    }
    batch = made.rows([0, 1, 2, 3], held=made.held)
    for row in range(4):
        ids = torch.tensor(made.held.rows[row])
        read, labels = batch.inputs["input_ids"][row, : len(ids)], batch.labels[row, : len(ids)]
        assert torch.equal(read[labels == -100], ids[labels == -100])
        assert torch.equal(labels[labels != -100], ids[labels != -100])
        assert labels[[0, -1]].tolist() == [-100, -100]  # special tokens are not predicted
        assert batch.inputs["input_ids"][row, len(ids) :].unique().tolist() in ([], [tokenizer.pad_token_id])
    read, labels = made._masked(torch.full((1, 2000), 9), torch.ones(1, 2000, dtype=torch.bool), 0)
    values, counts = read[labels != -100].unique(return_counts=True)
    assert values[counts.argmax()] == tokenizer.mask_token_id
    theirs = in_double(transformers.AutoModelForMaskedLM.from_pretrained(folder))
    padded = batch.inputs.get("attention_mask", torch.ones_like(batch.labels))
    with torch.no_grad():
        expected = theirs(batch.inputs["input_ids"], attention_mask=padded.long(), labels=batch.labels).loss
        torch.testing.assert_close(mean_loss(made, made.model(options.model), batch), expected, rtol=CLOSE, atol=0)


@pytest.mark.parametrize("longest", [5, 64])
@pytest.mark.parametrize("name", CLASSIFIED)
def test_labelled_texts_are_what_transformers_collates(tmp_path, checkpoint, config, name, longest):
    folder = checkpoint(CLASSIFIED, name)
    tokenizer = theirs_of(folder)
    made = task_of(config(folder, "classification", task={"max_length": longest}), tmp_path / "words")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token  # as people set it for models without one
    encoded = {tuple(tokenizer(text, truncation=True, max_length=longest)["input_ids"]) for text in TEXTS}
    assert {tuple(row) for row, _ in (*made.trained, *made.held.rows)} == encoded
    batch = made.rows([0, 1, 2, 3], held=made.held)
    collate = transformers.DataCollatorWithPadding(tokenizer)
    expected = collate([{"input_ids": row, "attention_mask": [1] * len(row)} for row, _ in made.held.rows])
    assert torch.equal(batch.inputs["input_ids"], expected["input_ids"])
    mask = batch.inputs.get("attention_mask", torch.ones_like(batch.inputs["input_ids"], dtype=torch.bool))
    assert torch.equal(mask, expected["attention_mask"].bool())


@pytest.mark.parametrize("kind", ["clm", "mlm", "classification"])
def test_what_was_trained_from_scratch_opens_in_transformers_too(tmp_path, config, kind):
    options = config("none", kind, task={"tokenizer": {"model_type": "char", "vocab_size": 60}})
    model = tiny(tmp_path / "run").model
    train(options.model_copy(update={"model": model}))
    tokenizer, ours = theirs_of(tmp_path / "run" / "model"), Tokenizer.load(tmp_path / "run" / "model")
    assert [getattr(tokenizer, f"{role}_token") for role in ("pad", "bos", "eos", "unk", "mask")] == [
        "<pad>", "<s>", "</s>", "<unk>", "<mask>",
    ]  # fmt: skip
    letters = [tokenizer.convert_tokens_to_ids(one) for one in "ab"]
    around = ([1], []) if kind == "clm" else ([1], [2])
    assert tokenizer("ab")["input_ids"] == [*around[0], *letters, *around[1]] == ours("ab")["input_ids"]
    assert tokenizer("<s>a")["input_ids"][1:3] != [1, letters[0]]  # a special token that occurs in a text is text
    assert load_saved(str(tmp_path / "run")).tokenizer("ab")["input_ids"] == tokenizer("ab")["input_ids"]
    made = task_of(options.model_copy(update={"model": model}), tmp_path / "run" / "checkpoints")
    begins = {next(iter(row[0] if isinstance(row, tuple) else row)) for row in made.held.rows}
    assert 1 in begins


def without(folder, tmp_path, **changes):
    """A copy of a checkpoint without some settings: by file, the keys and their values; None takes a key out."""
    copy = tmp_path / "changed"
    shutil.copytree(folder, copy)
    for name, values in changes.items():
        path = copy / f"{name}.json"
        found = json.loads(path.read_text("utf-8")) | values
        path.write_text(json.dumps({key: one for key, one in found.items() if one is not None}), "utf-8")
    return copy


@pytest.mark.parametrize(
    ("kinds", "name", "kind", "changes", "words"),
    [
        (
            *(PAIRED, "bart", "translation"),
            {file: {"decoder_start_token_id": None} for file in ("config", "generation_config")},
            "has no `decoder_start_token_id`, .*: put it into config.json",
        ),
        (
            *(PAIRED, "bart", "translation"),
            {
                "config": {"pad_token_id": None},
                "generation_config": {"pad_token_id": None},
                "tokenizer_config": {"pad_token": None},
            },
            "needs `pad_token`.* in its tokenizer_config.json",
        ),
        (
            *(PAIRED, "bart", "translation"),
            {"tokenizer_config": {"src_lang": "en_XX"}},
            "`src_lang` = 'en_XX' in its tokenizer_config.json",
        ),
        (
            *(CAUSAL, "gpt2", "clm"),
            {
                "config": {"eos_token_id": None},
                "generation_config": {"eos_token_id": None},
                "tokenizer_config": {"eos_token": None},
            },
            "no `eos_token_id` in generation_config.json or config.json, and its tokenizer_config.json no `eos_token`",
        ),
        (
            *(CAUSAL, "llama with several ends", "clm"),
            {"tokenizer_config": {"eos_token": None}},
            r"has several tokens, \[0, 2\]: name .* as `eos_token` in tokenizer_config.json",
        ),
        (
            *(MASKED, "bert", "mlm"),
            {"tokenizer_config": {"mask_token": None}},
            "needs `mask_token`.* in its tokenizer_config.json",
        ),
        (
            *(CLASSIFIED, "llama", "classification"),
            {
                "config": {"eos_token_id": None},
                "generation_config": {"eos_token_id": None},
                "tokenizer_config": {"eos_token": None},
            },
            "needs `pad_token`.* in its tokenizer_config.json",
        ),
        (CAUSAL, "gpt2", "translation", {}, "must name an encoder-decoder for this task, .* is of the kind decoder"),
        (MASKED, "bert", "clm", {}, "must name a decoder for this task, .* is of the kind encoder"),
    ],
)
def test_what_is_missing_is_refused_with_the_name_of_its_setting(
    tmp_path, checkpoint, config, kinds, name, kind, changes, words
):
    folder = without(checkpoint(kinds, name), tmp_path, **changes)
    with pytest.raises(InputError, match=words):
        task_of(config(folder, kind), tmp_path / "words")


def test_an_end_that_only_the_tokenizer_names_ends_generation_too(tmp_path, checkpoint, config):
    lacking = {file: {"eos_token_id": None} for file in ("config", "generation_config")}
    folder = without(checkpoint(CAUSAL, "a chat model"), tmp_path, **lacking)
    assert Transformer.pretrained_config(folder).special_tokens.eos_token_ids == ()
    train(config(folder, "clm", task={"block_size": 16}))
    assert Transformer.pretrained_config(tmp_path / "run").special_tokens.eos_token_ids == (2,)


def test_documents_end_with_the_end_of_the_model_where_its_tokenizer_names_another(tmp_path, checkpoint, config):
    ends = {file: {"eos_token_id": 1} for file in ("config", "generation_config")}
    folder = without(checkpoint(CAUSAL, "a chat model"), tmp_path, **ends)
    made = task_of(config(folder, "clm", task={"block_size": 64, "validation_size": 1}), tmp_path / "words")
    assert [row[1][-1] for row in made.held.rows] == [1]


def test_settings_that_change_within_a_run_are_refused(tmp_path, checkpoint, config):
    folder = without(checkpoint(CAUSAL, "a chat model"), tmp_path)
    options = config(folder, "clm", task={"block_size": 16})
    train(options)
    settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"bos_token": "<|endoftext|>"}), "utf-8")
    with pytest.raises(InputError, match=r"tokenizer.json \(special tokens\)' has changed"):
        train(until(options, 3))


def test_a_run_of_a_checkpoint_that_0_2_started_is_refused(tmp_path, checkpoint, config):
    options = config(checkpoint(CAUSAL, "llama"), "clm", task={"block_size": 16})
    train(options)
    path = tmp_path / "run" / "run.json"
    record = json.loads(path.read_text("utf-8"))
    del record["data"]["tokenizer.json (special tokens)"]
    path.write_text(json.dumps(record), "utf-8")
    with pytest.raises(InputError, match=r"was started by regard 0\.2.*name another folder as `output_dir`"):
        train(until(options, 3))


def as_0_2_saved(folder):
    """What 0.2 saved of a checkpoint's tokenizer: tokenizer.json alone."""
    for name in ("tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "chat_template.jinja"):
        (folder / name).unlink(missing_ok=True)


def test_a_fine_tuned_translator_of_0_2_reads_as_0_2_trained_it(tmp_path, checkpoint, config):
    folder = checkpoint(PAIRED, "bart with odd names")
    train(config(folder, "translation"))
    model = tmp_path / "run" / "model"
    as_0_2_saved(model)
    for name in ("source.json", "target.json"):
        shutil.copy(folder / "tokenizer.json", model / name)
    (model / "tokenizer.json").unlink()
    saved_config = json.loads((model / "config.json").read_text("utf-8"))
    del saved_config["crc"]
    (model / "config.json").write_text(json.dumps(saved_config), "utf-8")
    letters = theirs_of(folder)("a g", add_special_tokens=False)["input_ids"]
    assert Translator.load(model).encode("a g") == [*letters, 2]  # the end token alone
    loaded = load_saved(str(model))
    assert loaded.tokenizer("a g")["input_ids"] == loaded.target_tokenizer("a g")["input_ids"] == [*letters, 2]


@pytest.mark.parametrize(("name", "around"), [("a chat model", ([1], [])), ("gpt2", ([], []))])
def test_a_fine_tuned_language_model_of_0_2_reads_as_0_2_trained_it(tmp_path, checkpoint, config, name, around):
    folder = checkpoint(CAUSAL, name)
    train(config(folder, "clm", task={"block_size": 16}))
    as_0_2_saved(tmp_path / "run" / "model")
    letters = theirs_of(folder)("a g", add_special_tokens=False)["input_ids"]
    found = load_saved(str(tmp_path / "run" / "model")).tokenizer("a g")["input_ids"]
    assert found == [*around[0], *letters, *around[1]]  # the begin token, if it is not the end token


@pytest.mark.parametrize("kind", ["translation", "clm", "classification"])
def test_a_run_that_0_2_began_from_scratch_goes_on_with_its_tokenizers(tmp_path, config, kind):
    """0.2 saved no template and no tokenizer_config.json."""
    small = {"model_type": "char", "vocab_size": 60}
    task = {"src_tokenizer": small, "tgt_tokenizer": small} if kind == "translation" else {"tokenizer": small}
    steps = {"training__max_steps": 4, "training__save_steps": 2, "training__lr_scheduler_type": "constant"}
    steps |= {"training__warmup_steps": 0}

    def of(run, max_steps):
        options = config("none", kind, run, task=task, **steps)
        return until(options.model_copy(update={"model": tiny(tmp_path / run).model}), max_steps)

    train(of("whole", 4))
    train(of("run", 2))
    shutil.rmtree(tmp_path / "run" / "model")
    beside = tmp_path / "run" / "checkpoints"
    record = json.loads((tmp_path / "run" / "run.json").read_text("utf-8"))
    (beside / "tokenizer_config.json").unlink(missing_ok=True)
    (beside / "config.json").unlink()
    names = [name for name in record["data"] if name in ("source.json", "target.json", "tokenizer.json")]
    for name in names:
        content = json.loads((beside / name).read_text("utf-8")) | {"post_processor": None}
        (beside / name).write_text(json.dumps(content, ensure_ascii=False, indent=2), "utf-8")
        record["data"][name] = hashlib.sha256((beside / name).read_bytes()).hexdigest()
    (tmp_path / "run" / "run.json").write_text(json.dumps(record), "utf-8")
    for max_steps in (3, 4):  # it is resumed twice
        train(of("run", max_steps))
    found, expected = (load_file(tmp_path / run / "model" / "model.safetensors") for run in ("run", "whole"))
    assert all(torch.equal(found[name], one) for name, one in expected.items())
    assert len(names) == (2 if kind == "translation" else 1)
