"""Whatever a model computes between product, softmax and values: seen and equal, or listed as missing."""

import itertools
import math
import warnings
from collections.abc import Callable
from functools import partial, reduce
from itertools import permutations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import regard
from regard.errors import ObservationError
from sweeps import sweep

B, H, N, D = 2, 3, 5, 4


def script(what):
    with warnings.catch_warnings():  # TorchScript is deprecated, and in many a model
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(what)


class Heads(nn.Module):
    """Attention of H heads by hand; what is done before and after the softmax is handed in."""

    def __init__(self, before: Callable[..., Tensor], after: Callable[..., Tensor] | None = None) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(H * D, 3 * H * D), nn.Linear(H * D, H * D)
        self.over_heads, self.over_heads2 = nn.Linear(H, H), nn.Linear(H, H)
        self.conv, self.conv2 = nn.Conv2d(H, H, 1), nn.Conv2d(H, H, 1)
        self.wide = nn.Conv2d(H, H, 3, padding=1)
        self.norm, self.norm2 = nn.LayerNorm(N), nn.BatchNorm2d(H).eval()
        self.before, self.after = before, after

    def weights(self, x: Tensor) -> Tensor:
        q, k, _ = self.parts(x)
        return self.before(self, q @ k.transpose(-2, -1) / math.sqrt(D)).softmax(-1)

    def parts(self, x: Tensor) -> Tensor:
        return self.qkv(x).view(B, N, 3, H, D).permute(2, 0, 3, 1, 4)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.weights(x)
        weights = weights if self.after is None else self.after(self, weights)
        return x + self.out((weights @ self.parts(x)[2]).transpose(1, 2).flatten(2))


def over_heads(layer: nn.Module, scores: Tensor) -> Tensor:
    return layer(scores.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def stacked(_: nn.Module, scores: Tensor) -> Tensor:
    one, other = scores.unbind(0)
    return torch.stack([torch.relu(one), other * 2], 0)


@script
def helper(scores: Tensor) -> Tensor:
    return torch.relu(scores) * 3 - 1


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores):
        return scores * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


class Inside(nn.Module):
    def forward(self, scores: Tensor) -> Tensor:
        return torch.nn.functional.gelu(scores)


INSIDE = script(Inside())

BEFORE = {
    "relu": lambda m, s: s.relu(),
    "log": lambda m, s: (s * s + 1).log(),
    "layer norm": lambda m, s: m.norm(s),
    "linear over heads": lambda m, s: over_heads(m.over_heads, s),
    "linear over heads by einsum": lambda m, s: torch.einsum("bhqk,hg->bgqk", s, m.over_heads.weight),
    "convolution over heads": lambda m, s: m.conv(s),
    "convolution over pairs": lambda m, s: m.wide(s),
    "stack": stacked,
    "chunks": lambda m, s: torch.cat([one.sigmoid() for one in s.chunk(H, 1)], 1),
    "scripted function": lambda m, s: helper(s),
    "scripted module": lambda m, s: INSIDE(s),
    "autograd function": lambda m, s: Doubled.apply(s),
    "power": lambda m, s: s.abs() ** 1.5,
    "unknown functions": lambda m, s: functional.softplus(functional.silu(torch.erf(s))).cumsum(-1),
    "mean of heads and back": lambda m, s: s - s.mean(1, keepdim=True),
    "log_softmax": lambda m, s: s.log_softmax(-1),
    "a view of batch and heads": lambda m, s: functional.elu(s.flatten(0, 1)).view(B, H, N, N),
}
BLENDED = {
    "linear over heads": lambda m, w: over_heads(m.over_heads, w),
    "convolution over heads": lambda m, w: m.conv(w),
    "convolution and norm": lambda m, w: m.norm2(m.conv(w)),
    "einsum": lambda m, w: torch.einsum("bhqk,hg->bgqk", w, m.over_heads.weight),
    "with dropout and a mask": lambda m, w: functional.dropout(m.conv(w), 0.5) * torch.ones(N).cumsum(0),
}


@pytest.fixture
def x() -> Tensor:
    return torch.randn(B, N, H * D, generator=torch.Generator().manual_seed(0))


