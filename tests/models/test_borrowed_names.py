"""A name that regard.models takes from transformers has transformers' type, shape, order and values."""

from itertools import product

import pytest
import torch
import transformers as hf
from accelerate.utils import convert_to_fp32

import checkpoints
from regard.errors import InputError
from regard.models import SpecialTokens, Transformer, TransformerConfig, output_heads
from regard.models.inputs_outputs import Output
from sweeps import sweep

TOLERANCE = {"rtol": 0, "atol": 1e-5}
NAMES = ("bert", "gpt2", "llama", "bart", "t5")
names = pytest.mark.parametrize("name", NAMES)
MASK = [[1] * 7, [1] * 4 + [0] * 3]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Two models of one checkpoint, transformers' and ours, each made once."""
    known = {}

    def pair(name, kind=None, **more):
        key = name, kind, tuple(more.items())
        if key not in known:
            folder = tmp_path_factory.mktemp("checkpoint")
            known[key] = checkpoints.checkpoint(name, folder, kind=kind, **more), Transformer.from_pretrained(folder)
        return known[key]

    return pair


def inputs(theirs, seed=1):
    """What both models are called with."""
    draw = torch.Generator().manual_seed(seed)
    given = {
        "input_ids": torch.randint(3, 44, (2, 7), generator=draw),
        "attention_mask": torch.tensor(MASK),
    }
    if theirs.config.is_encoder_decoder:
        given["decoder_input_ids"] = torch.randint(3, 44, (2, 5), generator=draw)
    return given


def same(ours, theirs):
    """Equal values of equal type, tuples one by one."""
    if isinstance(theirs, tuple):
        assert isinstance(ours, tuple)
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            same(one, other)
    else:
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        torch.testing.assert_close(ours, theirs, **TOLERANCE)


# What a forward pass is asked for beside its tokens, by the models that have the word.
ASKED = {
    "nothing": ({}, NAMES),
    "output_hidden_states": ({"output_hidden_states": True}, NAMES),
    "attention_mask of integers": ({"attention_mask": torch.tensor(MASK)}, NAMES),
    "attention_mask of booleans": ({"attention_mask": torch.tensor(MASK).bool()}, NAMES),
    "token_type_ids": ({"token_type_ids": torch.tensor([[0, 0, 0, 1, 1, 1, 1]] * 2)}, ("bert",)),
    "decoder_attention_mask": ({"decoder_attention_mask": torch.tensor([[1] * 5, [1, 1, 1, 0, 0]])}, ("bart", "t5")),
    "logits_to_keep of 0": ({"logits_to_keep": 0}, ("gpt2", "llama")),
    "logits_to_keep of 2": ({"logits_to_keep": 2}, ("gpt2", "llama")),
}


@torch.no_grad()
def test_forward(pairs):
    for item in sweep([(name, case) for case, (_, known) in ASKED.items() for name in known]):
        with item as (name, case):
            theirs, ours = pairs(name)
            given = inputs(theirs) | ASKED[case][0]
            expected = theirs(**given, **({} if name == "bert" else {"use_cache": False}))
            found = ours(**given)
            for field, value in expected.items():
                if "decoder_attention_mask" in given and field in ("logits", "decoder_hidden_states"):
                    continue  # theirs attends from padding too, and what is at padding is nobody's
                same(getattr(found, field), value)
            if "decoder_attention_mask" in given:
                kept = given["decoder_attention_mask"].bool()
                same(found.logits[kept], expected.logits[kept])
            assert torch.equal(found[0], found.logits)
            assert len(found.to_tuple()) == len(expected.to_tuple())
            for one, other in zip(found.to_tuple()[1:], expected.to_tuple()[1:], strict=True):
                if "decoder_attention_mask" not in given:
                    same(one, other)
            assert set(expected) <= set(found) | {"decoder_hidden_states"}


@pytest.mark.parametrize(
    ("name", "kind"), [("bert", hf.BertModel), ("gpt2", hf.GPT2Model), ("t5", hf.T5Model)], ids=lambda one: str(one)
)
@torch.no_grad()
def test_the_output_of_a_bare_model(pairs, name, kind):
    theirs, ours = pairs(name, kind)
    given = inputs(theirs)
    more = {} if name == "bert" else {"use_cache": False}
    expected, found = theirs(**given, **more, output_hidden_states=True), ours(**given, output_hidden_states=True)
    same(found[0], expected[0])
    same(found["last_hidden_state"], expected["last_hidden_state"])
    states = "decoder_hidden_states" if name == "t5" else "hidden_states"
    same(getattr(found, states), getattr(expected, states))
    same(found.hidden_states[-1], expected.last_hidden_state)
    assert "logits" not in found
    assert found.get("loss") is None
    with pytest.raises(KeyError):
        found["logits"]


