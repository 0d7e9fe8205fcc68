"""Values that a compiled function makes itself break no graph, and compute what they do outside of it."""

import pytest
import torch
from torch import nn

import regard
from regard import masks, normalizers, positions, scores
from regard.errors import InputError
from regard.nn import ValueModule
from sweeps import sweep
from tiers import slow_but

N, HEADS, WIDTH = 16, 2, 8
LONGROPE = positions.LongRoPE(2.0, (1.0,) * 4, (1.0, 2.0, 3.0, 4.0), original_max_position_embeddings=8)
THREE = torch.stack([torch.arange(N), torch.arange(N) // 4, torch.arange(N) % 4])[:, None]


def drawn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


# What the function is given, and what it makes of that.
MASKS = {
    "axial": ((), lambda: masks.Axial((4, 4), 1)),
    "bigbird": ((), lambda: masks.bigbird(3, 1, 1, seed=3, block=2)),
    "block local": ((), lambda: masks.BlockLocal(4)),
    "causal": ((), lambda: masks.Causal(align="start")),
    "combined": ((), lambda: masks.Causal() & masks.Window(3) | masks.Sinks(1)),
    "dense": ((drawn(N, N) > -1,), masks.Dense),
    "dilated": ((), lambda: masks.DilatedWindow(4, 2)),
    "document": ((torch.arange(N) // 5,), lambda ids: masks.Document(ids) & masks.Causal()),
    "from attention mask": ((torch.arange(N)[None] < torch.tensor([[16], [12]]),), masks.from_attention_mask),
    "from key padding mask": ((torch.arange(N)[None] >= torch.tensor([[16], [12]]),), masks.from_key_padding_mask),
    "from mha": ((drawn(N, N) > 1,), masks.from_mha_attn_mask),
    "global": ((), lambda: masks.Global((0, 3))),
    "local, luong's first": ((), lambda: masks.LocalMonotonic(2)),
    "local, of sentences": (
        (torch.arange(N)[None] < torch.tensor([[16], [12]]),),
        lambda real: (masks.LocalMonotonic(2) | masks.Sinks(1)) & masks.Padding(real),
    ),
    "local, luong's second": ((5 * drawn(2, N).sigmoid(),), lambda center: masks.LocalPredictive(center, 2)),
    "longformer": ((), lambda: masks.longformer(4, (0,))),
    "neighborhood": ((), lambda: masks.Neighborhood((4, 4), 3, "crop")),
    "padding": ((torch.arange(N)[None] < torch.tensor([[16], [12]]),), masks.Padding),
    "prefix of each text": ((torch.tensor([3, 4]),), masks.prefix_lm),
    "sparse": ((), lambda: masks.sparse_transformer(4)),
    "window": ((), lambda: masks.Window(left=3, right=2)),
}
OTHERS = {
    "alibi": ((), lambda: {"bias": positions.ALiBi(HEADS)}),
    "dense bias": ((drawn(2, HEADS, N, N),), lambda bias: {"bias": positions.DenseBias(bias)}),
    "table": ((drawn(2 * N - 1, HEADS),), lambda table: {"bias": positions.RelativePositionBias(table)}),
    "table of a grid": ((drawn(49, HEADS),), lambda table: {"bias": positions.RelativePositionBiasND(table, (4, 4))}),
    "t5": ((drawn(32, HEADS),), lambda table: {"bias": positions.T5Bias(table, bidirectional=False)}),
    "gaussian": ((5 * drawn(2, N),), lambda center: {"weight_factor": positions.Gaussian(center, 2.0)}),
    "rotary": ((), lambda: {"rotary": positions.RoPE(WIDTH)}),
    "dynamic ntk": ((), lambda: {"rotary": positions.RoPE(WIDTH, scaling=positions.DynamicNTK(2.0, 8))}),
    "yarn": ((), lambda: {"rotary": positions.RoPE(WIDTH, scaling=positions.YaRN(2.0, 8))}),
    "longrope": ((), lambda: {"rotary": positions.RoPE(WIDTH, scaling=LONGROPE)}),
    "mrope": ((), lambda: {"rotary": positions.RoPE(WIDTH, mrope_section=(2, 1, 1)).at(THREE)}),
    "proportional": ((), lambda: {"rotary": positions.RoPE(WIDTH, scaling=positions.Proportional(0.5))}),
    "llama 3": ((), lambda: {"rotary": positions.RoPE(WIDTH, scaling=positions.Llama3(2.0, 1.0, 4.0, 8))}),
    "additive": (
        (drawn(5, WIDTH), drawn(5, WIDTH), drawn(5)),
        lambda *held: {"score": scores.Additive(*held)},
    ),
    "concat": ((drawn(5, 2 * WIDTH), drawn(5)), lambda *held: {"score": scores.Concat(*held)}),
    "bilinear": ((drawn(WIDTH, WIDTH),), lambda held: {"score": scores.Bilinear(held)}),
    "cosine": ((), lambda: {"score": scores.Cosine()}),
    "shaw": ((drawn(7, WIDTH),), lambda table: {"score": scores.Shaw(table)}),
    "sigmoid": ((), lambda: {"normalizer": normalizers.Sigmoid()}),
    "sink": ((drawn(HEADS),), lambda sink: {"normalizer": normalizers.Softmax(sink)}),
}
CASES = {name: (held, lambda *held, made=made: {"mask": made(*held)}) for name, (held, made) in MASKS.items()} | OTHERS


# Those that look into numbers, or count, where they are made; the others are 10 s of compiling.
AT_ONCE = ("local, of sentences", "local, luong's second", "padding", "table of a grid")


@pytest.mark.parametrize(
    "at_once", [pytest.param(True, id="quick"), pytest.param(False, id="the others", marks=pytest.mark.slow)]
)
def test_it_is_made_within_the_graph(at_once):
    for case in sweep(name for name in CASES if (name in AT_ONCE) == at_once):
        with case as name:
            held, made = CASES[name]

            def call(x, *held, made=made):
                return regard.attention(x, x, x, **made(*held))

            x = drawn(2, HEADS, N, WIDTH)
            torch._dynamo.reset()
            compiled = torch.compile(call, fullgraph=True, backend="eager")
            torch.testing.assert_close(compiled(x, *held), call(x, *held))


WRONG = {
    "a sentence that begins with padding": (
        lambda real: masks.LocalMonotonic(2) & masks.Padding(real), torch.arange(N)[None] > 1, "begins with padding"
    ),
    "a centre that is no number": (
        lambda center: masks.LocalPredictive(center, 2), torch.full((1, N), torch.nan), "must be finite"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", slow_but(["a centre that is no number"], WRONG))
def test_what_is_wrong_in_numbers_is_refused_in_compiled_code_too(name):
    made, given, message = WRONG[name]

    def call(x, given):
        return regard.attention(x, x, x, mask=made(given))

    x = drawn(1, HEADS, N, WIDTH)
    with pytest.raises(InputError, match=message):
        call(x, given)
    with pytest.raises(RuntimeError, match=message):
        torch.compile(call, fullgraph=True, backend="eager")(x, given)


LENGTHS = (20, 9, 33, 5, 16, 17, 40, 6, 21, 30)  # on both sides of the length in training
OF_LENGTH = {
    "dynamic ntk": positions.DynamicNTK(2.0, original_max_position_embeddings=16),
    "longrope": positions.LongRoPE(2.0, (1.0,) * 4, (1.0, 2.0, 3.0, 4.0), original_max_position_embeddings=16),
}


class Turned(nn.Module):
    """A call with a rotary embedding of the length: of all texts, or by their own positions."""

    def __init__(self, scaling, is_by_text):
        super().__init__()
        self.rotary, self.is_by_text = positions.RoPE(WIDTH, scaling=scaling), is_by_text

    def forward(self, x, ids):
        rotary = self.rotary.at(ids) if self.is_by_text else self.rotary
        return regard.attention(x, x, x, rotary=rotary, mask=masks.Causal())


def text_of(n):
    """Vectors, and positions of two texts, of which the second is padded on the left."""
    return drawn(2, HEADS, n, WIDTH), (torch.arange(n) - torch.tensor([[0], [3]])).clamp(min=0)


@pytest.mark.parametrize("is_by_text", [False, True], ids=["all texts", "each text"])
@pytest.mark.parametrize("name", OF_LENGTH)
def test_a_rotary_embedding_of_the_length_is_compiled_once_for_all_lengths(name, is_by_text):
    module, graphs = Turned(OF_LENGTH[name], is_by_text), []
    torch._dynamo.reset()
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend=lambda graph, _: graphs.append(1) or graph)
    for n in LENGTHS:
        torch.testing.assert_close(compiled(*text_of(n)), module(*text_of(n)))
    assert len(graphs) == 1
    length = torch.export.Dim("n", min=2, max=4096)
    program = torch.export.export(module, text_of(20), dynamic_shapes=({2: length}, {1: length})).module()
    for n in (2, *LENGTHS):
        torch.testing.assert_close(program(*text_of(n)), module(*text_of(n)))


LEARNED = {
    "t5": ((32, HEADS), lambda table: {"bias": positions.T5Bias(table, bidirectional=True)}),
    "sink": ((HEADS,), lambda sink: {"normalizer": normalizers.Softmax(sink)}),
    "shaw": ((7, WIDTH), lambda table: {"score": scores.Shaw(table)}),
}


class Holds(nn.Module):
    """A call with values that have a parameter: in a module, in an attribute, or in a list."""

    def __init__(self, options, place):
        super().__init__()
        (self.name, value), *_ = options.items()
        self.place, self.attribute, self.items = place, None, []
        if place == "module":
            self.value = ValueModule(value)
        elif place == "attribute":
            self.attribute = value
        else:
            self.items.append(value)

    def forward(self, x):
        value = self.value() if self.place == "module" else self.items[0] if self.items else self.attribute
        return regard.attention(x, x, x, **{self.name: value})


@pytest.mark.parametrize("place", ["module", "attribute", "list"])
def test_gradients_reach_what_a_compiled_module_holds(place):
    """`fullgraph=True`: making a value of a `ValueModule` once broke the graph."""
    for case in sweep(LEARNED):
        with case as name:
            shape, made = LEARNED[name]
            parameter = nn.Parameter(drawn(*shape))
            module, x = Holds(made(parameter), place), drawn(2, HEADS, N, WIDTH)
            with regard.use_backend("reference"):
                exact = torch.autograd.grad(module(x).square().sum(), parameter)
            torch._dynamo.reset()
            compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
            torch.testing.assert_close(torch.autograd.grad(compiled(x).square().sum(), parameter), exact)