def made(before: Callable[..., Tensor], after: Callable[..., Tensor] | None = None) -> Heads:
    torch.manual_seed(0)
    return Heads(before, after)


def test_whatever_is_between_product_and_softmax(watched, far, x) -> None:
    def check(before: str) -> None:
        model = made(BEFORE[before])
        seen = watched(model, lambda: model(x))
        assert len(seen.record) == 1
        assert far(seen.layer(0).weights, model.weights(x)) == 0
        assert seen.missing == ()

    for case in sweep(BEFORE):
        with case as before:
            check(before)


def test_heads_mixed_after_the_softmax_are_shown_as_the_softmax_gave_them(watched, far, x) -> None:
    def check(after: str) -> None:
        model = made(BEFORE["linear over heads"], BLENDED[after])
        seen = watched(model, lambda: model(x))
        assert far(seen.layer(0).weights, model.weights(x)) == 0
        assert (seen.layer(0).weights >= 0).all()

    for case in sweep(BLENDED):
        with case as after:
            check(after)


def test_weights_that_are_sharpened_are_seen_as_they_are_used(watched, far, x) -> None:
    model = made(lambda m, s: s, lambda m, w: functional.normalize(w.pow(2).clamp(min=0.01).relu(), p=1, dim=-1))
    seen = watched(model, lambda: model(x))
    assert far(seen.layer(0).weights, model.after(model, model.weights(x))) == 0


