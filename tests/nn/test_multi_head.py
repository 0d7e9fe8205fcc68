"""MultiHeadAttention against nn.MultiheadAttention with the same tensors, and against the formula written out."""

from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

import regard
from oracles import dense
from regard import masks, normalizers, positions, scores
from regard.errors import InputError
from regard.nn import MultiHeadAttention
from sweeps import sweep

B, H, Q, K, W = 2, 4, 5, 7, 24
INF = float("inf")


def randn(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def close(ours, theirs, atol=1e-6):
    torch.testing.assert_close(ours, theirs, atol=atol, rtol=0)


def hidden(*shape, seed=3):
    """True = hidden, as PyTorch has it; no row is hidden whole."""
    flags = torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) < 0.4
    flags[..., 0] = False
    return flags


def added(flags):
    return torch.zeros(flags.shape).masked_fill(flags, -INF)


PADDING, PAIRS, EACH = hidden(B, K), hidden(Q, K, seed=4), hidden(B * H, Q, K, seed=5)
CAUSAL = torch.ones(Q, K).triu(1).bool()
NUMBERS = randn(Q, K, seed=6)

# What PyTorch is given, and what says the same here.
SAID = {
    "nothing": ({}, {}),
    "pairs": ({"attn_mask": PAIRS}, {"mask": ~PAIRS}),
    "pairs of each head": ({"attn_mask": EACH}, {"mask": masks.from_mha_attn_mask(EACH, num_heads=H)}),
    "floats that hide": ({"attn_mask": added(PAIRS)}, {"mask": added(PAIRS)[None, None] == 0}),
    "floats that are added": ({"attn_mask": NUMBERS}, {"attn_bias": NUMBERS}),
    "floats of each head": (
        {"attn_mask": randn(B * H, Q, K, seed=7)},
        {"attn_bias": randn(B * H, Q, K, seed=7).unflatten(0, (B, H))},
    ),
    "padding": ({"key_padding_mask": PADDING}, {"mask": masks.from_key_padding_mask(PADDING)}),
    "padding as floats": (
        {"key_padding_mask": added(PADDING)},
        {"mask": masks.Padding(added(PADDING) == 0)},
    ),
    "padding as numbers": (
        {"key_padding_mask": randn(B, K, seed=8)},
        {"attn_bias": randn(B, K, seed=8)[:, None, None]},
    ),
    "causal": ({"attn_mask": CAUSAL, "is_causal": True}, {"mask": masks.Causal(align="start")}),
    "causal and padding": (
        {"attn_mask": CAUSAL, "key_padding_mask": PADDING},
        {"mask": masks.Causal(align="start") & masks.from_key_padding_mask(PADDING)},
    ),
    "numbers and padding": (
        {"attn_mask": NUMBERS, "key_padding_mask": added(PADDING)},
        {"attn_bias": NUMBERS, "mask": masks.from_key_padding_mask(PADDING)},
    ),
}
MADE = {"fused": {}, "without biases": {"bias": False}, "other widths": {"kdim": 10, "vdim": 6}}


def pair(made, training, batch_first=True):
    torch.manual_seed(1)
    theirs = nn.MultiheadAttention(W, H, batch_first=batch_first, **MADE[made]).train(training)
    for name, one in theirs.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(one)  # PyTorch begins with zeros, which would hide a bias that was not copied
    return theirs, MultiHeadAttention.from_torch(theirs)


def inputs(theirs):
    return randn(B, Q, W), randn(B, K, theirs.kdim, seed=1), randn(B, K, theirs.vdim, seed=2)


def test_copied_weights_agree_with_pytorch_whatever_is_hidden():
    for case in sweep(product(SAID, MADE, [True, False])):
        with case as (said, made, training):
            theirs, ours = pair(made, training)
            theirs_said, ours_said = SAID[said]
            x = inputs(theirs)
            output, weights = ours(*x, need_weights=True, **ours_said)
            expected, expected_weights = theirs(*x, average_attn_weights=False, **theirs_said)
            close(output, expected)
            close(weights, expected_weights)
            close(ours(*x, **ours_said), expected)
            with torch.no_grad():  # PyTorch's fast path
                close(ours(*x, **ours_said), theirs(*x, need_weights=False, **theirs_said)[0])


