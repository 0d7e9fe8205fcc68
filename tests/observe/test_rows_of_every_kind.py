"""Watching sees the weights of every score, bias, normalizer and factor as regard.attention returns them."""

from dataclasses import dataclass

import torch
from torch import nn

import regard
from regard import masks, normalizers, positions, scores
from sweeps import sweep

N, HEADS, DIM = 150, 4, 8


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) / shape[-1] ** 0.5


OPTIONS = {
    "cosine": {"score": scores.Cosine()},
    "bilinear": {"score": scores.Bilinear(drawn(DIM, DIM))},
    "additive": {"score": scores.Additive(drawn(5, DIM), drawn(5, DIM, seed=1), drawn(5, seed=2))},
    "shaw": {"score": scores.Shaw(drawn(7, DIM))},
    "relative-key-query": {"score": scores.RelativeKeyQuery(drawn(7, DIM))},
    "deberta": {"score": scores.DeBERTa(drawn(HEADS, 32, DIM), drawn(HEADS, 32, DIM, seed=1), 16, 60)},
    "transformer-xl": {"score": scores.TransformerXL(drawn(HEADS, DIM), drawn(HEADS, DIM), drawn(HEADS, DIM, 6))},
    "alibi": {"bias": positions.ALiBi(HEADS), "mask": masks.Causal()},
    "t5": {"bias": positions.T5Bias(drawn(32, HEADS), bidirectional=True)},
    "rope": {"rotary": positions.RoPE(DIM), "mask": masks.Causal()},
    "sink": {"normalizer": normalizers.Softmax(drawn(HEADS))},
    "sigmoid": {"normalizer": normalizers.Sigmoid(), "mask": masks.Causal()},
    "gaussian": {
        "weight_factor": positions.Gaussian(torch.linspace(0, N, N)[None], 9),
        "mask": masks.LocalPredictive(torch.linspace(0, N, N)[None], 9),
    },
    "dropout": {"dropout": 0.5, "mask": masks.Causal() & masks.Window(40)},
}


class Layer(nn.Module):
    """One call of regard.attention, of which a model is made."""

    def __init__(self, options):
        super().__init__()
        self.options = options

    def forward(self, q, k, v):
        return regard.attention(q, k, v, **self.options)


def test_what_is_watched_is_what_is_returned():
    for case in sweep(OPTIONS):
        with case as name:
            q, k, v = drawn(1, HEADS, N, DIM), drawn(1, 2, N, DIM, seed=1), drawn(1, 2, N, DIM, seed=2)
            model = Layer(OPTIONS[name])
            with torch.no_grad(), regard.watch(model, keep="weights") as seen:
                model(q, k, v)
            _, weights = regard.attention(q, k, v, return_weights=True, backend="reference", **OPTIONS[name])
            for head in range(HEADS):
                mine = torch.as_tensor(seen.weights(layer=0, head=head)).reshape(N, N)
                torch.testing.assert_close(mine, weights[0, head], atol=2e-6, rtol=1e-5)
                entropy = torch.special.entr(weights[0, head].double()).sum(-1)
                watched = torch.as_tensor(seen.entropy(layer=0, head=head)).reshape(N)
                torch.testing.assert_close(watched.double(), entropy, atol=2e-4, rtol=1e-4)


@dataclass(frozen=True, eq=False)
class Steep(positions.Bias):
    """A bias of one's own, whose numbers bfloat16 would round."""

    rate: torch.Tensor

    def __call__(self, batch, head, i, j):
        return -self.rate * (i - j).abs()


def test_a_bias_of_ones_own_is_computed_in_float32_as_the_call_does():
    q, k, v = (drawn(1, HEADS, 300, DIM, seed=seed).mul(DIM).bfloat16() for seed in range(3))
    rate = torch.tensor(0.0133).bfloat16()
    with regard.watch(model := Layer({"bias": Steep(rate)}), keep="weights") as seen:
        model(q, k, v)
    exact = [x.double() for x in (q, k, v)]
    _, weights = regard.attention(*exact, bias=Steep(rate.double()), backend="reference", return_weights=True)
    for head in range(HEADS):
        seen_here = torch.as_tensor(seen.weights(layer=0, head=head)).reshape(300, 300)
        torch.testing.assert_close(seen_here.double(), weights[0, head], atol=1e-5, rtol=0)  # bfloat16: 7e-4
