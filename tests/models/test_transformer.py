"""One Transformer, configured: it reads, writes, is saved and seen; what does not fit is refused."""

import copy
import io
import json
import random
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch._dynamo.utils import counters

import regard
from regard import masks, positions
from regard.errors import InputError
from regard.models import (
    Learned,
    Sinusoidal,
    SpecialTokens,
    Transformer,
    TransformerConfig,
    decoding,
    output_heads,
)
from sweeps import sweep

SIZES = {"vocab_size": 30, "hidden_size": 16, "num_attention_heads": 4, "intermediate_size": 24}
KINDS = {
    "sinusoidal": {"positions": Sinusoidal(50)},
    "learned": {"positions": Learned(50)},
    "T5": {"position_bias": "t5", "relative_attention_num_buckets": 8, "relative_attention_max_distance": 16},
    "ALiBi": {"position_bias": "alibi"},
    "Shaw": {"position_bias": "shaw", "max_relative_position": 3},
    "rotary": {"positions": positions.RoPE(4)},
    "YaRN": {"positions": positions.RoPE(4, scaling=positions.YaRN(4.0, 8))},
    "LongRoPE": {"positions": positions.RoPE(4, scaling=positions.LongRoPE(2.0, (1.0, 1.5), (1.0, 3.0), 100))},
    "Proportional": {"positions": positions.RoPE(4, scaling=positions.Proportional(0.5))},
    "three positions": {"positions": positions.RoPE(4, mrope_section=(1, 0, 1))},
    "none": {"positions": None},
}
SHAPES = {
    "encoder": {"encoder_layers": 2, "output_head": output_heads.MaskedLanguageModel()},
    "decoder": {"decoder_layers": 2, "output_head": output_heads.LanguageModel(), "norm_first": True, "norm": "rms"},
    "encoder-decoder": {"encoder_layers": 1, "decoder_layers": 2, "output_head": output_heads.LanguageModel(bias=True)},
}
kinds = pytest.mark.parametrize("kind", KINDS)
shapes = pytest.mark.parametrize("shape", SHAPES)


def made(shape="decoder", kind="sinusoidal", **more):
    torch.manual_seed(0)
    tokens = SpecialTokens(bos_token_id=1, eos_token_id=2, pad_token_id=0)
    return Transformer(
        TransformerConfig(**SIZES | SHAPES[shape] | KINDS[kind] | {"special_tokens": tokens} | more)
    ).eval()


def ids(batch=2, n=7, seed=0):
    return torch.randint(3, 30, (batch, n), generator=torch.Generator().manual_seed(seed))


def call(model, one, other=None, **given):
    """Give the logits of a batch, whatever the kind of model."""
    if model.config.kind == "encoder-decoder":
        given["decoder_input_ids"] = ids(len(one), 5, 1) if other is None else other
    return model(one, **given).logits


def test_padding_on_either_side_changes_nothing():
    for case in sweep(product(KINDS, SHAPES, ["left", "right"])):
        with case as (kind, shape, side):
            model, one = made(shape, kind), ids(1, 5)
            fill = torch.zeros(1, 3, dtype=torch.long)
            padded = torch.cat([fill, one] if side == "left" else [one, fill], 1)
            real = torch.cat([fill.bool(), one > 0] if side == "left" else [one > 0, fill.bool()], 1)
            found, alone = call(model, padded, attention_mask=real), call(model, one)
            if shape != "encoder-decoder":
                found = found[real][None]
            torch.testing.assert_close(found, alone, rtol=0, atol=1e-5)
            if shape == "encoder-decoder":
                found = model(ids(1, 4, 3), decoder_input_ids=padded, decoder_attention_mask=real).logits[real]
                torch.testing.assert_close(
                    found, model(ids(1, 4, 3), decoder_input_ids=one).logits[0], rtol=0, atol=1e-5
                )


def test_angles_that_depend_on_a_length_depend_on_that_of_the_text():
    """Of the texts beside it in the batch and of padding nothing is seen: lengths around the 4 of training."""
    scalings = positions.DynamicNTK(3.0, 4), positions.LongRoPE(3.0, (1.0, 1.5), (1.0, 30.0), 4)
    for case in sweep(product(SHAPES, ["left", "right"], scalings)):
        with case as (shape, side, scaling):
            model = made(shape, "rotary", positions=positions.RoPE(4, scaling=scaling)).double()
            texts = [ids(1, length, length) for length in (3, 6, 9)]
            fill = [torch.zeros(1, 12 - text.shape[1], dtype=torch.long) for text in texts]
            rows = torch.cat([torch.cat(p if side == "left" else p[::-1], 1) for p in zip(fill, texts, strict=True)])
            real = rows > 0
            given = {"attention_mask": real}
            given |= {"decoder_attention_mask": real, "other": rows} if shape == "encoder-decoder" else {}
            found = call(model, rows, **given)
            for row, text in enumerate(texts):
                alone = call(model, text, text)[0] if shape == "encoder-decoder" else call(model, text)[0]
                torch.testing.assert_close(found[row][real[row]], alone, rtol=0, atol=1e-12)