def test_gradients_agree_with_pytorch():
    theirs, ours = pair("fused", True)
    x, other = randn(B, Q, W), randn(B, Q, W, seed=9)
    (theirs(x, x, x)[0] * other).sum().backward()
    (ours(x) * other).sum().backward()
    close(
        torch.cat([ours.q_proj.weight.grad, ours.k_proj.weight.grad, ours.v_proj.weight.grad]),
        theirs.in_proj_weight.grad,
        1e-5,
    )
    close(
        torch.cat([ours.q_proj.bias.grad, ours.k_proj.bias.grad, ours.v_proj.bias.grad]), theirs.in_proj_bias.grad, 1e-5
    )
    close(ours.out_proj.weight.grad, theirs.out_proj.weight.grad, 1e-5)


def test_to_torch_is_the_inverse_of_from_torch():
    for case in sweep(MADE):
        with case as made:
            theirs, ours = pair(made, False, batch_first=False)
            back = ours.to_torch()
            assert back.batch_first
            assert not back.training
            assert {name: one.shape for name, one in back.state_dict().items()} == {
                name: one.shape for name, one in theirs.state_dict().items()
            }
            for name, one in theirs.state_dict().items():
                assert torch.equal(back.state_dict()[name], one), name
            x = inputs(theirs)
            close(ours(*x), theirs(*(one.transpose(0, 1) for one in x))[0].transpose(0, 1))


def test_a_copy_shares_nothing_and_keeps_type_dropout_and_mode():
    theirs = nn.MultiheadAttention(8, 2, dropout=0.3, dtype=torch.float64).eval()
    ours = MultiHeadAttention.from_torch(theirs)
    assert (ours.dropout, ours.training, ours.q_proj.weight.dtype) == (0.3, False, torch.float64)
    nn.init.zeros_(ours.q_proj.weight)
    assert theirs.in_proj_weight.detach().abs().min() > 0
    back = ours.to_torch()
    assert (back.dropout, back.in_proj_weight.dtype) == (0.3, torch.float64)


def test_to_torch_refuses_what_pytorch_has_not():
    cases = [
        ({"num_kv_heads": 1}, "num_kv_heads"),
        ({"head_dim": 5}, "head_dim"),
        ({"v_head_dim": 5}, "v_head_dim"),
        ({"out_dim": 9}, "out_dim"),
        ({"out_bias": False}, "out_bias"),
        ({"mask": masks.Causal()}, "mask"),
        ({"score": scores.Dot()}, "score"),
        ({"rotary": positions.RoPE(4)}, "rotary"),
        ({"attn_bias": positions.ALiBi(2)}, "attn_bias"),
        ({"normalizer": normalizers.Sigmoid()}, "normalizer"),
        ({"scale": 1.0}, "scale"),
        ({"q_norm": nn.RMSNorm(4)}, "q_norm"),
        ({"k_norm": nn.RMSNorm(4)}, "k_norm"),
    ]
    for case in sweep(cases):
        with (
            case as (more, name),
            pytest.raises(InputError, match=f"nn.MultiheadAttention has no `{name}` as given here: keep this module"),
        ):
            MultiHeadAttention(8, 2, **more).to_torch()


