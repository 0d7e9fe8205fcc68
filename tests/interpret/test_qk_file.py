"""A file of queries and keys from another engine has eager attention's weights; a bad file is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from regard.errors import InputError
from regard.interpret.qk_file import is_qk_file, read_qk_file
from sweeps import sweep

transformers = pytest.importorskip("transformers", reason="transformers is not installed (the extra `models`)")
safetensors = pytest.importorskip("safetensors.numpy")

TENSORS = {"3.q": np.eye(4, dtype=np.float32)[None], "3.k": np.eye(4, dtype=np.float32)[None]}
ABOUT = {"format": "regard q and k", "version": "1", "heads": '{"3": [5]}'}


def saved(path: Path, tensors: Any = TENSORS, **about: str) -> Path:
    safetensors.save_file(tensors, path, ABOUT | about)
    return path


def test_weights_of_chosen_heads_are_those_of_eager_attention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": 20, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
    config = transformers.LlamaConfig(**sizes, num_key_value_heads=2, intermediate_size=16)
    model, ids = transformers.LlamaModel(config).eval(), torch.arange(9)[None]
    calls, kernel = [], functional.scaled_dot_product_attention

    def spy(q: Any, k: Any, v: Any, *rest: Any, **named: Any) -> Any:
        calls.append((q[0].numpy(), k[0].numpy()))
        return kernel(q, k, v, *rest, **named)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", spy)
    with torch.no_grad():
        model(ids)
        model.set_attn_implementation("eager")
        eager = model(ids, output_attentions=True).attentions
    (q, k), heads = calls[2], [1, 3]
    tensors = {"2.q": q[heads].copy(), "2.k": k[::2].copy() if len(k) == 4 else k.copy()}
    words = json.dumps([f"w{at}" for at in range(9)])
    path = saved(tmp_path / "heads.safetensors", tensors, heads='{"2": [1, 3]}', kv_heads='{"2": [0, 1]}', tokens=words)
    assert is_qk_file(path)
    record = read_qk_file(path)
    assert [(layer.name, record.number(layer)) for layer in record.layers] == [("layer 2, heads 1, 3", 2)]
    np.testing.assert_allclose(record.weights(layer=2)[0], eager[2][0, heads].numpy(), atol=1e-6)
    assert [token.text for token in record.stream("text")] == [f"w{at}" for at in range(9)]


def test_scale_mask_softcap_and_sinks_are_those_of_the_metadata(tmp_path: Path) -> None:
    scores = 2 * np.eye(4)
    eye = np.eye(4, dtype=bool)
    path = saved(tmp_path / "a.safetensors", scale="2", causal="false")
    rows = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    np.testing.assert_allclose(read_qk_file(path).weights(layer=3, head=0)[0], rows, rtol=1e-6)
    path = saved(tmp_path / "b.safetensors", scale="2", window="1")
    np.testing.assert_allclose(read_qk_file(path).weights(layer=3, head=0)[0], eye, rtol=1e-6)
    path = saved(tmp_path / "c.safetensors", scale="2", softcap="0.5", causal="false")
    capped = np.exp(0.5 * np.tanh(scores / 0.5))
    np.testing.assert_allclose(
        read_qk_file(path).weights(layer=3, head=0)[0], capped / capped.sum(-1, keepdims=True), rtol=1e-5
    )
    path = saved(tmp_path / "d.safetensors", TENSORS | {"3.sinks": np.array([1.0], np.float32)}, window="1", scale="2")
    kept = np.e**2 / (np.e**2 + np.e)
    np.testing.assert_allclose(read_qk_file(path).weights(layer=3, head=0)[0], kept * eye, rtol=1e-6)


BAD_FILES = [
    (TENSORS, {"window": "2", "causal": "false"}, "`window` counts the keys up to a query's own"),
    (TENSORS, {"version": "2"}, "version '2', and this regard reads version '1'"),
    (TENSORS, {"heads": "[1]"}, "`heads` of its metadata must be the JSON of a dict"),
    (TENSORS, {"heads": "{}"}, "must name the heads"),
    (TENSORS, {"heads": '{"x": [1]}'}, "numbers of layers as keys, got 'x'"),
    (TENSORS, {"heads": '{"3": [1, 2]}'}, r"for 2 heads, .* got \(1, 4, 4\) and \(1, 4, 4\)"),
    (TENSORS, {"heads": '{"4": [1]}'}, "layer 4 must have"),
    (TENSORS, {"kv_heads": '{"3": [1]}'}, "`kv_heads` of layer 3"),
    (TENSORS, {"scale": "-1"}, "`scale` must be a positive number"),
    (TENSORS, {"causal": "yes"}, "`causal` must be"),
    (TENSORS, {"tokens": '["a"]'}, r"a text for each key, \[4\] of them, got 1"),
    (TENSORS | {"3.k": np.full((1, 4, 4), np.inf, np.float32)}, {}, "'3.k' must be finite"),
    (TENSORS | {"3.sinks": np.zeros(2, np.float32)}, {}, r"3\.sinks must be \(1,\)"),
    (TENSORS | {"3.k": np.zeros((1, 4, 4), np.int32)}, {}, "'3.k' must be F64, F32, F16 or BF16"),
]


def test_a_bad_file_gets_one_sentence(tmp_path: Path) -> None:
    for case in sweep(BAD_FILES, lambda row: row[2]):
        with case as (tensors, about, reason):
            path = saved(tmp_path / "heads.safetensors", tensors, **about)
            with pytest.raises(InputError, match=rf"cannot read the queries and keys in .*: .*{reason}"):
                read_qk_file(path)


def test_a_file_that_is_cut_off_or_none_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "heads.safetensors")
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(InputError, match="within the file"):
        read_qk_file(path)
    path.write_bytes(b"\xff" * 40)
    assert not is_qk_file(path)
    with pytest.raises(InputError, match="without a whole header"):
        read_qk_file(path)
    with pytest.raises(InputError, match="No such file"):
        read_qk_file(tmp_path / "none.safetensors")
