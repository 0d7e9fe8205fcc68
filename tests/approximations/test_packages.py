"""Linformer and Performer against the packages of these names, by the numbers that packages.py took from them."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from regard.approximations import Compression, LinformerAttention, PerformerAttention, performer_attention

FILE = Path(__file__).with_name("packages.safetensors")
STORED = load_file(FILE)


def stored(prefix):
    """The tensors under a prefix, by the rest of their names."""
    names = [name for name in STORED if name.startswith(f"{prefix}.")]
    return {name.removeprefix(f"{prefix}."): STORED[name].double() for name in names}


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)


def test_the_numbers_name_what_they_were_taken_from():
    with safe_open(FILE, "pt") as file:
        versions = file.metadata()
    assert (versions["performer-pytorch"], versions["linformer"]) == ("1.1.4", "0.2.3")


@pytest.mark.parametrize("sharing", ["headwise", "key-value"])
def test_linformer_agrees_with_the_package_given_its_weights(sharing):
    given, their = stored("linformer"), stored(f"linformer.{sharing}")
    ours = LinformerAttention(12, 4, Compression(9, 3, sharing=sharing), bias=False).double()
    names = {"query.weight": "to_q.weight", "key.weight": "to_k.weight", "value.weight": "to_v.weight"}
    names |= {"output.weight": "to_out.weight", "output.bias": "to_out.bias"}
    # The package shares W_k with W_v too, where it shares E with F.
    state = {name: their.get(other, their["to_k.weight"]) for name, other in names.items()}
    state["compression.e"] = their["proj_k"].T[None]
    if sharing == "headwise":
        state["compression.f"] = their["proj_v"].T[None]
    ours.load_state_dict(state)
    x, source = given["x"], given["source"]
    close(ours(x).output, their["full"])
    close(ours(x[:, :5]).output, their["short"])
    close(ours(x, source).output, their["cross"])


def test_performer_agrees_with_the_package_given_its_features():
    their = stored("performer")
    q, k, v, features = (their[name] for name in ("q", "k", "v", "features"))
    close(performer_attention(q, k, v, features).output, their["output"])
    assert (performer_attention(q, k, v, features, eps=0.0).output - their["output"]).abs().max() > 1e-4


def test_causal_performer_agrees_with_the_package_given_its_features():
    their = stored("performer.causal")
    q, k, v, features = (their[name] for name in ("q", "k", "v", "features"))
    close(performer_attention(q, k, v, features, causal=True, eps=0.0).output, their["output"])


def test_the_performer_module_agrees_with_the_package_given_its_weights():
    their = stored("performer.module")
    ours = PerformerAttention(12, num_heads=3, num_features=10).double()
    names = {"query": "to_q", "key": "to_k", "value": "to_v", "output": "to_out"}
    state = {f"{name}.{part}": their[f"{other}.{part}"] for name, other in names.items() for part in ("weight", "bias")}
    ours.load_state_dict(state | {"features": their["fast_attention.projection_matrix"]})
    close(ours(their["x"]).output, their["output"])
