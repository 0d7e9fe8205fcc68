"""What every module must survive: copies, files, types, compilation and export."""

import copy
import inspect
import io
from itertools import product

import pytest
import torch
from torch import nn

import regard.nn
from regard import masks, normalizers, positions, scores
from regard.approximations import Approximate, Compression, LinformerAttention, PerformerAttention
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
from sweeps import sweep

X, MEMORY = (torch.randn(2, n, 8, generator=torch.Generator().manual_seed(n)) for n in (5, 7))
TOKENS = torch.arange(10).reshape(2, 5)
LEARNED = {
    "score": lambda: scores.Bilinear(nn.Parameter(torch.randn(4, 4))),
    "normalizer": lambda: normalizers.Softmax(nn.Parameter(torch.randn(2))),
}

# A module, made anew each time, and what it is called with.
MODULES = {
    "MultiHeadAttention": (lambda: MultiHeadAttention(8, 2, num_kv_heads=1, dropout=0.5), (X, MEMORY)),
    "MultiHeadAttention with learned parts": (
        lambda: MultiHeadAttention(
            8, 2, **{name: make() for name, make in LEARNED.items()}, mask=masks.Dense(torch.ones(5, 7).tril().bool()),
            attn_bias=positions.ALiBi(2), rotary=positions.RoPE(4), q_norm=nn.RMSNorm(4),
        ),
        (X, MEMORY),
    ),
    "FeedForward": (lambda: FeedForward(8, 12, activation="swiglu"), (X,)),
    "PositionalEncoding": (lambda: PositionalEncoding(8, 9), (X,)),
    "LearnedPositions": (lambda: LearnedPositions(8, 9), (X,)),
    "EncoderBlock": (lambda: EncoderBlock(8, 2, 12), (X,)),
    "DecoderBlock": (lambda: DecoderBlock(8, 2, 12, norm="rms", norm_first=True), (X, MEMORY)),
    "tutorials.DotProductAttention": (lambda: tutorials.DotProductAttention(8), (X, MEMORY, MEMORY)),
    "tutorials.multi_head": (lambda: tutorials.multi_head.MultiHeadAttention(8, 2), (X, MEMORY, MEMORY)),
    "tutorials.encoder": (lambda: tutorials.encoder.MultiHeadAttention(8, 2), (X, MEMORY, MEMORY)),
    "tutorials.cross_attention": (
        lambda: tutorials.cross_attention.MultiHeadAttention(8, 2, 0.1), (X, MEMORY, MEMORY),
    ),
    "tutorials.PositionalEncoding": (lambda: tutorials.PositionalEncoding(8, 9), (X,)),
    "tutorials.FeedForward": (lambda: tutorials.FeedForward(8, 12), (X,)),
    "tutorials.EncoderLayer": (lambda: tutorials.EncoderLayer(8, 2, 12), (X,)),
    "tutorials.TransformerEncoder": (lambda: tutorials.TransformerEncoder(10, 8, 2, 12, 2), (TOKENS,)),
}  # fmt: skip

# These are copied, saved and converted in test_attention_modules.py, test_recurrent.py and tests/approximations.
GRID, LONG = (torch.randn(2, *shape, 8, generator=torch.Generator().manual_seed(3)) for shape in ((4, 5), (200,)))
COMPILED = MODULES | {
    "AdditiveAttention": (lambda: regard.nn.AdditiveAttention(8, dropout=0.5), (X, MEMORY)),
    "BilinearAttention": (lambda: regard.nn.BilinearAttention(8), (X, MEMORY)),
    "AttentionPooling": (lambda: regard.nn.AttentionPooling(8, query_dim=8), (MEMORY, X[:, 0])),
    "LocalAttention, local-m": (lambda: regard.nn.LocalAttention(8, 2, alignment="monotonic"), (X, MEMORY)),
    "LocalAttention, local-p": (lambda: regard.nn.LocalAttention(8, 2), (X, MEMORY)),
    "SlidingWindowAttention": (lambda: regard.nn.SlidingWindowAttention(8, 2, 3), (MEMORY,)),
    "LongformerAttention": (lambda: AllAtThird(regard.nn.LongformerAttention(8, 2, window=4)), (LONG,)),
    "BigBirdAttention": (lambda: regard.nn.BigBirdAttention(8, 2, block=2, num_random_blocks=1), (LONG[:, :20],)),
    "AxialAttention": (lambda: regard.nn.AxialAttention(8, 2), (GRID,)),
    "NeighborhoodAttention": (lambda: regard.nn.NeighborhoodAttention(8, 2, 3), (GRID,)),
    "Elman": (lambda: regard.nn.Elman(8, 6), (X,)),
    "PerformerAttention": (lambda: PerformerAttention(8, 2, num_features=6), (X, MEMORY)),
    "PerformerAttention, causal": (lambda: PerformerAttention(8, 2, num_features=6, causal=True), (LONG,)),
    "LinformerAttention": (lambda: LinformerAttention(8, 2, Compression(9, 4, num_heads=2)), (X, MEMORY)),
}


