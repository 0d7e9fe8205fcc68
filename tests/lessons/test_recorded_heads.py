"""A record's heads as data of a lesson page: the numbers are those of the record, and what cannot be shown is named."""

import base64
import dataclasses
import json
import zlib

import numpy as np
import pytest
import torch
from torch import nn

import regard
from oracles import dense
from regard.errors import InputError, ObservationError
from regard.lessons import recorded_heads as module
from regard.lessons.recorded_heads import recorded_heads
from regard.masks import Causal
from regard.normalizers import Sigmoid, Softmax
from regard.positions import ALiBi
from regard.scores import Additive, ScaledDot

N, DIM, WIDE = 6, 8, 5
WORDS = ["the", "cat", "sat", "because", "it", "slept"]
TYPES = {"f4": np.dtype("<f4"), "f8": np.dtype("<f8"), "u1": np.dtype("u1")}


def randn(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


class Stack(nn.Module):
    """Calls of regard.attention with the same tensors, one a layer."""

    def __init__(self, *calls):
        super().__init__()
        self.layers = nn.ModuleList(Call(options) for options in calls)

    def forward(self, q, k, v):
        for layer in self.layers:
            layer(q, k, v)


class Call(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.options = options

    def forward(self, q, k, v):
        return regard.attention(q, k, v, **self.options)


def watched(*calls, keep="qkv", dtype=torch.float32, count=N, tokens=WORDS, batch=1, **options):
    q, k = randn(batch, 4, count, DIM, seed=1, dtype=dtype) * 2, randn(batch, 2, count, DIM, seed=2, dtype=dtype)
    v = randn(batch, 2, count, WIDE, seed=3, dtype=dtype)
    with torch.no_grad(), regard.watch(model := Stack(*(calls or [{}])), keep=keep, tokens=tokens, **options) as seen:
        model(q, k, v)
    return seen, q, k, v


def arrays_of(layer) -> dict[str, np.ndarray]:
    """What the page unpacks: planes of bytes, deflated, in base64."""
    raw = zlib.decompress(base64.b64decode(layer["blob"]))
    arrays, start = {}, 0
    for name, kind, count in layer["arrays"]:
        dtype = TYPES[kind]
        size = count * dtype.itemsize
        planes = np.frombuffer(raw[start : start + size], np.uint8).reshape(dtype.itemsize, count)
        arrays[name] = np.ascontiguousarray(planes.T).view(dtype).reshape(layer["sizes"][name])
        start += size
    assert start == len(raw)
    return arrays


def test_the_page_has_the_numbers_of_the_record_to_the_bit():
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        seen, q, k, v = watched({"mask": Causal()}, dtype=dtype)
        (layer,) = recorded_heads(seen.record).data["layers"]
        found = arrays_of(layer)
        for name, tensor in (("q", q), ("k", k), ("v", v)):
            wide = tensor.to(torch.promote_types(dtype, torch.float32))
            np.testing.assert_array_equal(found[name], wide[0].numpy())
            assert found[name].itemsize == wide.itemsize
        assert layer["stored"] == str(dtype).removeprefix("torch.")
        assert layer["scale"] == pytest.approx(8**-0.5, rel=1e-15)
        np.testing.assert_array_equal(found["visible"], np.tri(N, dtype=np.uint8)[None])
        expected = dense(q, k, k, visible=np.tri(N, dtype=bool)).weights[0]
        np.testing.assert_allclose(found["weights"], expected, atol=1e-12 if dtype == torch.float64 else 1e-5)


def test_bias_softcap_and_sink_are_there_as_the_call_had_them():
    sink = torch.tensor([0.5, -1.0, 2.0, 0.0])
    seen, *_ = watched(
        {"bias": ALiBi(4), "mask": Causal(), "score": ScaledDot(softcap=3.0), "normalizer": Softmax(sink)}
    )
    (layer,) = recorded_heads(seen.record).data["layers"]
    slopes = np.array([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8])[:, None, None]
    distance = np.arange(N)[:, None] - np.arange(N)
    np.testing.assert_allclose(arrays_of(layer)["bias"], np.where(distance >= 0, -slopes * distance, 0))
    assert layer["softcap"] == 3.0
    assert layer["sinks"] == sink.tolist()


def test_a_record_without_values_has_all_but_these():
    seen, *_ = watched(keep="qk")
    lesson = seen.lesson(layer=0, head=2, token="it")
    assert "v" not in arrays_of(lesson.data["real"]["layers"][0])
    assert 'keep="qkv" keeps the values too' in lesson.text.replace("\n", " ")
    assert "Weighted sum" not in lesson.text
    assert "Weighted sum" in watched()[0].lesson(layer=0, head=2, token="it").text


def test_a_record_of_maps_says_how_to_watch():
    seen, *_ = watched(keep="maps")
    with pytest.raises(ObservationError, match=r'keep="qkv"'):
        seen.lesson()


def test_layer_head_and_token_are_named_as_everywhere():
    seen, *_ = watched({}, {"mask": Causal()}, {})
    data = seen.lesson(layer=1, head=3, token="it").data["real"]
    assert data["start"]["layer"] == 1
    assert data["start"]["head"] == 3
    assert data["start"]["query"] == WORDS.index("it")
    assert [layer["number"] for layer in data["layers"]] == [0, 1, 2]
    assert seen.lesson(layer="layers.2", head=0, token=1).data["real"]["start"]["query"] == 1
    for wrong in ({"layer": 3}, {"layer": 0, "head": 4}, {"token": "dog"}, {"batch_index": 1}, {"head": 1}):
        with pytest.raises(InputError):
            seen.lesson(**wrong)


def test_what_is_not_named_is_chosen_as_look_chooses_it():
    seen, *_ = watched({}, {"mask": Causal()})
    focus = seen.look().highlight
    start = seen.lesson().data["real"]["start"]
    assert (start["layer"], start["head"]) == (focus.looks[0].layer, focus.looks[0].head)
    assert start["query"] == focus.queries[focus.word].pieces[0]
    assert start["key"] in focus.keys[focus.looks[0].target].pieces
    assert seen.look().lesson().data["real"]["start"] == start


def test_positions_have_numbers_where_tokens_are_not_known():
    seen, *_ = watched(tokens=None)
    data = seen.lesson(layer=0, head=1, token=2).data["real"]
    assert data["start"]["query"] == 2
    assert data["streams"][data["layers"][0]["tokens"][0]]["texts"] == ["0", "1", "2", "3", "4", "5"]
    with pytest.raises(ObservationError, match="tokens= or tokenizer="):
        seen.lesson(token="it")
    with pytest.raises(InputError, match="from 0 to 5"):
        seen.lesson(token=6)


def test_each_sequence_of_a_batch_has_its_own_numbers():
    seen, q, *_ = watched(batch=2, tokens=[WORDS, WORDS[::-1]])
    for at in (0, 1):
        data = seen.lesson(batch_index=at, token="cat").data["real"]
        np.testing.assert_array_equal(arrays_of(data["layers"][0])["q"], q[at].numpy())
        assert data["start"]["query"] == [1, 4][at]


def test_what_is_no_softmax_of_products_is_named_and_left_out():
    additive = Additive(randn(3, DIM), randn(3, DIM, seed=1), randn(3, seed=2))
    seen, *_ = watched({}, {"score": additive}, {"normalizer": Sigmoid()})
    data = seen.lesson(layer=0).data["real"]
    assert [layer["number"] for layer in data["layers"]] == [0]
    assert [name for name, _ in data["left_out"]] == ["layer 1", "layer 2"]
    for layer, reason in ((1, "Additive"), (2, "Sigmoid")):
        assert reason in data["left_out"][layer - 1][1]
        with pytest.raises(InputError, match=reason):
            seen.lesson(layer=layer, head=0, token="it")


def test_a_long_text_is_refused_with_the_number_of_tokens(monkeypatch):
    monkeypatch.setattr(module, "MOST_TOKENS", 5)
    seen, *_ = watched()
    with pytest.raises(InputError, match=r"at most 5 tokens, and this text has 6: .*--tokens 1:5"):
        seen.lesson()


def test_all_layers_are_there_up_to_2_mb_and_else_the_chosen_one(monkeypatch):
    seen, *_ = watched({}, {}, {})
    whole = seen.lesson(layer=1).data["real"]
    assert (len(whole["layers"]), whole["too_large"]) == (3, 0)
    size = sum(len(layer["blob"]) for layer in whole["layers"])
    monkeypatch.setattr(module, "LARGEST_OF_ALL", size)
    assert len(seen.lesson(layer=1).data["real"]["layers"]) == 3
    monkeypatch.setattr(module, "LARGEST_OF_ALL", size - 1)
    part = seen.lesson(layer=1).data["real"]
    assert [layer["number"] for layer in part["layers"]] == [1]
    assert (part["start"]["layer"], part["too_large"]) == (0, 2)
    monkeypatch.setattr(module, "LARGEST_LAYER", 100)
    with pytest.raises(InputError, match="shorter text"):
        seen.lesson(layer=1)


def test_chosen_heads_are_those_that_can_be_chosen():
    seen, *_ = watched({}, {}, heads=["1.0", "1.2"])
    (layer,) = seen.lesson(layer=1, head=2).data["real"]["layers"]
    assert layer["heads"] == [0, 2]
    with pytest.raises(InputError, match="chosen for recording"):
        seen.lesson(layer=1, head=1)


def test_what_was_measured_before_attention_comes_with_each_layer_and_nothing_with_older_records():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.key, self.value = nn.Linear(8, 8), nn.Linear(8, 8, bias=False), nn.Linear(8, 8)

        def forward(self, x):
            q, k, v = (
                project(x).unflatten(-1, (2, 4)).transpose(1, 2) for project in (self.query, self.key, self.value)
            )
            return nn.functional.scaled_dot_product_attention(q, k, v)

    model = nn.ModuleDict({"attn": Own()})
    model.forward = lambda x: model["attn"](x)
    with torch.no_grad(), regard.watch(model, keep="qkv", tokens=WORDS) as seen:
        model(torch.randn(1, 6, 8))
    data = seen.lesson().data["real"]
    assert data["layers"][0]["before"]["query"] == {"bias": True, "then": []}
    assert data["layers"][0]["before"]["key"] == {"bias": False, "then": []}
    assert data["positions"] == {}
    notes = {name: value for name, value in seen.notes.items() if name != "before"}
    older = recorded_heads(dataclasses.replace(seen.record, notes=notes)).data
    assert older["positions"] is None
    assert older["layers"][0]["before"] is None


def test_without_arguments_an_encoder_decoder_without_tokens_opens_with_cross_attention():
    import transformers

    sizes = {"vocab_size": 50, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    config = transformers.T5Config(**sizes, decoder_start_token_id=0, attn_implementation="sdpa")
    model, ids = transformers.T5Model(config).eval(), torch.arange(5, 14)[None]
    with torch.no_grad(), regard.watch(model, keep="qkv") as seen:
        model(input_ids=ids, decoder_input_ids=ids[:, :4])
    data = seen.lesson().data["real"]
    assert data["layers"][data["start"]["layer"]]["name"] == "decoder.block.0.layer.1.EncDecAttention"
    data = seen.lesson(stream="target").data["real"]
    assert data["layers"][data["start"]["layer"]]["name"] == "decoder.block.0.layer.0.SelfAttention"


def test_notes_that_are_not_as_regard_writes_them_are_not_known():
    """A file may have anything in its notes; what is none of the words of the page is not shown."""
    seen, *_ = watched()
    good = {"bias": True, "then": ["rotated", ["norm", "RMSNorm"]]}
    layers = {"layers.0": {"query": good, "key": {"bias": True, "then": ["<b>"]}, "value": {"bias": 3}, "input": ["x"]}}
    other = {
        "layers.0": {"class": "<b>", "bias_table": 3, "query": {"bias": True, "then": None}, "key": {"bias": False}}
    }
    for before, positions, layer in (
        (7, None, None),
        ({"positions": [1], "layers": 5}, None, None),
        ({"positions": {"a": "b"}, "layers": {"layers.0": "x"}}, None, None),
        ({"positions": {"wpe": "other"}, "layers": layers}, {"wpe": "other"}, {"query": good, "key": {"bias": True}}),
        (
            {"positions": {}, "layers": other},
            {},
            {"class": "<b>", "query": {"bias": True, "then": None}, "key": {"bias": False}},
        ),
    ):
        record = dataclasses.replace(seen.record, notes={"before": before})
        data = recorded_heads(record).data
        assert (data["positions"], data["layers"][0]["before"]) == (positions, layer)


def test_a_saved_record_gives_the_same_lesson(tmp_path):
    seen, *_ = watched({"mask": Causal()}, {"bias": ALiBi(4)})
    seen.save(tmp_path / "it.atlas")
    lesson, again = seen.lesson(token="it"), regard.load_atlas(tmp_path / "it.atlas").lesson(token="it")
    assert json.dumps(lesson.data) == json.dumps(again.data)
    assert lesson.text == again.text


def test_the_text_has_the_same_weight_as_the_record():
    seen, *_ = watched()
    lesson = seen.lesson(layer=0, head=3, token="it")
    np.testing.assert_allclose(lesson.steps.worked.weights, seen.weights(layer=0, head=3)[0], atol=1e-6)
    assert lesson.steps.row == 4


@pytest.mark.models
def test_the_recorded_head_of_the_package_is_what_its_script_makes():
    from tools.lesson_head import recorded_layer

    from regard.lessons.page import recorded_data

    kept, made = recorded_data()["real"], recorded_layer()
    assert len(json.dumps(kept)) < 150_000
    assert kept["sample"] is True
    (layer,), (again,) = kept["layers"], made["layers"]
    for name, array in arrays_of(layer).items():
        np.testing.assert_allclose(array, arrays_of(again)[name], atol=1e-4, err_msg=name)  # of any processor
    for name in ("streams", "start", "model", "positions"):
        assert kept[name] == made[name]
    drop = ("blob",)
    assert {key: value for key, value in layer.items() if key not in drop} == {
        key: value for key, value in again.items() if key not in drop
    }
    weights, start = arrays_of(layer)["weights"], kept["start"]
    texts = kept["streams"]["text 15"]["texts"]
    assert (texts[start["query"]], texts[start["key"]]) == ("it", "animal")
    assert round(float(weights[start["head"], start["query"], start["key"]]), 2) == 0.65
