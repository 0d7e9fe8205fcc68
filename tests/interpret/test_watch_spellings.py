"""Products and softmaxes by all names that PyTorch has for them: seen, or listed as missing, never left out."""

import itertools
import math
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import regard
from regard.errors import ObservationError
from sweeps import sweep

B, N, M, D = 2, 5, 7, 4
aten = torch.ops.aten

Attend = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


class Hand(nn.Module):
    """A function of q, k and v that gives its output and its weights, as a module."""

    def __init__(self, attend: Attend) -> None:
        super().__init__()
        self.attend, self.w = attend, nn.Parameter(torch.eye(D) * 2)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.attend(q, k, v)[0]


def inputs(*, queries: int = N) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    return tuple(torch.randn(B, length, D, generator=draw) for length in (queries, M, M))


def each(attend: Attend) -> Attend:
    """The first sequence alone, for functions that know no batch."""

    def whole(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return attend(q[0], k[0], v[0])

    return whole


def scores_by(product: Callable[[Tensor, Tensor], Tensor]) -> Attend:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        weights = (product(q, k) / 2).softmax(-1)
        return weights @ v, weights

    return attend


def softmax_by(softmax: Callable[[Tensor], Tensor]) -> Attend:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        weights = softmax(q @ k.mT)
        return weights @ v, weights

    return attend


def values_by(product: Callable[[Tensor, Tensor], Tensor]) -> Attend:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        weights = (q @ k.mT).softmax(-1)
        return product(weights, v), weights

    return attend


def chain(*matrices: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated, and in many a model
        return torch.chain_matmul(*matrices)


def hidden(scores: Tensor) -> Tensor:
    mask = torch.arange(M).expand(N, M) > 3 + torch.arange(N)[:, None] % 2
    return torch._masked_softmax(scores, mask.expand_as(scores).contiguous(), -1)


SCORES = {
    "linalg.matmul": scores_by(lambda q, k: torch.linalg.matmul(q, k.mT)),
    "linear": each(scores_by(functional.linear)),
    "linear with a bias": each(scores_by(lambda q, k: functional.linear(q, k, torch.arange(M).float()))),
    "tensordot": each(scores_by(lambda q, k: torch.tensordot(q, k, dims=([1], [1])))),
    "tensordot by a number": each(scores_by(lambda q, k: torch.tensordot(q, k.T, dims=1))),
    "inner": each(scores_by(torch.inner)),
    "vecdot": scores_by(lambda q, k: torch.linalg.vecdot(q.unsqueeze(2), k.unsqueeze(1))),
    "vecdot of what is expanded": scores_by(
        lambda q, k: torch.linalg.vecdot(q[:, :, None].expand(B, N, M, D), k[:, None].expand(B, N, M, D))),
    "cosine_similarity": scores_by(lambda q, k: functional.cosine_similarity(q[:, :, None], k[:, None], dim=-1)),
    "multi_dot": each(scores_by(lambda q, k: torch.linalg.multi_dot([q, torch.eye(D), k.T]))),
    "chain_matmul": each(scores_by(lambda q, k: chain(q, k.T))),
    "a product and its sum": scores_by(lambda q, k: (q[:, :, None] * k[:, None]).sum(-1)),
    "a product of turned and its mean": scores_by(
        lambda q, k: (torch.tanh(q.unsqueeze(1) * k.unsqueeze(2)) * 3).mean(-1).transpose(1, 2)),
    "a distance": scores_by(lambda q, k: -(q[:, :, None] - k[:, None]).pow(2).sum(-1)),
    "aten.bmm": scores_by(lambda q, k: aten.bmm(q, k.mT)),
    "aten.matmul.default": scores_by(lambda q, k: aten.matmul.default(q, aten.transpose.int(k, 1, 2))),
    "aten.mm": each(scores_by(lambda q, k: aten.mm(q, aten.t(k)))),
    "addmm in place": each(scores_by(lambda q, k: torch.zeros(N, M).addmm_(q, k.T))),
    "einsum with its labels as lists": each(scores_by(lambda q, k: torch.einsum(q, [0, 1], k, [2, 1], [0, 2]))),
}  # fmt: skip
SOFTMAXES = {
    "aten.softmax": softmax_by(lambda scores: aten.softmax.int(scores, -1)),
    "aten._softmax": softmax_by(lambda scores: aten._softmax.default(scores, -1, False)),
    "torch._softmax": softmax_by(lambda scores: torch._softmax(scores, -1, False)),
    "torch.special.log_softmax": softmax_by(lambda scores: torch.special.log_softmax(scores, -1).exp()),
    "torch._masked_softmax": softmax_by(hidden),
    "aten.native_dropout": softmax_by(lambda scores: aten.native_dropout(scores.softmax(-1), 0.0, False)[0]),
}
VALUES = {
    "linalg.matmul": values_by(torch.linalg.matmul),
    "linear": each(values_by(lambda w, v: functional.linear(w, v.T))),
    "linear of values": each(values_by(lambda w, v: functional.linear(v.T, w).T)),
    "tensordot": each(values_by(lambda w, v: torch.tensordot(w, v, dims=1))),
    "inner": each(values_by(lambda w, v: torch.inner(w, v.T))),
    "multi_dot": each(values_by(lambda w, v: torch.linalg.multi_dot([w, v, torch.eye(D)]))),
    "chain_matmul": each(values_by(chain)),
    "sparse.mm": each(values_by(lambda w, v: torch.sparse.mm(w.to_sparse(), v))),
    "a sparse matmul": each(values_by(lambda w, v: w.to_sparse() @ v)),
    "aten.bmm": values_by(lambda w, v: aten.bmm.default(w, v)),
    "einsum of three": values_by(lambda w, v: torch.einsum("bij,bjd,de->bie", w, v, torch.eye(D))),
    "values of one number": values_by(lambda w, v: torch.einsum("bij,bj->bi", w, v[..., 0])),
}
FORMS = {
    **{f"scores: {name}": form for name, form in SCORES.items()},
    **{f"softmax: {name}": form for name, form in SOFTMAXES.items()},
    **{f"values: {name}": form for name, form in VALUES.items()},
}


def test_each_spelling_is_seen(watched, far) -> None:
    def check(form: str) -> None:
        model, given = Hand(FORMS[form]), inputs()
        seen = watched(model, lambda: model(*given))
        (layer,) = seen.record.layers
        weights = FORMS[form](*given)[1]
        assert far(layer.weights, weights.reshape(-1, 1, N, M)) == 0
        assert seen.missing == ()

    for case in sweep(FORMS):
        with case as form:
            check(form)


def bilinear(model: Hand) -> Attend:
    return scores_by(lambda q, k: torch.einsum("bid,de,bje->bij", q, model.w, k))


def additive(model: Hand) -> Attend:
    return scores_by(lambda q, k: torch.tanh(q[:, :, None] + k[:, None]) @ model.w[0])


def general(model: Hand) -> Attend:
    return each(scores_by(lambda q, k: torch.linalg.multi_dot([q, model.w, k.T])))


def made(_: Hand) -> Attend:
    return scores_by(lambda q, k: torch.tanh(q[:, :, None] + k[:, None]) @ torch.linspace(-1, 1, D))


def made_column(_: Hand) -> Attend:
    return scores_by(lambda q, k: (torch.tanh(q[:, :, None] + k[:, None]) @ torch.ones(D, 1)).squeeze(-1))


def computed(_: Hand) -> Attend:
    return scores_by(lambda q, k: torch.tanh(q[:, :, None] + k[:, None]) @ k.mean((0, 1)))


def test_additive_scores_by_a_vector_that_no_module_holds(watched, far) -> None:
    def check(form: Callable[[Hand], Attend], n) -> None:
        model = Hand(lambda q, k, v: form(model)(q, k, v))
        q, k, v = inputs(queries=n)
        seen = watched(model, lambda: model(q, k[:, :n], v[:, :n]))
        weights = form(model)(q, k[:, :n], v[:, :n])[1].detach()
        assert far(seen.layer(0).weights, weights.reshape(-1, 1, n, n)) == 0

    for case in sweep(itertools.product([made, made_column, computed], [1, 2, 3])):
        with case as values:
            check(*values)


def test_learned_factors_among_queries_and_keys(watched, far) -> None:
    def check(form: Callable[[Hand], Attend]) -> None:
        model, given = Hand(lambda q, k, v: form(model)(q, k, v)), inputs()
        seen = watched(model, lambda: model(*given))
        assert far(seen.layer(0).weights, form(model)(*given)[1].detach().reshape(-1, 1, N, M)) == 0

    for case in sweep([bilinear, additive, general]):
        with case as form:
            check(form)


# --- one query, as in the decoders of the tutorials


def mv(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = torch.mv(k[0], q[0, 0]).softmax(-1)
    return torch.mv(v[0].T, weights), weights


def at(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = (k[0] @ q[0, 0]).softmax(0)
    return (weights @ v[0])[None], weights


def vector_at(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = torch.matmul(q[0, 0], k[0].T).softmax(0)
    return torch.matmul(weights, v[0])[None], weights


def added_mv(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = torch.addmv(torch.arange(M).float(), k[0], q[0, 0]).softmax(-1)
    return torch.addmv(torch.zeros(D), v[0].T, weights), weights


def column(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = torch.bmm(k, q.mT).squeeze(-1).softmax(1)
    return torch.bmm(weights.unsqueeze(1), v), weights


def labelled(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = torch.einsum("bd,bnd->bn", q[:, 0], k).softmax(-1)
    return torch.einsum("bn,bnd->bd", weights, v), weights


def luong(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Positions first, as recurrent networks have them."""
    hidden, outputs = q.transpose(0, 1), k.transpose(0, 1)
    weights = torch.sum(hidden * outputs, dim=2).t().softmax(1)
    return weights.unsqueeze(1).bmm(v), weights


def indexed(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = (q @ k.mT)[:, 0].softmax(-1)
    return torch.einsum("bn,bnd->bd", weights, v), weights


def test_one_query_is_seen_as_a_row(watched, far) -> None:
    def check(form: Attend) -> None:
        model, given = Hand(form), inputs(queries=1)
        seen = watched(model, lambda: model(*given))
        assert far(seen.layer(0).weights, form(*given)[1].reshape(-1, 1, 1, M)) == 0

    for case in sweep([mv, at, vector_at, added_mv, column, labelled, luong, indexed]):
        with case as form:
            check(form)


# --- one query and one key, where sizes do not show which dimension is which; and pairs that are copied


SPREAD = {
    "a product and its sum": scores_by(lambda q, k: (q[:, :, None] * k[:, None]).sum(-1)),
    "unsqueezed": scores_by(lambda q, k: (q.unsqueeze(-2) * 2 * k.unsqueeze(1)).sum(-1)),
    "a distance": scores_by(lambda q, k: -(q[..., None, :] - k[:, None]).pow(2).sum(-1)),
    "a distance by norm": scores_by(lambda q, k: -(q[:, :, None] - k[:, None]).norm(dim=-1)),
    "additive": scores_by(lambda q, k: torch.tanh(q[:, :, None] + k[:, None]).sum(-1)),
    "without a batch": each(scores_by(lambda q, k: (q[:, None] * k).sum(-1))),
    "repeated": scores_by(
        lambda q, k: (q[:, :, None].repeat(1, 1, k.shape[1], 1) * k[:, None].repeat(1, q.shape[1], 1, 1)).sum(-1)),
}  # fmt: skip
ONE_BY_ONE = {
    "of weights": values_by(lambda w, v: (w[..., None] * v[:, None]).sum(-2)),
    "of values": values_by(lambda w, v: (v.unsqueeze(1) * w.unsqueeze(-1)).sum(-2)),
    "of a view": values_by(lambda w, v: (w.view(*w.shape, 1) * v[:, None]).sum(-2)),
    "without a batch": each(values_by(lambda w, v: (w[..., None] * v).sum(-2))),
}


def few(batch: int, size: int) -> tuple[Tensor, ...]:
    return tuple(one[:batch, :size] for one in inputs())


def test_products_that_are_spread_are_seen_at_each_size(watched, far) -> None:
    def check(form: str, size: int, batch: int) -> None:
        model, given = Hand(SPREAD[form]), few(batch, size)
        seen = watched(model, lambda: model(*given))
        assert far(seen.layer(0).weights, SPREAD[form](*given)[1].reshape(-1, 1, size, size)) == 0

    for case in sweep(itertools.product(SPREAD, [1, 2], [1, B])):
        with case as values:
            check(*values)


def test_values_one_by_one_are_missing_at_each_size() -> None:
    for case in sweep(itertools.product(ONE_BY_ONE, [1, 2])):
        with case as (form, size):
            model = Beside(Hand(ONE_BY_ONE[form]))
            with regard.watch(model, strict=False) as seen:
                model(*few(B, size))
            assert [(one.module, "one by one" in one.reason) for one in seen.missing] == [("other", True)]


def pooled_by_rows(x: Tensor) -> Tensor:
    shares = (x * torch.tanh(x)).sum(-1).softmax(-1)
    return torch.einsum("bn,bnd->bd", shares, x)


def test_a_pooling_of_rows_is_none_at_each_size() -> None:
    def check(size: int, batch: int) -> None:
        model = Beside(Hand(lambda q, k, v: (pooled_by_rows(q), q)))
        with regard.watch(model) as seen:
            model(*few(batch, size))
        assert [layer.name for layer in seen.layers] == ["one"]

    for case in sweep(itertools.product([1, 2], [1, B])):
        with case as values:
            check(*values)


def test_values_of_one_number_have_a_width_of_one() -> None:
    model = Hand(VALUES["values of one number"])
    unknown = pytest.raises(ObservationError, match=r"the 1 numbers of all its heads: name it with .*ValueNorm")
    with unknown, regard.watch(model, statistics=["value_norm"]):
        model(*inputs())


# --- what is not looked into


@torch.library.custom_op("regard_test::product", mutates_args=())
def product(left: Tensor, right: Tensor) -> Tensor:
    return left @ right


def two(left: Tensor, right: Tensor) -> Tensor:
    return torch.matmul(left, right)


with warnings.catch_warnings():  # TorchScript is deprecated, and in many a model
    warnings.simplefilter("ignore", DeprecationWarning)
    scripted = torch.jit.script(two)


def kernel(weights: Tensor, values: Tensor) -> Tensor:
    """A convolution of which the activations are the kernel."""
    return functional.conv1d(values, weights[0, :, :, None]).mT.expand(B, D, N).mT


UNKNOWN = {
    "scores by an operator": scores_by(lambda q, k: product(q, k.mT)),
    "scores by a convolution": each(scores_by(lambda q, k: functional.conv1d(q.T, k[:, :, None]).T)),
    "scores by single products": each(
        scores_by(lambda q, k: torch.stack([torch.stack([torch.dot(a, b) for b in k]) for a in q]))),
    "values by an operator": values_by(product),
    "values by a convolution": values_by(kernel),
    "values by vecdot": values_by(lambda w, v: torch.linalg.vecdot(w.unsqueeze(2), v.mT.unsqueeze(1))),
    "values one by one, of one query": lambda q, k, v: (((k @ q[:, :1].mT).softmax(1) * v).sum(1), q),
    "a power of 2": softmax_by(lambda scores: torch.special.exp2(scores.log_softmax(-1) / math.log(2))),
    "a power of e": softmax_by(lambda scores: math.e ** scores.log_softmax(-1)),
    "torch.pow": softmax_by(lambda scores: torch.pow(2, scores) / torch.pow(2, scores).sum(-1, keepdim=True)),
    "expm1": softmax_by(lambda scores: torch.expm1(scores.log_softmax(-1)) + 1),
    "a sparse softmax": each(softmax_by(lambda scores: torch.sparse.softmax(scores.to_sparse(), -1).to_dense())),
}  # fmt: skip


@pytest.mark.parametrize("form", ["scores", "values"])
def test_products_in_a_script_are_seen(watched, far, form: str) -> None:
    attend = values_by(scripted) if form == "values" else scores_by(lambda q, k: scripted(q, k.mT))
    model, given = Hand(attend), inputs()
    seen = watched(model, lambda: model(*given))
    assert far(seen.layer(0).weights, attend(*given)[1].reshape(-1, 1, N, M)) == 0


class Beside(nn.Module):
    """Attention that is seen, and then another one."""

    def __init__(self, other: Hand) -> None:
        super().__init__()
        self.one, self.other = Hand(softmax_by(lambda scores: scores.softmax(-1))), other

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.one(q, k, v)
        return self.other(q, k, v)


def test_what_is_not_looked_into_is_missing() -> None:
    for case in sweep(UNKNOWN):
        with case as what:
            model, given = Hand(UNKNOWN[what]), inputs()
            plain = model(*given)
            beside = Beside(model)
            with pytest.raises(ObservationError, match=r"other \(1 call\): Hand "), regard.watch(beside):
                beside(*given)
            with regard.watch(beside, strict=False) as seen:
                assert torch.equal(beside(*given), plain)
            assert [layer.name for layer in seen.layers] == ["one"]
            assert [(one.module, one.calls) for one in seen.missing] == [("other", 1)]


class Exported(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(q @ k.mT / math.sqrt(D), -1) @ v


def test_an_exported_program_is_seen(watched, far) -> None:
    given = inputs()
    model = torch.export.export(Exported(), given).module()
    seen = watched(model, lambda: model(*given))
    weights = torch.softmax(given[0] @ given[1].mT / math.sqrt(D), -1)
    assert far(seen.layer(0).weights, weights[:, None]) < 1e-6


# --- no false alarms


def gated(x: Tensor, w: Tensor) -> Tensor:
    """Squeeze and excitation, then a router of what it gave; its shares sum activations."""
    x = x * torch.sigmoid(x.mean(1, keepdim=True) @ w)
    shares = functional.linear(x, w).softmax(-1)
    return torch.einsum("bne,bed->bnd", shares, x[:, :D])


def pooled(x: Tensor, w: Tensor) -> Tensor:
    """A masked mean of positions, its features as shares."""
    mask = (torch.arange(N) < 3).float()[None, :, None]
    shares = ((x * mask).sum(1) / mask.sum(1)).softmax(-1)
    return torch.einsum("bd,bdn->bn", shares, x.mT)


def merged(x: Tensor, w: Tensor) -> Tensor:
    """A router whose weight is computed from parameters, as adapters of low rank have it."""
    shares = functional.linear(x, w + w[:, :2] @ w[:2]).softmax(-1)
    return torch.einsum("bne,bed->bnd", shares, x[:, :D])


def placed(x: Tensor, w: Tensor) -> Tensor:
    """Places of a plane, which are sums of rows' and columns', added to a picture; the softmax is of its features."""
    place = torch.linspace(0, 1, D)
    plane = torch.sin(torch.arange(N)[:, None, None] * place) + torch.cos(torch.arange(N)[None, :, None] * place)
    picture = x[:, None].expand(B, N, N, D) + plane
    shares = functional.linear(picture, w).flatten(1, 2).softmax(1)
    return torch.einsum("bpe,bpd->bed", shares, picture.flatten(1, 2))


def test_what_multiplies_activations_and_is_no_attention() -> None:
    def check(other: Callable[[Tensor, Tensor], Tensor]) -> None:
        model = Hand(lambda x, k, v: (other(x, model.w), x))
        with pytest.raises(ObservationError, match=r"no attention call .* was seen") as refused, regard.watch(model):
            model(*inputs())
        assert "(1 call)" not in str(refused.value)

    for case in sweep([gated, pooled, merged, placed]):
        with case as other:
            check(other)
