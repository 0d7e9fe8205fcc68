"""Shaw's relative keys and values, against a vector written out for every pair."""

from itertools import product

import numpy as np
import pytest
import torch

import regard
from regard.errors import InputError
from regard.masks import Causal
from regard.scores import ScaledDot, Shaw
from sweeps import sweep


def of_pairs(table, i, j):
    """The vector of every pair: w_clip(j − i), of which w_−clip is the first row."""
    clip = table.shape[-2] // 2
    at = torch.maximum(torch.tensor(-clip), torch.minimum(j - i, torch.tensor(clip))) + clip
    return table[..., at, :]


def formula(q, k, i, j, key, value=None):
    scores = torch.einsum("bhid,bhijd->bhij", q, k.unsqueeze(-3) + of_pairs(key, i, j)) / q.shape[-1] ** 0.5
    return scores if value is None else (scores, of_pairs(value, i, j))


def test_keys_and_values_are_the_formula(agrees):
    for case in sweep([0, 1, 3, 20]):
        with case as clip:
            agrees(
                lambda key, value: Shaw(key, value),
                formula,
                lambda h, d, dk, dv, rows=2 * clip + 1: {"key": (rows, d), "value": (rows, dv)},
                "reference",
            )


def test_keys_alone_are_the_formula(agrees):
    for case in sweep(["reference", "auto"]):
        with case as backend:
            agrees(lambda key: Shaw(key), formula, lambda h, d, dk, dv: {"key": (5, d)}, backend)


def test_tables_for_each_head_are_the_formula(agrees):
    agrees(
        lambda key, value: Shaw(key, value),
        formula,
        lambda h, d, dk, dv: {"key": (h, 5, d), "value": (h, 3, dv)},
        "reference",
        layouts=["grouped"],
    )


def test_a_loop_over_all_pairs_gives_the_same():
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(4, 3)), rng.normal(size=(6, 3)), rng.normal(size=(6, 2))
    key, value = rng.normal(size=(5, 3)) / 3**0.5, rng.normal(size=(5, 2)) / 2**0.5
    expected = np.zeros((4, 2))
    for row in range(4):
        i = row + 2  # the queries are the last positions
        e = np.array([q[row] @ (k[j] + key[min(max(j - i, -2), 2) + 2]) / 3**0.5 for j in range(i + 1)])
        w = np.exp(e) / np.exp(e).sum()
        for j in range(i + 1):
            expected[row] += w[j] * (v[j] + value[min(max(j - i, -2), 2) + 2])
    score = Shaw(torch.tensor(key), torch.tensor(value))
    ours = regard.attention(*map(torch.tensor, (q, k, v)), score=score, mask=Causal())
    np.testing.assert_allclose(ours.numpy(), expected, atol=1e-12)


def test_one_more_query_at_a_time_gives_the_same_as_all_at_once():
    q, k, v = torch.randn(3, 2, 7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).unbind()
    tables = torch.randn(2, 7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) / 2
    score = Shaw(*tables)
    whole = regard.attention(q, k, v, score=score, mask=Causal())
    steps = [regard.attention(q[:, n - 1 : n], k[:, :n], v[:, :n], score=score) for n in range(1, 8)]
    torch.testing.assert_close(torch.cat(steps, 1), whole)


def test_dropped_weights_give_no_term_of_the_value():
    x = torch.zeros(1, 1, 50, 2, dtype=torch.float64)
    score = Shaw(torch.zeros(3, 2, dtype=x.dtype), torch.ones(3, 2, dtype=x.dtype))
    asked = {"score": score, "dropout": 0.5, "backend": "reference"}
    ours = regard.attention(x, x, x, generator=torch.Generator().manual_seed(0), **asked)
    kept = regard.attention(x, x, torch.ones_like(x), generator=torch.Generator().manual_seed(0), **asked)
    torch.testing.assert_close(kept, 2 * ours)  # values of one add what the term of one adds
    assert ours.std() > 0


def test_tables_of_zeros_change_nothing_and_softcap_stays():
    q, k, v = torch.randn(3, 2, 4, 5, generator=torch.Generator().manual_seed(0)).unbind()
    plain = regard.attention(q, k, v, score=ScaledDot(softcap=0.5))
    ours = regard.attention(q, k, v, score=Shaw(torch.zeros(3, 5), torch.zeros(3, 5), softcap=0.5))
    torch.testing.assert_close(ours, plain)


X = torch.zeros(2, 4, 5, 8)
T = torch.zeros(3, 8)


