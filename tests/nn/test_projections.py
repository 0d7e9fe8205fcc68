"""Modules compute with the heads that their projections have: parts of a module, by its heads, add up to the whole."""

import os
from itertools import product

import pytest
import torch
from torch import multiprocessing, nn

from regard import masks, normalizers, positions, scores
from regard.cache import KVCache
from regard.errors import InputError
from regard.nn import (
    AdditiveAttention,
    AttentionPooling,
    AxialAttention,
    BigBirdAttention,
    DecoderBlock,
    ElmanCell,
    EncoderBlock,
    LocalAttention,
    LongformerAttention,
    MultiHeadAttention,
    NeighborhoodAttention,
    SlidingWindowAttention,
)
from sweeps import sweep

N, W = 6, 16
X = torch.randn(2, N, W, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
ROWS = ("q_proj", "k_proj", "v_proj", "q_global", "k_global", "v_global")


def keep(attention, parts, part, names=ROWS):
    """Prune an attention to one of `parts` equal parts of its heads, and drop the bias of the output."""
    for name in names:
        layer = getattr(attention, name, None)
        if layer is not None:
            size = layer.out_features // parts
            rows = slice(part * size, (part + 1) * size)
            pruned = nn.Linear(layer.in_features, size, dtype=torch.float64)
            pruned.weight.data, pruned.bias.data = layer.weight.data[rows], layer.bias.data[rows]
            setattr(attention, name, pruned)
    columns = attention.out_proj.in_features // parts
    attention.out_proj.weight.data = attention.out_proj.weight.data[:, part * columns : (part + 1) * columns]
    attention.out_proj.bias = None
    return attention


GLOBAL = (torch.arange(N) == 0).expand(2, N)
MODULES = {
    "plain": (lambda: MultiHeadAttention(W, 4), {}),
    "all options": (
        lambda: MultiHeadAttention(
            W,
            4,
            num_kv_heads=2,
            head_dim=6,
            v_head_dim=3,
            out_dim=W,
            rotary=positions.RoPE(6),
            mask=masks.Causal(),
            q_norm=nn.RMSNorm(6),
            k_norm=nn.RMSNorm(6),
            attn_bias=positions.T5Bias(nn.Parameter(torch.randn(32, 1)), bidirectional=True),
        ),
        {},
    ),
    "Longformer": (lambda: LongformerAttention(W, 4, 2), {"global_attention_mask": GLOBAL}),
    "window": (lambda: SlidingWindowAttention(W, 4, 3), {}),
    "axial": (lambda: AxialAttention(W, 4, num_axes=1), {}),
    "neighborhood": (lambda: NeighborhoodAttention(W, 4, 3), {}),
}


def attention_in(module):
    return next(one for one in module.modules() if hasattr(one, "q_proj"))


def test_parts_of_the_heads_add_up_to_the_whole():
    for case in sweep(product(MODULES, (2, 4))):
        with case as (name, parts):
            make, options = MODULES[name]
            parts = min(parts, 2) if name == "all options" else parts
            torch.manual_seed(1)
            whole = make().double()
            state = whole.state_dict()
            bias = attention_in(whole).out_proj.bias
            total = bias.expand(X.shape)
            for part in range(parts):
                pruned = make().double()
                pruned.load_state_dict(state)
                keep(attention_in(pruned), parts, part)
                total = total + pruned(X, **options)
            torch.testing.assert_close(total, whole(X, **options))


def test_one_key_value_head_serves_the_query_heads_that_are_left():
    torch.manual_seed(2)
    whole = MultiHeadAttention(W, 4, num_kv_heads=1).double()
    total = whole.out_proj.bias.expand(X.shape)
    for part in range(2):
        pruned = MultiHeadAttention(W, 4, num_kv_heads=1).double()
        pruned.load_state_dict(whole.state_dict())
        total = total + keep(pruned, 2, part, ("q_proj",))(X)
    torch.testing.assert_close(total, whole(X))


def test_a_cache_keeps_the_heads_that_are_left():
    torch.manual_seed(3)
    attention = keep(
        MultiHeadAttention(W, 4, num_kv_heads=2, rotary=positions.RoPE(4), mask=masks.Causal()).double(), 2, 1
    )
    cache = KVCache()
    steps = [attention(X[:, :4], cache=cache), attention(X[:, 4:], cache=cache)]
    torch.testing.assert_close(torch.cat(steps, 1), attention(X))


def pruned(rows=ROWS, **options):
    return keep(MultiHeadAttention(W, 4, **options).double(), 2, 0, rows)


def replaced(name, width, **options):
    attention = MultiHeadAttention(W, 4, **options).double()
    setattr(attention, name, nn.Linear(W, width, dtype=torch.float64))
    return attention


def with_whole_output():
    attention, whole = pruned(), MultiHeadAttention(W, 4).double()
    attention.out_proj = whole.out_proj
    return attention


def with_global_whole():
    attention = LongformerAttention(W, 4, 2).double()
    return lambda x: keep(attention, 2, 0, ROWS[:3])(x, global_attention_mask=GLOBAL)


class Scale(nn.Module):
    """A norm with numbers of its own for each head."""

    def __init__(self, heads):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(heads, 1, 1, dtype=torch.float64))

    def forward(self, x):
        return x * self.weight


