"""Whatever is passed where something else belongs is refused in a sentence, and tensors without numbers give shapes."""

from itertools import product

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import regard
from regard import masks, positions
from regard.errors import InputError
from sweeps import sweep

X = torch.randn(1, 2, 6, 8, generator=torch.Generator().manual_seed(0))
FLAGS = torch.ones(1, 6, dtype=torch.bool)


def test_an_attention_mask_is_refused_by_its_type_with_the_call_to_write():
    for case in sweep(
        product(
            [regard.attention, regard.explain],
            [torch.int64, torch.int32, torch.uint8, torch.float16, torch.bfloat16, torch.float32],
            [(2, 6), (6, 6), (2, 1, 1, 6)],
        )
    ):
        with case as (call, dtype, shape):
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


def test_a_wrong_tensor_is_refused_in_a_sentence():
    for case in sweep(product(range(3), [torch.tensor(1.0), X.to_sparse(), "x", None, torch.zeros(6)])):
        with case as (at, wrong):
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


def test_a_mask_of_no_dense_tensor_is_refused_in_a_sentence():
    for case in sweep(product(HOLDING, [None, [1, 0], "mask", np.ones((2, 2)), masks.Causal, FLAGS.to_sparse(), 3])):
        with case as (make, wrong), pytest.raises(InputError, match=rf"`{HOLDING[make]}` must be .*: convert"):
            make(wrong)


OPTIONS = {
    "nothing": dict,
    "a mask": lambda: {"mask": masks.Padding(torch.ones(1, 6, dtype=torch.bool))},
    "documents": lambda: {"mask": masks.Document(torch.zeros(6, dtype=torch.long))},
    "a boolean tensor": lambda: {"mask": torch.ones(6, 6, dtype=torch.bool)},
    "a tensor as bias": lambda: {"bias": torch.zeros(6, 6)},
    "a bias": lambda: {"bias": positions.ALiBi(2)},
    "dropout": lambda: {"dropout": 0.5},
}


MODES = {
    "fake": lambda: FakeTensorMode(allow_non_fake_inputs=False),
    "meta": lambda: torch.device("meta"),
}


def test_tensors_without_numbers_give_shapes():
    for case in sweep(product(["auto", "reference", "sdpa", "strips"], OPTIONS, MODES)):
        with case as (backend, name, mode):
            if name == "dropout" and backend == "sdpa":
                backend = "auto"
            with MODES[mode]():
                x, options = torch.randn(1, 2, 6, 8, requires_grad=True), OPTIONS[name]()
                output = regard.attention(x, x, x, backend=backend, **options)
                assert output.shape == x.shape
                assert torch.autograd.grad(output.sum(), x)[0].shape == x.shape
                assert "runs it" in str(regard.explain(x, x, x, backend=backend, **options))