LABELS = {
    "bert": lambda ids: ids.masked_fill(ids % 3 > 0, -100),
    "gpt2": lambda ids: ids,
    "llama": lambda ids: ids.masked_fill(ids % 3 == 0, -100),
    "bart": lambda ids: ids.masked_fill(ids % 5 == 0, -100),
    "t5": lambda ids: ids.masked_fill(ids % 5 == 0, -100),
}


@torch.no_grad()
def test_labels_and_the_loss(pairs):
    for case in sweep(NAMES):
        with case as name:
            theirs, ours = pairs(name)
            given = inputs(theirs, seed=3)
            given["labels"] = LABELS[name](given.pop("decoder_input_ids", given["input_ids"]))
            expected, found = theirs(**given), ours(**given)
            same(found.loss, expected.loss)
            same(found.logits, expected.logits)
            assert torch.equal(found[0], found.loss)


@torch.no_grad()
def test_the_loss_of_classifiers(pairs):
    cases = [
        (hf.BertForSequenceClassification, torch.tensor([2, 0]), 3),
        (hf.BertForSequenceClassification, torch.tensor([0.5, -1.0]), 1),
        (hf.BertForSequenceClassification, torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]]), 3),
        (hf.BertForTokenClassification, torch.tensor([[0, 1, 2, -100, 1, 1, 0]] * 2), 3),
    ]
    for case in sweep(cases):
        with case as (kind, labels, num_labels):
            theirs, ours = pairs("bert", kind, num_labels=num_labels)
            theirs.config.problem_type = None  # it is set by the first labels that a model sees
            given = inputs(theirs) | {"labels": labels}
            same(ours(**given).loss, theirs(**given).loss)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@torch.no_grad()
def test_use_cache_and_past_key_values(pairs, name):
    """The attention_mask is of all tokens, those of the cache included."""
    theirs, ours = pairs(name)
    ids, mask = inputs(theirs)["input_ids"], torch.tensor([[1] * 7, [0, 0] + [1] * 5])
    places = (mask.cumsum(1) - 1).clamp_min(0)  # what generate gives; ours are counted
    outputs = []
    for model, more in ((theirs, True), (ours, False)):
        cache, steps = None, []
        for first, last in ((0, 4), (4, 5), (5, 7)):
            given = {"position_ids": places[:, first:last]} if more else {}
            output = model(
                ids[:, first:last], attention_mask=mask[:, :last], past_key_values=cache, use_cache=True, **given
            )
            cache = output.past_key_values
            steps.append(output.logits)
        outputs.append(torch.cat(steps, 1))
    same(outputs[1][mask.bool()], outputs[0][mask.bool()])


def test_the_configuration(pairs):
    for case in sweep(NAMES):
        with case as name:
            theirs, ours = pairs(name)
            raw, found = theirs.config, ours.config
            assert found.vocab_size == raw.vocab_size
            for field in ("hidden_size", "num_attention_heads"):
                assert getattr(found, field) == getattr(raw, field)
            wanted = {  # where a configuration has the word itself
                "num_key_value_heads", "intermediate_size", "layer_norm_eps", "hidden_act", "is_gated_act",
                "scale_embedding", "type_vocab_size", "relative_attention_num_buckets",
                "relative_attention_max_distance", "sliding_window", "layer_types", "attention_dropout",
                "activation_dropout", "encoder_layers", "decoder_layers",
            }  # fmt: skip
            compared = {
                field for field in wanted if field in raw.to_dict() and raw.model_type not in ("t5", "llama", "gpt2")
            }
            if name == "llama":
                compared = {"num_key_value_heads", "intermediate_size", "hidden_act", "attention_dropout"}
                assert found.layer_norm_eps == raw.rms_norm_eps
            for field in compared:
                assert getattr(found, field) == getattr(raw, field), field
            for field in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
                if getattr(raw, field, None) is not None:
                    assert getattr(found.special_tokens, field) == getattr(raw, field), field