def four(*shape):
    return nn.Parameter(torch.randn(4, *shape, dtype=torch.float64))


def one_head(**options):
    return keep(MultiHeadAttention(W, 4, **options).double(), 4, 0)


THEIR_HEADS = "2 of its num_heads=4 heads, as its projections are sharded or pruned: give it values for these heads"
ONE_HEAD = THEIR_HEADS.replace("2 of", "1 of")
BY_HEAD = masks.MaskMod(lambda batch, head, i, j: i - j <= head)
REFUSED = {
    "half a head": (lambda: replaced("q_proj", 6), "`q_proj` must give whole heads of width 4, got a width of 6"),
    "fewer queries": (lambda: replaced("q_proj", 8), "got 2 heads of queries, 4 of keys and 4 of values"),
    "fewer queries in groups": (lambda: pruned(("q_proj",), num_kv_heads=2), "must keep 2 query heads for each key"),
    "one key head of several": (lambda: replaced("k_proj", 4), "1 of keys and 4 of values .* prune all three alike"),
    "fewer values": (lambda: replaced("v_proj", 8), "4 of keys and 2 of values"),
    "the output whole": (
        with_whole_output,
        "`out_proj` must take .* width of 8, got in_features=16: .*RowwiseParallel",
    ),
    "global projections whole": (with_global_whole, "`q_global`, `k_global` and `v_global` must have the heads"),
    "a norm for each head": (lambda: one_head(q_norm=Scale(4)), "`q_norm` must give the shape that it takes"),
    "T5": (
        lambda: pruned(attn_bias=positions.T5Bias(nn.Parameter(torch.randn(32, 4)), bidirectional=True)),
        f"heads 4; .*{THEIR_HEADS}",
    ),
    "ALiBi": (lambda: pruned(attn_bias=positions.ALiBi(4)), THEIR_HEADS),
    "ALiBi and one head": (lambda: one_head(attn_bias=positions.ALiBi(4)), ONE_HEAD),
    "sink": (lambda: pruned(normalizer=normalizers.Softmax(four())), f"`sink` must have one logit .*{THEIR_HEADS}"),
    "sink and one head": (lambda: one_head(normalizer=normalizers.Softmax(four())), ONE_HEAD),
    "score and one head": (lambda: one_head(score=scores.Shaw(four(9, 4))), ONE_HEAD),
    "mask": (lambda: pruned(mask=masks.Dense(torch.ones(1, 4, N, N).bool())), THEIR_HEADS),
    "mask of a function": (lambda: pruned(mask=BY_HEAD), f"`mask` reads the number of a head, .*{THEIR_HEADS}"),
    "mask of a function and one head": (lambda: one_head(mask=BY_HEAD & masks.Causal()), "reads the number of a head"),
    "random blocks": (lambda: keep_inside(BigBirdAttention(W, 4, block=1)), THEIR_HEADS),
}


def keep_inside(module):
    keep(module.double().attention, 2, 0)
    return module


def test_what_was_made_for_other_heads_is_refused_with_the_way_out():
    for case in sweep(REFUSED):
        with case as name:
            make, words = REFUSED[name]
            with pytest.raises(InputError, match=words):
                make()(X)