class AllAtThird(nn.Module):
    """Make the third token global."""

    def __init__(self, attend):
        super().__init__()
        self.attend = attend

    def forward(self, x):
        return self.attend(x, global_attention_mask=(torch.arange(x.shape[1]) == 2).expand(x.shape[:2]))


every = pytest.mark.parametrize("name", MODULES)


def made(name, seed=0):
    torch.manual_seed(seed)
    make, given = COMPILED[name]
    return make().eval(), given


def output(module, given):
    found = module(*given)
    found = found.output if isinstance(found, Approximate) else found
    return found[0] if isinstance(found, tuple) else found


def test_a_copy_gives_the_same_and_shares_nothing():
    for case in sweep(MODULES):
        with case as name:
            module, given = made(name)
            twin, plain = copy.deepcopy(module), output(module, given)
            assert torch.equal(output(twin, given), plain)
            for one in twin.parameters():
                nn.init.zeros_(one)
            assert torch.equal(output(module, given), plain)


def test_a_file_of_its_state_loads_with_weights_only():
    for case in sweep(MODULES):
        with case as name:
            (module, given), (other, _) = made(name), made(name, seed=1)
            file = io.BytesIO()
            torch.save(module.state_dict(), file)
            file.seek(0)
            other.load_state_dict(torch.load(file, weights_only=True))
            assert torch.equal(output(other, given), output(module, given))


def test_it_can_be_of_another_type():
    for case in sweep(product(MODULES, [torch.float64, torch.float16, torch.bfloat16])):
        with case as (name, dtype):
            module, given = made(name)
            plain = output(module, given)
            given = tuple(one.to(dtype) if one.is_floating_point() else one for one in given)
            found = output(module.to(dtype), given)
            assert found.dtype == dtype
            torch.testing.assert_close(found.float(), plain, atol=1e-5 if dtype == torch.float64 else 0.15, rtol=0)


@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # Dynamo looks at it where a graph breaks
def test_compiled_it_gives_the_same(name):
    module, given = made(name)
    torch._dynamo.reset()
    compiled, plain = output(torch.compile(module, backend="aot_eager"), given), output(module, given)
    torch.testing.assert_close(compiled, plain, atol=1e-6, rtol=0)
    parameters = list(module.parameters())
    if parameters:
        up = torch.randn(plain.shape, generator=torch.Generator().manual_seed(5))
        ours, theirs = (torch.autograd.grad(one, parameters, up, allow_unused=True) for one in (compiled, plain))
        for (where, _), one, other in zip(module.named_parameters(), ours, theirs, strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5, msg=lambda said, at=where: f"{at}: {said}")


BREAKS = {
    "LocalAttention, local-p",  # masks.LocalPredictive looks whether places are finite
    "LongformerAttention",  # how many tokens are global is known when it runs
    "BigBirdAttention",  # the plan is drawn for the length
    "MultiHeadAttention with learned parts",  # its parts are made of tensors
}


