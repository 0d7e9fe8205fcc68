"""nn.MultiheadAttention in all its variants, against the weights that it hands out itself."""

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import regard
from sweeps import sweep

B, N, M, E, H = 2, 5, 7, 8, 2
TOLERANCE = 2e-6


def made(seed: int = 0, **given) -> nn.MultiheadAttention:
    torch.manual_seed(seed)
    module = nn.MultiheadAttention(E, H, **given).eval()
    for parameter in module.parameters():  # biases begin as zeros, which would hide an error
        nn.init.normal_(parameter, std=0.4)
    return module


def inputs(module: nn.MultiheadAttention, *, same: bool = False, batch: int = B) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value in the layout of the module."""
    q, k, v = torch.randn(batch, N, E), torch.randn(batch, M, module.kdim), torch.randn(batch, M, module.vdim)
    q, k, v = (q, q, q) if same else (q, k, v)
    if module.batch_first:
        return q, k, v
    return (q.mT.mT.transpose(0, 1),) * 3 if same else tuple(x.transpose(0, 1) for x in (q, k, v))


def own_weights(module: nn.MultiheadAttention, *args: Tensor, **given) -> np.ndarray:
    """What the module itself says; a query that sees nothing is NaN there."""
    with torch.no_grad():
        weights = module(*args, need_weights=True, average_attn_weights=False, **given)[1]
    return (weights if weights.ndim == 4 else weights[None]).nan_to_num(0.0).numpy()


KINDS = {
    "plain": {},
    "batch first": {"batch_first": True},
    "no bias": {"bias": False, "batch_first": True},
    "bias_k": {"add_bias_kv": True},
    "zero attention": {"add_zero_attn": True, "batch_first": True},
    "bias_k and zero attention": {"add_bias_kv": True, "add_zero_attn": True},
    "other widths": {"kdim": 6, "vdim": 3},
    "other widths, batch first": {"kdim": 6, "vdim": 3, "batch_first": True, "add_bias_kv": True},
}
# Boolean masks of this module: True hides.
UPPER = torch.ones(N, M).triu(2).bool()
PADDING = torch.tensor([[False] * M, [False] * 4 + [True] * 3])
MASKS = {
    "no mask": {},
    "bool": {"attn_mask": UPPER},
    "float": {"attn_mask": torch.linspace(-2, 2, N * M).view(N, M)},
    "float, -inf": {"attn_mask": torch.zeros(N, M).masked_fill(UPPER, -torch.inf)},
    "bool a head": {"attn_mask": torch.stack([UPPER, UPPER.flip(0), UPPER.roll(1, 0), UPPER])},
    "float a head": {"attn_mask": torch.randn(B * H, N, M, generator=torch.Generator().manual_seed(0))},
    "padding": {"key_padding_mask": PADDING},
    "float padding": {"key_padding_mask": torch.zeros(B, M).masked_fill(PADDING, -torch.inf)},
    "both": {"attn_mask": UPPER, "key_padding_mask": PADDING},
    "both, float": {
        "attn_mask": torch.linspace(-2, 2, N * M).view(N, M),
        "key_padding_mask": torch.zeros(B, M).masked_fill(PADDING, -torch.inf),
    },
}


@pytest.mark.parametrize("needed", [True, False])
def test_every_variant_is_seen_as_the_module_says_it(watched, far, needed: bool) -> None:
    def check(kind: str, mask: str) -> None:
        module = made(**KINDS[kind])
        q, k, v = inputs(module)
        expected = own_weights(module, q, k, v, **MASKS[mask])
        with torch.no_grad():
            seen = watched(module, lambda: module(q, k, v, need_weights=needed, **MASKS[mask]))
        assert far(seen.layer(0).weights, expected) < TOLERANCE
        assert seen.layer(0).kind == "cross"
        assert len(seen.record) == 1

    for case in sweep(itertools.product(KINDS, MASKS)):
        with case as values:
            check(*values)


def test_self_attention_on_its_fast_path_and_off_it(watched, far) -> None:
    def check(grad: bool, needed: bool) -> None:
        module = made(batch_first=True)
        q, k, v = inputs(module, same=True)
        causal = nn.Transformer.generate_square_subsequent_mask(N)
        for given in ({}, {"attn_mask": causal}, {"attn_mask": causal, "is_causal": True}):
            expected = own_weights(module, q, k, v, **given)
            with torch.set_grad_enabled(grad):
                seen = watched(module, lambda given=given: module(q, k, v, need_weights=needed, **given))
            assert far(seen.layer(0).weights, expected) < TOLERANCE
            assert seen.layer(0).kind == "self"

    for case in sweep(itertools.product([True, False], [True, False])):
        with case as values:
            check(*values)


def test_an_unbatched_sequence_is_a_batch_of_one(watched, far) -> None:
    module = made()
    q, k, v = (x[:, 0] for x in inputs(module))
    padding = PADDING[1]
    expected = own_weights(module, q, k, v, attn_mask=UPPER, key_padding_mask=padding)
    seen = watched(module, lambda: module(q, k, v, attn_mask=UPPER, key_padding_mask=padding))
    assert far(seen.layer(0).weights, expected) < TOLERANCE


def test_a_query_that_sees_nothing_has_weight_0(watched) -> None:
    module = made(batch_first=True)
    q, k, v = inputs(module)
    hidden = torch.zeros(N, M, dtype=torch.bool)
    hidden[2] = True
    with torch.no_grad(), regard.watch(module, keep="weights") as seen:
        module(q, k, v, attn_mask=hidden)
    assert (seen.layer(0).weights[:, :, 2] == 0).all()
    np.testing.assert_allclose(seen.layer(0).weights.sum(-1)[:, :, [0, 1, 3, 4]], 1, atol=1e-6)


def test_dropout_in_training_changes_neither_output_nor_weights(watched, far) -> None:
    module = made(batch_first=True, dropout=0.5)
    q, k, v = inputs(module)
    expected = own_weights(module, q, k, v)
    module.train()
    for needed in (True, False):
        seen = watched(module, lambda needed=needed: module(q, k, v, need_weights=needed))
        assert far(seen.layer(0).weights, expected) < TOLERANCE


def test_the_function_called_directly_is_seen(watched, far) -> None:
    module = made(add_bias_kv=True)
    q, k, v = inputs(module)
    expected = own_weights(module, q, k, v, key_padding_mask=PADDING)

    class Direct(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return functional.multi_head_attention_forward(
                q, k, v, E, H, module.in_proj_weight, module.in_proj_bias, module.bias_k, module.bias_v, False, 0.0,
                module.out_proj.weight, module.out_proj.bias, training=False, key_padding_mask=PADDING,
            )[0]  # fmt: skip

    model = Direct()
    seen = watched(model, lambda: model(q, k, v))
    assert far(seen.layer(0).weights, expected) < TOLERANCE
    assert len(seen.record) == 1


def test_the_function_with_its_causal_hint_and_static_keys(watched, far) -> None:
    module = made()
    x = inputs(module, same=True)[0]
    causal = nn.Transformer.generate_square_subsequent_mask(N)
    expected = own_weights(module, x, x, x, attn_mask=causal)

    class Direct(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return functional.multi_head_attention_forward(
                x, x, x, E, H, module.in_proj_weight, module.in_proj_bias, None, None, False, 0.0,
                module.out_proj.weight, module.out_proj.bias, training=False, need_weights=False, attn_mask=causal,
                is_causal=True,
            )[0]  # fmt: skip

    model = Direct()
    assert far(watched(model, lambda: model(x)).layer(0).weights, expected) < TOLERANCE


def test_a_subclass_with_a_forward_of_its_own_is_seen_too(watched, far) -> None:
    class Own(nn.MultiheadAttention):
        def forward(self, query, key, value, **given):
            return super().forward(query, key, value, **given)

    torch.manual_seed(0)
    module = Own(E, H, batch_first=True).eval()
    q = torch.randn(B, N, E)
    expected = own_weights(module, q, q, q)
    seen = watched(module, lambda: module(q, q, q, need_weights=True))
    assert far(seen.layer(0).weights, expected) < TOLERANCE


def test_gradients_are_the_same(far) -> None:
    module = made(batch_first=True, dropout=0.3).train()
    q, k, v = inputs(module)
    grads = []
    for watching in (False, True):
        module.zero_grad()
        torch.manual_seed(3)
        if watching:
            with regard.watch(module):
                module(q, k, v)[0].square().sum().backward()
        else:
            module(q, k, v)[0].square().sum().backward()
        grads.append([one.grad.clone() for one in module.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*grads, strict=True))


SAME_INPUT = {
    "scaled": lambda x, other: (x * 1.7, x * 0.7),
    "with positions": lambda x, other: (x + other, x),
    "both with positions": lambda x, other: (x + other, x + other),
    "normalized": lambda x, other: (nn.functional.normalize(x), nn.functional.normalize(x)),
    "copied": lambda x, other: (x.clone(), x),
    "the last position": lambda x, other: (x[:, -1:], x),
}


def test_queries_and_keys_of_one_input_are_self_attention() -> None:
    """Without a parameter between input and module, all but the very same tensor was called cross-attention."""

    def check(way: str, made: str) -> None:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.attention, self.table = nn.MultiheadAttention(8, 2, batch_first=True), nn.Embedding(9, 8)

            def forward(self, x: torch.Tensor, other: torch.Tensor) -> None:
                x = self.table(x) if made == "embedded" else x
                q, k = SAME_INPUT[way](x, other)
                self.attention(q, k, x)
                self.attention(q, other, other)

        x = torch.arange(5)[None] if made == "embedded" else torch.randn(1, 5, 8)
        with torch.no_grad(), regard.watch(model := Model().eval()) as seen:
            model(x, torch.randn(1, 5, 8))
        own, crossed = seen.record.layers
        assert own.kind == "self"
        assert crossed.kind == ("self" if "with positions" in way else "cross")

    for case in sweep(itertools.product(SAME_INPUT, ["given", "embedded"])):
        with case as values:
            check(*values)
