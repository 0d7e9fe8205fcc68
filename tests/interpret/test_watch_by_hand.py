"""Attention written out by hand, as tutorials do, against the weights that it computes itself."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import regard
from regard.errors import ObservationError
from sweeps import sweep

N, M, D = 5, 7, 4


class Hand(nn.Module):
    """A module around a function of q, k and v that gives its output and its weights."""

    def __init__(self, attend: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self.attend = attend

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.attend(q, k, v)[0]


def plain(q, k, v):
    weights = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), -1)
    return weights @ v, weights


def inputs(*leading: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(*leading, length, D, generator=draw) for length in (N, M, M))


def four(weights: Tensor) -> np.ndarray:
    """(batch, heads, queries, keys) as records have them."""
    shape = {2: (1, 1, N, M), 3: (-1, 1, N, M)}.get(weights.ndim, (-1, *weights.shape[-3:]))
    return weights.reshape(shape).numpy()


def test_the_formula_is_seen_in_any_number_of_dimensions(watched, far) -> None:
    def check(leading) -> None:
        q, k, v = inputs(*leading)
        model = Hand(plain)
        seen = watched(model, lambda: model(q, k, v))
        assert len(seen.records) == 1
        assert far(seen.layer(0).weights, four(plain(q, k, v)[1])) == 0

    for case in sweep([(), (2,), (2, 3), (2, 2, 3)]):
        with case as leading:
            check(leading)


def masked(value: float) -> Callable[..., tuple[Tensor, Tensor]]:
    """Mask 0 = hidden, as tutorials write it; the first query sees nothing at all."""
    mask = torch.ones(N, M)
    mask[0] = 0
    mask[1:, 4:] = 0

    def attend(q, k, v):
        scores = (q @ k.transpose(-2, -1) / math.sqrt(D)).masked_fill(mask == 0, value)
        weights = functional.softmax(scores, dim=-1)
        return weights.nan_to_num(0.0) @ v, weights

    return attend


def test_a_mask_hides_and_a_query_that_sees_nothing_has_weight_0(watched, far) -> None:
    def check(value: float) -> None:
        attend = masked(value)
        q, k, v = inputs(2, 3)
        model = Hand(attend)
        seen = watched(model, lambda: model(q, k, v))
        weights = seen.layer(0).weights
        assert (weights[:, :, 0] == 0).all()
        assert (weights[:, :, :, 4:] == 0).all()
        assert far(weights[:, :, 1:], attend(q, k, v)[1][:, :, 1:]) == 0

    for case in sweep([-1e9, float("-inf"), torch.finfo(torch.float32).min]):
        with case as value:
            check(value)


def test_a_query_that_sees_nothing_has_weight_0_after_its_maximum_was_subtracted(watched, far) -> None:
    """MiMo-V2 subtracts it before the softmax: rows of padding had uniform weights."""

    def check(value, shift) -> None:
        def attend(q, k, v):
            mask = torch.ones(N, M).index_fill(0, torch.tensor([0, 3]), 0)
            scores = (q @ k.transpose(-2, -1)).masked_fill(mask == 0, value)
            highest = scores.amax(-1, keepdim=True) if shift == "amax" else scores.max(dim=-1, keepdim=True).values
            scores = scores.sub_(highest) if shift == "in place" else scores - highest
            weights = functional.softmax(scores, dim=-1)
            return weights @ v, weights

        q, k, v = inputs(2, 3)
        model = Hand(attend)
        weights = watched(model, lambda: model(q, k, v)).layer(0).weights
        assert (weights[:, :, [0, 3]] == 0).all()
        seeing = [1, 2, 4]
        assert far(weights[:, :, seeing], attend(q, k, v)[1][:, :, seeing]) == 0

    for case in sweep(itertools.product([-1e9, torch.finfo(torch.float32).min], ["max", "amax", "in place"])):
        with case as values:
            check(*values)


DROPOUTS = {
    "module": lambda w: nn.Dropout(0.5)(w),
    "in place": lambda w: nn.Dropout(0.5, inplace=True)(w),
    "function": lambda w: functional.dropout(w, 0.5),
    "function in place": lambda w: functional.dropout(w, 0.5, True, True),
    "underscore": lambda w: torch.dropout_(w, 0.5, True),
    "torch": lambda w: torch.dropout(w, 0.5, True),
}


def test_weights_are_those_before_dropout(watched, far) -> None:
    def check(dropout: str) -> None:
        def attend(q, k, v):
            weights = torch.softmax(q @ k.transpose(-2, -1), -1)
            before = weights.clone()
            return DROPOUTS[dropout](weights) @ v, before

        q, k, v = inputs(2, 3)
        model = Hand(attend)
        seen = watched(model, lambda: model(q, k, v))
        assert far(seen.layer(0).weights, attend(q, k, v)[1]) == 0

    for case in sweep(DROPOUTS):
        with case as dropout:
            check(dropout)


def einsum(scores: str, out: str) -> Callable[..., tuple[Tensor, Tensor]]:
    def attend(q, k, v):
        weights = torch.einsum(scores, q, k).softmax(-1)
        return torch.einsum(out, weights, v), weights

    return attend


def batched(q, k, v):
    """Heads merged into the batch for bmm, as fairseq and BART had it."""
    whole = q.shape[:2]
    q, k, v = (x.reshape(-1, *x.shape[2:]) for x in (q, k, v))
    weights = torch.bmm(q * D**-0.5, k.transpose(1, 2)).softmax(-1)
    return torch.bmm(weights, v), weights.view(*whole, N, M)


def with_bias(q, k, v):
    """baddbmm with an additive bias, as Bloom has it."""
    bias = torch.linspace(-1, 1, M).expand(6, 1, M)
    flat = [x.flatten(0, 1) for x in (q, k, v)]
    scores = bias.baddbmm(batch1=flat[0], batch2=flat[1].mT, beta=1.0, alpha=0.5)
    weights = nn.Softmax(dim=-1)(scores.view(2, 3, N, M))
    return torch.bmm(weights.view(6, N, M), flat[2]), weights


def cast(q, k, v):
    weights = functional.softmax(q.half().float() @ k.half().float().mT, -1, dtype=torch.float64)
    return weights.to(torch.float32).type_as(v) @ v, weights.float()


def columns(q, k, v):
    """Vectors are columns: V softmax(KᵀQ), with the softmax down the columns."""
    q, k, v = q.mT, k.mT, v.mT
    weights = torch.softmax(k.mT @ q / math.sqrt(D), dim=-2)
    return v @ weights, weights.mT


def turned(q, k, v):
    """The softmax runs down the columns and the weights are turned before they meet the values."""
    weights = torch.softmax(k @ q.mT, dim=-2).transpose(-2, -1)
    return weights @ v, weights


def heads_last(q, k, v):
    """Positions before heads in q, k, v and scores."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    weights = torch.einsum("bihd,bjhd->bijh", q, k).softmax(2)
    return torch.einsum("bijh,bjhd->bihd", weights, v), weights.permute(0, 3, 1, 2)