def test_a_decoder_sees_nothing_later_and_with_a_cache_the_same():
    for case in sweep(product(KINDS, [None, 3])):
        with case as (kind, window):
            model, text = made("decoder", kind, sliding_window=window), ids()
            at_once = model(text).logits
            torch.testing.assert_close(model(text[:, :4]).logits, at_once[:, :4], rtol=0, atol=1e-5)
            with torch.no_grad():
                cache = model.cache()
                steps = torch.cat([model(one, past_key_values=cache).logits for one in text.split([3, 1, 1, 2], 1)], 1)
            torch.testing.assert_close(steps, at_once, rtol=0, atol=1e-5)
            if window:
                changed = text.clone()
                changed[:, 0] = 29 - changed[:, 0] + 3
                # Two layers of a window of 3 reach four positions back, and no further.
                torch.testing.assert_close(model(changed).logits[:, 5:], at_once[:, 5:], rtol=0, atol=1e-5)
                assert (model(changed).logits[:, 4] - at_once[:, 4]).abs().max() > 1e-4


def test_prompts_of_one_token_keep_their_padding():
    for case in sweep(
        [{}, {"num_beams": 2}, {"do_sample": True, "top_k": 1, "num_return_sequences": 2}, {"use_cache": False}]
    ):
        with case as given:
            model, prompts = made("decoder", "rotary"), torch.tensor([[0, 0, 0, 5], [0, 0, 0, 6]])
            given = {"max_new_tokens": 3, "eos_token_id": []} | given
            found, alone = model.generate(prompts, **given), model.generate(prompts[:, 3:], **given)
            copies = len(found) // 2
            assert torch.equal(found, torch.cat([prompts[:, :3].repeat_interleave(copies, 0), alone], 1))
            assert alone.shape == (2 * copies, 4)


def test_positions_are_seen():
    for case in sweep(KINDS):
        with case as kind:
            model, text, order = made("encoder", kind), ids(1, 6), [1, 0, 2, 5, 4, 3]
            moved = (model(text[:, order]).logits - model(text).logits[:, order]).abs().max()
            assert moved < 1e-5 if kind == "none" else moved > 1e-3


