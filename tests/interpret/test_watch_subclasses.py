"""Subclasses of PyTorch's Transformer modules keep its fast paths while they are watched, and what they add is seen."""

import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import regard
from sweeps import sweep

B, N, E, H = 3, 6, 8, 2
PADDED = torch.arange(N) >= torch.tensor([6, 4, 2])[:, None]
CAUSAL = torch.ones(N, N).triu(1).bool()


@pytest.fixture(autouse=True)
def _quiet():
    """PyTorch warns of its own prototype of nested tensors, and of the masks that it converts itself."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The PyTorch API of nested tensors")
        warnings.filterwarnings("ignore", "enable_nested_tensor is True, but")
        warnings.filterwarnings("ignore", "Converting mask without torch.bool")
        yield


class OwnForward(nn.TransformerEncoderLayer):
    def forward(self, src, *args, **given):
        return super().forward(src * 1.5, *args, **given)


class OwnBlock(nn.TransformerEncoderLayer):
    def _sa_block(self, x, *args, **given):
        return super()._sa_block(x, *args, **given) * 0.5


class OwnFormula(nn.TransformerEncoderLayer):
    """Attention of its own where PyTorch's kernel does not run."""

    def _sa_block(self, x, attn_mask, key_padding_mask, is_causal=False):
        return functional.scaled_dot_product_attention(x, x, x)


class OwnFeedForward(nn.TransformerEncoderLayer):
    def _ff_block(self, x):
        return super()._ff_block(x) + torch.softmax(x @ x.mT, -1) @ x


class OwnEncoder(nn.TransformerEncoder):
    def forward(self, src, *args, **given):
        return super().forward(src, *args, **given) + 1.0


class OwnAttention(nn.MultiheadAttention):
    def forward(self, query, key, value, **given):
        output, weights = super().forward(query, key, value, **given)
        return output * 2, weights


def encoder(kind, whole=nn.TransformerEncoder, attention=nn.MultiheadAttention) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = kind(E, H, 16, batch_first=True, dropout=0.3)
    layer.self_attn = attention(E, H, dropout=0.3, batch_first=True)
    model = whole(layer, 2)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.5)
    return model


def run(model, x, given, *, grad, autocast) -> list[Tensor]:
    model.zero_grad()
    torch.manual_seed(3)
    with torch.set_grad_enabled(grad), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        output = model(x, **given)
    if grad:
        output.float().square().sum().backward()
    grads = [one.grad.clone() for one in model.parameters() if one.grad is not None]
    return [output.detach(), *grads, torch.get_rng_state()]


KINDS = {
    "forward": (OwnForward,),
    "_sa_block": (OwnBlock,),
    "formula": (OwnFormula,),
    "_ff_block": (OwnFeedForward,),
    "encoder": (nn.TransformerEncoderLayer, OwnEncoder),
    "encoder and layer": (OwnForward, OwnEncoder),
    "attention": (nn.TransformerEncoderLayer, nn.TransformerEncoder, OwnAttention),
}
# Training, gradients, autocast, a hook on each layer. PyTorch's kernel itself fails under autocast on a processor.
MODES = [
    (False, False, False, False),
    (False, False, False, True),
    (False, True, True, False),
    (True, True, False, True),
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_subclass_computes_the_same_to_the_bit(kind: str) -> None:
    model = encoder(*KINDS[kind])
    x = torch.randn(B, N, E)
    for training, grad, autocast, hooked in MODES:
        model.train(training)
        hooks = [layer.register_forward_hook(lambda *_: None) for layer in model.layers] if hooked else []
        for given in ({}, {"src_key_padding_mask": PADDED}, {"mask": CAUSAL}):
            plain = run(model, x, given, grad=grad, autocast=autocast)
            with regard.watch(model, keep="weights") as seen:
                output = run(model, x, given, grad=grad, autocast=autocast)
            where = training, grad, autocast, hooked, list(given)
            assert all(torch.equal(one, other) for one, other in zip(plain, output, strict=True)), where
            assert len(seen.record) in (2, 4), where
        for hook in hooks:
            hook.remove()


def test_padding_takes_the_fast_path_of_a_subclass() -> None:
    for case in sweep(["forward", "_sa_block", "_ff_block"]):
        with case as kind:
            model, x = encoder(*KINDS[kind]).eval(), torch.randn(B, N, E)
            with torch.no_grad(), regard.watch(model, keep="weights") as seen:
                output = model(x, src_key_padding_mask=PADDED)
            assert (output[2, 2:] == 0).all()  # nested tensors fill up with zeros
            assert [layer.name for layer in seen.record] == ["layers.0.self_attn", "layers.1.self_attn"]
            y = x * 1.5 if kind == "forward" else x
            expected = model.layers[0].self_attn(y, y, y, key_padding_mask=PADDED, average_attn_weights=False)[1]
            for batch_index, length in enumerate((6, 4, 2)):
                ours, theirs = (
                    seen.layer(0).weights[batch_index, :, :length],
                    expected[batch_index, :, :length].detach(),
                )
                np.testing.assert_allclose(ours, theirs, atol=2e-6)


def test_what_a_subclass_computes_itself_is_seen_where_it_runs() -> None:
    model, x = encoder(OwnFormula).eval(), torch.randn(B, N, E)
    with torch.no_grad(), regard.watch(model, keep="weights") as fast:
        model(x)
    with regard.watch(model, keep="weights") as slow:
        model(x)
    assert [layer.name for layer in fast.record] == ["layers.0.self_attn", "layers.1.self_attn"]
    assert [layer.name for layer in slow.record] == ["layers.0", "layers.1"]
    own = torch.softmax(x.double() @ x.double().mT / E**0.5, -1)
    np.testing.assert_allclose(slow.layer(0).weights[:, 0], own, atol=2e-6)


def test_a_mask_of_numbers_hides_as_the_kernel_of_the_fast_path_takes_it() -> None:
    """It makes the mask boolean: any number but 0 hides, which is not what the slow path computes."""
    layer = encoder(nn.TransformerEncoderLayer).layers[0].eval()
    x, mask = torch.randn(B, N, E), torch.zeros(N, N).masked_fill(CAUSAL, -0.5)
    with torch.no_grad():
        assert torch.equal(layer(x, src_mask=mask), layer(x, src_mask=CAUSAL))
        expected = layer.self_attn(x, x, x, attn_mask=CAUSAL, average_attn_weights=False)[1]
        with regard.watch(layer, keep="weights") as seen:
            layer(x, src_mask=mask)
    np.testing.assert_allclose(seen.layer(0).weights, expected, atol=2e-6)
