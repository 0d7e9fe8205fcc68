"""Additive scores from concatenated queries and keys: v · tanh(W [q; k]), as Luong's "concat", BiDAF and graph
attention have them, against the weights that the code computes itself.
"""

import itertools
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

import regard
from sweeps import sweep

D = 4


def expanded(q: Tensor, k: Tensor) -> Tensor:
    n, m = q.shape[1], k.shape[1]
    return torch.cat([q.unsqueeze(2).expand(-1, -1, m, -1), k.unsqueeze(1).expand(-1, n, -1, -1)], -1)


def repeated(q: Tensor, k: Tensor) -> Tensor:
    n, m = q.shape[1], k.shape[1]
    return torch.concatenate([q[:, :, None].repeat(1, 1, m, 1), k[:, None].repeat(1, n, 1, 1)], dim=3)


def keys_first(q: Tensor, k: Tensor) -> Tensor:
    n, m = q.shape[1], k.shape[1]
    return torch.cat((k[:, None].expand(-1, n, -1, -1), q[:, :, None].expand(-1, -1, m, -1)), dim=-1)


def interleaved(q: Tensor, k: Tensor) -> Tensor:
    n, m = q.shape[1], k.shape[1]
    return torch.cat([q.repeat_interleave(m, 1), k.repeat(1, n, 1)], -1).view(len(q), n, m, 2 * D)


def views_first(q: Tensor, k: Tensor) -> Tensor:
    n, m = q.shape[1], k.shape[1]
    left = q.repeat_interleave(m, dim=1).view(-1, n, m, D)
    return torch.cat([left, k.repeat(1, n, 1).unflatten(1, (n, m))], -1)


def three(q: Tensor, k: Tensor) -> Tensor:
    n, m = q.shape[1], k.shape[1]
    left, right = q.unsqueeze(2).expand(-1, -1, m, -1), k.unsqueeze(1).expand(-1, n, -1, -1)
    return torch.cat([left, right, left * right], -1)


def compared(q: Tensor, k: Tensor) -> Tensor:
    left, right = q[:, :, None], k[:, None]
    return torch.cat([left * right, (left - right).abs()], -1)


def rows(q: Tensor, k: Tensor) -> Tensor:
    """As the first code of graph attention networks for PyTorch has it."""
    b, n, m = len(q), q.shape[1], k.shape[1]
    return torch.cat([q.repeat(1, 1, m).view(b, n * m, -1), k.repeat(1, n, 1)], dim=2).view(b, n, -1, 2 * D)


def stacked(q: Tensor, k: Tensor) -> Tensor:
    n, m = q.shape[1], k.shape[1]
    return torch.cat([torch.stack([q] * m, 2), torch.cat([k[:, None]] * n, 1)], -1)


def broadcast(q: Tensor, k: Tensor) -> Tensor:
    return torch.cat(torch.broadcast_tensors(q[:, :, None], k[:, None]), -1)


def expanded_as(q: Tensor, k: Tensor) -> Tensor:
    left = q[:, :, None].expand(-1, -1, k.shape[1], -1)
    return torch.cat([left, k[:, None].expand_as(left)], -1)


def merged(q: Tensor, k: Tensor) -> Tensor:
    """Copies whose dimensions are merged before they are joined."""
    b, n, m = len(q), q.shape[1], k.shape[1]
    left = q[:, :, None].expand(-1, -1, m, -1).reshape(b, n * m, D)
    right = k[:, None].repeat(1, n, 1, 1).view(b, n * m, D)
    return torch.cat([left, right], -1).view(b, n, m, 2 * D)


def contiguous(q: Tensor, k: Tensor) -> Tensor:
    return torch.cat([one.contiguous() for one in torch.broadcast_tensors(q[:, :, None], k[:, None])], -1)


def viewed(q: Tensor, k: Tensor) -> Tensor:
    b, n, m = len(q), q.shape[1], k.shape[1]
    left = q.view(b, n, 1, D).expand(b, n, m, D).contiguous()
    return torch.cat([left, k.view(b, 1, m, D).expand(b, n, m, D).clone()], -1)


PAIRS: list[Callable[[Tensor, Tensor], Tensor]] = [
    expanded,
    repeated,
    keys_first,
    interleaved,
    views_first,
    three,
    compared,
    rows,
    stacked,
    broadcast,
    expanded_as,
    merged,
    contiguous,
    viewed,
]