def test_a_saved_model_is_loaded_as_it_was(tmp_path_factory):
    for case in sweep(product(KINDS, SHAPES)):
        with case as (kind, shape):
            tmp_path = tmp_path_factory.mktemp("case")
            model = made(shape, kind)
            model.save_pretrained(tmp_path)
            loaded = Transformer.from_pretrained(tmp_path)
            assert loaded.config == model.config
            assert not loaded.training
            torch.testing.assert_close(call(loaded, ids()), call(model, ids()), rtol=0, atol=0)
            assert sorted(one.name for one in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def test_copies_types_and_files_of_the_state():
    for case in sweep(SHAPES):
        with case as shape:
            model = made(shape, "T5")
            expected = call(model, ids())
            torch.testing.assert_close(call(copy.deepcopy(model), ids()), expected, rtol=0, atol=0)
            file = io.BytesIO()
            torch.save(model.state_dict(), file)
            file.seek(0)
            other = made(shape, "T5")
            for one in other.parameters():
                torch.nn.init.zeros_(one)
            other.load_state_dict(torch.load(file, weights_only=True))
            torch.testing.assert_close(call(other, ids()), expected, rtol=0, atol=0)
            torch.testing.assert_close(call(model.double(), ids()).float(), expected, rtol=0, atol=1e-4)
            assert call(model.bfloat16(), ids()).dtype == torch.bfloat16


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sinusoidal", "learned", "T5", "ALiBi", "rotary"])
def test_an_encoder_is_exported_with_any_batch_and_length(kind):
    model = made("encoder", kind)
    batch, n = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("n", min=2, max=48)
    real = torch.ones(2, 7, dtype=torch.bool)
    program = torch.export.export(
        model,
        (ids(),),
        {"attention_mask": real},
        dynamic_shapes={"input_ids": {0: batch, 1: n}, "attention_mask": {0: batch, 1: n}},
    ).module()
    other, kept = ids(3, 11), torch.arange(11) < torch.tensor([[11], [4], [7]])
    torch.testing.assert_close(
        program(other, attention_mask=kept).logits, model(other, attention_mask=kept).logits, rtol=0, atol=1e-5
    )


@pytest.mark.slow
@shapes
def test_a_model_is_compiled(shape):
    torch.compiler.reset()
    model = made(shape, "rotary")
    compiled = torch.compile(model, backend="aot_eager")
    more = {"decoder_input_ids": ids(2, 5, 1)} if shape == "encoder-decoder" else {}
    torch.testing.assert_close(compiled(ids(), **more).logits, call(model, ids()))


@pytest.mark.slow
def test_writing_with_a_cache_is_compiled_as_one_graph_for_the_text_and_one_for_all_steps():
    torch.compiler.reset()
    model = made(kind="rotary", decoder_layers=1)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    text = ids(2, 12)
    counters.clear()
    with torch.no_grad():
        whole, cache = model(text).logits, model.cache()
        parts = [compiled(part, past_key_values=cache).logits for part in text.split([4] + [1] * 8, 1)]
    assert (torch.cat(parts, 1) - whole).abs().max() < 1e-5
    assert counters["stats"]["unique_graphs"] == 2
    torch.compiler.reset()


def test_every_parameter_gets_a_gradient():
    for shape in SHAPES:
        for kind in KINDS:
            model = made(shape, kind).train()
            logits = call(model, ids()).flatten(0, 1)
            torch.nn.functional.cross_entropy(logits, torch.arange(len(logits))).backward()
            lacking = [name for name, one in model.named_parameters() if one.grad is None]
            assert not lacking, (shape, kind, lacking)


def test_watch_sees_every_layer():
    for case in sweep(SHAPES):
        with case as shape:
            model = made(shape)
            with regard.watch(model, keep="weights") as seen:
                call(model, ids())
            expected = {"encoder": 2, "decoder": 2, "encoder-decoder": 5}[shape]
            assert len(seen.record.layers) == expected
            if shape == "decoder":
                # Written out from the module's own projections.
                layer = model.decoder.layers[0]
                x = layer.norms[0](model.decoder.inputs(model.embedding(ids()) * 4.0, torch.arange(7), None))
                q, k = (
                    project(x).unflatten(-1, (4, 4)).transpose(1, 2)
                    for project in (layer.attention.q_proj, layer.attention.k_proj)
                )
                scores = (q @ k.mT / 2.0).masked_fill(~torch.ones(7, 7).tril().bool(), -torch.inf)
                found = torch.stack([torch.from_numpy(seen.weights(layer=0, head=head)) for head in range(4)], 1)
                torch.testing.assert_close(found.float(), scores.softmax(-1), rtol=0, atol=1e-5)


def test_generate_is_watched_as_one_text_that_grows():
    model = made("encoder-decoder")
    with regard.watch(model, keep="weights") as seen:
        model.generate(ids(1), max_new_tokens=6, eos_token_id=())
    assert len(seen.records) == 1
    assert [(layer.queries, layer.keys) for layer in seen.record.layers if layer.kind == "cross"] == [(6, 7)] * 2


def test_a_refused_piece_leaves_the_cache_as_it_was():
    model, text = made(positions=Learned(8)), ids(2, 8)
    with torch.no_grad():
        cache = model.cache()
        model(text[:, :6], attention_mask=torch.tensor([[False] + [True] * 5] * 2), past_key_values=cache)
        with pytest.raises(InputError, match="has positions for 8"):
            model(ids(2, 7), attention_mask=torch.ones(2, 13), past_key_values=cache)
        assert cache.attention_mask.shape == (2, 6)
        found = model(text[:, 6:], past_key_values=cache).logits
    mask = torch.tensor([[0] + [1] * 7] * 2)  # of all tokens, as in transformers
    expected = model(text, attention_mask=mask).logits[:, 6:]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("shape", ["decoder", "encoder-decoder"])
def test_prompts_in_one_padded_tensor_are_those_of_lists(shape):
    model = made(shape, "rotary")
    lists, padded = [[5, 6, 7], [8]], torch.tensor([[5, 6, 7], [0, 0, 8]])
    assert (
        model.generate(padded, attention_mask=padded != 0, max_new_tokens=6, return_dict_in_generate=True).new_tokens
        == model.generate(lists, max_new_tokens=6, return_dict_in_generate=True).new_tokens
    )


def test_a_batch_whose_texts_end_apart_is_watched_as_one_record():
    model = made("decoder", "rotary")
    prompts = [[5, 6, 7], [8, 9], [10]]
    free = model.generate(prompts, max_new_tokens=8, eos_token_id=(), return_dict_in_generate=True).new_tokens
    stop = [free[0][1], free[1][4]]
    expected = model.generate(prompts, max_new_tokens=8, eos_token_id=stop, return_dict_in_generate=True).new_tokens
    assert len({len(one) for one in expected}) > 1
    with regard.watch(model) as seen:
        assert (
            model.generate(prompts, max_new_tokens=8, eos_token_id=stop, return_dict_in_generate=True).new_tokens
            == expected
        )
    assert len(seen.records) == 1
    assert seen.record.layers[0].batch == 3


def test_a_stream_is_what_generate_gives_and_stops_where_a_text_ends():
    model = made("decoder", "rotary")
    (expected,) = model.generate(
        [[5, 6, 7]], max_new_tokens=12, eos_token_id=(), return_dict_in_generate=True
    ).new_tokens
    assert list(model.stream([5, 6, 7], max_new_tokens=12, eos_token_id=())) == expected
    end = expected[3]
    assert model.generate(
        [[5, 6, 7]], max_new_tokens=12, eos_token_id=[end], return_dict_in_generate=True
    ).new_tokens == [expected[: expected.index(end) + 1]]
    drawn = decoding.Sampling(generator=torch.Generator().manual_seed(0))
    again = decoding.Sampling(generator=torch.Generator().manual_seed(0))
    assert (
        model.generate([[5]], search_strategy=drawn, max_new_tokens=9, return_dict_in_generate=True).new_tokens
        == model.generate([[5]], search_strategy=again, max_new_tokens=9, return_dict_in_generate=True).new_tokens
    )


def test_writing_ends_where_positions_do():
    model = made("decoder", "learned", positions=Learned(10))
    assert (
        len(model.generate([[5] * 6], max_new_tokens=50, eos_token_id=(), return_dict_in_generate=True).new_tokens[0])
        == 4
    )


def test_a_head_for_other_labels_begins_at_random_and_the_rest_as_it_was(tmp_path):
    model = made("encoder")
    model.save_pretrained(tmp_path)
    changed = Transformer.from_pretrained(tmp_path, output_head=output_heads.SequenceClassification(5), dropout=0.3)
    assert changed(ids()).logits.shape == (2, 5)
    assert changed.config.dropout == 0.3
    torch.testing.assert_close(changed(ids()).last_hidden_state, model(ids()).last_hidden_state, rtol=0, atol=0)


def test_a_language_model_keeps_its_own_head(tmp_path):
    model = made("decoder", output_head=output_heads.LanguageModel(tie_word_embeddings=False))
    model.save_pretrained(tmp_path)
    loaded = Transformer.from_pretrained(tmp_path, output_head=output_heads.LanguageModel())
    torch.testing.assert_close(call(loaded, ids()), call(model, ids()), rtol=0, atol=0)
    with pytest.raises(
        InputError, match=r"the checkpoint's output head is .*tie_word_embeddings=False.*: leave `output_head` out"
    ):
        Transformer.from_pretrained(tmp_path, output_head=output_heads.LanguageModel(bias=True))


def test_a_classifier_that_is_changed_keeps_what_fits(tmp_path):
    model = made("encoder", output_head=output_heads.SequenceClassification(3))
    model.save_pretrained(tmp_path)
    pooled = Transformer.from_pretrained(tmp_path, output_head=output_heads.SequenceClassification(3, pooling="mean"))
    assert torch.equal(pooled.output_head.classify.weight, model.output_head.classify.weight)
    more = Transformer.from_pretrained(tmp_path, output_head=output_heads.SequenceClassification(5))
    assert torch.equal(more.output_head.tanh_layer.weight, model.output_head.tanh_layer.weight)
    assert more.output_head.classify.weight.shape == (5, 16)
    other = Transformer.from_pretrained(tmp_path, output_head=output_heads.TokenClassification(3))
    assert not torch.equal(other.output_head.classify.weight, model.output_head.classify.weight)


def test_a_new_head_has_the_type_of_the_rest(tmp_path):
    made("encoder").bfloat16().save_pretrained(tmp_path)
    model = Transformer.from_pretrained(tmp_path, output_head=output_heads.SequenceClassification(2))
    assert model(ids()).logits.dtype == torch.bfloat16


def test_a_saved_model_replaces_shards(tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "b.safetensors"}}')
    made("encoder").save_pretrained(tmp_path)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def test_the_hub_gets_the_files_that_are_saved(tmp_path, monkeypatch):
    sent = {}

    class Hub:
        """What huggingface_hub would talk to; it keeps what it is given."""

        def __init__(self, **_):
            pass

        def create_repo(self, repo_id, **_):
            return SimpleNamespace(repo_id=repo_id)

        def upload_folder(self, *, repo_id, folder_path, **_):
            sent[repo_id] = {one.name: one.read_bytes() for one in Path(folder_path).iterdir()}

    monkeypatch.setattr("huggingface_hub.hub_mixin.HfApi", Hub)
    model = made("encoder")
    model.push_to_hub("someone/mine")
    model.save_pretrained(tmp_path, push_to_hub=True, repo_id="someone/other")
    files = {one.name: one.read_bytes() for one in tmp_path.iterdir()}
    assert sent == {"someone/mine": files, "someone/other": files}


