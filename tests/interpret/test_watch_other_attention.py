"""Attention that is not between the positions of a text: over edges, at sampled places, over layers; and in slices."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import regard
from regard.record import missing_attention as missing
from sweeps import sweep

B, N, H, D = 2, 5, 4, 8
EDGES = torch.tensor([[0, 1, 2, 3, 0, 2], [1, 2, 3, 4, 2, 4]])  # from, to


def softmax_of_edges(scores: Tensor, to: Tensor, count: int) -> Tensor:
    """`torch_geometric.utils.softmax`."""
    index = to[:, None].expand_as(scores)
    top = torch.zeros(count, scores.shape[1]).scatter_reduce_(0, index, scores.detach(), "amax", include_self=False)
    scores = (scores - top.index_select(0, to)).exp()
    total = scores.new_zeros(count, scores.shape[1]).scatter_add_(0, index, scores) + 1e-16
    return scores / total.index_select(0, to)


class Graph(nn.Module):
    """Attention over the edges of a graph, as a TransformerConv (products) or a GAT (sums) of PyTorch Geometric."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(D, D) for _ in range(3))
        self.kind, self.one = kind, nn.Parameter(torch.randn(1, H, D // H))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).view(-1, H, D // H) for layer in (self.q, self.k, self.v))
        near, to = EDGES
        if self.kind == "products":
            scores = (q.index_select(0, to) * k.index_select(0, near)).sum(-1) / 2
        else:
            scores = functional.leaky_relu((q * self.one).sum(-1)[to] + (k * self.one).sum(-1)[near])
        weights = functional.dropout(softmax_of_edges(scores, to, len(x)), 0.1, self.training)
        messages = v.index_select(0, near) * weights.view(-1, H, 1)
        return x + torch.zeros(len(x), H, D // H).index_add_(0, to, messages).flatten(1)


class Deformable(nn.Module):
    """Values sampled at offsets around each position, weighted by a layer of the query (Deformable DETR)."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.offsets, self.weights = nn.Linear(D, D), nn.Linear(D, H * 3 * 2), nn.Linear(D, H * 3)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        values = self.value(x).transpose(1, 2).reshape(b * H, D // H, 1, n)
        weights = functional.softmax(self.weights(x).view(b, n, H, 3), -1).transpose(1, 2).reshape(b * H, 1, n, 3)
        grid = self.offsets(x).view(b, n, H, 3, 2).transpose(1, 2).flatten(0, 1).tanh()
        sampled = functional.grid_sample(values, grid, align_corners=False)
        return x + (sampled * weights).sum(-1).view(b, D, n).transpose(1, 2)


class Depth(nn.Module):
    """Each position attends to what earlier layers gave for it."""

    def __init__(self, *, pools: bool, kernel: bool) -> None:
        super().__init__()
        self.q, self.layers, self.pools, self.kernel = nn.Linear(D, D), nn.ModuleList(), pools, kernel
        self.layers.extend(nn.Linear(D, D) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        outputs = [x]
        for layer in self.layers:
            outputs.append(layer(outputs[-1]).relu())
        if self.pools:
            keys = torch.stack([one + 0 for one in outputs], 1).mean(2)
            q = self.q(x.mean(1, keepdim=True))
        else:
            keys, q = torch.stack(outputs, 2), self.q(x)[:, :, None]
        if self.kernel:
            return x + functional.scaled_dot_product_attention(q, keys, keys).reshape(len(x), -1, D)
        return x + ((q @ keys.mT).softmax(-1) @ keys).reshape(len(x), -1, D)


class Attends(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = x if x.ndim == 3 else x[None]
        return functional.scaled_dot_product_attention(x, x, x)


OTHERS: dict[str, tuple[Callable[[], nn.Module], Any, tuple[str, ...]]] = {
    "edges, of products": (lambda: Graph("products"), (N, D), (missing.EDGES,)),
    "edges, of sums": (lambda: Graph("sums"), (N, D), (missing.EDGES,)),
    "sampled values": (Deformable, (B, N, D), (missing.DEFORMABLE,)),
    "layers of each position": (
        lambda: Depth(pools=False, kernel=False), (B, N, D), (missing.DEPTH, missing.OWN_KEYS)),
    "layers of each text": (lambda: Depth(pools=True, kernel=False), (B, N, D), (missing.DEPTH,)),
    "layers of each text, by the kernel": (lambda: Depth(pools=True, kernel=True), (B, N, D), (missing.DEPTH,)),
}  # fmt: skip


def test_attention_to_what_are_no_positions_is_missing() -> None:
    for case in sweep(OTHERS):
        with case as name:
            make, shape, reasons = OTHERS[name]
            torch.manual_seed(0)
            model, x = nn.Sequential(make(), Attends()), torch.randn(*shape)
            for training in (False, True):
                model.train(training)
                torch.manual_seed(1)
                plain = model(x)
                torch.manual_seed(1)
                with regard.watch(model, strict=False) as seen:
                    assert torch.equal(model(x), plain)
                assert [layer.name for layer in seen.layers] == ["1"]
                (one,) = seen.missing
                assert (one.module, one.calls) == ("0", 1)
                assert one.reason.endswith(reasons)


class Sliced(nn.Module):
    """Attention of (batch · heads), so many at a time: diffusers' attention slicing."""

    def __init__(self, size: int | None) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(D, D, bias=False) for _ in range(3))
        self.size: Any = size

    def apart(self, x: Tensor) -> Tensor:
        return x.reshape(len(x), -1, H, D // H).permute(0, 2, 1, 3).reshape(len(x) * H, -1, D // H)

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        empty = torch.empty(q.shape[0], q.shape[1], k.shape[1])
        return torch.baddbmm(empty, q, k.transpose(-1, -2), beta=0, alpha=0.5).softmax(-1)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        q, k, v = self.apart(self.q(x)), self.apart(self.k(text)), self.apart(self.v(text))
        output = torch.zeros(len(q), q.shape[1], D // H)
        for at in range(0, len(q), self.size or len(q)):
            some = slice(at, at + (self.size or len(q)))
            output[some] = torch.bmm(self.scores(q[some], k[some]), v[some])
        return output.reshape(len(x), H, -1, D // H).permute(0, 2, 1, 3).reshape(len(x), -1, D)


@pytest.mark.parametrize("batch", [1, B])
def test_slices_of_heads_are_put_together(batch: int) -> None:
    for case in sweep([None, 1, 2, 3, H]):
        with case as size:
            torch.manual_seed(0)
            model, x, text = Sliced(size), torch.randn(batch, 6, D), torch.randn(batch, 7, D)
            with torch.no_grad():
                plain = model(x, text)
                with regard.watch(model) as seen:
                    assert torch.equal(model(x, text), plain)
                q, k = (one.view(batch, -1, H, D // H).transpose(1, 2) for one in (model.q(x), model.k(text)))
                weights = (q @ k.mT * 0.5).softmax(-1)
            (layer,) = seen.layers
            assert (layer.kind, seen.missing) == ("cross", ())
            assert np.abs(seen.weights(layer=0) - weights.numpy()).max() < 1e-6


class Stopped(Sliced):
    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        q, k = self.apart(self.q(x)), self.apart(self.k(text))
        return torch.bmm(self.scores(q[:2], k[:2]), k[:2])


def test_slices_of_which_some_are_never_computed_are_missing() -> None:
    model = nn.ModuleDict({"one": Attends(), "other": Stopped(2)})
    model.forward = lambda x, text: (model["one"](x), model["other"](x, text))
    with torch.no_grad(), regard.watch(model, strict=False) as seen:
        model(torch.randn(B, 6, D), torch.randn(B, 7, D))
    assert [layer.name for layer in seen.layers] == ["one"]
    assert [one.module for one in seen.missing] == ["other"]