# What people type from memory, and the word that the answer names.
NAMED_OTHERWISE = {
    "d_model": "hidden_size",
    "n_embd": "hidden_size",
    "nhead": "num_attention_heads",
    "dim_feedforward": "intermediate_size",
    "num_hidden_layers": "encoder_layers or decoder_layers",
    "max_position_embeddings": "Learned",
    "rope_theta": "RoPE",
    "rms_norm_eps": "layer_norm_eps",
    "activation_function": "hidden_act",
    "hidden_dropout_prob": "dropout",
    "attention_bias": "qkv_bias",
    "tie_word_embeddings": "LanguageModel",
    "num_labels": "SequenceClassification",
    "eos_token_id": "SpecialTokens",
}


def test_a_constructor_says_which_word_is_meant():
    for case in sweep(NAMED_OTHERWISE.items()):
        with case as (word, ours), pytest.raises(InputError, match=f"`{word}`: .*{ours}.* is meant"):
            TransformerConfig(vocab_size=10, encoder_layers=1, **{word: 1})


def test_a_forward_says_which_word_is_meant(pairs):
    for case in sweep(
        {"position_ids": "documents", "output_attentions": "watch", "inputs_embeds": "input_ids"}.items()
    ):
        with case as (word, ours):
            model = pairs("gpt2")[1]
            with pytest.raises(InputError, match=f"Transformer.forward has no argument `{word}`: .*{ours}"):
                model(torch.ones(1, 2, dtype=torch.long), **{word: 1})


def test_what_cannot_be_meant_is_refused(pairs):
    model, ids = pairs("gpt2")[1], torch.ones(2, 3, dtype=torch.long)
    refused = [
        (lambda: model(ids, ids), "takes arguments after `input_ids` by name"),
        (lambda: model(ids, attention_mask=ids[:, :2]), r"`attention_mask` must have shape \(2, 3\) .*got \(2, 2\)"),
        (lambda: model(ids, attention_mask=ids * 2), r"1 \(or True\) for tokens and 0 \(or False\) for padding, got 2"),
        (lambda: model(ids, attention_mask=(1.0 - ids) * -1e9 - 1e9), "for padding, got -1"),
        (lambda: model(ids, use_cache=1), "`use_cache` must be True or False, got 1"),
        (lambda: model(ids, logits_to_keep=True), "`logits_to_keep` counts the last tokens"),
        (lambda: model(ids, labels=ids, logits_to_keep=1), "`labels` need the logits of all tokens"),
        (lambda: model(ids, labels=ids[:, :2]), r"`labels` must have shape \(2, 3\)"),
        (lambda: pairs("bart")[1](ids, use_cache=True, decoder_input_ids=ids), "of an encoder–decoder go to decode"),
        (lambda: SpecialTokens(eos_token_id=2.5), "`eos_token_id` must be tokens"),
        (lambda: SpecialTokens(pad_token_id=True), "`pad_token_id` must be a token"),
        (lambda: output_heads.MaskedLanguageModel(hidden_act="swiglu"), "`hidden_act` must be one of"),
    ]
    for call, words in refused:
        with pytest.raises(InputError, match=words):
            call()


# Options of generate, each by the models that it is tried with.
GENERATED = {
    "greedy": {},
    "beams": {"num_beams": 3},
    "some of the beams": {"num_beams": 4, "num_return_sequences": 2, "length_penalty": 0.5},
    "early": {"num_beams": 3, "early_stopping": True, "length_penalty": 2.0, "eos_token_id": list(range(2, 40, 3))},
    "never early": {"num_beams": 3, "early_stopping": "never", "length_penalty": 2.0},
    "a minimum": {"min_new_tokens": 5},
    "several ends": {"eos_token_id": [2, 7, 11, 30]},
    "one end and a padding": {"eos_token_id": 7, "pad_token_id": 3},
    "drawn": {"do_sample": True},
    "drawn from few": {"do_sample": True, "top_k": 5, "top_p": 0.8, "temperature": 1.3},
    "drawn from all, twice": {"do_sample": True, "top_k": 0, "num_return_sequences": 2},
    "without a cache": {"use_cache": False},
}


def test_generate(pairs):
    for item in sweep(product(["gpt2", "llama", "bart", "t5"], GENERATED)):
        with item as (name, case):
            theirs, ours = pairs(name)
            ids = torch.randint(3, 44, (3, 6), generator=torch.Generator().manual_seed(4))
            options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 1} | GENERATED[case]
            torch.manual_seed(5)
            expected = theirs.generate(ids, attention_mask=torch.ones_like(ids), **options)
            torch.manual_seed(5)
            found = ours.generate(ids, attention_mask=torch.ones_like(ids), **options)
            assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
            if options["do_sample"]:  # the same numbers are drawn where the kept tokens stand in the same order
                assert (found[:, 0] == expected[:, 0]).all()
            else:
                assert torch.equal(found, expected)


