"""Which dimension of scores is that of queries, of heads, of keys, where the sizes do not show it: keys without heads,
keys of each query, channels, and calls of one module over the same keys. Expected is what the code computes itself.
"""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import regard
from regard.errors import ObservationError
from sweeps import sweep

B, H, D = 2, 4, 4
WIDE = H * D


class Own(nn.Module):
    """A layer around a function of itself and its input, which keeps weights as (batch, heads, queries, keys)."""

    def __init__(self, attend: Callable[["Own", Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attend = attend
        self.q, self.kv, self.qkv, self.v = (nn.Linear(WIDE, size) for size in (WIDE, D, 3 * WIDE, WIDE))
        self.k, self.up = nn.Linear(WIDE, WIDE), nn.Parameter(torch.randn(H, D, D))
        self.energy, self.conv = nn.Linear(D, 1), nn.Conv1d(WIDE, 3 * WIDE, 1)
        self.cell, self.edges = nn.GRUCell(WIDE, WIDE), nn.Linear(3, WIDE)
        self.weights = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(self, x)


def turned(x: Tensor) -> Tensor:
    """Rotary embedding of (batch, positions, heads, width), in halves."""
    angle = torch.arange(x.shape[1])[:, None, None] * torch.tensor([1.0, 0.1]).repeat(2)
    return x * angle.cos() + torch.cat([-x[..., 2:], x[..., :2]], -1) * angle.sin()


def absorbed(own: Own, x: Tensor) -> Tensor:
    """Multi-head latent attention with the weight of the keys in the queries (DeepSeek-V2, arXiv:2405.04434)."""
    q = torch.einsum("bshd,hdc->bshc", own.q(x).view(*x.shape[:2], H, D), own.up)
    kv = own.kv(x)
    weights = torch.softmax(torch.einsum("bshc,btc->bsht", q, kv), -1)
    own.weights = weights.permute(0, 2, 1, 3)
    return torch.einsum("bsht,btc->bshc", weights, kv).flatten(2)


def rotary(own: Own, x: Tensor) -> Tensor:
    q = own.qkv(x).chunk(3, -1)[0].unflatten(-1, (H, D))
    k = turned(own.kv(x)[:, :, None])[:, :, 0]
    weights = torch.softmax(torch.einsum("bnhd,bmd->bnhm", turned(q), k) / 2, -1)
    own.weights = weights.permute(0, 2, 1, 3)
    return torch.einsum("bnhm,bmd->bnhd", weights, k).flatten(2)


def complex_rotary(own: Own, x: Tensor) -> Tensor:
    q, k = own.q(x).view(*x.shape[:2], H, D), own.kv(x)
    angles = torch.polar(torch.ones(1), torch.arange(x.shape[1])[:, None, None] * torch.tensor([1.0, 0.1]))
    q = torch.view_as_real(torch.view_as_complex(q.float().reshape(*q.shape[:-1], -1, 2)) * angles).flatten(3)
    weights = torch.softmax(torch.einsum("bnhd,bmd->bnhm", q, k) / 2, -1)
    own.weights = weights.permute(0, 2, 1, 3)
    return torch.einsum("bnhm,bmd->bnhd", weights, k).flatten(2)


def matmul(own: Own, x: Tensor) -> Tensor:
    q, k = own.q(x).view(*x.shape[:2], H, D), own.kv(x)[:, None]
    weights = (q @ k.mT).softmax(-1)
    own.weights = weights.transpose(1, 2)
    return (weights @ k).flatten(2)


def of_qkv(own: Own, x: Tensor) -> Tensor:
    q, k, _ = own.qkv(x).view(*x.shape[:2], 3, H, D).unbind(2)
    weights = torch.einsum("bnhd,bmd->bnhm", q, k[:, :, 0]).softmax(-1)
    own.weights = weights.transpose(1, 2)
    return torch.einsum("bnhm,bmd->bnhd", weights, k[:, :, 1]).flatten(2)


def without_layer(own: Own, x: Tensor) -> Tensor:
    """The layer's product written out, as GPT-2's `Conv1D` is."""
    flat = torch.addmm(own.q.bias, x.view(-1, WIDE), own.q.weight.mT)
    weights = torch.einsum("bnhd,bmd->bnhm", flat.view(*x.shape[:2], H, D), own.kv(x)).softmax(-1)
    own.weights = weights.transpose(1, 2)
    return torch.einsum("bnhm,bmd->bnhd", weights, own.kv(x)).flatten(2)


def of_a_norm(own: Own, x: Tensor) -> Tensor:
    q, k = functional.layer_norm(x, (WIDE,)).view(*x.shape[:2], H, D), own.kv(x)
    weights = torch.einsum("bnhd,bmd->bnhm", q, k).softmax(-1)
    own.weights = weights.transpose(1, 2)
    return torch.einsum("bnhm,bmd->bnhd", weights, k).flatten(2)


def stacked(own: Own, x: Tensor) -> Tensor:
    """Heads cut by `chunk` and put together by `stack`."""
    q, k = torch.stack(own.q(x).chunk(H, -1), 2), own.kv(x)
    weights = torch.einsum("bnhd,bmd->bnhm", q, k).softmax(-1)
    own.weights = weights.transpose(1, 2)
    return torch.einsum("bnhm,bmd->bnhd", weights, k).flatten(2)


def additive(own: Own, x: Tensor) -> Tensor:
    q, k = own.q(x).view(*x.shape[:2], H, 1, D), own.kv(x)[:, None, None]
    weights = own.energy(torch.tanh(q + k)).squeeze(-1).softmax(-1)
    own.weights = weights.transpose(1, 2)
    return (weights @ own.kv(x)[:, None]).flatten(2)


KEYS_WITHOUT_HEADS = [absorbed, rotary, complex_rotary, matmul, of_qkv, without_layer, of_a_norm, stacked, additive]


LENGTHS = [(one, n) for one in KEYS_WITHOUT_HEADS for n in (1, 4, 7) if n > 1 or one is not additive]


def test_heads_that_only_queries_have_are_not_taken_for_positions():
    for case in sweep([(attend, length, batch) for attend, length in LENGTHS for batch in [1, B]]):
        with case as (attend, length, batch):
            model, x = Own(attend).eval(), torch.randn(batch, length, WIDE, generator=torch.Generator().manual_seed(1))
            words = [f"t{at}" for at in range(length)] if batch == 1 else None
            with torch.no_grad(), regard.watch(model, tokens=words) as seen:
                model(x)
            (layer,) = seen.layers
            assert (layer.kind, layer.heads, layer.queries, layer.keys) == ("self", H, length, length)
            torch.testing.assert_close(torch.from_numpy(layer.exact.copy()), model.weights, rtol=0, atol=1e-6)


def unfolded(own: Own, x: Tensor) -> Tensor:
    q, k = (layer(x).unflatten(-1, (H, D)).transpose(1, 2) for layer in (own.q, own.k))
    near = functional.pad(k, (0, 0, 1, 1)).unfold(2, 3, 1).transpose(-1, -2)
    weights = torch.einsum("bhnd,bhnwd->bhnw", q, near).softmax(-1)
    return torch.einsum("bhnw,bhnwd->bhnd", weights, near)


def nearest(own: Own, x: Tensor) -> Tensor:
    """Keys chosen for each query."""
    q, k = own.q(x), own.k(x)
    chosen = (x @ x.mT).topk(3).indices
    keys = k[torch.arange(len(x))[:, None, None], chosen]
    weights = (q[:, :, None] @ keys.mT).softmax(-1)
    return (weights @ keys).squeeze(2)


def shaw(own: Own, x: Tensor) -> Tensor:
    """Relative positions added to the keys (Shaw et al. 2018, arXiv:1803.02155), before the product."""
    n = x.shape[1]
    q, keys = own.q(x), own.k(x)[:, None] + own.edges(torch.randn(len(x), n, n, 3))
    weights = (q[:, :, None] * keys).sum(-1).softmax(-1)
    return weights @ own.v(x)


def test_queries_with_keys_of_their_own_are_missing():
    for case in sweep([unfolded, nearest, shaw]):
        with case as attend:
            model, x = Own(attend).eval(), torch.randn(B, 6, WIDE)
            with (
                torch.no_grad(),
                pytest.raises(ObservationError, match="has keys of its own for each query"),
                regard.watch(model),
            ):
                model(x)


def one_query(own: Own, x: Tensor) -> Tensor:
    """A step of a decoder with heads, without a dimension of queries."""
    q = own.q(x[:, -1]).view(-1, H, D)
    k = own.k(x).view(*x.shape[:2], H, D).transpose(1, 2)
    own.weights = torch.einsum("bhd,bhnd->bhn", q, k).softmax(-1)[:, :, None]
    return (own.weights @ k).flatten(1)


def one_query_inserted(own: Own, x: Tensor) -> Tensor:
    q = own.q(x[:, -1]).view(-1, H, D)
    k = own.k(x).view(*x.shape[:2], H, D).transpose(1, 2)
    own.weights = (q[:, :, None] @ k.mT).softmax(-1)
    return (own.weights @ k).flatten(1)


def a_layer_of_each_head(own: Own, x: Tensor) -> Tensor:
    q = torch.einsum("bi,hij->bhj", own.kv(x[:, -1]), own.up)
    k = torch.einsum("bni,hij->bhnj", own.kv(x), own.up)
    own.weights = torch.einsum("bhd,bhnd->bhn", q, k).softmax(-1)[:, :, None]
    return (own.weights @ k).flatten(1)


def stacked_heads_of_one_query(own: Own, x: Tensor) -> Tensor:
    q = torch.stack(own.q(x[:, -1]).chunk(H, -1), 1)
    k = torch.stack(own.k(x).chunk(H, -1), 1)
    own.weights = torch.einsum("bhd,bhnd->bhn", q, k).softmax(-1)[:, :, None]
    return (own.weights @ k).flatten(1)


ONE_QUERY = [one_query, one_query_inserted, a_layer_of_each_head, stacked_heads_of_one_query]


def test_heads_of_one_query_are_not_queries_with_keys_of_their_own():
    for case in sweep(ONE_QUERY):
        with case as attend:
            model = Own(attend).eval()
            with torch.no_grad(), regard.watch(model) as seen:
                model(torch.randn(B, 6, WIDE))
            torch.testing.assert_close(torch.from_numpy(seen.layers[0].exact.copy()), model.weights, rtol=0, atol=1e-6)


def one_head_stacked(own: Own, x: Tensor) -> Tensor:
    q, k = torch.stack([own.kv(x)], 2), own.kv(x)
    weights = torch.einsum("bnhd,bmd->bnhm", q, k).softmax(-1)
    own.weights = weights.transpose(1, 2)
    return torch.einsum("bnhm,bmd->bnhd", weights, k).flatten(2)


@pytest.mark.parametrize("length", [1, 5])
def test_a_single_head_that_was_inserted_is_one(length):
    model = Own(one_head_stacked).eval()
    with torch.no_grad(), regard.watch(model) as seen:
        model(torch.randn(B, length, WIDE))
    torch.testing.assert_close(torch.from_numpy(seen.layers[0].exact.copy()), model.weights, rtol=0, atol=1e-6)


def batch_and_heads_in_one_view(own: Own, x: Tensor) -> Tensor:
    """As fairseq has it, positions first: `view(n, batch * heads, width).transpose(0, 1)`."""
    b, n, _ = x.shape
    q, k, v = (one.contiguous().view(n, b * H, D).transpose(0, 1) for one in own.qkv(x.transpose(0, 1)).chunk(3, -1))
    weights = torch.bmm(q, k.mT).softmax(-1)
    own.weights = weights.view(b, H, n, n)
    return torch.bmm(weights, v)


def batch_and_heads_of_qkv(own: Own, x: Tensor) -> Tensor:
    """As SAM and ViTDet have it."""
    b, n, _ = x.shape
    q, k, v = own.qkv(x).reshape(b, n, 3, H, D).permute(2, 0, 3, 1, 4).reshape(3, b * H, n, D).unbind(0)
    weights = (q @ k.transpose(-2, -1)).softmax(-1)
    own.weights = weights.view(b, H, n, n)
    return weights @ v


def test_arguments_by_name_do_not_end_the_call():
    def attend(own: Own, x: Tensor) -> Tensor:
        merged = own.q(x.transpose(0, 1)).contiguous().view(x.shape[1], -1, D)
        q = torch.transpose(input=merged, dim0=0, dim1=1)
        k = torch.transpose(input=q[:, None].expand(-1, 2, -1, -1)[:, 0], dim0=1, dim1=2)
        return torch.bmm(input=torch.softmax(input=torch.bmm(input=q, mat2=k), dim=-1), mat2=q)

    model, x = Own(attend).eval(), torch.randn(B, 5, WIDE)
    with torch.no_grad(), regard.watch(model) as seen:
        output = model(x)
    assert torch.equal(output, model(x))
    assert len(seen.layers) == 1


def test_batch_and_heads_that_one_view_merged_are_told_apart():
    for case in sweep(itertools.product([batch_and_heads_in_one_view, batch_and_heads_of_qkv], [1, 5, B * H])):
        with case as (attend, length):
            model = Own(attend).eval()
            with torch.no_grad(), regard.watch(model) as seen:
                model(torch.randn(B, length, WIDE))
            torch.testing.assert_close(torch.from_numpy(seen.layers[0].exact.copy()), model.weights, rtol=0, atol=1e-6)


GATES: dict[str, Callable[[Own, Tensor], Tensor]] = {
    "none": lambda own, x: x.new_ones(()),
    "of each position, with the mean": lambda own, x: (own.q(x) * x.mean(1, keepdim=True)).sum(-1).sigmoid()[..., None],
    "of each position, with the first": lambda own, x: (own.q(x) * x[:, :1]).sum(-1)[..., None],
    "by a product": lambda own, x: (own.q(x) @ x.mean(1, keepdim=True).mT).sigmoid(),
    "by einsum": lambda own, x: torch.einsum("bnd,bd->bn", x, own.q(x.mean(1))).sigmoid()[..., None],
    "of each text": lambda own, x: own.q(x.mean(1)).tanh()[:, :1, None],
    "of channels": lambda own, x: own.q(x.mean(1)).sigmoid()[:, None],
    "of maxima and means": lambda own, x: (x.mean(-1) + x.amax(-1)).sigmoid()[..., None],
}


def test_attention_of_gated_positions_is_recorded():
    def check(gate, length, heads):
        def attend(own: Own, x: Tensor) -> Tensor:
            gated = x * GATES[gate](own, x)
            q, k, v = (layer(gated).unflatten(-1, (heads, -1)).transpose(1, 2) for layer in (own.q, own.k, own.v))
            own.weights = (q @ k.mT).softmax(-1)
            return own.weights @ v

        model = Own(attend).eval()
        with torch.no_grad(), regard.watch(model) as seen:
            model(torch.randn(B, length, WIDE))
        torch.testing.assert_close(torch.from_numpy(seen.layers[0].exact.copy()), model.weights, rtol=0, atol=1e-6)

    for case in sweep(itertools.product(GATES, [1, 5], [1, H])):
        with case as values:
            check(*values)


def between_channels(own: Own, x: Tensor) -> Tensor:
    """XCiT (arXiv:2106.09681): a product over the positions."""
    q, k, v = own.qkv(x).reshape(*x.shape[:2], 3, H, D).permute(2, 0, 3, 4, 1)
    q, k = functional.normalize(q, dim=-1), functional.normalize(k, dim=-1)
    return ((q @ k.transpose(-2, -1)).softmax(-1) @ v).permute(0, 3, 1, 2).flatten(2)


def between_channels_of_images(own: Own, x: Tensor) -> Tensor:
    """DANet (arXiv:1809.02983)."""
    q, k, v = own.conv(x.mT).chunk(3, 1)
    return (torch.bmm(q, k.transpose(1, 2)).softmax(-1) @ v).mT


def test_attention_between_channels_is_missing():
    for case in sweep(itertools.product([between_channels, between_channels_of_images], [D, 9])):
        with case as (attend, length):
            model, x = Own(attend).eval(), torch.randn(B, length, WIDE)
            with (
                torch.no_grad(),
                pytest.raises(ObservationError, match="attends between channels"),
                regard.watch(model),
            ):
                model(x)


def test_positions_of_a_map_of_images_are_no_channels():
    """A convolution's features made a text, which attends: axes of the image were merged, channels were not."""

    def attend(own: Own, x: Tensor) -> Tensor:
        q, k, v = (one.flatten(2) for one in own.conv(x.mT).chunk(3, 1))
        own.weights = (q.mT @ k).softmax(-1)[:, None]
        return own.weights[:, 0] @ v.mT

    model = Own(attend).eval()
    with torch.no_grad(), regard.watch(model) as seen:
        model(torch.randn(B, 9, WIDE))
    torch.testing.assert_close(torch.from_numpy(seen.layers[0].exact.copy()), model.weights, rtol=0, atol=1e-6)


EDGES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "products (Dwivedi and Bresson 2020, arXiv:2012.09699)": lambda q, k, e: (q[:, :, None] * k[:, None] * e).sum(-1),
    "sums": lambda q, k, e: torch.tanh(q[:, :, None] + k[:, None] + e).sum(-1),
    "edges first": lambda q, k, e: torch.tanh(q[:, :, None] + (k[:, None] - 0)).mul(e).sum(-1),
    "concatenated": lambda q, k, e: torch.cat([q[:, :, None] + k[:, None], e], -1).tanh().sum(-1),
}


def test_scores_with_features_of_each_pair_are_recorded():
    def check(name):
        def attend(own: Own, x: Tensor) -> Tensor:
            n = x.shape[1]
            edges = own.edges(torch.randn(n, n, 3, generator=torch.Generator().manual_seed(2))).expand(
                len(x), -1, -1, -1
            )
            own.weights = EDGES[name](own.q(x), own.k(x), edges).softmax(-1)[:, None]
            return own.weights[:, 0] @ own.v(x)

        model = Own(attend).eval()
        with torch.no_grad(), regard.watch(model) as seen:
            model(torch.randn(B, 6, WIDE))
        torch.testing.assert_close(torch.from_numpy(seen.layers[0].exact.copy()), model.weights, rtol=0, atol=1e-6)

    for case in sweep(EDGES):
        with case as name:
            check(name)


VECTORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "bijd,d->bij": lambda pairs, v: torch.einsum("bijd,d->bij", pairs, v),
    "d,bijd->bij": lambda pairs, v: torch.einsum("d,bijd->bij", v, pairs),
    "keys before queries": lambda pairs, v: torch.einsum("bijd,d->bji", pairs, v).mT,
    "three factors": lambda pairs, v: torch.einsum("d,d,bijd->bij", v, v, pairs),
    "...d,d": lambda pairs, v: torch.einsum("...d,d", pairs, v),
}


def test_a_learned_vector_makes_scores_of_sums_by_einsum():
    def check(name):
        def attend(own: Own, x: Tensor) -> Tensor:
            pairs = torch.tanh(own.q(x)[:, :, None] + own.k(x)[:, None])
            own.weights = VECTORS[name](pairs, own.v.bias).softmax(-1)[:, None]
            return own.weights[:, 0] @ own.v(x)

        model = Own(attend).eval()
        with torch.no_grad(), regard.watch(model) as seen:
            model(torch.randn(B, 6, WIDE))
        torch.testing.assert_close(torch.from_numpy(seen.layers[0].exact.copy()), model.weights, rtol=0, atol=1e-6)

    for case in sweep(VECTORS):
        with case as name:
            check(name)


@pytest.mark.parametrize("by_hand", [False, True])
def test_one_query_of_the_keys_own_text_does_not_continue_another_text_that_attended_to_them(by_hand):
    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Embedding(20, 8), nn.Embedding(20, 8)
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
            self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))

        def forward(self, ids: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
            x, y = self.one(ids), self.other(others)
            if not by_hand:
                return self.attention(y, x, x)[0], self.attention(x[:, -1:], x, x)[0]
            k, v = self.k(x), self.v(x)
            return torch.softmax(self.q(y) @ k.mT, -1) @ v, torch.softmax(self.q(x[:, -1:]) @ k.mT, -1) @ v

    model = Pooled().eval()
    with torch.no_grad(), regard.watch(model) as seen:
        model(torch.randint(0, 20, (1, 4)), torch.randint(0, 20, (1, 6)))
    assert [(one.kind, one.queries, one.keys) for one in seen.layers] == [("cross", 6, 4), ("self", 1, 4)]


def test_a_given_text_that_attends_to_embeddings_of_ids_crosses_at_any_length():
    def check(length):
        class Memory(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.table = nn.Embedding(20, 8)

            def forward(self, x: Tensor, ids: Tensor) -> Tensor:
                memory = self.table(ids)
                return torch.softmax(x @ memory.mT, -1) @ memory

        with torch.no_grad(), regard.watch(model := Memory()) as seen:
            model(torch.randn(1, length, 8), torch.randint(0, 20, (1, 6)))
        assert seen.layers[0].kind == "cross"

    for case in sweep([3, 6, 9]):
        with case as length:
            check(length)
