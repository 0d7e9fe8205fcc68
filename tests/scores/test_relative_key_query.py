"""BERT's relative_key_query, against a vector written out for every pair."""

from itertools import product

import pytest
import torch

import regard
from regard.errors import InputError
from regard.scores import RelativeKeyQuery, Shaw
from sweeps import sweep


def formula(q, k, i, j, table, left=None):
    left = table.shape[-2] // 2 if left is None else left
    right = table.shape[-2] - 1 - left
    a = table[..., torch.maximum(torch.tensor(-left), torch.minimum(j - i, torch.tensor(right))) + left, :]
    scores = q.unsqueeze(-2) * k.unsqueeze(-3) + q.unsqueeze(-2) * a + k.unsqueeze(-3) * a
    return scores.sum(-1) / q.shape[-1] ** 0.5


def test_a_table_is_the_formula(agrees):
    for case in sweep(product(["reference", "auto"], [0, 1, 20])):
        with case as (backend, clip):
            agrees(
                lambda table: RelativeKeyQuery(table),
                formula,
                lambda h, d, dk, dv: {"table": (2 * clip + 1, d)},
                backend,
            )


def test_a_table_for_each_head_with_unlike_sides_is_the_formula(agrees):
    agrees(
        lambda table: RelativeKeyQuery(table, left=1, right=2),
        lambda *given, table: formula(*given, table, left=1),
        lambda h, d, dk, dv: {"table": (h, 4, d)},
        "reference",
    )


@pytest.mark.parametrize("backend", ["reference", "strips"])
def test_it_is_that_of_bert_at_any_length(backend):
    # BertSelfAttention of transformers 4, position_embedding_type="relative_key_query"; transformers 5 has it no more.
    most, n, dim = 600, 520, 4
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, n, dim, dtype=torch.float64, requires_grad=True) for _ in range(3))
    embedding = torch.nn.Embedding(2 * most - 1, dim).double()
    i, j = torch.arange(n)[:, None], torch.arange(n)
    positional = embedding(i - j + most - 1)
    scores = q @ k.transpose(-1, -2)
    scores = scores + torch.einsum("bhld,lrd->bhlr", q, positional) + torch.einsum("bhrd,lrd->bhlr", k, positional)
    expected = (scores / dim**0.5).softmax(-1) @ v
    ours = regard.attention(q, k, v, score=RelativeKeyQuery(embedding.weight.flip(0)), backend=backend)
    torch.testing.assert_close(ours, expected, atol=1e-11, rtol=0)
    leaves = [q, k, v, embedding.weight]
    wanted = torch.autograd.grad(expected.square().sum(), leaves)
    for mine, theirs in zip(torch.autograd.grad(ours.square().sum(), leaves), wanted, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-10, rtol=1e-9)


def test_keys_of_zero_leave_shaws_score():
    q, v = torch.randn(2, 2, 7, 4, generator=torch.Generator().manual_seed(0)).unbind()
    table = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    ours = regard.attention(q, torch.zeros_like(q), v, score=RelativeKeyQuery(table))
    torch.testing.assert_close(ours, regard.attention(q, torch.zeros_like(q), v, score=Shaw(table)))


X = torch.zeros(2, 4, 5, 8)
T = torch.zeros(3, 8)


def test_what_does_not_fit_is_refused():
    cases = [
        (lambda: RelativeKeyQuery(torch.zeros(4, 8)), "`table` must have an odd number of rows, .*give `left=`"),
        (lambda: RelativeKeyQuery(T, left=1), "`right` must be a number of distances, .* got None"),
        (lambda: RelativeKeyQuery(T[:, :7]), r"`table` must have the width of q \(8\) in dimension -1, got 7"),
        (lambda: RelativeKeyQuery(T.expand(2, 3, 8)), r"`table` must have one entry for each head of q \(4\), got 2"),
        (lambda: RelativeKeyQuery(T.to("meta")), r"`table` must be on the device of q \(cpu\), got meta"),
        (lambda: RelativeKeyQuery(T, softcap=0), "`softcap` must be a positive number or None, got 0"),
    ]
    for case in sweep(cases):
        with case as (score, words), pytest.raises(InputError, match=words):
            regard.attention(X, X, X, score=score())
