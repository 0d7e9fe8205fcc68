"""from_torch and to_torch copy what tensors mean: types, what is trained, modes and sharing; the rest is refused."""

import copy
import types
from itertools import product

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from regard.errors import InputError
from regard.nn import Decoder, DecoderBlock, Encoder, EncoderBlock, EncoderDecoder, FeedForward, MultiHeadAttention
from sweeps import sweep

W, H = 16, 4
X, Y = torch.randn(2, 5, W), torch.randn(2, 7, W)


def encoder_layer(**options):
    return nn.TransformerEncoderLayer(W, H, 24, batch_first=True, **{"dropout": 0.0} | options)


def decoder_layer(**options):
    return nn.TransformerDecoderLayer(W, H, 24, batch_first=True, **{"dropout": 0.0} | options)


def encoder():
    return nn.TransformerEncoder(encoder_layer(), 2, nn.LayerNorm(W), enable_nested_tensor=False)


def decoder():
    return nn.TransformerDecoder(decoder_layer(), 2, nn.LayerNorm(W))


def transformer():
    options = {"custom_encoder": encoder(), "custom_decoder": decoder()}
    return nn.Transformer(W, H, batch_first=True, **options)


KINDS = {
    "attention": (MultiHeadAttention, lambda: nn.MultiheadAttention(W, H, batch_first=True)),
    "attention of widths": (MultiHeadAttention, lambda: nn.MultiheadAttention(W, H, kdim=6, vdim=7, batch_first=True)),
    "encoder layer": (EncoderBlock, encoder_layer),
    "decoder layer": (DecoderBlock, decoder_layer),
    "encoder": (Encoder, encoder),
    "decoder": (Decoder, decoder),
    "transformer": (EncoderDecoder, transformer),
}


def state(module):
    return {name: (one.requires_grad, one.dtype, one.detach()) for name, one in module.named_parameters()}


