"""Every family agrees with transformers, layer by layer, with padding, with a cache, and in what it writes."""

import json
import shutil
from itertools import product

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

import checkpoints
import regard
from oracles import set_attention
from regard.errors import InputError
from regard.models import Transformer, decoding, output_heads
from sweeps import sweep

TOLERANCE = 1e-5
WRITERS = [name for name in checkpoints.FAMILIES if "bert" not in name]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """A transformers model and ours, loaded from its files, each made once."""
    known = {}

    def pair(name):
        if name not in known:
            folder = tmp_path_factory.mktemp("checkpoint")
            known[name] = checkpoints.checkpoint(name, folder), Transformer.from_pretrained(folder)
        return known[name]

    return pair


def close(ours, theirs, real=None):
    if real is not None:
        ours, theirs = ours[real], theirs[real]
    assert theirs.std() > 0.05  # a model whose states are all alike would agree with anything
    torch.testing.assert_close(ours, theirs, rtol=0, atol=TOLERANCE)


def close_stack(ours, theirs, real=None):
    """The embeddings, and the states after each block, the last after the final norm."""
    for one, other in zip(ours, theirs, strict=True):
        close(one, other, real)


@torch.no_grad()
def test_hidden_states_and_logits_of_every_layer(pairs):
    for case in sweep(product(checkpoints.FAMILIES, [False, True])):
        with case as (name, padded):
            theirs, ours = pairs(name)
            ids, real = checkpoints.texts(theirs.config, real=7 if padded else 11)
            given = {"input_ids": ids, "attention_mask": real.long(), "output_hidden_states": True}
            if theirs.config.is_encoder_decoder:
                target, target_real = checkpoints.texts(theirs.config, n=6, real=4 if padded else 6, seed=2)
                target[:, 0] = theirs.config.decoder_start_token_id
                expected = theirs(**given, decoder_input_ids=target, decoder_attention_mask=target_real.long())
                output = ours(
                    ids,
                    decoder_input_ids=target,
                    attention_mask=real,
                    decoder_attention_mask=target_real,
                    output_hidden_states=True,
                )
                close_stack(output.encoder_hidden_states, expected.encoder_hidden_states, real)
                close_stack(output.hidden_states, expected.decoder_hidden_states, target_real)
                close(output.encoder_last_hidden_state, expected.encoder_last_hidden_state, real)
                close(output.logits, expected.logits, target_real)
            else:
                expected = theirs(**given)
                output = ours(ids, attention_mask=real, output_hidden_states=True)
                close_stack(output.hidden_states, expected.hidden_states, real)
                if hasattr(expected, "logits"):
                    close(output.logits, expected.logits, real)


@torch.no_grad()
def test_with_a_cache_each_step_gives_what_transformers_gives_at_once(pairs):
    for case in sweep(product(WRITERS, [[1] * 9, [4, 1, 3, 1]])):
        with case as (name, steps):
            theirs, ours = pairs(name)
            ids, _ = checkpoints.texts(theirs.config, n=9, real=9)
            cache, logits, at = ours.cache(), [], 0
            if theirs.config.is_encoder_decoder:
                source, real = checkpoints.texts(theirs.config, seed=2)
                expected = theirs(input_ids=source, attention_mask=real.long(), decoder_input_ids=ids).logits
                memory = ours.encode(source, attention_mask=real)
                for n in steps:
                    # Of a cache that holds the projected memory, the memory itself is not read again.
                    memory = memory if at == 0 else torch.full_like(memory, torch.nan)
                    logits.append(
                        ours.decode(
                            ids[:, at : at + n], memory, encoder_attention_mask=real, past_key_values=cache
                        ).logits
                    )
                    at += n
            else:
                expected = theirs(input_ids=ids).logits
                for n in steps:
                    logits.append(ours(ids[:, at : at + n], past_key_values=cache).logits)
                    at += n
            close(torch.cat(logits, 1), expected)
            assert cache.length == 9


@torch.no_grad()
def test_padding_on_the_left_changes_nothing_that_is_written(pairs):
    for case in sweep(product(["gpt2", "llama", "mistral", "qwen2 with windows"], [True, False])):
        with case as (name, cached):
            theirs, ours = pairs(name)
            prompts = [[5, 6, 7, 8, 9, 10], [11, 12], [13, 14, 15]]
            expected = [
                theirs.generate(
                    torch.tensor([one]), max_new_tokens=9, do_sample=False, eos_token_id=None, pad_token_id=0
                )[0, len(one) :]
                for one in prompts
            ]
            assert ours.generate(
                prompts, max_new_tokens=9, eos_token_id=(), use_cache=cached, return_dict_in_generate=True
            ).new_tokens == [one.tolist() for one in expected]
            assert len({tuple(one.tolist()) for one in expected}) > 1


