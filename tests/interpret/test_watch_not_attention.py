"""Softmaxes that are no attention are not taken for it, and the attention beside them is seen."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import regard
from regard.errors import ObservationError
from sweeps import sweep

B, N, D, EXPERTS = 2, 5, 8, 3


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(D, D) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        weights = torch.softmax(self.q(x) @ self.k(x).mT / math.sqrt(D), -1)
        return x + weights @ self.v(x)


class LanguageModel(nn.Module):
    """Embeddings tied to the output, whose probabilities even weigh embeddings again (a soft token)."""

    def __init__(self, *, product: str) -> None:
        super().__init__()
        self.words, self.product = nn.Embedding(7, D), product

    def forward(self, x: Tensor) -> Tensor:
        table = self.words.weight
        logits = {
            "linear": lambda: functional.linear(x, table),
            "matmul": lambda: x @ table.T,
            "einsum": lambda: torch.einsum("bnd,vd->bnv", x, table),
            "cast": lambda: x.double() @ table.double().T,
            "scaled": lambda: x @ (functional.normalize(table, dim=-1) * 3).T,
        }[self.product]()
        return logits.softmax(-1).to(table.dtype) @ table


class Mixture(nn.Module):
    """A router, whose probabilities sum the outputs of experts."""

    def __init__(self, *, product: str) -> None:
        super().__init__()
        self.router = nn.Parameter(torch.randn(EXPERTS, D))
        self.experts = nn.Parameter(torch.randn(EXPERTS, D, D))
        self.product = product

    def forward(self, x: Tensor) -> Tensor:
        outputs = torch.einsum("bnd,edf->benf", x, self.experts)
        router = self.router.to(torch.float64)
        logits = functional.linear(x, self.router) if self.product == "linear" else x.double() @ router.T
        shares = logits.softmax(-1).to(x.dtype)
        if self.product == "matmul":
            return (shares.unsqueeze(-2) @ outputs.transpose(1, 2)).squeeze(-2)
        return torch.einsum("bne,benf->bnf", shares, outputs)


class Pooling(nn.Module):
    """One vector of a sentence: a learned vector, or several, asks every position."""

    def __init__(self, *, count: int) -> None:
        super().__init__()
        self.asks = nn.Parameter(torch.randn(count, D))

    def forward(self, x: Tensor) -> Tensor:
        weights = (self.asks.expand(B, -1, -1) * D**-0.5 @ x.mT).softmax(-1)
        return weights @ x


class Column(nn.Module):
    """Pooling as tutorials write it: a score a position, weights (batch, positions, 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.asks = nn.Linear(D, D), nn.Parameter(torch.randn(D, 1))

    def forward(self, x: Tensor) -> Tensor:
        weights = (torch.tanh(self.inner(x)) @ self.asks).softmax(dim=1)
        return weights.transpose(1, 2) @ x


class Logits(nn.Module):
    """Similarities of texts and images, as probabilities: multiplied with nothing."""

    def forward(self, x: Tensor) -> Tensor:
        return (x @ x.mT).softmax(-1)


class Router(nn.Module):
    """A router of a residual stream that scores and a gram matrix have flowed into; its shares multiply experts."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.router, self.experts = nn.Linear(D, D), nn.Linear(D, N), nn.Linear(D, N * D)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.inner(torch.relu(x @ x.mT) @ x)
        shares = self.router(functional.layer_norm(x, (D,))).softmax(-1)
        return (shares.unsqueeze(-2) @ self.experts(x).unflatten(-1, (N, D))).squeeze(-2)


class Channels(nn.Module):
    """Linear attention: softmaxes over features and over positions, none of them over scores."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(D, D) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            context = self.k(x).softmax(1).mT @ self.v(x)
            x = x + self.out(self.q(x).softmax(-1) @ context)
        return x


class Gate(nn.Module):
    """Squeeze and excite: a softmax over channels of what was pooled, as a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.inner(x.mean(1, keepdim=True)).softmax(-1)


class Mixer(nn.Module):
    """State-space layers in chunks: products of activations with a decay, and no softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.b, self.c, self.x = (nn.Linear(D, D) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        decay = torch.exp(-torch.arange(N).float()).expand(N, N).tril()
        return x + (self.c(x) @ self.b(x).mT * decay) @ self.x(x)


class Several(nn.Module):
    """A pooling with several heads: a linear layer scores each position, and the softmax runs over positions."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(D, EXPERTS)

    def forward(self, x: Tensor) -> Tensor:
        return self.scores(x).softmax(1).mT @ x


class Convolution(nn.Module):
    """Dynamic convolution: a kernel for each position and head, normalized, over the values of its window."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Linear(D, 2 * 3)

    def forward(self, x: Tensor) -> Tensor:
        kernels = self.kernel(x).reshape(-1, 3, 1).softmax(1)
        windows = functional.pad(x, (0, 0, 1, 1)).unfold(1, 3, 1).reshape(-1, D // 2, 3)
        return (windows @ kernels).reshape(B, N, D)


class Sampled(nn.Module):
    """Probabilities of tokens, sampled and turned into the next input, as `generate` does it."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(7, D)

    def forward(self, x: Tensor) -> Tensor:
        logits = x[:, -1] @ self.words.weight.mT / 0.7
        logits = logits.masked_fill(logits < logits.topk(4).values[:, -1:], -torch.inf)
        return self.words(logits.softmax(-1).argmax(-1))


OTHERS = {
    **{f"language model, {one}": lambda one=one: LanguageModel(product=one)
       for one in ("linear", "matmul", "einsum", "cast", "scaled")},
    **{f"router, {one}": lambda one=one: Mixture(product=one) for one in ("linear", "matmul", "einsum")},
    "pooling": lambda: Pooling(count=1),
    "pooling with several vectors": lambda: Pooling(count=3),
    "pooling by a column": Column,
    "contrastive logits": Logits,
    "a router of what scores flowed into": Router,
    "linear attention": Channels,
    "a gate": Gate,
    "a state-space layer": Mixer,
    "a pooling with heads": Several,
    "a dynamic convolution": Convolution,
    "sampling": Sampled,
}  # fmt: skip


def test_attention_is_seen_and_the_other_softmax_is_not(watched) -> None:
    def check(other: str) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(Attention(), OTHERS[other]())
        x = torch.randn(B, N, D)
        seen = watched(model, lambda: model(x))
        assert [layer.name for layer in seen.record] == ["0"]

    for case in sweep(OTHERS):
        with case as other:
            check(other)


def test_alone_it_is_no_attention_at_all() -> None:
    for case in sweep(OTHERS):
        with case as other:
            model = OTHERS[other]()
            with pytest.raises(ObservationError, match="no attention call"), regard.watch(model):
                model(torch.randn(B, N, D))


def test_a_model_without_attention_is_told_by_what_it_is_made_of() -> None:
    model = nn.Sequential(nn.Linear(D, D), nn.ReLU(), nn.Sequential(nn.Linear(D, D), nn.LSTM(D, D)))
    with pytest.raises(ObservationError, match="made of 2 Linear, 1 ReLU, 1 LSTM") as refused, regard.watch(model):
        model(torch.randn(B, N, D))
    assert "flash-attn" not in str(refused.value)


def test_another_model_in_the_same_block_is_not_seen() -> None:
    model, other = Attention(), nn.Sequential(Attention(), Attention())
    x = torch.randn(B, N, D)
    with regard.watch(model) as seen:
        other(model(x))
    assert len(seen.record) == 1
    with pytest.raises(ObservationError, match="no attention call"), regard.watch(model):
        other(x)


def test_learned_queries_that_are_projected_are_attention(watched) -> None:
    """Latents as in the Perceiver: the queries come from a parameter by a projection of their own."""

    class Latents(Attention):
        def __init__(self) -> None:
            super().__init__()
            self.latents = nn.Parameter(torch.randn(1, 3, D))

        def forward(self, x: Tensor) -> Tensor:
            q = self.q(self.latents).expand(B, -1, -1)
            return torch.softmax(q @ self.k(x).mT, -1) @ self.v(x)

    torch.manual_seed(0)
    model = Latents()
    x = torch.randn(B, N, D)
    assert watched(model, lambda: model(x)).layer(0).weights.shape == (B, 1, 3, N)


class Two(Attention):
    """The weights of two softmaxes, made one before they meet the values."""

    def __init__(self, mix) -> None:
        super().__init__()
        self.mix, self.q2, self.k2 = mix, nn.Linear(D, D), nn.Linear(D, D)

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return (self.q(x) @ self.k(x).mT).softmax(-1), (self.q2(x) @ self.k2(x).mT).softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(*self.parts(x)) @ self.v(x)


BELOW_0 = {
    "a difference": lambda a, b: a - 0.9 * b,
    "sub with alpha": lambda a, b: torch.sub(a, b, alpha=0.9),
    "a sum with a negative factor": lambda a, b: a + -0.9 * b,
    "dropout": lambda a, b: functional.dropout((a - 0.9 * b).to(torch.float32), 0.1),
    "of a stack": lambda a, b: (lambda both: both[:, 0] - 0.9 * both[:, 1])(torch.stack([a, b], 1)),
    "copies": lambda a, b: a.unflatten(0, (-1, 2))[:, 0].repeat(2, 1, 1) - 0.9 * b,
    "head by head": lambda a, b: torch.cat([one - 0.9 / N for one in a.unbind(0)], 0),
    "a number less": lambda a, b: a - 1 / N,
}


def test_weights_below_0_are_refused_beside_attention_that_is_seen() -> None:
    for case in sweep(BELOW_0):
        with case as name:
            torch.manual_seed(0)
            model = nn.Sequential(Attention(), Two(BELOW_0[name]))
            with pytest.raises(ObservationError, match=r"1 \(\d calls?\): Two "), regard.watch(model):
                model(torch.randn(B, N, D))


def test_a_mixture_of_weights_is_seen_as_it_is_used(watched, far) -> None:
    def check(mix) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(Attention(), Two(mix))
        x = torch.randn(B, N, D)
        seen = watched(model, lambda: model(x))
        assert [layer.name for layer in seen.record] == ["0", "1"]
        with torch.no_grad():
            expected = mix(*model[1].parts(model[0](x)))[:, None]
        assert far(seen.record.layers[1].weights, expected.numpy()) < 2e-6

    mixtures = {
        "mean": lambda a, b: (a + b) / 2,
        "weighted": lambda a, b: a * 0.25 + b * 0.75,
        "a number more": lambda a, b: a + 1e-6,
    }
    for case in sweep(mixtures):
        with case as name:
            check(mixtures[name])