class Concatenated(nn.Module):
    def __init__(self, pairs: Callable[[Tensor, Tensor], Tensor], keys_before: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.pairs, self.keys_before = pairs, keys_before
        self.query, self.key = nn.Linear(D, D), nn.Linear(D, D)
        self.energy, self.v = nn.LazyLinear(6), nn.Linear(6, 1, bias=False)
        self.weights = torch.empty(0)

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return self.v(torch.tanh(self.energy(self.pairs(self.query(q), self.key(k))))).squeeze(-1)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        self.weights = torch.softmax(self.scores(q, k), -1)
        return self.weights @ k


class Flat(Concatenated):
    """The scores of all pairs in one dimension, which becomes two after the layers."""

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        n, m = q.shape[1], k.shape[1]
        if self.keys_before:
            q, k = self.query(q), self.key(k)
            both = torch.cat([k.repeat_interleave(n, 1), q.repeat(1, m, 1)], -1)
            return self.v(torch.tanh(self.energy(both))).squeeze(-1).view(len(q), m, n).mT
        both = torch.cat([self.query(q).repeat_interleave(m, 1), self.key(k).repeat(1, n, 1)], -1)
        return self.v(torch.tanh(self.energy(both))).squeeze(-1).view(len(q), n, m)


SIZES = [(3, 5), (5, 3), (4, 4), (1, 4), (4, 1), (1, 1)]
inputs = torch.Generator().manual_seed(1)


def checked(model: Concatenated, sizes: tuple[int, int], watched, far) -> None:
    q, k = (torch.randn(2, size, D, generator=inputs) for size in sizes)
    model(q, k)  # the width of the lazy layer
    seen = watched(model, lambda: model(q, k))
    layer = seen.layer(0)
    assert (layer.kind, len(seen.record)) == ("cross", 1)
    assert far(layer.weights, model.weights[:, None]) == 0


# With one query or one key nothing but a pooling's layers is left of them, or the place of the other is not known.
FOLDED = (interleaved, views_first, rows, merged, viewed)


def test_scores_of_concatenated_pairs_are_seen(watched, far) -> None:
    for case in sweep([(pairs, sizes) for pairs in PAIRS for sizes in SIZES if pairs not in FOLDED or min(sizes) > 1]):
        with case as (pairs, sizes):
            checked(Concatenated(pairs), sizes, watched, far)


def test_scores_of_pairs_in_one_dimension_are_seen_where_it_becomes_two(watched, far) -> None:
    for case in sweep(itertools.product([False, True], [(3, 5), (5, 3), (4, 4)])):
        with case as (keys_before, sizes):
            checked(Flat(expanded, keys_before), sizes, watched, far)


LAST: dict[str, Callable[[Concatenated, Tensor, tuple[int, ...]], Tensor]] = {
    "view": lambda model, pairs, size: model.v(torch.tanh(model.energy(pairs))).view(size),
    "flatten": lambda model, pairs, _: model.v(torch.tanh(model.energy(pairs))).flatten(2),
    "pairs in one dimension": lambda model, pairs, size: model.v(
        torch.tanh(model.energy(pairs.view(size[0], -1, pairs.shape[-1])))
    ).view(size),
    "pairs of all texts": lambda model, pairs, size: model.v(
        torch.tanh(model.energy(pairs.reshape(-1, pairs.shape[-1])))
    ).view(size),
    "convolution": lambda model, pairs, _: functional.conv2d(
        torch.tanh(functional.conv2d(pairs.permute(0, 3, 1, 2), model.energy.weight[..., None, None])),
        model.v.weight[..., None, None],
    ).squeeze(1),
    "sum": lambda model, pairs, _: torch.tanh(model.energy(pairs)).sum(-1),
}


class Ending(Concatenated):
    def __init__(self, last: str, pairs: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__(pairs)
        self.last = LAST[last]

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        pairs = self.pairs(self.query(q), self.key(k))
        if isinstance(self.energy, nn.LazyLinear):
            self.energy(pairs)
        return self.last(self, pairs, (len(q), q.shape[1], k.shape[1]))


def test_whatever_makes_a_score_of_each_pair(watched, far) -> None:
    for case in sweep(itertools.product(LAST, [expanded, repeated], [(3, 5), (5, 3), (4, 4), (1, 4)])):
        with case as (last, pairs, sizes):
            checked(Ending(last, pairs), sizes, watched, far)


def test_a_tensor_that_gives_a_shape_gives_no_origin() -> None:
    def check(how: str, product: str) -> None:
        class Model(Concatenated):
            def scores(self, q: Tensor, k: Tensor) -> Tensor:
                left, right = self.query(q)[:, :, None], self.key(k)[:, None]
                if how == "expand_as":
                    left = left.expand(-1, -1, k.shape[1], -1)
                    right = right.expand_as(left)
                else:
                    left, right = torch.broadcast_tensors(left, right)
                if product == "dot":
                    return (left * right).sum(-1)
                return self.v(torch.tanh(self.energy(left + right))).squeeze(-1)

        model, x, y = Model(expanded), torch.randn(2, 5, D), torch.randn(2, 4, D)
        model(x, y)
        for memory, kind in ((y, "cross"), (x, "self")):
            with regard.watch(model) as seen:
                model(x, memory)
            assert seen.layer(0).kind == kind

    for case in sweep(itertools.product(["broadcast_tensors", "expand_as"], ["dot", "additive"])):
        with case as values:
            check(*values)


def test_queries_and_keys_of_one_input_are_self_attention() -> None:
    model, x = Concatenated(interleaved), torch.randn(2, 4, D)
    model(x, x)
    with regard.watch(model) as seen:
        model(x, x)
    assert seen.layer(0).kind == "self"


class Relations(nn.Module):
    """Pairs without attention between them: their sum, a vote on labels, a mixture of experts of each pair."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.pair, self.out = what, nn.Linear(2 * D, 3), nn.Linear(3, D)
        self.inner = nn.MultiheadAttention(D, 1, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x, x, x, need_weights=False)[0]
        scores = self.pair(expanded(x, x))
        if self.what == "sum":
            return self.out(scores.sum((1, 2)))
        if self.what == "labels":
            return torch.softmax(scores, -1)
        return self.out(torch.softmax(scores, -1))


def test_pairs_without_attention_between_them_are_neither_recorded_nor_missing(watched) -> None:
    def check(what: str) -> None:
        model, x = Relations(what), torch.randn(2, 4, D)
        assert len(watched(model, lambda: model(x)).record) == 1

    for case in sweep(["sum", "labels", "experts"]):
        with case as what:
            check(what)
