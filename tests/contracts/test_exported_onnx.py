"""Modules exported to ONNX with every batch and length free: in ONNX Runtime they compute what they do here, also for
one text of one token; what ONNX cannot express is refused by name.

Expected is the formula in float64 on the same inputs, or where PyTorch has the same module, that module.
"""

import copy
import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import regard
from onnx_programs import Calls, exported, refusal
from random_exports import outcome
from random_modules import drawn
from regard import masks, normalizers, positions, scores
from regard.cache import KVCache
from regard.models import Transformer, TransformerConfig
from regard.nn import Decoder, DecoderBlock, Encoder, MultiHeadAttention

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package)

pytestmark = [
    pytest.mark.slow,  # 2 s each
    pytest.mark.filterwarnings("ignore:.*(isinstance.treespec, LeafSpec.|onnxscript).*"),
]

SIZES = (2, 9), (3, 12), (1, 1), (1, 7), (4, 1), (2, 40)  # batch and length; the first two are those of the export


def wide(inputs):
    return pytree.tree_map(lambda one: one.double() if one.is_floating_point() else one, inputs)


def check(module, draw, sizes=SIZES, *, expected=None, atol=1e-5):
    """`draw` gives inputs of each of the sizes, `expected` what is right for them."""
    module = module.eval()
    program = exported(module, draw(*sizes[0]), draw(*sizes[1]))
    if expected is None:
        expected = copy.deepcopy(module).double()
    for size in sizes[1:]:
        inputs = draw(*size)
        with torch.no_grad(), regard.use_backend("reference"):
            right = pytree.tree_leaves(expected(*wide(inputs)))
        for one, other in zip(program(*inputs), right, strict=True):
            torch.testing.assert_close(
                one.double(), other, rtol=1e-5, atol=atol, msg=lambda text, size=size: f"{size}: {text}"
            )


def padded(batch, length):
    """Vectors, and which of them are padding: of the last sequence all."""
    hidden = torch.arange(length) >= torch.randint(0, length + 1, (batch, 1))
    hidden[-1] = True
    return torch.randn(batch, length, 16), hidden


def test_an_encoder_of_pytorch_with_padding_computes_what_pytorch_does():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    theirs = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()

    def some(batch, length):  # PyTorch gives NaN for rows that see nothing
        x, hidden = padded(batch, length)
        hidden[:, 0] = False
        return x, hidden

    ours = Encoder.from_torch(theirs)
    call = Calls(lambda model, x, hidden: model(x, key_padding_mask=hidden), ours)
    check(call, some, expected=lambda x, hidden: copy.deepcopy(theirs).double()(x, src_key_padding_mask=hidden))


LAYERS = {
    "padded, of which one is padding alone": {},
    "grouped heads, turned": {"num_kv_heads": 2, "rotary": positions.RoPE(4), "mask": masks.Causal()},
    "one head of keys, YaRN": {"num_kv_heads": 1, "rotary": positions.RoPE(4, scaling=positions.YaRN(2.0, 8))},
    "window, ALiBi": {"mask": masks.Causal() & masks.Window(3), "attn_bias": positions.ALiBi(4)},
    "Longformer": {"mask": masks.longformer(4, (0,)), "normalizer": normalizers.Sigmoid()},
    "T5, softcap, negative scale": {
        "attn_bias": positions.T5Bias(nn.Parameter(torch.randn(8, 4)), bidirectional=True, max_distance=20),
        "score": scores.ScaledDot(softcap=3.0),
        "scale": -0.3,
    },
    "negative scale": {"scale": -0.3, "mask": masks.Causal()},
    "Shaw, sinks": {
        "score": scores.Shaw(nn.Parameter(torch.randn(7, 4)), nn.Parameter(torch.randn(7, 4))),
        "normalizer": normalizers.Softmax(nn.Parameter(torch.randn(4))),
    },
}


def test_attention_with_padding_and_with_its_weights():
    torch.manual_seed(0)

    def call(*given):
        *layers, x, hidden = given
        fused = [layer(x, key_padding_mask=hidden) for layer in layers]
        return fused, [layer(x, key_padding_mask=hidden, need_weights=True) for layer in layers]

    check(Calls(call, *(MultiHeadAttention(16, 4, **options) for options in LAYERS.values())), padded)


def test_cross_attention_to_padded_memory():
    torch.manual_seed(0)
    decoder = Decoder([DecoderBlock(16, 4, 32), DecoderBlock(16, 4, 32)])
    call = Calls(lambda model, x, memory, hidden: model(x, memory, memory_key_padding_mask=hidden), decoder)

    def draw(batch, queries, keys):
        return torch.randn(batch, queries, 16), *padded(batch, keys)

    check(call, draw, ((2, 5, 9), (3, 12, 4), (1, 1, 1), (2, 1, 17), (1, 20, 6)))


CALLS = {
    "aligned at the end": {"mask": masks.Causal()},
    "aligned at the start": {"mask": masks.Causal(align="start")},
    "window from the start": {"mask": masks.Causal(align="start") & masks.Window(4)},
    "prefix": {"mask": masks.prefix_lm(3)},
    "log-sum-exp": {"mask": masks.Causal(), "return_lse": True},
    "turned": {"rotary": positions.RoPE(8), "mask": masks.Window(left=2, right=3)},
    "ALiBi": {"bias": positions.ALiBi(4)},
}


def test_fewer_queries_than_keys():
    def draw(batch, queries, keys):
        shapes = (4, queries, 8), (2, keys, 8), (2, keys, 5)
        return tuple(torch.randn(batch, *shape) for shape in shapes)

    call = Calls(lambda *qkv: tuple(regard.attention(*qkv, **options) for options in CALLS.values()))
    # As many queries as keys in the example, which must not become a relation of all.
    check(call, draw, ((2, 9, 9), (3, 4, 12), (1, 1, 1), (2, 1, 17), (1, 6, 6)))


