"""What every module must survive: copies, files, types, compilation and export."""

import copy
import inspect
import io

import pytest
import torch
from torch import nn

from regard import masks, normalizers, positions, scores
from regard.errors import InputError
from regard.nn import (
    DecoderBlock,
    EncoderBlock,
    FeedForward,
    LearnedPositions,
    MultiHeadAttention,
    PositionalEncoding,
    tutorials,
)

X, MEMORY = (torch.randn(2, n, 8, generator=torch.Generator().manual_seed(n)) for n in (5, 7))
TOKENS = torch.arange(10).reshape(2, 5)
LEARNED = {
    "score": lambda: scores.Bilinear(nn.Parameter(torch.randn(4, 4))),
    "normalizer": lambda: normalizers.Softmax(nn.Parameter(torch.randn(2))),
}

# A module, made anew each time, and what it is called with.
MODULES = {
    "MultiHeadAttention": (lambda: MultiHeadAttention(8, 2, kv_heads=1, dropout=0.5), (X, MEMORY)),
    "MultiHeadAttention with learned parts": (
        lambda: MultiHeadAttention(
            8, 2, **{name: make() for name, make in LEARNED.items()}, mask=masks.Dense(torch.ones(5, 7).tril().bool()),
            attention_bias=positions.ALiBi(2), rotary=positions.RoPE(4), q_norm=nn.RMSNorm(4),
        ),
        (X, MEMORY),
    ),
    "FeedForward": (lambda: FeedForward(8, 12, activation="swiglu"), (X,)),
    "PositionalEncoding": (lambda: PositionalEncoding(8, 9), (X,)),
    "LearnedPositions": (lambda: LearnedPositions(8, 9), (X,)),
    "EncoderBlock": (lambda: EncoderBlock(8, 2, 12), (X,)),
    "DecoderBlock": (lambda: DecoderBlock(8, 2, 12, norm="rms", norm_first=True), (X, MEMORY)),
    "tutorials.DotProductAttention": (lambda: tutorials.DotProductAttention(8), (X, MEMORY, MEMORY)),
    "tutorials.MultiHeadAttention": (lambda: tutorials.MultiHeadAttention(8, 2), (X, MEMORY, MEMORY)),
    "tutorials.PositionalEncoding": (lambda: tutorials.PositionalEncoding(8, 9), (X,)),
    "tutorials.FeedForward": (lambda: tutorials.FeedForward(8, 12), (X,)),
    "tutorials.EncoderLayer": (lambda: tutorials.EncoderLayer(8, 2, 12), (X,)),
    "tutorials.TransformerEncoder": (lambda: tutorials.TransformerEncoder(10, 8, 2, 12, 2), (TOKENS,)),
}  # fmt: skip

every = pytest.mark.parametrize("name", MODULES)


def made(name, seed=0):
    torch.manual_seed(seed)
    make, given = MODULES[name]
    return make().eval(), given


def output(module, given):
    found = module(*given)
    return found[0] if isinstance(found, tuple) else found


@every
def test_a_copy_gives_the_same_and_shares_nothing(name):
    module, given = made(name)
    twin, plain = copy.deepcopy(module), output(module, given)
    assert torch.equal(output(twin, given), plain)
    for one in twin.parameters():
        nn.init.zeros_(one)
    assert torch.equal(output(module, given), plain)


@every
def test_a_file_of_its_state_loads_with_weights_only(name):
    (module, given), (other, _) = made(name), made(name, seed=1)
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(output(other, given), output(module, given))


@every
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_it_can_be_of_another_type(name, dtype):
    module, given = made(name)
    plain = output(module, given)
    given = tuple(one.to(dtype) if one.is_floating_point() else one for one in given)
    found = output(module.to(dtype), given)
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), plain, atol=1e-5 if dtype == torch.float64 else 0.15, rtol=0)


@every
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # Dynamo looks at it where a graph breaks
def test_compiled_it_gives_the_same(name):
    module, given = made(name)
    torch._dynamo.reset()
    compiled = torch.compile(module, backend="aot_eager")
    torch.testing.assert_close(output(compiled, given), output(module, given), atol=1e-6, rtol=0)
    output(compiled, given).sum().backward() if any(True for _ in module.parameters()) else None


@pytest.mark.parametrize("name", ["MultiHeadAttention", "FeedForward", "PositionalEncoding", "EncoderBlock"])
@pytest.mark.slow
def test_it_exports(name):
    module, given = made(name)
    exported = torch.export.export(module, given).module()
    torch.testing.assert_close(output(exported, given), output(module, given), atol=1e-6, rtol=0)


@pytest.mark.slow
def test_an_encoder_block_compiles_as_one_graph_and_exports_for_every_length():
    torch.manual_seed(0)
    block = EncoderBlock(8, 2, 12, attention={"rotary": positions.RoPE(4)}).eval()
    torch._dynamo.reset()
    compiled = torch.compile(block, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(X), block(X), atol=1e-6, rtol=0)
    lengths = {1: torch.export.Dim("n", min=2, max=64)}
    exported = torch.export.export(block, (X,), dynamic_shapes=(lengths,)).module()
    torch.testing.assert_close(exported(MEMORY), block(MEMORY), atol=1e-6, rtol=0)


@pytest.mark.slow
def test_the_whole_encoder_exports_with_a_mask():
    module, _ = made("tutorials.TransformerEncoder")
    mask = torch.ones(2, 1, 1, 5).bool()
    mask[1, ..., 3:] = False
    exported = torch.export.export(module, (TOKENS, mask)).module()
    other = mask.flip(0)
    torch.testing.assert_close(exported(TOKENS, other)[0], module(TOKENS, other)[0], atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", [PositionalEncoding, LearnedPositions])
def test_positions_go_on_from_a_start_and_end_with_the_table(kind):
    torch.manual_seed(0)
    layer, x = kind(8, 7), torch.zeros(1, 7, 8)
    assert torch.equal(layer(x)[:, 3:5], layer(x[:, :2], start=3))
    with pytest.raises(InputError, match=r"has (7 )?positions"):
        layer(x, start=1)


def test_the_table_of_sinusoids_is_no_part_of_a_checkpoint():
    assert PositionalEncoding(8).state_dict() == {}


@every
def test_its_docstring_has_an_example_or_names_the_module_that_does(name):
    module, _ = made(name)
    doc = inspect.getdoc(type(module))
    assert ">>>" in doc or "regard.nn." in doc