@torch.no_grad()
def test_the_same_sequences_as_transformers_generate(pairs):
    for case in sweep(product([name for name in WRITERS if name[:2] in ("t5", "ba", "ma")], [1, 4], [True, False])):
        with case as (name, beams, cached), pytest.MonkeyPatch.context() as monkeypatch:
            theirs, ours = pairs(name)
            if (
                name == "marian with two vocabularies"
            ):  # whose first one the beams of transformers before 5.18 divide by
                monkeypatch.setattr(theirs.config, "vocab_size", theirs.config.decoder_vocab_size)
            if theirs.config.is_encoder_decoder:
                sources, real = checkpoints.texts(theirs.config, batch=3, seed=3)
                expected = theirs.generate(
                    sources, attention_mask=real.long(), num_beams=beams, max_new_tokens=12, do_sample=False
                )
                how = decoding.Greedy() if beams == 1 else decoding.BeamSearch(beams)
                lists = [one[kept].tolist() for one, kept in zip(sources, real, strict=True)]
                found = ours.generate(
                    lists, search_strategy=how, max_new_tokens=12, use_cache=cached, return_dict_in_generate=True
                ).new_tokens
                pad, stop = theirs.config.pad_token_id, theirs.config.eos_token_id
                for one, row in zip(found, expected[:, 1:].tolist(), strict=True):
                    assert one == row[: row.index(stop) + 1] if stop in row else one == row[: len(one)]
                    assert row[len(one) :] == [pad] * (len(row) - len(one))


@torch.no_grad()
def test_beams_of_a_decoder_alone(pairs):
    for case in sweep(product(["gpt2", "llama", "mistral"], [2, 4])):
        with case as (name, beams):
            theirs, ours = pairs(name)
            prompts = torch.randint(3, 44, (3, 5), generator=torch.Generator().manual_seed(4))
            options = {
                "num_beams": beams,
                "max_new_tokens": 10,
                "do_sample": False,
                "eos_token_id": None,
                "pad_token_id": 0,
            }
            expected = theirs.generate(prompts, attention_mask=torch.ones_like(prompts), **options)[:, 5:]
            assert (
                ours.generate(
                    prompts,
                    search_strategy=decoding.BeamSearch(beams),
                    max_new_tokens=10,
                    eos_token_id=(),
                    return_dict_in_generate=True,
                ).new_tokens
                == expected.tolist()
            )


@torch.no_grad()
def test_heads_of_checkpoints(tmp_path_factory):
    cases = [
        ("bert", hf.BertForSequenceClassification, output_heads.SequenceClassification(3)),
        ("bert", hf.BertForTokenClassification, output_heads.TokenClassification(3)),
        ("bert", hf.BertForPreTraining, output_heads.MaskedLanguageModel()),
        ("bert", hf.BertModel, None),
        ("bert", hf.BertForQuestionAnswering, None),
        ("roberta", hf.RobertaForSequenceClassification, output_heads.SequenceClassification(3)),
        ("roberta", hf.RobertaForTokenClassification, output_heads.TokenClassification(3)),
        (
            "gpt2",
            hf.GPT2ForSequenceClassification,
            output_heads.SequenceClassification(3, pooling="last", use_tanh_layer=False, bias=False),
        ),
        ("gpt2", hf.GPT2Model, None),
        (
            "llama",
            hf.LlamaForSequenceClassification,
            output_heads.SequenceClassification(3, pooling="last", use_tanh_layer=False, bias=False),
        ),
        ("llama", hf.LlamaModel, None),
        ("t5", hf.T5EncoderModel, None),
        ("t5", hf.T5Model, None),
        ("bart", hf.BartModel, None),
        ("bart", hf.BartForSequenceClassification, output_heads.SequenceClassification(3, pooling="last")),
    ]
    for case in sweep(cases):
        with case as (name, kind, head):
            tmp_path = tmp_path_factory.mktemp("case")
            more = {} if head is None or not hasattr(head, "num_labels") else {"num_labels": 3}
            theirs = checkpoints.checkpoint(name, tmp_path, kind=kind, pad_token_id=1, eos_token_id=2, **more)
            ours = Transformer.from_pretrained(tmp_path)
            assert ours.config.output_head == head
            ids, real = checkpoints.texts(theirs.config)
            ids[0, -1] = ids[1, 6] = 2  # BART's classifier reads the end token
            given = {"input_ids": ids, "attention_mask": real.long()}
            if ours.config.kind == "encoder-decoder":
                expected = theirs(**given, decoder_input_ids=ids)
                output = ours(ids, decoder_input_ids=ids, attention_mask=real, decoder_attention_mask=real)
            else:
                expected, output = theirs(**given), ours(ids, attention_mask=real)
            if head is None:
                assert output.logits is None
                if hasattr(expected, "last_hidden_state"):
                    close(output.last_hidden_state, expected.last_hidden_state, real)
            else:
                logits = expected.prediction_logits if kind is hf.BertForPreTraining else expected.logits
                close(output.logits, logits, real if logits.ndim == 3 else None)