def test_what_does_not_fit_is_refused():
    cases = [
        (lambda: Shaw(torch.zeros(4, 8)), r"`key_table` must have an odd number of rows, .* got 4 in shape \(4, 8\)"),
        (lambda: Shaw(T, torch.zeros(2, 8)), r"`value_table` must have an odd number of rows, .* got 2"),
        (lambda: Shaw(torch.zeros(4, 8)), "give `left=` and `right=` where the distances"),
        (
            lambda: Shaw(T, left=1),
            "`right` must be a number of distances, 0 or more, where the other side .* got None",
        ),
        (lambda: Shaw(T, left=-1, right=3), "`left` must be a number of distances, 0 or more, .* got -1"),
        (lambda: Shaw(T, left=True, right=1), "`left` must be a number of distances, 0 or more, .* got True"),
        (lambda: Shaw(T, left=3, right=2), r"`key_table` must have left \+ 1 \+ right = 3 \+ 1 \+ 2 rows, got 3 in"),
        (lambda: Shaw(T[0]), r"`key_table` must be \(2 · clip \+ 1, dim\) or \(heads, 2 · clip \+ 1, dim\) and not"),
        (lambda: Shaw(None), r"`key_table` must be a tensor \(2 · clip \+ 1, dim\) or .*, got NoneType"),
        (lambda: Shaw(T[:, :7]), r"`key_table` must have the width of q \(8\) in dimension -1, got 7"),
        (lambda: Shaw(T, T[:, :7]), r"`value_table` must have the width of v \(8\) in dimension -1, got 7"),
        (lambda: Shaw(T.expand(2, 3, 8)), r"`key_table` must have one entry for each head of q \(4\), got 2"),
        (lambda: Shaw(T, T.expand(2, 3, 8)), r"`value_table` must have one entry for each head of q \(4\), got 2"),
        (lambda: Shaw(T, T.to("meta")), r"`value_table` must be on the device of q \(cpu\), got meta"),
        (lambda: Shaw(T, softcap=0), "`softcap` must be a positive number or None, got 0"),
    ]
    for case in sweep(cases):
        with case as (score, words), pytest.raises(InputError, match=words):
            regard.attention(X, X, X, score=score())


def test_widths_are_equal():
    with pytest.raises(InputError, match=r"`k` must have the width of `q` \(8\), got 7"):
        regard.attention(X, X[..., :7], X, score=Shaw(T))


def test_berts_relative_key_is_a_table_turned_over():
    # BertSelfAttention of transformers 4 with position_embedding_type="relative_key"; transformers 5 has it no more.
    most, n, dim = 12, 9, 4
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 3, n, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).unbind()
    embedding = torch.nn.Embedding(2 * most - 1, dim).double()
    i, j = torch.arange(n)[:, None], torch.arange(n)
    positional = embedding(i - j + most - 1)
    scores = q @ k.transpose(-1, -2) + torch.einsum("bhld,lrd->bhlr", q, positional)
    expected = (scores / dim**0.5).softmax(-1) @ v
    ours = regard.attention(q, k, v, score=Shaw(embedding.weight.flip(0)))
    torch.testing.assert_close(ours, expected, atol=1e-12, rtol=0)


def test_tables_of_unlike_sides_are_those_of_transformers():
    for case in sweep(product(["wav2vec2_bert", "seamless_m4t_v2"], [(3, 2, 9), (0, 4, 9), (64, 8, 520)])):
        with case as (family, (left, right, n)):
            torch.manual_seed(0)
            names = {"left_max_position_embeddings": left, "right_max_position_embeddings": right}
            if family == "wav2vec2_bert":
                modeling = pytest.importorskip("transformers.models.wav2vec2_bert.modeling_wav2vec2_bert")
                config = modeling.Wav2Vec2BertConfig(
                    hidden_size=8, num_attention_heads=2, position_embeddings_type="relative_key", **names
                )
                module = modeling.Wav2Vec2BertSelfAttention(config)
            else:
                modeling = pytest.importorskip("transformers.models.seamless_m4t_v2.modeling_seamless_m4t_v2")
                config = modeling.SeamlessM4Tv2Config(
                    hidden_size=8, speech_encoder_attention_heads=2, position_embeddings_type="relative_key", **names
                )
                module = modeling.SeamlessM4Tv2ConformerSelfAttention(config)
            module.double().eval()
            x = torch.randn(2, n, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
            q, k, v = (
                f(x).unflatten(-1, (2, 4)).transpose(1, 2) for f in (module.linear_q, module.linear_k, module.linear_v)
            )
            score = Shaw(module.distance_embedding.weight, left=left, right=right)
            ours = regard.attention(q, k, v, score=score)
            ours = module.linear_out(ours.transpose(1, 2).flatten(2))
            expected = module(x)[0]
            torch.testing.assert_close(ours, expected, atol=1e-11, rtol=0)
            wanted = torch.autograd.grad(expected.square().sum(), module.distance_embedding.weight)[0]
            given = torch.autograd.grad(ours.square().sum(), module.distance_embedding.weight)[0]
            torch.testing.assert_close(given, wanted)