def test_every_part_is_where_the_formula_has_it():
    torch.manual_seed(2)
    rope = positions.RoPE(6)
    layer = MultiHeadAttention(
        16, 4, num_kv_heads=2, head_dim=6, v_head_dim=3, kdim=5, vdim=7, out_dim=9, bias=False, out_bias=True,
        score=scores.ScaledDot(softcap=2.0), mask=masks.Causal(), attn_bias=positions.ALiBi(4), rotary=rope,
        normalizer=normalizers.Softmax(nn.Parameter(torch.randn(4))), scale=0.7, q_norm=nn.RMSNorm(6),
        k_norm=nn.LayerNorm(6), dtype=torch.float64,
    ).double()  # fmt: skip
    nn.init.normal_(layer.q_norm.weight)
    nn.init.normal_(layer.k_norm.bias)
    x, y, z = (randn(2, n, w, seed=n, dtype=torch.float64) for n, w in ((4, 16), (6, 5), (6, 7)))
    output, weights = layer(x, y, z, mask=masks.Window(3), need_weights=True)

    q = layer.q_norm((x @ layer.q_proj.weight.T).reshape(2, 4, 4, 6)).permute(0, 2, 1, 3)
    k = layer.k_norm((y @ layer.k_proj.weight.T).reshape(2, 6, 2, 6)).permute(0, 2, 1, 3)
    v = (z @ layer.v_proj.weight.T).reshape(2, 6, 2, 3).permute(0, 2, 1, 3)
    distance = (np.arange(4) + 2)[:, None] - np.arange(6)
    expected = dense(
        rope.rotate(q, torch.arange(2, 6)), rope.rotate(k, torch.arange(6)), v, scale=0.7, softcap=2.0,
        bias=-np.array([1 / 4, 1 / 16, 1 / 64, 1 / 256])[:, None, None] * distance, sink=layer.normalizer().sink,
        visible=(distance >= 0) & (distance < 3),
    )  # fmt: skip
    np.testing.assert_allclose(weights.detach(), expected.weights, atol=1e-12)
    heads = torch.from_numpy(expected.output).permute(0, 2, 1, 3).reshape(2, 4, 12)
    torch.testing.assert_close(output, heads @ layer.out_proj.weight.T + layer.out_proj.bias)
    assert output.shape == (2, 4, 9)


def test_one_sequence_and_more_leading_dimensions_give_what_a_batch_gives():
    layer, x, y = MultiHeadAttention(8, 2, num_kv_heads=1), randn(2, 3, 5, 8), randn(2, 3, 6, 8, seed=1)
    output, weights = layer(x, y, need_weights=True)
    assert (output.shape, weights.shape) == ((2, 3, 5, 8), (2, 3, 2, 5, 6))
    batched = layer(x[1], y[1], need_weights=True)
    single = layer(x[1, 2], y[1, 2], need_weights=True)
    for many, few, one in zip((output, weights), batched, single, strict=True):
        close(many[1], few)
        close(few[2], one)


def test_zeros_and_ones_in_four_dimensions_are_a_mask():
    for case in sweep([torch.bool, torch.int64, torch.float32]):
        with case as kind:
            layer, x, seen = MultiHeadAttention(8, 2), randn(B, Q, 8), ~hidden(B, 1, 1, Q)
            _, weights = layer(x, mask=seen.to(kind), need_weights=True)
            assert (weights.masked_select(~seen.expand(weights.shape)) == 0).all()
            close(weights.sum(-1), torch.ones(B, 2, Q))


def test_a_query_that_sees_nothing_gets_the_output_bias_alone_and_no_nan():
    for case in sweep([torch.float32, torch.float16, torch.bfloat16]):
        with case as dtype:
            layer, seen = MultiHeadAttention(8, 2, dtype=dtype), torch.ones(Q, Q).bool()
            seen[2] = False
            x = randn(B, Q, 8).to(dtype).requires_grad_()
            output, weights = layer(x, mask=seen, need_weights=True)
            assert (weights[:, :, 2] == 0).all()
            close(
                weights.sum(-1)[:, :, [0, 1, 3, 4]],
                torch.ones(B, 2, 4, dtype=dtype),
                atol=1e-2 if dtype != torch.float32 else 1e-6,
            )
            assert torch.equal(output[:, 2], layer.out_proj.bias.expand(B, 8))
            output.float().sum().backward()
            assert all(one.grad.isfinite().all() for one in (x, *layer.parameters()))