@torch.no_grad()
def test_variants_of_configurations(tmp_path_factory):
    cases = [
        ("bert", {"hidden_act": "relu"}),
        ("bert", {"hidden_act": "gelu_new"}),
        ("bert", {"tie_word_embeddings": False}),
        ("roberta", {"tie_word_embeddings": False}),
        ("roberta", {"pad_token_id": 3}),
        ("gpt2", {"tie_word_embeddings": False}),
        ("gpt2", {"n_inner": 20, "activation_function": "relu"}),
        ("llama", {"tie_word_embeddings": True, "num_key_value_heads": 1, "head_dim": 6}),
        ("bart", {"normalize_embedding": True}),
        ("marian", {"normalize_embedding": False}),
    ]
    for case in sweep(cases):
        with case as (name, more):
            tmp_path = tmp_path_factory.mktemp("case")
            theirs = checkpoints.checkpoint(name, tmp_path, **more)
            ours, (ids, real) = Transformer.from_pretrained(tmp_path), checkpoints.texts(theirs.config)
            given = {"input_ids": ids, "attention_mask": real.long()}
            if theirs.config.is_encoder_decoder:
                close(
                    ours(ids, decoder_input_ids=ids, attention_mask=real).logits,
                    theirs(**given, decoder_input_ids=ids).logits,
                )
            else:
                close(ours(ids, attention_mask=real).logits, theirs(**given).logits, real)


@pytest.mark.parametrize("name", ["bart", "marian"])
def test_embeddings_of_its_own_for_each_side_are_refused(tmp_path, name):
    checkpoints.checkpoint(name, tmp_path, tie_word_embeddings=False)
    with pytest.raises(InputError, match=r"of its own.*regard.watch run it as transformers has it"):
        Transformer.from_pretrained(tmp_path)


@torch.no_grad()
def test_an_output_layer_that_is_there_holds_whatever_is_said_of_it(tmp_path_factory):
    for case in sweep([("t5 1.1", None), ("t5 1.1", hf.MT5ForConditionalGeneration), ("llama", None)]):
        with case as (name, kind):
            tmp_path = tmp_path_factory.mktemp("case")
            if kind is not None:
                checkpoints.FAMILIES["mt5"] = (kind, hf.MT5Config, checkpoints.FAMILIES[name][2])
                name = "mt5"
            theirs = checkpoints.checkpoint(name, tmp_path)
            checkpoints.FAMILIES.pop("mt5", None)
            own = torch.randn(theirs.lm_head.weight.shape, generator=torch.Generator().manual_seed(9)) * 0.2
            weights = load_file(tmp_path / "model.safetensors") | {"lm_head.weight": own}
            save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
            config = json.loads((tmp_path / "config.json").read_text()) | {"tie_word_embeddings": True}
            (tmp_path / "config.json").write_text(json.dumps(config))
            ours, (ids, _) = Transformer.from_pretrained(tmp_path), checkpoints.texts(theirs.config, real=11)
            output = ours(ids, decoder_input_ids=ids) if theirs.config.is_encoder_decoder else ours(ids)
            close(output.logits, output.last_hidden_state @ own.T)
            # A head that is asked for by its kind is the checkpoint's.
            again = Transformer.from_pretrained(tmp_path, output_head=output_heads.LanguageModel())
            close(again.logits(output.last_hidden_state), output.logits)