def sink_column(q, k, v):
    scores = torch.cat([q @ k.mT, torch.ones(2, 3, N, 1)], -1)
    weights = scores.softmax(-1)[..., :-1]
    return weights @ v, weights


def sink_first(q, k, v):
    scores = torch.cat([torch.ones(2, 3, N, 1), q @ k.mT], -1)
    weights = scores.softmax(-1)[:, :, :, 1:]
    return weights @ v, weights


def renormalized(q, k, v):
    weights = (q @ k.mT).softmax(-1)
    weights = weights * (torch.arange(M) < 5)
    weights = weights / weights.sum(-1, keepdim=True)
    return weights @ v, weights


def softcapped(q, k, v):
    weights = (5 * torch.tanh(q @ k.mT / 5)).softmax(-1)
    return weights.matmul(v), weights


def in_place(q, k, v):
    scores = q @ k.mT
    scores /= 2
    scores += torch.arange(M)
    scores[..., 3] = -1e9
    weights = scores.softmax(-1)
    return weights @ v, weights


def flat_rows(q, k, v):
    """A softmax over rows laid out as a list."""
    weights = (q @ k.mT).reshape(-1, M).softmax(1).view(2, 3, N, M)
    return weights @ v, weights


FORMS = {
    "einsum": einsum("bhqd,bhkd->bhqk", "bhqk,bhkd->bhqd"),
    "einsum with dots": einsum("...id,...jd->...ij", "... i j, ... j d -> ... i d"),
    "einsum to positions first": einsum("bhqd,bhkd->bhqk", "bhqk,bhkd->bqhd"),
    **{f.__name__: f for f in (batched, with_bias, cast, columns, turned, heads_last, sink_column, sink_first)},
    **{f.__name__: f for f in (renormalized, softcapped, in_place, flat_rows)},
}


def test_each_way_of_writing_it_is_seen(watched, far) -> None:
    def check(form: str) -> None:
        attend = FORMS[form]
        q, k, v = inputs(2, 3)
        model = Hand(attend)
        seen = watched(model, lambda: model(q, k, v))
        assert far(seen.layer(0).weights, attend(q, k, v)[1].contiguous()) == 0
        assert len(seen.record) == 1

    for case in sweep(FORMS):
        with case as form:
            check(form)