@pytest.mark.parametrize("name", ["bart", "t5"])
def test_generate_from_a_start_token(pairs, name):
    theirs, ours = pairs(name)
    ids = torch.randint(3, 44, (2, 6), generator=torch.Generator().manual_seed(4))
    options = {"max_new_tokens": 5, "decoder_start_token_id": 9}
    assert torch.equal(ours.generate(ids, **options), theirs.generate(ids, **options, do_sample=False))
    with pytest.raises(InputError, match="`decoder_start_token_id` must be a token from 0 to"):
        ours.generate(ids, decoder_start_token_id=10_000)
    with pytest.raises(InputError, match="begin input_ids with it"):
        pairs("gpt2")[1].generate(ids, decoder_start_token_id=9)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_generate_from_prompts_padded_on_the_left(pairs, name):
    theirs, ours = pairs(name)
    ids = torch.tensor([[0, 5, 6, 7, 8], [0, 0, 0, 11, 12]])
    given = {"attention_mask": (ids > 0).long(), "max_new_tokens": 6, "pad_token_id": 0}
    assert torch.equal(ours.generate(ids, **given), theirs.generate(ids, **given, do_sample=False))


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_generate_takes_its_own_pad_token_for_padding(pairs, name):
    """Which tokens of a tensor are padding, and what fills up on both sides."""
    theirs, ours = pairs(name)
    ids = torch.tensor([[7, 7, 7, 11, 12], [13, 14, 15, 16, 17]])
    given = {"max_new_tokens": 6, "pad_token_id": 7, "eos_token_id": [20, 21]}
    expected = theirs.generate(ids, **given, do_sample=False)
    assert torch.equal(ours.generate(ids, **given), expected)
    assert torch.equal(ours.generate([[11, 12], [13, 14, 15, 16, 17]], **given), expected)
    assert not torch.equal(ours.generate(ids, **given | {"pad_token_id": 9})[:1, 5:], expected[:1, 5:])
    without = ours.generate([[11, 12], [13, 14, 15, 16, 17]], max_new_tokens=6, eos_token_id=[20, 21])
    assert torch.equal(without[:, :5], ids.where(ids != 7, 20))  # a model without padding: its end token
    mask = (ids != 7).long()
    other = ids.masked_fill(mask == 0, 30)  # what is under the mask is returned as it was
    assert torch.equal(ours.generate(other, attention_mask=mask, **given)[:, :5], other)
    turned = torch.tensor([[11, 12, 30, 30, 30], [13, 14, 15, 16, 17]])  # padding on the right goes to the left
    padded = torch.tensor([[1, 1, 0, 0, 0], [1] * 5])
    assert torch.equal(ours.generate(turned, attention_mask=padded, **given), expected)


def test_an_end_token_that_is_asked_for_is_no_padding(pairs):
    ids = torch.tensor([[7, 11, 12], [13, 14, 15]])
    with pytest.raises(InputError, match="holds 7, which is padding and an end token"):
        pairs("gpt2")[1].generate(ids, pad_token_id=7, eos_token_id=[7], max_new_tokens=2)


def test_generate_with_the_richer_result(pairs):
    theirs, ours = pairs("gpt2")
    ids = torch.tensor([[5, 6, 7], [8, 9, 10]])
    options = {"max_new_tokens": 6, "num_beams": 3, "pad_token_id": 0, "return_dict_in_generate": True}
    expected, found = (
        theirs.generate(ids, **options, do_sample=False, output_scores=True),
        ours.generate(ids, **options),
    )
    assert torch.equal(found.sequences, expected.sequences)
    torch.testing.assert_close(found.sequences_scores, expected.sequences_scores, **TOLERANCE)
    assert [row[: len(new)] for row, new in zip(found.sequences[:, 3:].tolist(), found.new_tokens, strict=True)] == (
        found.new_tokens
    )


def test_an_output_is_rebuilt_from_a_mapping_as_accelerate_rebuilds_a_modeloutput():
    ours = Output(logits=torch.ones(1, 2, 3, dtype=torch.bfloat16), hidden_states=(torch.zeros(1, 2, 4).bfloat16(),))
    found = convert_to_fp32(ours)
    assert list(found) == ["logits", "hidden_states"]
    assert found.logits.dtype == found.hidden_states[0].dtype == torch.float32
    assert torch.equal(found.logits, torch.ones(1, 2, 3))
    with pytest.raises(TypeError, match="an Output has no field 'logit'"):
        Output({"logit": torch.ones(1)})