class Outlook(nn.Module):
    """Weights of a window around each position, made by a linear layer of that position alone."""

    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.v, self.attn, self.heads = nn.Linear(D, D), nn.Linear(D, heads * 81), heads

    def weights(self, x: Tensor) -> Tensor:
        each = self.attn(x).reshape(B, 16, self.heads, 9, 9).permute(0, 2, 1, 3, 4)
        return (each * 0.5).softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        v = functional.unfold(self.v(x).permute(0, 3, 1, 2), 3, padding=1)
        v = v.reshape(B, self.heads, D // self.heads, 9, 16).permute(0, 1, 4, 3, 2)
        out = (self.weights(x) @ v).permute(0, 1, 4, 3, 2).reshape(B, D * 9, 16)
        return functional.fold(out, (4, 4), 3, padding=1)


@pytest.mark.parametrize("heads", [1, 2])
def test_outlook_attention_is_a_window_for_each_position(watched, far, heads: int) -> None:
    torch.manual_seed(0)
    model, x = Outlook(heads), torch.randn(B, 4, 4, D)
    seen = watched(model, lambda: model(x))
    expected = model.weights(x).transpose(1, 2).flatten(0, 1)  # (batch · positions, heads, 9, 9)
    assert far(seen.layer(0).weights, expected) == 0
    assert seen.layer(0).kind == "self"


# --- what cannot be seen


def banded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = functional.pad(q @ k.mT, (1, 1)).unfold(-1, 3, 1).softmax(-1)  # (…, N, N, 3)
    return torch.einsum("bhijw,bhjd->bhid", weights, v)


def one_by_one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = (q @ k.mT).softmax(-1)
    return (weights.unsqueeze(-1) * v.unsqueeze(2)).sum(-2)


def slots(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-1).mT @ v


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = (q @ k.mT).exp()
    return (weights / weights.sum(-1, keepdim=True)) @ v


def agents(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    middle = q[:, :, ::2]
    return (q @ middle.mT).softmax(-1) @ ((middle @ k.mT).softmax(-1) @ v)


def landmarks(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    few, small = q[:, :, ::2], k[:, :, ::2]
    inner = torch.linalg.pinv((few @ small.mT).softmax(-1))
    return (q @ small.mT).softmax(-1) @ inner @ ((few @ k.mT).softmax(-1) @ v)


def differences(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    both = functional.scaled_dot_product_attention(q, k, v)
    one, other = both.chunk(2, -1)
    return torch.cat([one - 0.5 * other] * 2, -1)


def parts(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = (q @ k.mT).softmax(-1)
    return weights[..., :2] @ v[:, :, :2] + weights[..., 2:] @ v[:, :, 2:]


@script
def scripted_softmax(scores: Tensor) -> Tensor:
    return torch.softmax(scores * 0.5, -1)


@script
def scripted(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.matmul(torch.softmax(torch.matmul(q, k.transpose(-2, -1)), -1), v)


MISSING: dict[str, tuple[Callable[..., Tensor], int, str]] = {
    "bands": (banded, 1, "rearranges its weights"),
    "one by one": (one_by_one, 1, "one by one"),
    "over another dimension": (slots, 1, "another dimension"),
    "exp and sum": (by_hand, 1, "exp and a sum"),
    "parts": (parts, 1, "takes them apart"),
    "agents": (agents, 2, "landmarks"),
    "landmarks": (landmarks, 3, "landmarks"),
    "differences": (differences, 1, "differential attention"),
}


class Attend(nn.Module):
    def __init__(self, attend: Callable[..., Tensor]) -> None:
        super().__init__()
        self.q, self.k, self.v, self.attend = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, D), attend

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attend(self.q(x), self.k(x), self.v(x))


class Distances(nn.Module):
    """Scores are distances of what comes in, without a projection."""

    def forward(self, x: Tensor) -> Tensor:
        return (-(x[..., :, None, :] - x[..., None, :, :]).pow(2).sum(-1)).softmax(-1) @ x


def test_distances_of_what_attention_gave_are_no_difference_of_two_softmaxes(far) -> None:
    for case in sweep([1, 2, 6]):
        with case as size:
            model, x = nn.Sequential(Distances(), Distances()), torch.randn(B, size, D)
            with regard.watch(model, keep="weights") as seen:
                model(x)
            between = model[0](x)
            weights = (-(between[:, :, None] - between[:, None]).pow(2).sum(-1)).softmax(-1)
            assert far(seen.layer(1).weights, weights[:, None]) == 0


def test_what_cannot_be_seen_is_an_error_or_listed_and_the_rest_is_kept(tmp_path) -> None:
    for case in sweep(MISSING):
        with case as what:
            torch.manual_seed(0)
            attend, calls, reason = MISSING[what]
            model = nn.Sequential(Attend(functional.scaled_dot_product_attention), Attend(attend))
            x = torch.randn(B, H, 6, D)
            plain = model(x)
            with (
                pytest.raises(ObservationError, match=rf"1 \({calls} calls?\): Attend .*{reason}.*strict=False"),
                regard.watch(model),
            ):
                model(x)
            state = torch.get_rng_state()
            with regard.watch(model, strict=False) as seen:
                assert torch.equal(model(x), plain)
            assert torch.equal(torch.get_rng_state(), state)
            assert [layer.name for layer in seen.record] == ["0"]
            ((module, found, count),) = [(one.module, one.reason, one.calls) for one in seen.missing]
            assert (module, count) == ("1", calls)
            assert found.startswith("Attend ")
            assert reason in found
            assert "1 missing" in repr(seen)
            seen.save(tmp_path / "it.atlas")
            assert regard.load_atlas(tmp_path / "it.atlas").missing == seen.missing


SCRIPTED: dict[str, tuple[Callable[..., Tensor], float]] = {
    "a softmax": (lambda q, k, v: scripted_softmax(q @ k.mT) @ v, 0.5),
    "attention": (scripted, 1.0),
}


def test_attention_inside_torchscript_is_seen(far) -> None:
    def check(what: str) -> None:
        attend, factor = SCRIPTED[what]
        model, x = Attend(attend), torch.randn(B, H, 6, D)
        plain = model(x)
        for _ in range(3):  # PyTorch compiles a script after some calls
            with regard.watch(model) as seen:
                assert torch.equal(model(x), plain)
            weights = (model.q(x) @ model.k(x).mT * factor).softmax(-1)
            assert far(seen.weights(layer=0), weights) < 1e-6
            assert not seen.missing

    for case in sweep(SCRIPTED):
        with case as what:
            check(what)


REARRANGED: dict[str, Callable[[Tensor], Tensor]] = {
    "flip": lambda x: x.flip(1),
    "roll": lambda x: x.roll(1, 1),
    "index": lambda x: x[:, torch.arange(H).flip(0)],
    "index_select": lambda x: x.index_select(1, torch.arange(H).flip(0)),
    "gather": lambda x: x.gather(1, torch.arange(H).flip(0)[None, :, None, None].expand_as(x)),
    "tile": lambda x: x.tile(1, 1, 1, 1),
}
OVER_HEADS: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "linear": lambda own, x: own.linear(x.movedim(1, -1)).movedim(-1, 1),
    "convolution": lambda own, x: own.convolution(x),
    "einsum": lambda own, x: torch.einsum("bhij,hg->bgij", x, own.linear.weight),
    "mean": lambda own, x: x.mean(1, keepdim=True).expand(-1, H, -1, -1),
}


class Mixing(nn.Module):
    """Attention by hand whose heads are rearranged and mixed, in the order of `steps`."""

    def __init__(self, rearranged: str, mixed: str, steps: tuple[str, ...]) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(D, D) for _ in range(3))
        self.linear, self.convolution = nn.Linear(H, H), nn.Conv2d(H, H, 3, padding=1)
        how = {"rearrange": REARRANGED[rearranged], "mix": partial(OVER_HEADS[mixed], self)}
        self.steps = [{**how, "softmax": lambda x: x.softmax(-1)}[one] for one in steps]

    def forward(self, x: Tensor) -> Tensor:
        return x + reduce(lambda scores, step: step(scores), self.steps, self.q(x) @ self.k(x).mT) @ self.v(x)


def test_heads_that_are_rearranged_and_mixed_are_missing_in_any_order_with_the_softmax() -> None:
    for case in sweep(itertools.product(REARRANGED, OVER_HEADS)):
        with case as (rearranged, mixed):
            orders = list(permutations(["rearrange", "mix", "softmax"]))
            parts = [Mixing(rearranged, mixed, steps) for steps in orders]
            model = nn.Sequential(*parts, Attend(functional.scaled_dot_product_attention))
            with regard.watch(model, strict=False) as seen:
                model(torch.randn(B, H, 6, D))
            assert [layer.name for layer in seen.record] == ["6"]
            assert [(one.module, one.calls) for one in seen.missing] == [(str(at), 1) for at in range(6)]


class Similarity(nn.Module):
    """A network over a map of products that chooses among features: no attention, though a softmax meets a product."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.features = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, 5 * D)
        self.first, self.second = nn.Conv2d(H, 4, 3, padding=1), nn.Conv2d(4, 5, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        pooled = functional.max_pool2d(self.first(self.q(x) @ self.k(x).mT).relu(), 2)
        chosen = functional.adaptive_avg_pool2d(self.second(pooled).relu(), 1)[:, :, 0, 0].softmax(-1)
        return x + chosen[:, None, None] @ self.features(x.mean((1, 2))).view(-1, 1, 5, D)


class Gated(nn.Module):
    """A gate that was made of pooled products."""

    def forward(self, x: Tensor) -> Tensor:
        pooled = functional.adaptive_avg_pool2d(x @ x.mT, (1, 1))
        return x + pooled.flip(1).mean(1, keepdim=True).softmax(-1) * x


@pytest.mark.parametrize("kind", [Similarity, Gated])
def test_pooled_products_that_choose_features_are_no_missing_attention(kind: type[nn.Module]) -> None:
    model = nn.Sequential(kind(), Attend(functional.scaled_dot_product_attention))
    with regard.watch(model) as seen:
        model(torch.randn(B, H, 6, D))
    assert [layer.name for layer in seen.record] == ["1"]


@pytest.mark.parametrize("how", ["sdpa", "hand"])
def test_layers_without_projections_are_no_chain_of_landmarks(watched, how: str) -> None:
    class Bare(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if how == "hand":
                return (x @ x.mT).softmax(-1) @ x
            return functional.scaled_dot_product_attention(x, x, x)

    model, x = nn.Sequential(Bare(), Bare(), Bare()), torch.randn(B, H, N, D)
    assert [layer.name for layer in watched(model, lambda: model(x)).record] == ["0", "1", "2"]


def test_alone_it_is_an_error_that_names_it() -> None:
    for case in sweep(itertools.product(MISSING, [True, False])):
        with case as (what, strict):
            attend, _, reason = MISSING[what]
            model = Attend(attend)
            with (
                pytest.raises(ObservationError, match=rf"no attention call of this Attend was seen .*{reason}"),
                regard.watch(model, strict=strict),
            ):
                model(torch.randn(B, H, 6, D))


def test_each_pass_has_its_own_missing() -> None:
    model = nn.Sequential(Attend(banded), Attend(functional.scaled_dot_product_attention))
    with regard.watch(model, strict=False) as seen:
        model(torch.randn(B, H, 6, D))
        for _ in range(2):
            model(torch.randn(B, H, 7, D))
    assert [[one.calls for one in record.missing] for record in seen.records] == [[1], [1], [1]]
    assert [one.calls for one in seen.missing] == [3]
    assert [one.calls for one in seen[1].missing] == [1]
    with regard.watch(model, strict=False) as seen:
        for _ in range(3):
            model(torch.randn(B, H, 6, D))
    assert [one.calls for one in seen.missing] == [3]


# --- self or cross


class Reads(nn.Module):
    """Two texts, `x` and `y`; attention of the first, to whatever `keys` gives."""

    def __init__(self, keys: Callable[..., Tensor], how: str) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(D, D), nn.Linear(D, D)
        self.cross_attn = nn.MultiheadAttention(D, 1, batch_first=True) if how == "module" else Attending(how)
        self.keys = keys

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x, y = self.first(x), self.second(y)
        keys = self.keys(x, y)
        out = self.cross_attn(x, keys, keys)
        return out[0] if isinstance(out, tuple) else out


class Attending(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.q, self.k, self.v, self.how = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, D), how

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = self.q(q), self.k(k), self.v(v)
        if self.how == "regard":
            return regard.attention(q, k, v)
        if self.how == "hand":
            return (q @ k.mT).softmax(-1) @ v
        return functional.scaled_dot_product_attention(q, k, v)


KEYS: dict[str, tuple[Callable[..., Tensor], str]] = {
    "itself": (lambda x, y: x, "self"),
    "itself with positions": (lambda x, y: functional.layer_norm(x + 1, (D,)), "self"),
    "itself, pooled": (lambda x, y: functional.avg_pool1d(x.mT, 2).mT, "self"),
    "itself beside a memory": (lambda x, y: torch.cat([y, x], 1), "self"),
    "another text": (lambda x, y: y, "cross"),
    "another text that has looked at it": (
        lambda x, y: y + functional.scaled_dot_product_attention(y, x, x), "cross"),
}  # fmt: skip


def test_self_or_cross_is_where_the_keys_come_from_whatever_the_name() -> None:
    for case in sweep(itertools.product(KEYS, ["sdpa", "regard", "hand", "module"])):
        with case as (keys, how):
            of, kind = KEYS[keys]
            with torch.no_grad(), regard.watch(model := Reads(of, how).eval()) as seen:
                model(torch.randn(B, 4, D), torch.randn(B, 6, D))
            assert seen.record.layers[-1].kind == kind


class Given(nn.Module):
    """Attention between what it is given, of which nothing says where it comes from."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, q: Tensor, k: Tensor, mask: object = None) -> Tensor:
        if self.how == "regard":
            return regard.attention(q, k, k, mask=mask)
        return (q @ k.mT).softmax(-1) @ k if self.how == "hand" else functional.scaled_dot_product_attention(q, k, k)


def test_without_an_origin_more_queries_than_keys_are_another_text() -> None:
    """Fewer may be the last of a text whose other keys are in a cache."""
    counts = [(7, 4, "cross"), (4, 4, "self"), (4, 7, "self")]
    for case in sweep([(how, *count) for how in ["sdpa", "regard", "hand"] for count in counts]):
        with case as (how, queries, keys, kind):
            with regard.watch(model := Given(how)) as seen:
                model(torch.randn(B, H, queries, D), torch.randn(B, H, keys, D))
            layer = seen.record.layers[0]
            assert (layer.kind, layer.query_tokens, layer.key_tokens) == (
                (kind, "target", "source") if kind == "cross" else (kind, "text", "text")
            )


def test_a_bound_place_is_in_the_text_of_the_keys() -> None:
    mask = regard.masks.Causal().bind(7, 4, q_offset=2)
    with regard.watch(model := Given("regard")) as seen:
        model(torch.randn(B, H, 7, D), torch.randn(B, H, 4, D), mask)
    assert seen.record.layers[0].kind == "self"
