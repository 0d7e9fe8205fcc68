"""Bahdanau's score, Keras' and both of Luong's concat: networks with one hidden layer."""

import numpy as np
import pytest
import torch

import regard
from regard.errors import InputError
from regard.scores import Additive, Concat
from sweeps import sweep

HIDDEN = 7


def hidden(q, k, w_query=None, w_key=None, bias=None):
    a = q if w_query is None else torch.einsum("bhid,ed->bhie", q, w_query)
    b = k if w_key is None else torch.einsum("bhjd,ed->bhje", k, w_key)
    inside = a[:, :, :, None] + b[:, :, None]
    return torch.tanh(inside if bias is None else inside + bias)


def test_bahdanau_is_the_formula(agrees):
    agrees(
        lambda w, u, v: Additive(w, u, v),
        lambda q, k, i, j, w, u, v: hidden(q, k, w, u) @ v,
        lambda h, d, dk, dv: {"w": (HIDDEN, d), "u": (HIDDEN, dk), "v": (HIDDEN,)},
        "reference",
        key_width=8,
    )


def test_a_vector_for_each_head_and_a_bias_inside_are_the_formula(agrees):
    agrees(
        lambda w, u, v, b: Additive(w, u, v, bias=b),
        lambda q, k, i, j, w, u, v, b: torch.einsum("bhije,he->bhij", hidden(q, k, w, u, b), v),
        lambda h, d, dk, dv: {"w": (HIDDEN, d), "u": (HIDDEN, dk), "v": (h, HIDDEN), "b": (HIDDEN,)},
        "reference",
    )


def test_keras_has_no_maps(agrees):
    agrees(
        lambda v: Additive(None, None, v),
        lambda q, k, i, j, v: hidden(q, k) @ v,
        lambda h, d, dk, dv: {"v": (d,)},
        "reference",
    )


def test_luongs_code_maps_the_query_alone(agrees):
    agrees(
        lambda w, v: Additive(w, None, v),
        lambda q, k, i, j, w, v: hidden(q, k, w) @ v,
        lambda h, d, dk, dv: {"w": (dk, d), "v": (dk,)},
        "reference",
        key_width=8,
    )


def test_luongs_concat_is_the_formula(agrees):
    for case in sweep([False, True]):
        with case as with_bias:

            def formula(q, k, i, j, w, v, b=None):
                wide = (*q.shape[:3], k.shape[2])
                pairs = torch.cat([q[:, :, :, None].expand(*wide, -1), k[:, :, None].expand(*wide, -1)], -1)
                inside = torch.einsum("bhijc,ec->bhije", pairs, w)
                return torch.einsum("bhije,he->bhij", torch.tanh(inside if b is None else inside + b), v)

            agrees(
                lambda w, v, b=None: Concat(w, v, b),
                formula,
                lambda h, d, dk, dv: (
                    {"w": (HIDDEN, d + dk), "v": (h, HIDDEN)} | ({"b": (HIDDEN,)} if with_bias else {})
                ),
                "reference",
                key_width=8,
            )


def test_one_step_of_bahdanaus_decoder_by_hand():
    # W = 1, U = −1, v = 2: e = 2 tanh(s − h) for the state s = 1 and the annotations 1 and 0.
    one = np.ones((1, 1))
    state, annotations = torch.tensor([[1.0]]), torch.tensor([[1.0], [0.0]])
    score = Additive(torch.tensor(one).float(), -torch.tensor(one).float(), torch.tensor([2.0]))
    context, weights = regard.attention(state, annotations, annotations, score=score, return_weights=True)
    second = np.exp(2 * np.tanh(1)) / (1 + np.exp(2 * np.tanh(1)))
    np.testing.assert_allclose(weights.numpy(), [[1 - second, second]], atol=1e-6)
    np.testing.assert_allclose(context.numpy(), [[1 - second]], atol=1e-6)