def test_each_parameter_comes_back_in_its_type_and_trained_or_frozen():
    for case in sweep(product(KINDS, range(3))):
        with case as (name, seed):
            ours, make = KINDS[name]
            torch.manual_seed(seed)
            theirs = make()
            for number, one in enumerate(theirs.parameters()):
                one.requires_grad_((number + seed) % 3 > 0)
                one.data = torch.randn_like(one).to(
                    (torch.float32, torch.bfloat16, torch.float64)[(number + seed) // 2 % 3]
                )
            with torch.no_grad():  # as code that only loads weights has it
                back = ours.from_torch(theirs).to_torch()
            expected = state(theirs)
            assert state(back).keys() == expected.keys()
            for key, (requires_grad, dtype, values) in state(back).items():
                assert (requires_grad, dtype) == expected[key][:2], key
                assert torch.equal(values, expected[key][2]), key
                assert values.data_ptr() != expected[key][2].data_ptr(), key


def test_the_parts_of_a_fused_parameter_are_trained_as_it_is():
    theirs = nn.MultiheadAttention(W, H)
    theirs.in_proj_weight.requires_grad_(False)
    ours = MultiHeadAttention.from_torch(theirs)
    trained = {name for name, one in ours.named_parameters() if one.requires_grad}
    assert trained == {*(f"{name}_proj.bias" for name in ("q", "k", "v")), "out_proj.weight", "out_proj.bias"}
    ours.k_proj.bias.requires_grad_(False)
    with pytest.raises(InputError, match=r"q_proj.bias, k_proj.bias .* got trained .* frozen .*requires_grad_\(\)"):
        ours.to_torch()


def test_a_device_is_kept():
    for case in sweep(KINDS):
        with case as name:
            ours, make = KINDS[name]
            made = ours.from_torch(make().to("meta"))
            assert {one.device.type for one in made.parameters()} == {"meta"}
            assert {one.device.type for one in made.to_torch().parameters()} == {"meta"}


def test_modes_of_the_parts_decide_what_is_dropped_there_and_here():
    parts = {  # PyTorch's parts that drop, and the mode here that decides the same
        "self_attn": "attention", "multihead_attn": "cross_attention", "dropout": "feed_forward",
    }  # fmt: skip
    for case in sweep(parts):
        with case as part:
            theirs = decoder_layer(dropout=0.5).eval()
            getattr(theirs, part).train()
            ours = DecoderBlock.from_torch(theirs)
            training = {name for name in parts.values() if getattr(ours, name).training}
            assert training == {parts[part]}
            assert not ours.training
            assert not torch.equal(ours(X, Y), ours(X, Y))
            back = ours.to_torch()
            assert {name for name in parts if getattr(back, name).training} == {part}
            assert not torch.equal(back(X, Y), back(X, Y))
    theirs = decoder_layer(dropout=0.5).eval()
    for name in ("dropout1", "dropout2", "dropout3"):
        getattr(theirs, name).train()
    assert DecoderBlock.from_torch(theirs).training
    theirs.dropout2.eval()
    with pytest.raises(InputError, match=r"dropout1, dropout2, dropout3 in one mode, .* layer.train\(\)"):
        DecoderBlock.from_torch(theirs)


def test_a_frozen_part_of_a_stack_stays_in_its_mode():
    theirs = encoder().train()
    theirs.layers[0].eval()
    ours = Encoder.from_torch(theirs)
    assert [ours.training, *(layer.training for layer in ours.layers)] == [True, False, True]
    assert [layer.training for layer in ours.to_torch().layers] == [False, True]


def test_a_layer_that_is_there_twice_is_shared_in_the_copy():
    for case in sweep({"encoder": (Encoder, encoder), "decoder": (Decoder, decoder)}.items()):
        with case as (name, (kind, make)):
            theirs = make()
            theirs.layers = nn.ModuleList([theirs.layers[0], theirs.layers[1], theirs.layers[0]])
            ours = kind.from_torch(theirs)
            assert ours.layers[0] is ours.layers[2] is not ours.layers[1]
            back = ours.to_torch()
            assert back.layers[0] is back.layers[2] is not back.layers[1]
            inputs = (X,) if name == "encoder" else (X, Y)
            torch.testing.assert_close(ours(*inputs), theirs(*inputs))
            torch.testing.assert_close(back(*inputs), theirs(*inputs))


def test_a_shared_layer_in_a_transformer_stays_shared():
    theirs = transformer()
    theirs.decoder.layers = nn.ModuleList([theirs.decoder.layers[1]] * 2)
    back = EncoderDecoder.from_torch(theirs).to_torch()
    assert back.decoder.layers[0] is back.decoder.layers[1]
    torch.testing.assert_close(back(Y, X), theirs(Y, X))


def test_a_stack_of_a_subclass_without_overrides_is_converted():
    class Named(nn.TransformerEncoderLayer):
        def __init__(self, name):
            super().__init__(W, H, 24, 0.0, batch_first=True)
            self.name = name

        def extra_repr(self):
            return self.name

    theirs = Named("first")
    torch.testing.assert_close(EncoderBlock.from_torch(theirs)(X), theirs(X))


class Sharp(nn.MultiheadAttention):
    def forward(self, query, key, value, **options):
        return super().forward(2 * query, key, value, **options)


class Gated(nn.TransformerEncoderLayer):
    def _sa_block(self, *args, **options):
        return 0.1 * super()._sa_block(*args, **options)


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class Later(nn.TransformerEncoder):
    def forward(self, src, **options):
        return super().forward(src, **options) + src


class Ours(MultiHeadAttention):
    def forward(self, *args, **options):
        return super().forward(*args, **options)


class Half(EncoderBlock):
    def _add_and_norm(self, x, added, index):
        return super()._add_and_norm(x, added / 2, index)


def changed(module, change):
    change(module)
    return module


def with_forward(module):
    module.forward = types.MethodType(lambda self, x, *args, **options: x, module)


def without_dropout(layer):
    layer.dropout1 = nn.Identity()


def tied(layer):
    layer.norm2 = layer.norm1


def with_other_heads(layer):
    layer.multihead_attn = nn.MultiheadAttention(W, 2, dropout=0.0, batch_first=True)


def with_other_eps(layer):
    layer.norm2.eps = 1e-3


def with_layer(name, layer):
    return lambda module: setattr(module, name, layer)


def with_hook(name):
    return lambda module: module.get_submodule(name).register_forward_hook(lambda *args: None)


def quantized():
    return torch.ao.nn.quantized.dynamic.Linear(W, 24)


def across():
    model = transformer()
    model.decoder.norm = model.encoder.norm
    return model


def tensor_hook(module):
    module.linear1.weight.register_hook(lambda grad: grad)


NEW = "convert a plain"
REFUSED = {
    "attention": (lambda: MultiHeadAttention.from_torch(Sharp(W, H)), f"Sharp overrides `forward`, .* {NEW}"),
    "layer": (lambda: EncoderBlock.from_torch(Gated(W, H, 24)), "Gated overrides `_sa_block`"),
    "layer in a stack": (
        lambda: Encoder.from_torch(nn.TransformerEncoder(Gated(W, H, 24), 2, enable_nested_tensor=False)),
        "Gated overrides `_sa_block`",
    ),
    "stack": (lambda: Encoder.from_torch(Later(encoder_layer(), 2, enable_nested_tensor=False)), "Later overrides"),
    "inner layer": (
        lambda: EncoderBlock.from_torch(changed(encoder_layer(), with_layer("linear1", Doubled(W, 24)))),
        "`layer.linear1` must compute what nn.Linear does, and Doubled overrides `forward`",
    ),
    "inner attention": (
        lambda: EncoderBlock.from_torch(changed(encoder_layer(), with_layer("self_attn", Sharp(W, H)))),
        "`layer.self_attn` must compute .* Sharp",
    ),
    "instance": (
        lambda: MultiHeadAttention.from_torch(changed(nn.MultiheadAttention(W, H), with_forward)),
        "MultiheadAttention overrides `forward`",
    ),
    "no dropout": (lambda: EncoderBlock.from_torch(changed(encoder_layer(), without_dropout)), "nn.Dropout, got Ident"),
    "quantized": (
        lambda: EncoderBlock.from_torch(changed(encoder_layer(), with_layer("linear1", quantized()))),
        "`layer.linear1` must be an nn.Linear, got torch.*quantized.*dequantized",
    ),
    "RMS norm": (
        lambda: EncoderBlock.from_torch(changed(encoder_layer(), with_layer("norm1", nn.RMSNorm(W)))),
        "`layer.norm1` must be an nn.LayerNorm, got RMSNorm",
    ),
    "pruned": (
        lambda: EncoderBlock.from_torch(
            changed(encoder_layer(), lambda m: prune.random_unstructured(m.linear1, "weight", 0.5))
        ),
        r"`layer.linear1` has hooks, .*prune.remove",
    ),
    "parametrized": (
        lambda: EncoderBlock.from_torch(changed(encoder_layer(), lambda m: parametrizations.weight_norm(m.linear1))),
        r"`layer.linear1` is parametrized \(weight\).*remove_parametrizations",
    ),
    "hook": (
        lambda: Encoder.from_torch(changed(encoder(), with_hook("layers.1.self_attn"))),
        "`layer.self_attn` has hooks",
    ),
    "hook of a stack": (lambda: Decoder.from_torch(changed(decoder(), with_hook(""))), "`module` has hooks"),
    "hook of a tensor": (
        lambda: EncoderBlock.from_torch(changed(encoder_layer(), tensor_hook)),
        "`layer.linear1.weight`",
    ),
    "tied": (lambda: EncoderBlock.from_torch(changed(encoder_layer(), tied)), "norm1.weight` are one parameter"),
    "tied across": (lambda: EncoderDecoder.from_torch(across()), "`decoder.norm.weight` and `encoder.norm.weight` are"),
    "heads": (
        lambda: DecoderBlock.from_torch(changed(decoder_layer(), with_other_heads)),
        r"one `num_heads` .*\[2, 4\]",
    ),
    "eps": (lambda: EncoderBlock.from_torch(changed(encoder_layer(), with_other_eps)), "one `eps` everywhere"),
    "sizes": (
        lambda: EncoderBlock.from_torch(changed(encoder_layer(), with_layer("linear2", nn.Linear(24, 9)))),
        "differs in bias, weight: were layers replaced",
    ),
    "our subclass": (lambda: Ours(W, H).to_torch(), "Ours overrides `forward`"),
    "our block": (lambda: Half(W, H, 24).to_torch(), "Half overrides `_add_and_norm`"),
    "our attention in a block": (lambda: EncoderBlock(W, H, 24, attention=Ours(W, H)).to_torch(), "Ours overrides"),
    "our layer": (
        lambda: changed(MultiHeadAttention(W, H), with_layer("q_proj", Doubled(W, W))).to_torch(),
        "`self.q_proj` .* Doubled overrides `forward`",
    ),
    "our hook": (
        lambda: changed(Encoder([EncoderBlock(W, H, 24)]), with_hook("layers.0.attention.k_proj")).to_torch(),
        "`self.attention.k_proj` has hooks",
    ),
    "our feed-forward": (
        lambda: changed(EncoderBlock(W, H, 24), lambda m: with_forward(m.feed_forward)).to_torch(),
        "FeedForward overrides `forward`",
    ),
    "ours pruned": (
        lambda: changed(
            MultiHeadAttention(W, H), lambda m: [setattr(m, f"{p}_proj", nn.Linear(W, 8)) for p in "qkv"]
        ).to_torch(),
        "has no `head_dim`",
    ),
}


@pytest.mark.filterwarnings(
    "ignore:torch.quantize_per_tensor:UserWarning", "ignore:torch.ao.quantization:DeprecationWarning"
)
def test_what_no_tensor_says_is_refused_by_name():
    for case in sweep(REFUSED):
        with case as name:
            call, words = REFUSED[name]
            with pytest.raises(InputError, match=words):
                call()


def test_the_norm_of_a_stack_is_copied_with_all_it_has():
    theirs = encoder()
    theirs.norm.weight.requires_grad_(False)
    theirs.norm.eval()
    ours = Encoder.from_torch(theirs)
    assert (ours.norm.weight.requires_grad, ours.norm.training) == (False, False)
    assert ours.norm is not theirs.norm
    again = copy.deepcopy(ours).to_torch()
    assert (again.norm.weight.requires_grad, again.norm.training) == (False, False)


def test_a_gated_feed_forward_is_refused():
    block = EncoderBlock(W, H, 24, feed_forward=FeedForward(W, 24, activation="geglu"))
    with pytest.raises(InputError, match="has no `activation`"):
        block.to_torch()
