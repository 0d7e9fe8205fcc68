"""Strips and native never make a tensor of queries × keys, forward or backward, whatever is asked for."""

from dataclasses import dataclass

import pytest
import torch

import regard
from oracles import Largest
from regard import masks, normalizers, positions, scores
from regard.backends.selection import named
from regard.positions import Bias
from regard.problem import Problem
from sweeps import sweep
from tiers import slow_but

N, WIDTH = 4096, 8
# What a strip may take: 2²⁰ scores in float32, and what a score needs for each is taken off their number.
STRIP = 2**20 * 4
# Masks that are not a rule of i − j are asked in 64-bit positions, for at most so many bytes of them.
ASKED = 2**22 * 8


@dataclass(frozen=True)
class Wave(Bias):
    """A bias of one's own, not relative."""

    def __call__(self, batch, head, i, j):
        return torch.sin(0.1 * i) * torch.cos(0.1 * j)


def _held(*shape):
    return (0.1 * torch.randn(*shape, generator=torch.Generator().manual_seed(7))).requires_grad_()


WAYS = {
    "plain": dict,
    "causal": lambda: {"mask": masks.Causal()},
    "window": lambda: {"mask": masks.Causal() & masks.Window(256)},
    "bigbird": lambda: {"mask": masks.bigbird()},
    "documents": lambda: {"mask": masks.Causal() & masks.Document(torch.arange(N) // 700)},
    "padding": lambda: {"mask": masks.Padding((torch.arange(N) < 4000)[None])},
    "dropout": lambda: {"dropout": 0.1, "generator": torch.Generator().manual_seed(0)},
    "softcap": lambda: {"score": scores.ScaledDot(softcap=5.0)},
    "sigmoid": lambda: {"normalizer": normalizers.Sigmoid()},
    "sink": lambda: {"normalizer": normalizers.Softmax(_held(1))},
    "alibi": lambda: {"bias": positions.ALiBi(1)},
    "t5": lambda: {"bias": positions.T5Bias(_held(32, 1), bidirectional=True)},
    "bias of one's own": lambda: {"bias": Wave(), "mask": masks.Causal()},
    "gaussian": lambda: {"weight_factor": positions.Gaussian(torch.arange(N)[None] + _held(1, N), 64.0)},
    "additive": lambda: {
        "score": scores.Additive(_held(4, WIDTH), _held(4, WIDTH), _held(4)),
        "mask": masks.Window(left=64, right=64),
    },
    "shaw": lambda: {
        "score": scores.Shaw(_held(33, WIDTH), _held(33, WIDTH)),
        "mask": masks.Window(left=64, right=0),
    },
    "relative key query": lambda: {
        "score": scores.RelativeKeyQuery(_held(33, WIDTH)),
        "mask": masks.Window(left=64, right=0),
    },
    "deberta": lambda: {
        "score": scores.DeBERTa(_held(1, 64, WIDTH), _held(1, 64, WIDTH), 32, 512),
        "mask": masks.Window(left=64, right=64),
    },
    "learned, dropped and windowed": lambda: {
        "bias": positions.T5Bias(_held(32, 1), bidirectional=False),
        "mask": masks.Causal() & masks.Window(512),
        "dropout": 0.1,
    },
    "log-sum-exp": lambda: {"return_lse": True, "mask": masks.Causal()},
}


def _natives():
    """What native kernels compute but a bias without a distance, of which they want the whole."""
    x = torch.zeros(1, 1, N, WIDTH)
    for way, asked in WAYS.items():
        problem = Problem.of(x, x, x, **asked())
        if way != "bias of one's own" and named()["native"].refuses(problem) is None:
            yield way


SLOW = ("gaussian", "deberta", "relative key query", "t5", "softcap", "additive")  # one to three seconds in strips
EACH = {"strips": [way for way in WAYS if way not in SLOW], "native": list(_natives()), "strips, slow ones": SLOW}


@pytest.mark.parametrize("name", slow_but(["strips", "native"], EACH))
def test_nothing_is_as_large_as_the_weights(name):
    for case in sweep(EACH[name]):
        with case as way:
            x = torch.randn(1, 1, N, WIDTH, generator=torch.Generator().manual_seed(0)).requires_grad_()
            with Largest() as largest:
                answer = regard.attention(x, x, x, backend=name.split(",")[0], **WAYS[way]())
                output = answer[0] + answer[1][..., None] if way == "log-sum-exp" else answer
                output.sum().backward()
            assert bool(x.grad.isfinite().all())
            # Numbers of 8 bytes, where masks and dropout count in integers.
            most = ASKED if way == "bigbird" else 2 * STRIP
            assert largest.bytes <= most < N * N * 4, f"{largest.bytes / 2**20:.1f} MiB"


def _largest(n, **asked):
    x = torch.randn(1, 1, n, WIDTH, generator=torch.Generator().manual_seed(0)).requires_grad_()
    with Largest() as largest:
        regard.attention(x, x, x, backend="strips", **asked).sum().backward()
    return largest.bytes


@pytest.mark.parametrize(
    "asked",
    [{"mask": masks.Causal()}, {"mask": masks.Causal() & masks.Window(100)}],
    ids=["causal", "window"],
)
def test_what_is_allocated_grows_with_the_length(asked):
    assert _largest(4096, **asked) <= 2.2 * _largest(2048, **asked)


def test_what_is_kept_for_the_backward_grows_with_the_length():
    kept = []
    for n in (1024, 4096):
        x = torch.randn(1, 2, n, WIDTH, generator=torch.Generator().manual_seed(0)).requires_grad_()
        sizes = {}

        def pack(one, sizes=sizes):
            sizes[one.untyped_storage().data_ptr()] = one.untyped_storage().nbytes()
            return one

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one):
            regard.attention(
                x, x, x, backend="strips", mask=masks.Causal(), dropout=0.1, score=scores.ScaledDot(softcap=9.0)
            )
        kept.append(sum(sizes.values()))
    assert kept[1] <= 4 * kept[0]
    assert kept[0] <= 1024 * 2 * 4 * (4 * WIDTH + 4)