@torch.no_grad()
def test_a_head_asked_for_by_its_kind_is_that_of_the_checkpoint(pairs, tmp_path_factory):
    for case in sweep(["llama", "t5", "bart", "marian", "gpt2", "bert"]):
        with case as name:
            tmp_path = tmp_path_factory.mktemp("case")
            theirs, ours = pairs(name)
            theirs.save_pretrained(tmp_path)
            kind = output_heads.MaskedLanguageModel if name == "bert" else output_heads.LanguageModel
            again = Transformer.from_pretrained(tmp_path, output_head=kind())
            assert again.config == ours.config


@torch.no_grad()
def test_a_bare_model_gets_the_head_of_its_family_or_none(tmp_path):
    theirs = checkpoints.checkpoint("gpt2", tmp_path / "gpt2", kind=hf.GPT2Model)
    ours = Transformer.from_pretrained(tmp_path / "gpt2", output_head=output_heads.LanguageModel())
    ids, _ = checkpoints.texts(theirs.config, real=11)
    close(ours(ids).logits, theirs(ids).last_hidden_state @ theirs.wte.weight.T)
    checkpoints.checkpoint("llama", tmp_path / "llama", kind=hf.LlamaModel)
    with pytest.raises(InputError, match=r"lacks 1 weights, output_head\.weight first"):
        Transformer.from_pretrained(tmp_path / "llama", output_head=output_heads.LanguageModel())


def test_a_pooler_serves_the_classifier_that_is_to_be_trained(tmp_path):
    theirs = checkpoints.checkpoint("bert", tmp_path, kind=hf.BertModel)
    ours = Transformer.from_pretrained(tmp_path, output_head=output_heads.SequenceClassification(3))
    assert torch.equal(ours.output_head.tanh_layer.weight, theirs.pooler.dense.weight)


@torch.no_grad()
def test_shards_and_a_whole_file_beside_them(tmp_path):
    theirs = checkpoints.checkpoint("llama", tmp_path / "whole")
    theirs.save_pretrained(tmp_path / "parts", max_shard_size="20KB")
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 2
    ids, _ = checkpoints.texts(theirs.config, real=11)
    close(Transformer.from_pretrained(tmp_path / "parts")(ids).logits, theirs(ids).logits)
    # A whole file holds, as in transformers, whatever shards were left beside it.
    for one in (tmp_path / "parts").glob("*.safetensors"):
        tensors = {name: torch.zeros_like(x) for name, x in load_file(one).items()}
        save_file(tensors, one, metadata={"format": "pt"})
    shutil.copy(tmp_path / "whole" / "model.safetensors", tmp_path / "parts")
    close(Transformer.from_pretrained(tmp_path / "parts")(ids).logits, theirs(ids).logits)


HOSTILE = {
    "a list for a kind": {"model_type": ["llama"]},
    "a word for angles": {"rope_parameters": "x"},
    "a list for a function": {"hidden_act": ["x"]},
    "a number for words": {"bad_words_ids": 5},
    "a word for a token": {"eos_token_id": "2"},
    "a number for labels": {"architectures": ["LlamaForSequenceClassification"], "id2label": 5},
    "a part of the vectors": {"partial_rotary_factor": 0.5},
    "a part, in newer files": {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}},
    "no width": {"hidden_size": None},
    "both directions": {"is_causal": False},
    "two rotations": {"rope_parameters": {"rope_theta": 1e4}, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
}