def test_the_learned_maps_may_be_layers_of_torch():
    torch.manual_seed(0)
    layer, out = torch.nn.Linear(9, HIDDEN), torch.nn.Linear(HIDDEN, 1, bias=False)
    q, k = torch.randn(3, 4), torch.randn(6, 5)
    pairs = torch.cat([q[:, None].expand(3, 6, 4), k.expand(3, 6, 5)], -1)
    theirs = out(layer(pairs).tanh())[..., 0].softmax(-1) @ k
    ours = regard.attention(q, k, k, score=Concat(layer.weight, out.weight[0], layer.bias))
    torch.testing.assert_close(ours, theirs)
    split = Additive(layer.weight[:, :4], layer.weight[:, 4:], out.weight[0], layer.bias)
    torch.testing.assert_close(regard.attention(q, k, k, score=split), theirs)


def test_a_pair_needs_its_hidden_layer():
    v = torch.ones(HIDDEN)
    assert Additive(None, None, v).floats_per_pair == HIDDEN
    assert Concat(torch.ones(HIDDEN, 4), v).floats_per_pair == HIDDEN
    q = torch.ones(1, 1, 3, 2)
    assert Concat(torch.ones(HIDDEN, 4), v).prepare(q, q, 0)[2].floats_per_pair == HIDDEN
    assert regard.scores.Dot().floats_per_pair == 1


X = torch.zeros(2, 4, 5, 8)
W, V = torch.ones(7, 8), torch.ones(7)


def test_what_does_not_fit_is_refused():
    cases = [
        (
            lambda: Additive(W, W[:6], V),
            r"`w_key` must have the width of `vector` \(7\) in dimension 0, got 6 in .*6, 8",
        ),
        (lambda: Additive(W, W, torch.ones(())), r"`vector` must be \(hidden,\) or \(heads, hidden\) .* shape \(\)"),
        (lambda: Additive(W, W, None), r"`vector` must be a tensor \(hidden,\) or \(heads, hidden\), got NoneType"),
        (lambda: Additive(W[0], W, V), r"`w_query` must be \(hidden, dim_q\) and not empty, got shape \(8,\)"),
        (lambda: Additive(W, W, V, V[:3]), r"`bias` must have the width of `vector` \(7\) .* got 3"),
        (lambda: Additive(W, None, V), r"`vector` must have the width of k, as `w_key` is None, \(8\) .* got 7"),
        (lambda: Additive(None, W, V), r"`vector` must have the width of q, as `w_query` is None, \(8\) .* got 7"),
        (lambda: Additive(W[:, :5], W, V), r"`w_query` must have the width of q \(8\) in dimension 1, got 5"),
        (lambda: Additive(W, W[:, :5], V), r"`w_key` must have the width of k \(8\) in dimension 1, got 5"),
        (lambda: Additive(W, W, V.expand(3, 7)), r"`vector` must have one entry for each head of q \(4\), got 3"),
        (lambda: Additive(W, W.to("meta"), V), r"`w_key` must be on the device of q \(cpu\), got meta"),
        (lambda: Additive(W, W, V, softcap=0.0), "`softcap` must be a positive number or None, got 0.0"),
        (lambda: Concat(W, V), r"`weight` must have a column for each of 8 \+ 8 entries .* got 8 .* Additive\(w, None"),
        (lambda: Concat(W[0], V), r"`weight` must be \(hidden, dim_q \+ dim_k\) and not empty, got shape \(8,\)"),
        (lambda: Concat(W[:5], V), r"`weight` must have the width of `vector` \(7\) in dimension 0, got 5"),
        (lambda: Concat(W.repeat(1, 2), V, V[:2]), r"`bias` must have the width of `vector` \(7\) .* got 2"),
        (
            lambda: Concat(W.repeat(1, 2), V.expand(2, 7)),
            r"`vector` must have one entry for each head of q \(4\), got 2",
        ),
        (lambda: Concat(W.repeat(1, 2), V.to("meta")), r"`vector` must be on the device of q \(cpu\), got meta"),
        (lambda: Concat(W.repeat(1, 2), V, softcap=-1), "`softcap` must be a positive number or None, got -1"),
    ]
    for case in sweep(cases):
        with case as (score, words), pytest.raises(InputError, match=words):
            regard.attention(X, X, X, score=score())
