"""Luong's general score: a matrix between query and key."""

from itertools import product

import pytest
import torch

import regard
from regard.errors import InputError
from regard.scores import Bilinear
from sweeps import sweep


def formula(q, k, i, j, w):
    return torch.einsum("bhid,...de,bhje->bhij", q, w, k)


def formula_of_heads(q, k, i, j, w):
    return torch.einsum("bhid,hde,bhje->bhij", q, w, k)


def test_one_matrix_is_the_formula(agrees):
    for case in sweep(product(["reference", "sdpa", "auto"], [None, 3, 8])):
        with case as (backend, key_width):
            shapes = lambda h, d, dk, dv: {"w": (d, dk)}  # noqa: E731
            agrees(lambda w: Bilinear(w), formula, shapes, backend, key_width)


def test_a_matrix_for_each_head_is_the_formula(agrees):
    for case in sweep(["reference", "sdpa", "auto"]):
        with case as backend:
            shapes = lambda h, d, dk, dv: {"w": (h, d, dk)}  # noqa: E731
            agrees(lambda w: Bilinear(w), formula_of_heads, shapes, backend, key_width=7)


def test_its_scores_are_those_of_torchs_bilinear_layer():
    torch.manual_seed(0)
    layer = torch.nn.Bilinear(3, 5, 1, bias=False).double()
    q, k = torch.randn(4, 3, dtype=torch.float64), torch.randn(6, 5, dtype=torch.float64)
    theirs = layer(q[:, None].expand(4, 6, 3).contiguous(), k.expand(4, 6, 5).contiguous())[..., 0]
    out, weights = regard.attention(q, k, k, score=Bilinear(layer.weight[0]), return_weights=True)
    torch.testing.assert_close(weights, theirs.softmax(-1))
    torch.testing.assert_close(out, theirs.softmax(-1) @ k)


def test_the_identity_is_the_dot_product_and_softcap_stays():
    q, k, v = torch.randn(3, 2, 4, 5, generator=torch.Generator().manual_seed(0)).unbind()
    plain = regard.attention(q, k, v, score=regard.scores.Dot(softcap=1.5))
    torch.testing.assert_close(regard.attention(q, k, v, score=Bilinear(torch.eye(5), softcap=1.5)), plain)


X = torch.zeros(2, 4, 5, 8)


def test_what_does_not_fit_is_refused():
    cases = [
        (lambda: Bilinear(torch.ones(8)), r"`weight` must be \(dim_q, dim_k\) or \(heads, dim_q, dim_k\) .* \(8,\)"),
        (lambda: Bilinear([[1.0]]), r"`weight` must be a tensor \(dim_q, dim_k\) or .*, got list"),
        (
            lambda: Bilinear(torch.ones(7, 8)),
            r"`weight` must have the width of q \(8\) in dimension -2, got 7 in .*7, 8",
        ),
        (
            lambda: Bilinear(torch.ones(8, 7)),
            r"`weight` must have the width of k \(8\) in dimension -1, got 7 in .*8, 7",
        ),
        (lambda: Bilinear(torch.ones(2, 8, 8)), r"`weight` must have one entry for each head of q \(4\), got 2 in"),
        (lambda: Bilinear(torch.ones(8, 8, device="meta")), r"`weight` must be on the device of q \(cpu\), got meta"),
        (lambda: Bilinear(torch.ones(8, 8).int()), r"`weight` must be of a floating-point type, got torch.int32"),
        (lambda: Bilinear(torch.ones(8, 8), softcap="1"), "`softcap` must be a positive number or None, got 1"),
    ]
    for case in sweep(cases):
        with case as (score, words), pytest.raises(InputError, match=words):
            regard.attention(X, X, X, score=score())