@pytest.mark.parametrize("name", [name for name in COMPILED if name not in BREAKS])
@pytest.mark.slow
def test_it_compiles_as_one_graph(name):
    module, given = made(name)
    torch._dynamo.reset()
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    torch.testing.assert_close(output(compiled, given), output(module, given), atol=1e-6, rtol=0)


class Padded(nn.Module):
    """An encoder that hides token 0, as tutorials do, or through masks.Padding."""

    def __init__(self, encoder, mask):
        super().__init__()
        self.encoder, self.mask = encoder, mask

    def forward(self, tokens):
        return self.encoder(tokens, self.mask(tokens != 0))


def encoder():
    return tutorials.TransformerEncoder(10, 8, 2, 12, 2)


def blocks(**attention):
    return nn.Sequential(*(EncoderBlock(8, 2, 12, attention=attention) for _ in range(2)))


OTHER_TOKENS = torch.randint(0, 10, (3, 9), generator=torch.Generator().manual_seed(0))
OTHER = torch.randn(3, 9, 8, generator=torch.Generator().manual_seed(6))
STACKS = {
    "one block": (lambda: EncoderBlock(8, 2, 12), X, OTHER),
    "two blocks": (blocks, X, OTHER),
    "pre-norm, rotary, RMS, SwiGLU": (
        lambda: nn.Sequential(
            PositionalEncoding(8),
            EncoderBlock(8, 2, 12, norm_first=True, attention={"rotary": positions.RoPE(4)}),
            EncoderBlock(8, 2, 12, norm="rms", norm_first=True, activation="swiglu", attention={"num_kv_heads": 1}),
            nn.LayerNorm(8),
        ),
        X,
        OTHER,
    ),
    "causal": (lambda: blocks(mask=masks.Causal()), X, OTHER),
    "tutorials.TransformerEncoder": (encoder, TOKENS, OTHER_TOKENS),
    "of tutorials, padded": (lambda: Padded(encoder(), lambda real: real[:, None, None]), TOKENS, OTHER_TOKENS),
    "a window": (lambda: blocks(mask=masks.Window(3)), X, OTHER),
    "ALiBi": (lambda: blocks(attn_bias=positions.ALiBi(2)), X, OTHER),
    "learned positions": (lambda: nn.Sequential(LearnedPositions(8, 64), EncoderBlock(8, 2, 12)), X, OTHER),
}


@pytest.mark.parametrize(
    "name",
    STACKS,
)
@pytest.mark.slow
def test_an_encoder_exports_for_every_batch_and_length(name):
    torch.manual_seed(0)
    make, x, other = STACKS[name]
    module = make().eval()
    free = {0: torch.export.Dim("batch", min=1, max=64), 1: torch.export.Dim("n", min=2, max=64)}
    exported = torch.export.export(module, (x,), dynamic_shapes=(free,)).module()
    for given in (x, other):
        torch.testing.assert_close(output(exported, (given,)), output(module, (given,)), atol=1e-6, rtol=0)


def test_the_whole_encoder_exports_with_a_mask_as_its_input():
    module, _ = made("tutorials.TransformerEncoder")
    mask = torch.ones(2, 1, 1, 5).bool()
    mask[1, ..., 3:] = False
    exported = torch.export.export(module, (TOKENS, mask)).module()
    other = mask.flip(0)
    torch.testing.assert_close(exported(TOKENS, other), module(TOKENS, other), atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", [PositionalEncoding, LearnedPositions])
def test_positions_go_on_from_a_start_and_end_with_the_table(kind):
    torch.manual_seed(0)
    layer, x = kind(8, 7), torch.zeros(1, 7, 8)
    assert torch.equal(layer(x)[:, 3:5], layer(x[:, :2], start=3))
    with pytest.raises(InputError, match=r"has (7 )?positions"):
        layer(x, start=1)


def test_the_table_of_sinusoids_is_no_part_of_a_checkpoint():
    assert PositionalEncoding(8).state_dict() == {}


def test_its_docstring_has_an_example():
    for case in sweep(MODULES):
        with case as name:
            module, _ = made(name)
            assert ">>>" in inspect.getdoc(type(module))
