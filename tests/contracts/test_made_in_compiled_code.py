"""Values that a compiled function makes itself break no graph, and compute what they do outside of it."""

import pytest
import torch

import regard
from regard import masks, normalizers, positions, scores
from regard.errors import InputError
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