def test_the_module_s_mask_and_that_of_the_call_both_hide():
    layer, x = MultiHeadAttention(8, 2, mask=masks.Causal()), randn(B, Q, 8)
    seen = ~hidden(Q, Q)
    both = seen & torch.ones(Q, Q).tril().bool()
    for given in (seen, masks.Dense(seen), masks.Dense(seen).bind(Q, Q)):
        _, weights = layer(x, mask=given, need_weights=True)
        assert torch.equal(weights > 0, both.expand(B, 2, Q, Q))


def test_dropout_is_for_training_and_weights_are_those_before_it():
    torch.manual_seed(0)
    layer, x = MultiHeadAttention(8, 2, dropout=0.5), randn(B, 50, 8)
    trained, weights = layer(x, need_weights=True)
    again, _ = layer(x, need_weights=True)
    assert not torch.equal(trained, again)
    close(weights.sum(-1), torch.ones(B, 2, 50))
    first, second = (layer(x, generator=torch.Generator().manual_seed(4)) for _ in range(2))
    assert torch.equal(first, second)
    layer.eval()
    output, same = layer(x, need_weights=True)
    close(same, weights)
    close(output, layer(x))
    assert (output - trained).abs().max() > 1e-3
    many = torch.stack([layer.train()(x) for _ in range(300)]).mean(0)
    assert (many - output).abs().max() < 0.3 * (trained - output).abs().max()


def test_errors_say_the_way_out():
    cases = [
        (lambda: MultiHeadAttention(10, 4), r"multiple of `num_heads`, got 10 and 4: .* head_dim=3"),
        (lambda: MultiHeadAttention(8, 4, num_kv_heads=3), "multiple of `num_kv_heads`, got 4 and 3"),
        (lambda: MultiHeadAttention(8, 0), "`num_heads` counts heads and must be an integer of at least 1, got 0"),
        (lambda: MultiHeadAttention(8, 2, dropout=1.0), "`dropout` is a probability from 0 to less than 1, got 1.0"),
        (lambda: MultiHeadAttention(8, 2, rotary=positions.RoPE(8)), "made for vectors of width 8, got 4"),
        (lambda: MultiHeadAttention(8, 2)(randn(B, Q, 9)), r"`query` must be \(..., length, 8\), .*`embed_dim=9`"),
        (lambda: MultiHeadAttention(8, 2)(randn(B, Q, 8), randn(B, K, 6)), "`kdim=6`"),
        (lambda: MultiHeadAttention(8, 2)(randn(B, Q, 8), randn(B, K, 8), randn(B, K, 6)), "`vdim=6`"),
        (
            lambda: MultiHeadAttention(8, 2, attn_bias=randn(Q, Q))(randn(B, Q, 8), attn_bias=randn(Q, Q)),
            "`attn_bias` is given, but the module has one of its own",
        ),
        (
            lambda: MultiHeadAttention(8, 2, score=scores.Bilinear(torch.eye(4).requires_grad_())),
            r"`weight` of Bilinear requires gradients .* nn.Parameter\(...\)",
        ),
        (
            lambda: MultiHeadAttention(8, 2)(randn(B, Q, 8), need_weights=True, max_bytes=64),
            r"more than the limit of 64 B.*use regard\.watch",
        ),
        (
            lambda: MultiHeadAttention(8, 2)(randn(B, Q, 8), mask=torch.ones(B, Q, dtype=torch.int64)),
            r"masks.Padding\(mask\) if it is \(batch, keys\)",
        ),
        (lambda: MultiHeadAttention(8, 2)(randn(B, Q, 8), mask=torch.zeros(Q, Q)), "`attn_bias=`"),
        (
            lambda: MultiHeadAttention(8, 2)(randn(B, Q, 8), mask=torch.ones(B, Q, Q).bool()),
            r"mask\[:, None\] if it is \(batch, queries, keys\)",
        ),
        (
            lambda: MultiHeadAttention.from_torch(nn.MultiheadAttention(8, 2, add_bias_kv=True)),
            r"appends keys of its own .*Softmax\(sink\)",
        ),
        (
            lambda: MultiHeadAttention.from_torch(nn.MultiheadAttention(8, 2, add_zero_attn=True)),
            r"appends keys of its own .*Softmax\(sink\)",
        ),
        (lambda: MultiHeadAttention.from_torch(nn.Linear(2, 2)), r"must be an nn\.MultiheadAttention, got Linear"),
    ]
    for case in sweep(cases):
        with case as (call, words), pytest.raises(InputError, match=words):
            call()