def test_weights_of_mixed_types_are_cast_as_transformers_casts_them(tmp_path):
    checkpoints.checkpoint("t5", tmp_path / "whole")
    theirs = hf.T5ForConditionalGeneration.from_pretrained(tmp_path / "whole", dtype=torch.float16)
    theirs.save_pretrained(tmp_path / "t5")  # with `wo` in float32, as it computes
    assert {one.dtype for one in load_file(tmp_path / "t5" / "model.safetensors").values()} > {torch.float16}
    ours, ids, start = Transformer.from_pretrained(tmp_path / "t5"), torch.tensor([[5, 6, 7]]), torch.tensor([[0, 4]])
    with torch.no_grad():
        found, expected = (
            ours(ids, decoder_input_ids=start).logits,
            theirs(input_ids=ids, decoder_input_ids=start).logits,
        )
    assert found.dtype == torch.float16
    torch.testing.assert_close(found, expected, rtol=0, atol=0.01 * float(expected.abs().max()))

    folder = tmp_path / "llama"
    checkpoints.checkpoint("llama", folder)
    raw, weights = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    mixed = {key: one if key == "lm_head.weight" else one.bfloat16() for key, one in weights.items()}
    save_file(mixed, folder / "model.safetensors", {"format": "pt"})
    for said in ({"dtype": "bfloat16"}, {"dtype": None, "torch_dtype": "float16"}, {"dtype": "float32"}):
        (folder / "config.json").write_text(json.dumps(raw | said))
        ours, theirs = Transformer.from_pretrained(folder), hf.LlamaForCausalLM.from_pretrained(folder)
        assert {one.dtype for one in ours.parameters()} == {theirs.dtype}
        assert ours.generate(ids, max_new_tokens=8).tolist() == theirs.generate(ids, max_new_tokens=8).tolist()
    (folder / "config.json").write_text(json.dumps(raw | {"dtype": None}))
    assert {one.dtype for one in Transformer.from_pretrained(folder).parameters()} == {torch.bfloat16}  # of most
    wide = Transformer.from_pretrained(folder, dtype=torch.float32)
    assert torch.equal(wide.state_dict()["output_head.weight"], weights["lm_head.weight"])  # not rounded on the way


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.int8])
@pytest.mark.parametrize("asked", [{}, {"dtype": torch.float32}])
def test_quantized_weights_are_refused(tmp_path, kind, asked):
    checkpoints.checkpoint("llama", tmp_path)
    raw, weights = json.loads((tmp_path / "config.json").read_text()), load_file(tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(raw | {"quantization_config": {"quant_method": "bitsandbytes"}}))
    Transformer.from_pretrained(tmp_path, **asked)  # transformers would quantize these weights, which are whole
    weights["model.layers.1.mlp.up_proj.weight"] = weights["model.layers.1.mlp.up_proj.weight"].to(kind)
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match=f"up_proj.weight as {kind}: load one that is not quantized"):
        Transformer.from_pretrained(tmp_path, **asked)


def test_foreign_configurations_give_one_sentence(tmp_path_factory):
    for item in sweep(HOSTILE):
        with item as case:
            tmp_path = tmp_path_factory.mktemp("case")
            checkpoints.checkpoint("llama", tmp_path)
            (tmp_path / "generation_config.json").unlink()  # it would say the tokens
            raw = json.loads((tmp_path / "config.json").read_text()) | HOSTILE[case]
            (tmp_path / "config.json").write_text(json.dumps(raw))
            with pytest.raises(InputError) as caught:
                Transformer.from_pretrained(tmp_path)
            assert "\n" not in str(caught.value)


def test_what_is_said_of_writing_changes_no_architecture(tmp_path):
    checkpoints.checkpoint("llama", tmp_path)
    said = {"hidden_size": 7, "eos_token_id": [4, 5], "pad_token_id": -1}
    (tmp_path / "generation_config.json").write_text(json.dumps(said))
    config = Transformer.from_pretrained(tmp_path).config
    assert (config.hidden_size, config.special_tokens.eos_token_id, config.special_tokens.pad_token_id) == (
        32,
        (4, 5),
        None,
    )


def test_an_activation_beside_that_of_the_feed_forward_is_refused(tmp_path):
    """T5Config takes `dense_act_fn` where a file has both, and we took the other."""
    checkpoints.checkpoint("t5", tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text()) | {"dense_act_fn": "silu"}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with pytest.raises(InputError, match="dense_act_fn"):
        Transformer.from_pretrained(tmp_path)


@pytest.mark.parametrize("rule", ["suppress_tokens", "forced_bos_token_id"])
def test_rules_for_writing_are_those_of_transformers(tmp_path, rule):
    """Suppressed tokens were written, and a first token was forced after a prompt of several."""
    theirs = checkpoints.checkpoint("llama", tmp_path)
    asked = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    for prompt in ([[5]], [[5, 6, 7]]):
        ids = torch.tensor(prompt)
        first = int(theirs.generate(ids, **asked)[0, ids.shape[1]])
        said = [first] if rule == "suppress_tokens" else first + 1
        (tmp_path / "generation_config.json").write_text(json.dumps({rule: said, "eos_token_id": 3}))
        expected = theirs.generate(ids, **asked, **{rule: said})
        ours = Transformer.from_pretrained(tmp_path).eval().generate(ids, max_new_tokens=5, eos_token_id=())
        assert ours.tolist() == expected.tolist(), prompt