def test_what_depends_on_lengths_is_made_in_forward():
    def call(x, ids, lengths):
        mask = masks.Document(ids) & masks.Window(left=x.shape[2] // 2, right=x.shape[2])
        return regard.attention(x, x, x, mask=mask), regard.attention(x, x, x, mask=masks.prefix_lm(lengths))

    def draw(batch, length):
        x = torch.randn(batch, 2, length, 8)
        return x, torch.randint(0, 2, (batch, length)).cumsum(1), torch.randint(0, length + 1, (batch,))

    check(Calls(call), draw)


@pytest.mark.parametrize("grad", [True, False])
def test_a_step_with_keys_and_values_as_inputs_and_outputs_goes_on_with_a_text(grad):
    """Expected is the whole text at once, of which the program gets the last tokens."""
    torch.manual_seed(0)
    options = {"num_kv_heads": 2, "mask": masks.Causal(), "rotary": positions.RoPE(4), "attn_bias": positions.ALiBi(4)}
    layer = MultiHeadAttention(16, 4, **options).eval()

    def step(model, x, keys, values):
        cache = KVCache()
        cache.update(keys, values)
        return model(x, cache=cache), *cache.held

    def draw(batch, queries, keys):
        text, cache = torch.randn(batch, keys + queries, 16), KVCache()
        with torch.no_grad():
            layer(text[:, :keys], cache=cache)
        return text, (text[:, keys:].contiguous(), *(one.contiguous() for one in cache.held))

    sizes = (2, 2, 9), (3, 4, 12), (1, 1, 1), (2, 1, 80), (1, 7, 3)
    with torch.set_grad_enabled(grad):
        program = exported(Calls(step, layer).eval(), draw(*sizes[0])[1], draw(*sizes[1])[1])
    for size in sizes[1:]:
        text, inputs = draw(*size)
        cache = KVCache()
        with torch.no_grad():
            whole = copy.deepcopy(layer).double()(text.double(), cache=cache)[:, -inputs[0].shape[1] :]
        for one, right in zip(program(*inputs), (whole, *cache.held), strict=True):
            torch.testing.assert_close(one.double(), right.double(), rtol=0, atol=1e-5)


SHAPES = {
    "encoder": {"encoder_layers": 2},
    "decoder": {"decoder_layers": 2},
    "encoder-decoder": {"encoder_layers": 1, "decoder_layers": 1},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_model_of_padded_texts(shape):
    torch.manual_seed(0)
    both = shape == "encoder-decoder"
    sizes = {"vocab_size": 30, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 4}
    positions_ = {"position_bias": "t5"} if both else {"positions": positions.RoPE(4)}
    model = Transformer(TransformerConfig(**sizes, **positions_, **SHAPES[shape]))

    def call(model, ids, real, *target):
        named = {"decoder_input_ids": target[0]} if target else {}
        return model(ids, attention_mask=real, **named).last_hidden_state

    def draw(batch, length):
        target = [torch.randint(0, 30, (batch, length // 2 + 1))] * both
        real = torch.arange(length) < torch.randint(1, length + 1, (batch, 1))
        return torch.randint(0, 30, (batch, length)), real, *target

    check(Calls(call, model), draw)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_softmax_of_narrow_types_is_in_float32(dtype):
    """Told by the graph: ONNX Runtime computes in float32 on CPUs what it is asked for in float16."""
    call = Calls(lambda x: regard.attention(x, x, x, mask=masks.Causal())).eval()
    program = torch.onnx.export(call, (torch.zeros(1, 1, 4, 8, dtype=dtype),), dynamo=True, verbose=False)
    types = {node.op_type: str(node.inputs[0].dtype) for node in program.model.graph}
    assert types["Softmax"] == "FLOAT"
    assert "Attention" not in types


@pytest.mark.parametrize("number", [0, 10, 38, 43])
def test_modules_drawn_at_random(number):
    """benchmarks/random_exports.py goes through hundreds; in these sizes were fixed, or layouts of memory."""
    assert outcome(drawn(number)) == ("right", "")


REFUSED = {
    "random blocks": (lambda x: regard.attention(x, x, x, mask=masks.bigbird(3, 1, 1, block=4)), "RandomBlocks"),
    "strips by name": (lambda x: regard.attention(x, x, x, backend="strips"), "'strips'.*ONNX has no operator"),
    "native by name": (lambda x: regard.attention(x, x, x, backend="native"), "'native'.*ONNX has no operator"),
    "dropout": (lambda x: regard.attention(x, x, x, dropout=0.5), r"`dropout`.*module\.eval\(\)"),
    "documents of lengths": (
        lambda x: regard.attention(x, x, x, mask=masks.Document.from_lengths(x[0, 0, :, 0].long())),
        r"`lengths`.*masks\.Document\(ids\)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_onnx_cannot_express_is_refused_by_name_and_way_out(name):
    call, sentence = REFUSED[name]
    x, other = torch.randn(2, 4, 16, 8), torch.randn(3, 4, 12, 8)
    with pytest.raises(Exception, match="InputError") as raised:  # the exporter's, which shows ours
        exported(Calls(call), (x,), (other,))
    found = refusal(raised.value)
    assert found is not None
    assert re.search(sentence, str(found))
    assert str(found) in str(raised.value)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_torchscript_is_told_what_exports():
    x = torch.randn(2, 4, 16, 8)
    with pytest.raises(regard.errors.InputError, match="dynamo=True"):
        torch.jit.trace(Calls(lambda x: regard.attention(x, x, x, mask=masks.Causal())), (x,))