def test_a_learned_score_is_trained_moved_and_saved_with_the_module():
    made = scores.Additive(nn.Parameter(randn(6, 4)), nn.Parameter(randn(6, 4, seed=1)), nn.Parameter(randn(6, seed=2)))
    layer, x = MultiHeadAttention(8, 2, score=made), randn(B, Q, 8)
    assert {name for name, _ in layer.named_parameters()} >= {"score.w_query", "score.w_key", "score.vector"}
    output, weights = layer(x, need_weights=True)
    output.sum().backward()
    assert layer.score.vector.grad.abs().min() > 0
    q, k = (project(x).reshape(B, Q, 2, 4).transpose(1, 2) for project in (layer.q_proj, layer.k_proj))
    hidden_layer = (q @ made.w_query.T)[..., :, None, :] + (k @ made.w_key.T)[..., None, :, :]
    close(weights, (hidden_layer.tanh() @ made.vector).softmax(-1))
    double = layer.double()(x.double())
    assert double.dtype == torch.float64
    close(double.float(), output)


def test_a_module_that_gives_a_score_serves_as_one():
    class Learned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(randn(4, 4))

        def forward(self) -> scores.Score:
            return scores.Bilinear(self.weight.mT)

    layer, x = MultiHeadAttention(8, 2, score=Learned()), randn(B, Q, 8)
    held = MultiHeadAttention(8, 2, score=scores.Bilinear(nn.Parameter(randn(4, 4).mT)))
    held.load_state_dict(dict(layer.state_dict()) | {"score.weight": layer.score.weight.mT})
    close(layer(x), held(x))


def test_tensors_that_are_no_parameters_are_buffers():
    padding = masks.Padding(torch.tensor([[True, False, True]]))
    layer = MultiHeadAttention(8, 2, mask=padding & masks.Window(2), attn_bias=torch.eye(3))
    assert [name for name, _ in layer.named_buffers()] == ["mask.left_attention_mask", "attn_bias.values"]
    with pytest.raises(InputError, match="`bias` holds only zeros and ones"):
        layer(randn(1, 3, 8))


def test_a_table_of_numbers_can_be_the_module_s_own_bias():
    table = nn.Parameter(randn(Q, Q))
    layer, x = MultiHeadAttention(8, 2, attn_bias=table), randn(B, Q, 8)
    plain = MultiHeadAttention(8, 2)
    plain.load_state_dict({name: one for name, one in layer.state_dict().items() if "attn_bias" not in name})
    close(layer(x), plain(x, attn_bias=table))
    layer(x).square().sum().backward()
    assert table.grad.abs().max() > 0


def test_watching_sees_the_module_s_own_weights():
    layer, x, y = (
        MultiHeadAttention(8, 4, num_kv_heads=2, rotary=positions.RoPE(2)),
        randn(B, Q, 8),
        randn(B, K, 8, seed=1),
    )
    with regard.watch(layer, keep="weights") as seen:
        output = layer(x, y, mask=masks.Causal())
    assert torch.equal(output, layer(x, y, mask=masks.Causal()))
    _, weights = layer(x, y, mask=masks.Causal(), need_weights=True)
    for head in range(4):
        np.testing.assert_allclose(seen.weights(layer=0, head=head), weights[:, head].detach(), atol=1e-5)
