"""What holds for every attention module: copies, files, dtypes, gradients, and being watched."""

import copy
from itertools import product

import pytest
import torch

import regard
from regard import nn
from regard.errors import InputError
from sweeps import sweep

FLAGS = torch.arange(12)[None] == 3
CASES = {
    "additive": (lambda: nn.AdditiveAttention(8, 6), lambda: (torch.randn(2, 5, 8), torch.randn(2, 7, 6)), {}),
    "bilinear": (lambda: nn.BilinearAttention(8, 6), lambda: (torch.randn(2, 5, 8), torch.randn(2, 7, 6)), {}),
    "soft": (lambda: nn.AttentionPooling(8), lambda: (torch.randn(2, 7, 8),), {}),
    "soft with a query": (
        lambda: nn.AttentionPooling(8, query_dim=6),
        lambda: (torch.randn(2, 7, 8), torch.randn(2, 6)),
        {},
    ),
    "local-m": (
        lambda: nn.LocalAttention(8, 2, alignment="monotonic"),
        lambda: (torch.randn(2, 5, 8), torch.randn(2, 7, 8)),
        {},
    ),
    "local-p": (lambda: nn.LocalAttention(8, 2), lambda: (torch.randn(2, 5, 8), torch.randn(2, 7, 8)), {}),
    "sliding window": (lambda: nn.SlidingWindowAttention(8, 2, 3), lambda: (torch.randn(2, 7, 8),), {}),
    "longformer": (
        lambda: nn.LongformerAttention(8, 2, window=4),
        lambda: (torch.randn(2, 12, 8),),
        {"global_attention_mask": FLAGS.expand(2, 12)},
    ),
    "bigbird": (lambda: nn.BigBirdAttention(8, 2, block=2, num_random_blocks=1), lambda: (torch.randn(2, 12, 8),), {}),
    "axial": (lambda: nn.AxialAttention(8, 2), lambda: (torch.randn(2, 3, 4, 8),), {}),
    "neighborhood": (lambda: nn.NeighborhoodAttention(8, 2, 3), lambda: (torch.randn(2, 3, 4, 8),), {}),
}


def made(name):
    make, inputs, options = CASES[name]
    torch.manual_seed(0)
    return make, inputs(), options


def test_survives_copies_and_files(tmp_path_factory):
    for case in sweep(CASES):
        with case as name:
            tmp_path = tmp_path_factory.mktemp("case")
            make, inputs, options = made(name)
            module, other = make(), make()
            expected = module(*inputs, **options)
            torch.save(module.state_dict(), tmp_path / "state.pt")
            assert not torch.equal(other(*inputs, **options), expected)
            other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
            for one in (other, copy.deepcopy(module)):
                assert torch.equal(one(*inputs, **options), expected)


def test_follows_a_change_of_dtype():
    for case in sweep(product(CASES, [torch.float64, torch.bfloat16])):
        with case as (name, dtype):
            make, inputs, options = made(name)
            module = make()
            expected = module(*inputs, **options)
            output = module.to(dtype)(*(one.to(dtype) for one in inputs), **options)
            assert output.dtype == dtype
            tolerance = 1e-5 if dtype == torch.float64 else 0.2  # ⌊p⌋ of local-p may be another in bfloat16
            assert float((output.float() - expected).detach().abs().mean()) < tolerance


def test_every_parameter_gets_a_gradient():
    for case in sweep(CASES):
        with case as name:
            make, inputs, options = made(name)
            module = make()
            module(*inputs, **options).square().sum().backward()
            for key, one in module.named_parameters():
                # The bias of keys adds the same to all scores of a row.
                assert (one.grad.abs() > (0 if "k_" not in key or "bias" not in key else -1)).any(), key


WITH_WEIGHTS = ["additive", "bilinear", "sliding window", "longformer", "bigbird", "axial", "neighborhood"]


def test_weights_beyond_the_budget_are_refused_and_the_budget_can_be_raised():
    for case in sweep(WITH_WEIGHTS):
        with case as name:
            make, inputs, options = CASES[name]
            module, given = make(), inputs()
            with pytest.raises(InputError, match=r"more than the limit of 8 B: raise `max_bytes`"):
                module(*given, need_weights=True, max_bytes=8, **options)
            assert len(module(*given, need_weights=True, max_bytes=10**6, **options)) == 2


def test_is_watched():
    for case in sweep(CASES):
        with case as name:
            make, inputs, options = made(name)
            module = make().eval()
            plain = module(*inputs, **options)
            with regard.watch(module, keep="weights") as seen:
                watched = module(*inputs, **options)
            assert torch.equal(plain, watched)
            calls = {nn.LongformerAttention: 2, nn.AxialAttention: 2}.get(type(module), 1)
            assert len(seen.layers) == calls


def test_watched_weights_are_the_modules_own():
    module, x = nn.SlidingWindowAttention(8, 2, 3).eval(), torch.randn(1, 7, 8)
    with regard.watch(module, keep="weights") as seen:
        _, weights = module(x, need_weights=True)
    for head in range(2):
        torch.testing.assert_close(torch.as_tensor(seen.weights(layer=0, head=head))[0], weights[0, head].detach())