def test_a_bias_that_indexes_by_head_is_refused_as_each_rank_counts_from_0():
    from dataclasses import dataclass

    @dataclass(frozen=True, eq=False)
    class Slope(positions.Bias):
        slope: torch.Tensor

        def __call__(self, batch, head, i, j):
            return -self.slope[head] * (i - j)

    slope = torch.rand(4, dtype=torch.float64)
    assert MultiHeadAttention(W, 4, attn_bias=Slope(slope)).double()(X).shape == X.shape
    with pytest.raises(InputError, match="`attn_bias` reads the number of a head"):
        pruned(attn_bias=Slope(slope))(X)


class Adapter(nn.Linear):
    def forward(self, x):
        return super().forward(x) + 1


def with_layer(module, name, layer):
    setattr(module.double(), name, layer.double())
    return module


def test_layers_whose_weight_alone_is_used_must_be_plain_and_others_whole():
    cases = {
        "additive": (lambda: with_layer(AdditiveAttention(W), "query_proj", Adapter(W, W)), "`query_proj` .*merge an"),
        "pooling": (lambda: with_layer(AttentionPooling(W), "key_proj", Adapter(W, W)), "`key_proj` .* got Adapter"),
        "local": (lambda: with_layer(LocalAttention(W, 2), "place_proj", nn.Linear(W, 8)), "`place_proj` .* width 16"),
        "Elman": (lambda: with_layer(ElmanCell(W, W), "hidden_to_hidden", nn.Linear(W, 8)), "`hidden_to_hidden` "),
    }
    for case in sweep(cases):
        with case as name:
            make, words = cases[name]
            with pytest.raises(InputError, match=words):
                make()(*((X, X) if name in ("additive", "local") else (X[:, 0] if name == "Elman" else X,)))


SHARDED = {  # a module, its column-wise and row-wise layers, and what is refused, with local outputs and with DTensors
    "attention": (lambda: MultiHeadAttention(W, 4, num_kv_heads=2), "", "", None, None),
    "turned and normed": (
        lambda: MultiHeadAttention(W, 4, rotary=positions.RoPE(4), q_norm=nn.RMSNorm(4)), "", "", None, "`q_norm`",
    ),
    "three heads": (lambda: MultiHeadAttention(W, 2, head_dim=3), "", "", None, None),
    "one head": (lambda: MultiHeadAttention(W, 1), "", "", "whole heads of width 16", "whole heads of width 16"),
    "T5": (
        lambda: MultiHeadAttention(W, 4, attn_bias=positions.ALiBi(4)), "", "", "2 of its num_heads=4 heads", None,
    ),
    "encoder": (lambda: EncoderBlock(W, 4, 32), "attention.", "feed_forward.", None, None),
    "decoder": (lambda: DecoderBlock(W, 4, 32), "attention. cross_attention.", "feed_forward.", None, None),
    "Longformer": (lambda: LongformerAttention(W, 4, 2), "", "", None, None),
}  # fmt: skip


def on_rank(rank, folder):
    """Compare each module with its shards, and write what differs."""
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    mesh, wrong = init_device_mesh("cpu", (2,)), []
    for name, local in product(SHARDED, (True, False)):
        make, attentions, feed_forward, refused_local, refused_dtensors = SHARDED[name]
        torch.manual_seed(0)
        module = make().double()
        inputs = (X, X) if name == "decoder" else (X,)
        expected = module(*inputs)
        plan = {}
        for prefix in attentions.split() or [""]:
            plan |= {f"{prefix}{part}_proj": ColwiseParallel(use_local_output=local) for part in "qkv"}
            plan[f"{prefix}out_proj"] = RowwiseParallel()
        if feed_forward:
            plan |= {f"{feed_forward}up_proj": ColwiseParallel(), f"{feed_forward}down_proj": RowwiseParallel()}
        words = refused_local if local else refused_dtensors
        try:
            difference = (parallelize_module(module, mesh, plan)(*inputs) - expected).abs().max().item()
            if words or difference > 1e-12:
                wrong.append(f"{name}, local={local}: differs by {difference}, not refused with {words}")
        except InputError as error:
            if not words or words not in str(error):
                wrong.append(f"{name}, local={local}: {error}")
    distributed.destroy_process_group()
    with open(os.path.join(folder, f"wrong.{rank}"), "w") as file:
        file.write("\n".join(wrong))


@pytest.mark.filterwarnings("ignore")
def test_shards_of_pytorch_s_plan_compute_what_one_process_does(tmp_path):
    multiprocessing.spawn(on_rank, (str(tmp_path),), nprocs=2)
    assert [(tmp_path / f"wrong.{rank}").read_text() for rank in range(2)] == ["", ""]
