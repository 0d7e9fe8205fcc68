"""nn.TransformerEncoder with its fast path, decoder layers and nn.Transformer: bit-identical, and seen as they are."""

import itertools
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import regard
from sweeps import sweep

B, N, M, E, H = 3, 6, 4, 8, 2
LENGTHS = (6, 4, 2)
PADDED = torch.arange(N) >= torch.tensor(LENGTHS)[:, None]
TOLERANCE = 2e-6


@pytest.fixture(autouse=True)
def _quiet():
    """PyTorch warns of its own prototype of nested tensors."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The PyTorch API of nested tensors")
        warnings.filterwarnings("ignore", "enable_nested_tensor is True, but")
        yield


def encoder(*, layers: int = 2, nested: bool = True, **given) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    given = {"batch_first": True, "dim_feedforward": 16} | given
    layer = nn.TransformerEncoderLayer(E, H, **given)
    model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=nested).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.5)
    return model


def by_layers(model: nn.TransformerEncoder, x: Tensor, mask: Tensor | None, padding: Tensor | None) -> list[np.ndarray]:
    """The weights of each layer, from the slow path with gradients on, layer by layer."""
    found = []
    with torch.enable_grad():
        for layer in model.layers:
            y = layer.norm1(x) if layer.norm_first else x
            given = {"attn_mask": mask, "key_padding_mask": padding}
            weights = layer.self_attn(y, y, y, need_weights=True, average_attn_weights=False, **given)[1]
            found.append(weights.detach().numpy())
            x = layer(x, src_mask=mask, src_key_padding_mask=padding)
    return found


CAUSAL = torch.ones(N, N).triu(1).bool()
SHAPES = list(itertools.product([False, True], [None, CAUSAL], [None, PADDED], [False, True]))


@pytest.mark.parametrize("nested", [True, False])
def test_an_encoder_is_seen_on_its_fast_path_and_off_it(watched, far, nested: bool) -> None:
    def check(norm_first: bool, mask: Tensor | None, padding: Tensor | None, grad: bool) -> None:
        model = encoder(norm_first=norm_first, nested=nested)
        x = torch.randn(B, N, E)
        expected = by_layers(model, x, mask, padding)
        with torch.set_grad_enabled(grad):
            seen = watched(model, lambda: model(x, mask=mask, src_key_padding_mask=padding))
        assert [layer.name for layer in seen.record] == ["layers.0.self_attn", "layers.1.self_attn"]
        for layer, theirs in zip(seen.record, expected, strict=True):
            ours = layer.weights
            assert ours.shape == theirs.shape
            for batch_index, length in enumerate(LENGTHS if padding is not None else [N] * B):
                # What padded queries look at has no meaning: a fast path drops them.
                assert far(ours[batch_index, :, :length], theirs[batch_index, :, :length]) < TOLERANCE

    for case in sweep(SHAPES):
        with case as values:
            check(*values)


def test_the_padded_fast_path_is_really_taken(watched) -> None:
    model = encoder()
    x = torch.randn(B, N, E)
    with torch.no_grad():
        output = model(x, src_key_padding_mask=PADDED)
        with regard.watch(model):
            seen = model(x, src_key_padding_mask=PADDED)
    assert (output[2, 2:] == 0).all()  # nested tensors fill up with zeros
    assert torch.equal(output, seen)


def test_a_nested_batch_is_seen(watched, far) -> None:
    model = encoder(layers=1)
    rows = [torch.randn(length, E) for length in LENGTHS]
    with torch.no_grad():
        seen = watched(model, lambda: model(torch.nested.nested_tensor(rows)))
    padded = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    expected = by_layers(model, padded, None, PADDED)[0]
    for batch_index, length in enumerate(LENGTHS):
        assert far(seen.layer(0).weights[batch_index, :, :length], expected[batch_index, :, :length]) < TOLERANCE


def test_layers_alone_are_seen(watched, far) -> None:
    def check(activation: str, batch_first: bool) -> None:
        layer = encoder(activation=activation, batch_first=batch_first).layers[0]
        x = torch.randn(N, E) if not batch_first else torch.randn(B, N, E)
        with torch.no_grad():
            expected = layer.self_attn(x, x, x, average_attn_weights=False)[1]
            seen = watched(layer, lambda: layer(x))
        assert far(seen.layer(0).weights, expected.reshape(-1, H, N, N)) < TOLERANCE

    for case in sweep(itertools.product(["relu", "gelu"], [True, False])):
        with case as values:
            check(*values)


def test_training_with_dropout_and_its_gradients() -> None:
    model = encoder(dropout=0.4).train()
    x = torch.randn(B, N, E)
    grads = []
    for watching in (False, True):
        model.zero_grad()
        torch.manual_seed(2)
        if watching:
            with regard.watch(model) as seen:
                model(x, src_key_padding_mask=PADDED).square().sum().backward()
            assert len(seen.record) == 2
        else:
            model(x, src_key_padding_mask=PADDED).square().sum().backward()
        grads.append([one.grad.clone() for one in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*grads, strict=True))


def test_a_decoder_layer_has_self_and_cross_attention(watched, far) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerDecoderLayer(E, H, 16, batch_first=True).eval()
    x, memory = torch.randn(B, M, E), torch.randn(B, N, E)
    causal = nn.Transformer.generate_square_subsequent_mask(M)
    given = {"tgt_mask": causal, "memory_key_padding_mask": PADDED}
    with torch.no_grad():
        own = layer.self_attn(x, x, x, attn_mask=causal, average_attn_weights=False)
        y = layer.norm1(x + own[0])
        cross = layer.multihead_attn(y, memory, memory, key_padding_mask=PADDED, average_attn_weights=False)
        seen = watched(layer, lambda: layer(x, memory, **given))
    assert [(one.name, one.kind) for one in seen.record] == [("self_attn", "self"), ("multihead_attn", "cross")]
    assert far(seen.layer(0, "target").weights, own[1]) < TOLERANCE
    assert far(seen.layer(0, ("target", "source")).weights, cross[1]) < TOLERANCE


@pytest.mark.parametrize("grad", [True, False])
def test_a_whole_transformer_names_its_streams(watched, grad: bool) -> None:
    torch.manual_seed(0)
    model = nn.Transformer(E, H, 2, 2, 16, batch_first=True).eval()
    x, y = torch.randn(B, N, E), torch.randn(B, M, E)
    with torch.set_grad_enabled(grad):
        seen = watched(model, lambda: model(x, y, src_key_padding_mask=PADDED, memory_key_padding_mask=PADDED))
    shapes = [(one.name, one.query_tokens, one.key_tokens, one.weights.shape[2:]) for one in seen.record]
    assert shapes == [
        ("encoder.layers.0.self_attn", "source", "source", (N, N)),
        ("encoder.layers.1.self_attn", "source", "source", (N, N)),
        ("decoder.layers.0.self_attn", "target", "target", (M, M)),
        ("decoder.layers.0.multihead_attn", "target", "source", (M, N)),
        ("decoder.layers.1.self_attn", "target", "target", (M, M)),
        ("decoder.layers.1.multihead_attn", "target", "source", (M, N)),
    ]
    np.testing.assert_allclose(seen.layer(0, ("target", "source")).weights.sum(-1), 1, atol=1e-6)