def test_a_continuation_may_be_read_with_gradients():
    model = made("encoder-decoder")
    text, first, real = model.continuation([[5, 6, 7], [8]])
    text.step(first, real).sum().backward()
    assert model.decoder.layers[0].attention.q_proj.weight.grad is not None


def test_nothing_is_left_of_a_save_that_fails(tmp_path, monkeypatch):
    made("encoder").save_pretrained(tmp_path)
    before = {one.name: one.read_bytes() for one in tmp_path.iterdir()}

    def broken(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", broken)
    with pytest.raises(InputError, match=r"cannot write .*: No space left on device"):
        made("encoder", "rotary").save_pretrained(tmp_path)
    assert {one.name: one.read_bytes() for one in tmp_path.iterdir()} == before


BROKEN = {
    "an old format": (
        lambda folder: _without_version(folder),
        "is of format version 1, and this regard loads version 2: train or save",
    ),
    "no config": (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
    "no JSON": (lambda folder: (folder / "config.json").write_text("{"), "cannot read .*config.json"),
    "a list": (lambda folder: (folder / "config.json").write_text("[]"), "must be a JSON object, got a list"),
    "no weights": (
        lambda folder: (folder / "model.safetensors").unlink(),
        "has no model.safetensors: .* never pickles",
    ),
    "cut weights": (
        lambda folder: (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:900]),
        "cannot read .*model.safetensors",
    ),
    "another family": (
        lambda folder: (folder / "config.json").write_text('{"model_type": "mamba"}'),
        "model_type must be one of bert, .*, got 'mamba'",
    ),
    "another kind": (lambda folder: _edit(folder, lambda one: one.update(kind="Path")), "a value of kind 'Path'"),
    "an unknown field": (
        lambda folder: _edit(folder, lambda one: one.update(depth=3)),
        "has 'depth', which this version",
    ),
    "another width": (
        lambda folder: _edit(folder, lambda one: one.update(hidden_size=32)),
        "of shape .*, its configuration says",
    ),
    "more layers": (lambda folder: _edit(folder, lambda one: one.update(encoder_layers=3)), "lacks 16 weights"),
    "fewer layers": (lambda folder: _edit(folder, lambda one: one.update(encoder_layers=1)), "has weights beyond it"),
    "files elsewhere": (lambda folder: _shards(folder, {"a": "../x.safetensors"}), "names a file outside its folder"),
    "shards that are no map": (lambda folder: _shards(folder, ["a"]), "whose weight_map names no files"),
    "shards that are no names": (lambda folder: _shards(folder, {"a": 1}), "whose weight_map names no files"),
    "nested without end": (
        lambda folder: (folder / "config.json").write_text("[" * 100_000),
        r"cannot read .*config\.json",
    ),
    "positions that are none": (
        lambda folder: _edit(folder, lambda one: one.update(positions=3)),
        "`positions` must be a value",
    ),
    "tokens that are none": (
        lambda folder: _edit(folder, lambda one: one.update(special_tokens=None)),
        "`special_tokens` must be",
    ),
    "a head of another kind": (
        lambda folder: _edit(folder, lambda one: one.update(output_head={"kind": "SpecialTokens"})),
        "`output_head` must be a value",
    ),
    "a width of text": (lambda folder: _edit(folder, lambda one: one.update(hidden_size="x")), "`hidden_size` must be"),
    "a hidden size beyond all": (
        lambda folder: _edit(folder, lambda one: one.update(intermediate_size=2**63)),
        "makes no model",
    ),
    "a length of text": (
        lambda folder: _edit(
            folder, lambda one: one.update(positions={"kind": "Learned", "max_position_embeddings": "x"})
        ),
        "`max_position_embeddings` of Learned must be an integer of at least 1, got 'x'",
    ),
    "a token beyond all": (
        lambda folder: _edit(
            folder, lambda one: one.update(special_tokens={"kind": "SpecialTokens", "bos_token_id": 2**63})
        ),
        "`bos_token_id` must be a token, an integer from 0 to 2³¹ − 1",
    ),
    "a billion layers": (
        lambda folder: _edit(folder, lambda one: one.update(encoder_layers=10**9)),
        "too few for 1,000,000,000 layers",
    ),
    "whole numbers": (lambda folder: _quantize(folder), r"as torch\.int8: load one that is not quantized"),
}


def _shards(folder, named):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": named}))


def _quantize(folder):
    file = folder / "model.safetensors"
    save_file({name: one.to(torch.int8) for name, one in load_file(file).items()}, file)
    _edit(folder, lambda one: None)


def _without_version(folder):
    path = folder / "config.json"
    raw = json.loads(path.read_text())
    del raw["format_version"]
    path.write_text(json.dumps(raw))


def _edit(folder, change):
    raw = json.loads((folder / "config.json").read_text())
    change(raw["regard"])
    del raw["crc"]  # as whoever means the change does
    (folder / "config.json").write_text(json.dumps(raw))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_no_flipped_bit_of_a_saved_model_is_loaded(tmp_path, name):
    """It is refused in a sentence, or what is loaded is what was saved."""
    model = Transformer(
        TransformerConfig(vocab_size=3, hidden_size=2, num_attention_heads=1, intermediate_size=1, decoder_layers=1)
    )
    model.save_pretrained(tmp_path)
    whole, rng, refused = bytearray((tmp_path / name).read_bytes()), random.Random(0), 0
    tried = range(0, len(whole), 13)
    for at in tried:
        changed = whole.copy()
        changed[at] ^= 1 << rng.randrange(8)
        (tmp_path / name).write_bytes(changed)
        try:
            loaded = Transformer.from_pretrained(tmp_path)
        except InputError as problem:
            refused += "\n" not in str(problem)
            continue
        assert loaded.config == model.config
        assert all(torch.equal(one, loaded.state_dict()[key]) for key, one in model.state_dict().items())
    assert refused >= (0.75 if name == "config.json" else 1) * len(tried)  # white space may be another white space


def test_a_change_that_is_meant_needs_no_checksums(tmp_path):
    made("encoder").save_pretrained(tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text())
    raw["regard"]["dropout"] = 0.5
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with pytest.raises(InputError, match=r'config\.json: its checksum does not hold.* remove "crc" from config\.json'):
        Transformer.from_pretrained(tmp_path)
    del raw["crc"]
    (tmp_path / "config.json").write_text(json.dumps(raw))
    assert Transformer.from_pretrained(tmp_path).config.dropout == 0.5


def test_broken_folders_give_one_sentence(tmp_path_factory):
    for item in sweep(BROKEN):
        with item as case:
            tmp_path = tmp_path_factory.mktemp("case")
            made("encoder").save_pretrained(tmp_path)
            spoil, words = BROKEN[case]
            spoil(tmp_path)
            with pytest.raises(InputError, match=words) as caught:
                Transformer.from_pretrained(tmp_path)
            assert "\n" not in str(caught.value)


REFUSED = {
    "no layers": (lambda: TransformerConfig(**SIZES), "are both 0"),
    "heads": (
        lambda: TransformerConfig(**SIZES | {"num_attention_heads": 3}, encoder_layers=1),
        "multiple of `num_attention_heads`, got 16 and 3: .*head_dim=6",
    ),
    "kv_heads": (
        lambda: TransformerConfig(**SIZES, encoder_layers=1, num_key_value_heads=3),
        "multiple of `num_key_value_heads`, got 4 and 3",
    ),
    "a window to encode": (
        lambda: TransformerConfig(**SIZES, encoder_layers=1, sliding_window=3),
        "`sliding_window` is the decoder's",
    ),
    "a head": (
        lambda: made("encoder", output_head=output_heads.LanguageModel()),
        "LanguageModel is for a model of kind decoder or",
    ),
    "rotary of another width": (lambda: made(positions=positions.RoPE(8)), "made for vectors of width 8, got 4"),
    "positions by name": (lambda: made(positions="rotary"), r"`positions` must be a value such as .*, got 'rotary'"),
    "a kind of positions": (lambda: made(positions=Sinusoidal), "`positions` must be a value"),
    "a bias as positions": (lambda: made(positions=positions.ALiBi(4)), "`positions` must be a value"),
    "a head by name": (lambda: made(output_head="lm"), "`output_head` must be a value such as .*, got 'lm'"),
    "a kind of head": (lambda: made(output_head=output_heads.LanguageModel), "`output_head` must be a value"),
    "eps": (lambda: made(layer_norm_eps=-1.0), "`layer_norm_eps` must be a finite number above 0, got -1.0"),
    "a layer too few": (
        lambda: made(sliding_window=3, layer_types=("sliding_attention",)),
        r"each of the decoder's 2 layers, got \('sliding_attention',\)",
    ),
    "a token that is text": (lambda: SpecialTokens(eos_token_id=("2",)), "`eos_token_id` must be tokens"),
    "a gap": (
        lambda: made()(ids(), attention_mask=torch.tensor([[True, False, True] + [True] * 4] * 2)),
        "`attention_mask` has padding between tokens",
    ),
    "going on behind padding": (
        lambda: _behind_padding(),
        "`attention_mask` has padding between tokens, .*on the left",
    ),
    "the last of another head": (
        lambda: made("encoder")(ids(), logits_to_keep=1),
        "`logits_to_keep` is for models that generate",
    ),
    "padding in prompts that may be an end": (
        lambda: made(special_tokens=SpecialTokens(pad_token_id=0, eos_token_id=0)).generate(torch.tensor([[5], [0]])),
        "`input_ids` holds 0, which is padding and an end token: give attention_mask=",
    ),
    "beams beside a decoding": (
        lambda: made().generate([[5]], search_strategy=decoding.Greedy(), num_beams=3),
        "`num_beams` beside `search_strategy` has no effect",
    ),
    "a temperature and nothing drawn": (
        lambda: made().generate([[5]], temperature=0.5),
        "`temperature` is for drawn tokens: give do_sample=True",
    ),
    "a penalty without beams": (lambda: made().generate([[5]], length_penalty=2.0), "`length_penalty` is for beams"),
    "several of the same": (lambda: made().generate([[5]], num_return_sequences=2), "would be the same text each time"),
    "beams that are drawn": (lambda: made().generate([[5]], num_beams=2, do_sample=True), "draw without beams"),
    "max_tokens": (
        lambda: made().generate([[5]], max_tokens=9),
        "generate has no argument `max_tokens`: max_new_tokens is meant",
    ),
    "real beside lists": (
        lambda: made().generate([[5]], attention_mask=torch.ones(1, 1).bool(), return_dict_in_generate=True).new_tokens,
        "a list of lists has no padding",
    ),
    "halves of tokens": (
        lambda: made().generate([[1.5, 2.5]], return_dict_in_generate=True).new_tokens,
        "tokens, which are integers",
    ),
    "an end that is text": (
        lambda: made().generate(
            [[5]],
            eos_token_id=("."),
        ),
        "`eos_token_id` must be a tuple of",
    ),
    "a decoding by name": (
        lambda: made().generate([[5]], search_strategy="greedy", return_dict_in_generate=True).new_tokens,
        "`search_strategy` must be a value",
    ),
    "a text to stream": (lambda: made().stream("ab"), "each a list of tokens"),
    "a type by name": (
        lambda: Transformer.from_pretrained("minilm", dtype="bfloat16"),
        "`dtype` must be a type of torch",
    ),
    "a config that is none": (lambda: Transformer({"width": 3}), "must be a TransformerConfig, got dict"),
    "one text": (lambda: made()(ids()[0]), r"`input_ids` must be integers \(batch, n\), .* write input_ids\[None\]"),
    "floats": (lambda: made()(torch.zeros(1, 2)), "`input_ids` must be integers"),
    "another vocabulary": (lambda: made()(ids() + 20), r"tokens from 0 to 29, got \d\d: is it the tokenizer"),
    "real": (lambda: made()(ids(), attention_mask=torch.ones(2, 6)), "`attention_mask` must have shape"),
    "no target": (lambda: made("encoder-decoder")(ids()), "`decoder_input_ids` are missing: .*model.encode"),
    "a target too many": (
        lambda: made()(ids(), decoder_input_ids=ids()),
        "`decoder_input_ids` are for an encoder–decoder, and this model is a decoder",
    ),
    "a cache to encode": (lambda: made("encoder")(ids(), past_key_values=made().cache()), "runs on whole texts"),
    "too long": (lambda: made(positions=Learned(5))(ids()), "has 7 tokens, and this model has positions for 5"),
    "types": (lambda: made()(ids(), token_type_ids=ids()), "this model has no token types"),
    "writing with an encoder": (
        lambda: made("encoder").generate(ids(), return_dict_in_generate=True).new_tokens,
        "an encoder, which generates nothing",
    ),
    "writing without a head": (
        lambda: made(output_head=None).generate(ids(), return_dict_in_generate=True).new_tokens,
        "no output head that generates: .*LanguageModel",
    ),
    "writing in training": (
        lambda: made().train().generate(ids(), return_dict_in_generate=True).new_tokens,
        r"model.eval\(\) first",
    ),
    "an empty prompt": (
        lambda: made().generate([[3], []], return_dict_in_generate=True).new_tokens,
        "an empty text at 1",
    ),
    "texts for tokens": (
        lambda: made().generate(["a b"], return_dict_in_generate=True).new_tokens,
        "each a list of tokens",
    ),
    "a beam to stream": (
        lambda: made().stream([3], search_strategy=decoding.BeamSearch(2)),
        "BeamSearch knows its text when it has ended",
    ),
    "no room": (
        lambda: made(positions=Learned(5)).generate([[3] * 5], return_dict_in_generate=True).new_tokens,
        "has 5 tokens and this model has positions for 5, which leaves none",
    ),
    "a folder that is none": (
        lambda: Transformer.from_pretrained("./nowhere"),
        "no folder './nowhere'; bundled models",
    ),
    "no name": (lambda: Transformer.from_pretrained(""), "must not be empty"),
    "an unknown change": (
        lambda: Transformer.from_pretrained("minilm", colour=3),
        "has no 'colour': it has ",
    ),
    "another's name as a change": (
        lambda: Transformer.from_pretrained("minilm", d_model=3),
        "has no 'd_model': hidden_size is meant",
    ),
    "another's name": (
        lambda: TransformerConfig(**SIZES, num_hidden_layers=2),
        "TransformerConfig has no argument `num_hidden_layers`: encoder_layers or decoder_layers",
    ),
    "an activation of regard.nn": (
        lambda: made(hidden_act="swiglu"),
        "got 'swiglu': write hidden_act='silu', is_gated_act=True",
    ),
    "two kinds of positions": (
        lambda: made(position_bias="t5"),
        "`position_bias` 't5' stands in place of `positions`, got Sinusoidal",
    ),
    "a bias of positions by another name": (
        lambda: made(kind="none", position_bias="rope"),
        "must be one of None, 't5', 'alibi', 'shaw', got 'rope'",
    ),
    "another's option": (
        lambda: made(kind="ALiBi", max_relative_position=3),
        "`max_relative_position` is an option of position_bias='shaw', got 'alibi'",
    ),
    "a number for a flag": (lambda: made(bias=512), "`bias` must be True or False, got 512"),
    "a window of no layer": (
        lambda: made(layer_types=("sliding_attention",) * 2),
        "`layer_types` names layers that have a window",
    ),
}


def _behind_padding():
    model, cache = made(), None
    with torch.no_grad():
        cache = model.cache()
        model(ids(), attention_mask=torch.tensor([[True] * 5 + [False] * 2] * 2), past_key_values=cache)
        model(ids(n=1), past_key_values=cache)


def test_what_does_not_fit_is_refused_with_the_way_out():
    for item in sweep(REFUSED):
        with item as case:
            make, words = REFUSED[case]
            with pytest.raises(InputError, match=words):
                make()


def test_a_table_of_masks_is_what_a_decoder_layer_has():
    model = made("decoder", sliding_window=3, layer_types=("full_attention", "sliding_attention"))
    full, windowed = (layer.attention.mask() for layer in model.decoder.layers)
    assert full == masks.Causal()
    assert windowed == masks.Causal() & masks.Window(3)
    assert [entry.window for entry, _ in model.cache().layers] == [None, 3]


def test_an_edited_configuration_is_never_read_as_another(tmp_path_factory):
    cases = [
        ('"num_attention_heads": 2,', "", "TransformerConfig has no 'num_attention_heads'"),
        ('"norm_first": false,', "", "TransformerConfig has no 'norm_first'"),
        ('"dropout": 0.1,', '"dropout": 0.1, "dropout": 0.2,', "an object names 'dropout' twice"),
        (
            '"tie_word_embeddings": true',
            '"tie_word_embeddings": "x"',
            "`tie_word_embeddings` .* True or False, got 'x'",
        ),
        ('"kind": "LanguageModel", ', '"kind": "LanguageModel", "bias": 1.5, ', "twice|True or False, got 1.5"),
        ('"layer_norm_eps": 1e-05', '"layer_norm_eps": Infinity', "`layer_norm_eps` must be a finite number above 0"),
        ('"format_version": 2', '"format_version": 2.0', r"is of format version 2\.0, and this regard loads version 2"),
        ('"format_version": 2', '"format_version": "2"', r"is of format version '2', and this regard"),
        ('"format_version": 2', '"format_version": true', r"is of format version True, and this regard"),
    ]
    for case in sweep(cases):
        with case as (old, new, words):
            tmp_path = tmp_path_factory.mktemp("case")
            config = TransformerConfig(
                vocab_size=3,
                hidden_size=2,
                num_attention_heads=2,
                intermediate_size=1,
                decoder_layers=1,
                output_head=output_heads.LanguageModel(),
            )
            Transformer(config).save_pretrained(tmp_path)
            raw = json.loads((tmp_path / "config.json").read_text())
            del raw["crc"]
            text = json.dumps(raw)
            assert old in text
            (tmp_path / "config.json").write_text(text.replace(old, new))
            with pytest.raises(InputError, match=words):
                Transformer.from_pretrained(tmp_path)


def test_ids_of_every_integer_type_are_those_tokens():
    for case in sweep([torch.uint8, torch.int8, torch.int16, torch.int32]):
        with case as dtype:
            torch.manual_seed(0)
            model = Transformer(
                TransformerConfig(decoder_layers=1, output_head=output_heads.LanguageModel(), **SIZES)
            ).eval()
            ids = torch.tensor([[3, 1, 29, 0]])
            assert torch.equal(model(ids.to(dtype)).logits, model(ids).logits)


@pytest.mark.parametrize("kind", [Sinusoidal(20), Sinusoidal(20, variant="marian")])
def test_a_model_of_meta_has_its_table_when_it_gets_memory(kind):
    config = TransformerConfig(vocab_size=9, hidden_size=8, num_attention_heads=2, decoder_layers=1, positions=kind)
    model, ids = Transformer(config).eval(), torch.tensor([[3, 4, 5]])
    with torch.device("meta"):
        other = Transformer(config).eval()
    other = other.to(torch.bfloat16).to_empty(device="cpu").float()
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other(ids).last_hidden_state, model(ids).last_hidden_state, rtol=0, atol=2e-2)
    with torch.device("meta"):
        other = Transformer(config).eval()
    other = other.to_empty(device="cpu")
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(ids).last_hidden_state, model(ids).last_hidden_state)
    with torch.device("meta"):
        other = Transformer(config).eval()
    other.load_state_dict(model.state_dict(), assign=True)
    assert torch.equal(other(ids).last_hidden_state, model(ids).last_hidden_state)