def test_grouped_queries_of_five_dimensions_are_heads(watched, far) -> None:
    q, k, v = inputs(2, 3)
    q = torch.stack([q, -q], 2)  # (batch, kv heads, group, queries, dim)

    def broadcast():
        weights = (q @ k[:, :, None].mT).softmax(-1)
        return weights @ v[:, :, None], weights

    def labelled():
        weights = torch.einsum("bkgqd,bksd->bkgqs", q, k).softmax(-1)
        return torch.einsum("bkgqs,bksd->bqkgd", weights, v), weights

    for attend in (broadcast, labelled):
        seen = watched(Hand(plain), attend)
        assert far(seen.layer(0).weights, attend()[1].reshape(2, 6, N, M)) == 0


def test_gradients_are_the_same_with_dropout(far) -> None:
    def attend(q, k, v):
        weights = torch.softmax(q @ k.transpose(-2, -1), -1)
        return functional.dropout(weights, 0.5, inplace=False) @ v, weights

    model = Hand(attend)
    grads = []
    for watching in (False, True):
        q, k, v = (x.requires_grad_() for x in inputs(2, 3))
        torch.manual_seed(1)
        if watching:
            with regard.watch(model):
                model(q, k, v).square().sum().backward()
        else:
            model(q, k, v).square().sum().backward()
        grads.append((q.grad, k.grad, v.grad))
    assert all(torch.equal(one, other) for one, other in zip(*grads, strict=True))


def test_a_softmax_written_with_exp_is_not_seen_and_the_error_says_what_to_do() -> None:
    def attend(q, k, v):
        weights = (q @ k.mT).exp()
        return (weights / weights.sum(-1, keepdim=True)) @ v, weights

    model = Hand(attend)
    message = r"no attention call of this Hand was seen .* let it call F.scaled_dot_product_attention"
    with pytest.raises(ObservationError, match=message), regard.watch(model):
        model(*inputs(2, 3))


