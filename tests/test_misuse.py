"""Whatever is passed where something else belongs is refused in a sentence, and tensors without numbers give shapes."""

import math

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import regard
from regard import masks, normalizers, positions, scores
from regard.errors import InputError

X = torch.randn(1, 2, 6, 8, generator=torch.Generator().manual_seed(0))
FLAGS = torch.ones(1, 6, dtype=torch.bool)


@pytest.mark.parametrize("call", [regard.attention, regard.explain])
@pytest.mark.parametrize(("option", "wrong", "words"), [
    ("score", torch.zeros(2, 2), "`score` must be a score of regard.scores.*got Tensor"),
    ("score", scores.ScaledDot, r"got the class ScaledDot: write ScaledDot\(...\)"),
    ("normalizer", np.ones(3), "`normalizer` must be .* got ndarray"),
    ("normalizer", normalizers.Softmax, r"got the class Softmax: write Softmax\(...\)"),
    ("mask", masks.Causal, r"got the class Causal: write Causal\(...\)$"),
    ("mask", torch.ones(6, 6, dtype=torch.int64), "`?mask`? must be boolean.*from_attention_mask"),
    ("mask", FLAGS.expand(6, 6).to_sparse(), r"layout torch.sparse_coo: convert it with .to_dense\(\)"),
    ("mask", np.ones((6, 6), bool), "got ndarray"),
    ("mask", lambda b, h, i, j: i >= j, r"got function: pass masks.MaskMod\(rule\), with rule\(batch, head, i, j\)"),
    ("bias", positions.ALiBi, r"got the class ALiBi: write ALiBi\(...\)"),
    ("bias", torch.eye(6).to_sparse(), r"`bias` must be a dense tensor, got torch.sparse_coo"),
    ("rotary", positions.RoPE, r"got the class RoPE: write RoPE\(...\)"),
    ("max_bytes", math.nan, "`max_bytes` is a number of bytes, got nan"),
    ("max_bytes", "2GB", "`max_bytes` is a number of bytes, got '2GB'"),
    ("max_bytes", -1, "`max_bytes` is a number of bytes, got -1"),
    ("return_weights", None, "`return_weights` must be True or False, got NoneType"),
    ("return_weights", torch.zeros(2), "`return_weights` must be True or False, got Tensor"),
    ("return_lse", "yes", "`return_lse` must be True or False, got str"),
    ("backend", ["sdpa"], r"`backend` must be .auto. or one of .*got \['sdpa'\]"),
    ("scale", "1", "`scale` must be a number, got str"),
    ("dropout", math.nan, "`dropout` is a probability"),
])  # fmt: skip
def test_a_wrong_option_is_refused_in_a_sentence(call, option, wrong, words):
    with pytest.raises(InputError, match=words):
        call(X, X, X, **{option: wrong})


@pytest.mark.parametrize("call", [regard.attention, regard.explain])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(2, 6), (6, 6), (2, 1, 1, 6)])
def test_an_attention_mask_is_refused_by_its_type_with_the_call_to_write(call, dtype, shape):
    x, flags = X.expand(2, -1, -1, -1), torch.ones(shape, dtype=dtype)
    words = rf"must be boolean, .*, got {dtype}: write masks\.Padding\(mask\) for .*`bias=`"
    with pytest.raises(InputError, match=words):
        call(x, x, x, mask=flags)


@pytest.mark.parametrize("call", [regard.attention, regard.explain])
def test_a_boolean_mask_of_two_dimensions_is_ambiguous_where_the_batch_is_as_large_as_its_first(call):
    x, flags = X.expand(2, -1, -1, -1), torch.ones(2, 6, dtype=torch.bool)
    words = r"write mask\[None, None\] for a matrix, masks\.Padding\(mask\) for flags of tokens"
    with pytest.raises(InputError, match=words):
        call(x, x, x, mask=flags)
    with pytest.raises(InputError, match=words):
        call(x[:, :, :2], x, x, mask=flags)
    call(x[:, :, :2], x, x, mask=flags[None, None])
    call(x, x, x, mask=masks.Padding(flags))
    call(X[:, :, :2], X, X, mask=flags)  # of one sequence it is queries and keys


@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize("wrong", [torch.tensor(1.0), X.to_sparse(), "x", None, torch.zeros(6)])
def test_a_wrong_tensor_is_refused_in_a_sentence(at, wrong):
    given = [wrong if place == at else X for place in range(3)]
    for call in (regard.attention, regard.explain):
        with pytest.raises(InputError):
            call(*given)


HOLDING = {
    masks.Dense: "visible", masks.Padding: "attention_mask", masks.Document: "ids",
    masks.Document.from_lengths: "lengths",
    masks.Document.from_cu_seqlens: "cu_seqlens_k", masks.from_attention_mask: "mask",
    masks.from_key_padding_mask: "mask",
    masks.from_mha_attn_mask: "mask", lambda wrong: masks.LocalPredictive(wrong, radius=1): "center",
}  # fmt: skip


@pytest.mark.parametrize("make", HOLDING)
@pytest.mark.parametrize("wrong", [None, [1, 0], "mask", np.ones((2, 2)), masks.Causal, FLAGS.to_sparse(), 3])
def test_a_mask_of_no_dense_tensor_is_refused_in_a_sentence(make, wrong):
    with pytest.raises(InputError, match=rf"`{HOLDING[make]}` must be .*, got .*: convert"):
        make(wrong)


def test_places_are_integers():
    with pytest.raises(InputError, match="`kv_len` counts positions and must be an integer, got '3'"):
        masks.Causal().bind(1, "3")


OPTIONS = {
    "nothing": dict,
    "a mask": lambda: {"mask": masks.Padding(torch.ones(1, 6, dtype=torch.bool))},
    "documents": lambda: {"mask": masks.Document(torch.zeros(6, dtype=torch.long))},
    "a boolean tensor": lambda: {"mask": torch.ones(6, 6, dtype=torch.bool)},
    "a tensor as bias": lambda: {"bias": torch.zeros(6, 6)},
    "a bias": lambda: {"bias": positions.ALiBi(2)},
    "dropout": lambda: {"dropout": 0.5},
}


@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa", "blockwise"])
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("mode", [lambda: FakeTensorMode(allow_non_fake_inputs=False), lambda: torch.device("meta")])
def test_tensors_without_numbers_give_shapes(mode, name, backend):
    if name == "dropout" and backend == "sdpa":
        backend = "auto"
    with mode():
        x, options = torch.randn(1, 2, 6, 8, requires_grad=True), OPTIONS[name]()
        output = regard.attention(x, x, x, backend=backend, **options)
        assert output.shape == x.shape
        assert torch.autograd.grad(output.sum(), x)[0].shape == x.shape
        assert "runs it" in str(regard.explain(x, x, x, backend=backend, **options))