@pytest.mark.parametrize("pad", [0, 3])
def test_what_is_said_of_writing_moves_no_positions(tmp_path, pad):
    """RoBERTa counts positions from its padding in config.json: with another one for writing, all were shifted."""
    theirs = checkpoints.checkpoint("roberta", tmp_path)
    ids = torch.tensor([[5, 6, 7, 8]])
    (tmp_path / "generation_config.json").write_text(json.dumps({"pad_token_id": pad}))
    with torch.no_grad():
        ours = Transformer.from_pretrained(tmp_path).eval()(ids)
        expected = theirs.eval()(ids)
    assert (ours.logits - expected.logits).abs().max() < 1e-4


@torch.no_grad()
def test_watched_weights_are_those_that_transformers_returns(pairs):
    for case in sweep(["bert", "gpt2", "qwen2 with windows", "t5", "marian"]):
        with case as name:
            theirs, ours = pairs(name)
            set_attention(theirs, "eager")
            ids, real = checkpoints.texts(theirs.config)
            given = {"input_ids": ids, "attention_mask": real.long(), "output_attentions": True}
            if theirs.config.is_encoder_decoder:
                target, _ = checkpoints.texts(theirs.config, n=6, real=6, seed=2)
                output = theirs(**given, decoder_input_ids=target)
                expected = [*output.encoder_attentions]
                for own, cross in zip(output.decoder_attentions, output.cross_attentions, strict=True):
                    expected += [own, cross]
                with regard.watch(ours, keep="weights") as seen:
                    ours(ids, decoder_input_ids=target, attention_mask=real)
            else:
                expected = theirs(**given).attentions
                with regard.watch(ours, keep="weights") as seen:
                    ours(ids, attention_mask=real)
            set_attention(theirs, "sdpa")
            assert len(seen.record.layers) == len(expected)
            for layer, weights in zip(seen.record.layers, expected, strict=True):
                for head in range(weights.shape[1]):
                    found = torch.from_numpy(layer.exact[:, head].astype("float32"))
                    rows = real if found.shape[1] == 11 else torch.ones(found.shape[:2], dtype=torch.bool)
                    torch.testing.assert_close(found[rows], weights[:, head][rows], rtol=0, atol=TOLERANCE)


@pytest.mark.models
@torch.no_grad()
def test_minilm_embeds_sentences_as_transformers_does():
    ours = Transformer.from_pretrained("minilm", output_head=output_heads.SentenceEmbedding())
    theirs = regard.load_model("minilm")
    given = theirs.tokenizer(
        ["A cat sat on the mat.", "How do I reset my password?", "x"], return_tensors="pt", padding=True
    )
    states, real = theirs.model(**given).last_hidden_state, given["attention_mask"].bool()
    means = torch.stack([one[kept].mean(0) for one, kept in zip(states, real, strict=True)])
    expected = means / means.norm(dim=1, keepdim=True)
    close(ours(given["input_ids"], attention_mask=real).logits, expected)


PROMPTS = [
    "The capital of France is", "Once upon a time", "def fibonacci(n):", "Water boils at", "我愛你，因為",
    "The animal didn't cross the street because", "1, 2, 3, 4,", "Dear Sir or Madam,", "E = mc",
    "Q: What is attention? A:",
]  # fmt: skip


@pytest.mark.models
@pytest.mark.slow
@torch.no_grad()
def test_smollm2_goes_on_as_transformers_lets_it():
    torch.set_num_threads(2)
    ours, theirs = Transformer.from_pretrained("smollm2"), regard.load_model("smollm2")
    prompts = [theirs.tokenizer(one)["input_ids"] for one in PROMPTS]
    expected = []
    for one in prompts:
        options = {"max_new_tokens": 16, "do_sample": False}
        ids = torch.tensor([one])
        new = theirs.model.generate(ids, attention_mask=torch.ones_like(ids), **options)[0, len(one) :]
        expected.append(new.tolist())
    assert (
        ours.generate(prompts, max_new_tokens=16, return_dict_in_generate=True).new_tokens == expected
    )  # all at once, padded on the left
    assert [list(ours.stream(one, max_new_tokens=16)) for one in prompts[:3]] == expected[:3]