def complex_pairs(q, k):
    return (torch.view_as_complex(one.unflatten(-1, (D // 2, 2))) for one in (q, k))


COMPLEX: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "the real part of a product": lambda q, k: (q @ k.conj().mT).real,
    "its absolute value": lambda q, k: (q @ k.conj().transpose(-2, -1)).abs(),
    "einsum": lambda q, k: torch.einsum("...qd,...kd->...qk", q, k.conj()).real,
    "both parts": lambda q, k: (q @ k.mH).real + (q @ k.mH).imag,
    "four products": lambda q, k: q.real @ k.real.mT + torch.imag(q) @ torch.imag(k).mT,
    "products one by one": lambda q, k: (q[..., :, None, :] * k[..., None, :, :].conj()).sum(-1).real,
    "the first of two numbers": lambda q, k: torch.view_as_real(q @ k.mH)[..., 0],
}


def test_scores_of_complex_queries_and_keys_are_seen(watched, far) -> None:
    def check(form: str, size: int) -> None:
        def attend(q, k, v):
            weights = torch.softmax(COMPLEX[form](*complex_pairs(q, k)), -1)
            return weights @ v, weights

        q, k, v = (one[..., :size, :] for one in inputs(2, 3))
        model = Hand(attend)
        assert far(watched(model, lambda: model(q, k, v)).layer(0).weights, attend(q, k, v)[1]) == 0

    for case in sweep(itertools.product(COMPLEX, [N, 2])):
        with case as values:
            check(*values)


def test_complex_numbers_that_are_no_scores_are_neither_recorded_nor_in_the_way(watched) -> None:
    def attend(q, k, v):
        pairs = torch.complex(q, q)[..., :, None, :] * torch.complex(k, k)[..., None, :, :].conj()
        spectrum = torch.fft.rfft(q, dim=-1)
        return plain(q, k, v)[0] + pairs.imag.sum() + torch.atan2(spectrum.imag, spectrum.real).sum(), q

    model = Hand(attend)
    assert len(watched(model, lambda: model(*inputs(2, 3))).record) == 1


def turned(x: Tensor) -> Tensor:
    """Rotary embedding by complex numbers, as Llama's first code has it."""
    angles = torch.outer(torch.arange(x.shape[-2]).float(), torch.ones(D // 2))
    pairs = torch.view_as_complex(x.unflatten(-1, (D // 2, 2)))
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)


def test_queries_and_keys_turned_as_complex_numbers_keep_their_origin(watched) -> None:
    model = Projected(lambda q, k, v: plain(turned(q), turned(k), v))
    x, y = torch.randn(2, 1, 5, D), torch.randn(2, 1, 7, D)
    assert watched(model, lambda: model(x, x)).layer(0).kind == "self"
    assert watched(model, lambda: model(x, y)).layer(0).kind == "cross"


class Projected(Hand):
    """Queries and keys are projected first, from two inputs."""

    def __init__(self, attend: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]) -> None:
        super().__init__(attend)
        self.query, self.key = nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        return self.attend(self.query(x), self.key(memory), memory)[0]


def test_weights_on_complex_values_are_seen_as_they_are(watched, far) -> None:
    def attend(q, k, v):
        weights = torch.softmax(q @ k.mT, -1)
        return (weights.to(torch.complex64) @ v.to(torch.complex64)).abs(), weights

    q, k, v = inputs(2, 3)
    model = Hand(attend)
    assert far(watched(model, lambda: model(q, k, v)).layer(0).weights, four(attend(q, k, v)[1])) == 0


def test_weights_with_a_complex_factor_are_missing() -> None:
    def attend(q, k, v):
        weights = torch.softmax(q @ k.mT, -1)
        return (weights * torch.ones((), dtype=torch.complex64) @ v.to(torch.complex64)).real, weights

    model = Hand(attend)
    with pytest.raises(ObservationError, match=r"hands its weights, .* to mul,"), regard.watch(model):
        model(*inputs(2, 3))


def test_a_function_below_pytorchs_attention_is_missing_by_its_name() -> None:
    def attend(q, k, v):
        return torch._scaled_dot_product_attention_math(q, k, v)

    model = Hand(attend)
    with (
        pytest.raises(ObservationError, match=r"kernel torch\._scaled_dot_product_attention_math directly"),
        regard.watch(model),
    ):
        model(*inputs(2, 3))


BROADCAST = [
    ((2, 1), (2, 3), (2, 3)),  # one head of queries for three of keys
    ((2, 3), (2, 1), (2, 1)),
    ((1, 3), (2, 3), (2, 3)),
    ((2, 1), (1, 3), (1, 3)),
    ((1, 3), (1, 3), (2, 3)),  # values of a larger batch
    ((1,), (1,), (2,)),
    ((2, 1, 1), (1, 2, 3), (2, 2, 3)),
    ((2, 3), (), ()),  # one memory without a batch
    ((2,), (), ()),
    ((1,), (), (1,)),
    ((), (2,), (2,)),
    ((3,), (2, 3), (2, 3)),
    ((2, 3), (3,), (3,)),
]


def test_sdpa_broadcasts_every_leading_dimension(watched, far) -> None:
    def check(queries, keys, values, keep: str) -> None:
        draw = torch.Generator().manual_seed(0)
        q, k, v = (torch.randn(*one, size, D, generator=draw) for one, size in ((queries, N), (keys, M), (values, M)))
        model = Hand(lambda q, k, v: (nn.functional.scaled_dot_product_attention(q, k, v), torch.empty(0)))
        seen = watched(model, lambda: model(q, k, v), keep=keep)
        weights = plain(q, k, k)[1].expand(*torch.broadcast_shapes(queries, keys, values), N, M)
        assert far(seen.weights(layer=0), four(weights)) < 1e-6

    for case in sweep([(*shapes, keep) for shapes in BROADCAST for keep in ["weights", "qk"]]):
        with case as values:
            check(*values)


def test_heads_without_a_batch_may_share_keys(watched, far) -> None:
    q, k = torch.randn(4, N, D), torch.randn(2, M, D)
    model = Hand(lambda q, k, v: (nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True), q))
    seen = watched(model, lambda: model(q, k, k))
    assert far(seen.layer(0).weights, plain(q, *[k.repeat_interleave(2, 0)] * 2)[1][None]) < 1e-6


def test_a_mask_of_windows_is_broadcast_from_its_last_dimension(watched, far) -> None:
    def check(shape, boolean: bool) -> None:
        draw = torch.Generator().manual_seed(0)
        q, k = torch.randn(2, 3, 4, N, D, generator=draw), torch.randn(2, 3, 4, M, D, generator=draw)
        mask = torch.randn(shape, generator=draw)
        mask = mask > -1 if boolean else mask
        model = Hand(lambda q, k, v: (nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask), q))
        seen = watched(model, lambda: model(q, k, k))
        scores = q @ k.mT / math.sqrt(D)
        weights = torch.softmax(scores.masked_fill(~mask, -math.inf) if boolean else scores + mask, -1)
        assert far(seen.layer(0).weights, weights.flatten(0, 1)) < 1e-6

    shapes = [(N, M), (3, 1, N, M), (3, 4, N, M), (1, 4, N, M), (2, 1, 1, N, M)]
    for case in sweep(itertools.product(shapes, [True, False])):
        with case as values:
            check(*values)
