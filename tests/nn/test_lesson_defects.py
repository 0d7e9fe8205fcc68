"""Where the lessons' own classes break, or are wrong without a word, and these do not."""

import math
from itertools import product

import pytest
import torch

from lessons import encoder, multi_head
from regard import masks
from regard.errors import InputError
from regard.nn import tutorials
from sweeps import sweep

MODULES = {
    "multi_head": lambda: tutorials.multi_head.MultiHeadAttention(16, 4, dropout=0.5),
    "encoder": lambda: tutorials.encoder.MultiHeadAttention(16, 4),
    "cross_attention": lambda: tutorials.cross_attention.MultiHeadAttention(16, 4, 0.5),
}


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def made(name):
    torch.manual_seed(0)
    return MODULES[name]()


def output(found):
    return found[0] if isinstance(found, tuple) else found


def last_bias(layer):
    """What is left of a token that has looked at nothing."""
    bias = (layer.fc if hasattr(layer, "fc") else layer.W_o).bias
    return torch.zeros(16) if bias is None else bias


def test_a_row_that_sees_nothing_is_0_in_every_type():
    for case in sweep(product([torch.float32, torch.float16, torch.bfloat16], MODULES)):
        with case as (dtype, name):
            layer, x, memory = made(name).to(dtype).eval(), randn(2, 5, 16).to(dtype), randn(2, 9, 16, seed=1).to(dtype)
            mask = torch.ones(2, 1, 5, 9)
            mask[1, :, 2] = 0
            found = layer(x, memory, memory, mask)
            assert output(found).dtype == dtype
            assert output(found).isfinite().all()
            assert torch.equal(output(found)[1, 2], last_bias(layer).to(dtype))
            weights = found[1] if isinstance(found, tuple) else getattr(layer, "attention_weights", None)
            if weights is not None:
                assert weights.shape == (2, 4, 5, 9)
                assert (weights[1, :, 2] == 0).all()
                expected = torch.ones(2, 4, 5)
                expected[1, :, 2] = 0
                torch.testing.assert_close(weights.float().sum(-1), expected, atol=1e-2, rtol=0)


def test_the_lessons_mask_overflows_in_half_precision():
    x, mask = randn(1, 4, 16).half(), torch.ones(4, 4).tril()
    with pytest.raises(RuntimeError, match="without overflow"):
        multi_head.MultiHeadAttention(16, 4).half()(x, x, x, mask)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_whole_encoder_in_half_precision_follows_the_lessons_in_single(dtype):
    torch.manual_seed(0)
    theirs = encoder.TransformerEncoder(50, 16, 4, 32, 2).eval()
    ours = tutorials.TransformerEncoder(50, 16, 4, 32, 2).eval()
    ours.load_state_dict(theirs.state_dict())
    ids, mask = torch.randint(50, (2, 10)), torch.ones(10, 10).tril()
    found = ours.to(dtype)(ids, mask)
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), theirs(ids, mask), atol=0.1, rtol=0)


def test_all_keys_hidden_from_a_sequence_leave_the_others_alone():
    torch.manual_seed(0)
    model, ids = tutorials.TransformerEncoder(50, 16, 4, 32, 2).eval(), torch.randint(50, (2, 10))
    mask = torch.ones(2, 1, 1, 10)
    mask[1] = 0
    found = model(ids, mask)
    assert found.isfinite().all()
    assert (model.layers[1].self_attn.attention_weights[1] == 0).all()
    torch.testing.assert_close(found[:1], model(ids[:1]), atol=1e-6, rtol=0)
    found.sum().backward()
    assert all(one.grad.isfinite().all() for one in model.parameters())


def test_weights_that_are_returned_are_those_before_dropout():
    layer, x = made("multi_head").train(), randn(2, 30, 16)
    first, weights = layer(x, x, x)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 30))
    assert not torch.equal(first, layer(x, x, x)[0])
    torch.testing.assert_close(layer.eval()(x, x, x)[1], weights)
    theirs = multi_head.MultiHeadAttention(16, 4, dropout=0.5)(x, x, x)[1].sum(-1)
    assert (theirs - 1).abs().max() > 0.2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_positions_keep_the_type_of_what_they_are_added_to(dtype):
    assert tutorials.PositionalEncoding(8)(torch.zeros(1, 3, 8, dtype=dtype)).dtype == dtype


def test_an_odd_width_has_positions():
    for case in sweep([1, 7, 33]):
        with case as width:
            found = tutorials.PositionalEncoding(width, 20, 0.0)(torch.zeros(1, 20, width))
            assert found.shape == (1, 20, width)
            angles = torch.arange(20)[:, None] * torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
            torch.testing.assert_close(found[0, :, ::2], angles.sin(), atol=1e-5, rtol=0)
            torch.testing.assert_close(found[0, :, 1::2], angles[:, : width // 2].cos(), atol=1e-5, rtol=0)
            if width > 1:
                with pytest.raises(RuntimeError):
                    encoder.PositionalEncoding(width, 20)


def test_a_text_longer_than_the_table_is_refused_with_the_way_out():
    model = tutorials.TransformerEncoder(50, 16, 4, 32, 2, max_seq_len=5)
    with pytest.raises(InputError, match="`x` has 6 positions and the table 5: build it with max_seq_len=6 at least"):
        model(torch.zeros(1, 6, dtype=torch.int64))


def test_a_mask_of_three_dimensions_is_refused_as_its_batch_would_broadcast_over_heads():
    for case in sweep(MODULES):
        with case as name:
            layer, x = made(name).eval(), randn(4, 5, 16)  # 4 sequences and 4 heads: the lesson takes it, and errs
            mask = torch.ones(4, 5, 5).tril()
            message = (
                r"would broadcast its batch over the heads: write mask\[:, None\] for one a sequence, mask\[None\] for"
            )
            with pytest.raises(InputError, match=message):
                layer(x, x, x, mask)
            one = output(layer(x, x, x, mask[0]))
            assert torch.equal(output(layer(x, x, x, mask[:1])), one)
            assert torch.equal(output(layer(x, x, x, mask[:, None])), one)
            assert torch.equal(output(layer(x, x, x, mask[None])), one)
            assert torch.equal(output(layer(x, x, x, masks.Causal())), one)


def test_a_mask_of_three_dimensions_is_one_a_sequence_where_there_are_no_heads():
    q, k = randn(2, 5, 8), randn(2, 7, 8, seed=1)
    mask = torch.ones(2, 5, 7)
    mask[0, :, 4:] = 0
    mask[1, 3, 1:] = 0
    expected = encoder.scaled_dot_product_attention(q, k, k, mask)
    for one, other in zip(tutorials.scaled_dot_product_attention(q, k, k, mask), expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0)
    torch.testing.assert_close(tutorials.DotProductAttention(8)(q, k, k, mask), expected[0], atol=1e-6, rtol=0)
    by_key = encoder.scaled_dot_product_attention(q[0], k[0], k[0], mask[0, 0])[1]
    torch.testing.assert_close(tutorials.scaled_dot_product_attention(q[0], k[0], k[0], mask[0, 0])[1], by_key)


def test_masks_that_do_not_fit_are_refused_with_the_way_out():
    layer, x = made("encoder"), randn(2, 5, 16)
    with pytest.raises(InputError, match=r"flags of tokens \(batch, keys\) are mask\[:, None, None\]"):
        layer(x, x, x, torch.ones(2, 5))
    with pytest.raises(InputError, match=r"over the scores \(2, 5, 5\): .*\(batch, keys\) are mask\[:, None\]$"):
        tutorials.DotProductAttention(16)(x, x, x, torch.ones(2, 1, 1, 5))
    with pytest.raises(InputError, match=r"alone, got -inf: of a mask of 0 and −inf, .*, write mask == 0"):
        layer(x, x, x, torch.zeros(5, 5).masked_fill(torch.ones(5, 5).triu(1).bool(), -math.inf))


def test_inputs_that_do_not_fit_are_refused():
    for case in sweep(MODULES):
        with case as name:
            layer, x = made(name), randn(2, 5, 16)
            width = "hid_dim" if name == "cross_attention" else "d_model"
            with pytest.raises(InputError, match=rf"`key` must be \(\.\.\., length, 16\), .*`{width}=8`"):
                layer(x, randn(2, 5, 8), x)
            with pytest.raises(InputError, match=rf"`query` must be \(batch, n, {width}\), .*: write query\[None\]"):
                layer(x[0], x, x)


def test_sizes_that_do_not_fit_are_refused_in_the_words_of_the_lesson():
    refused = {
        "`d_model` must be a multiple of `num_heads`, got 10 and 3": lambda: tutorials.encoder.MultiHeadAttention(
            10, 3
        ),
        "`hid_dim` must be a multiple of `n_heads`": lambda: tutorials.cross_attention.MultiHeadAttention(10, 3, 0.1),
        "`dropout` is a probability": lambda: tutorials.multi_head.MultiHeadAttention(8, 2, dropout=1.5),
        "`vocab_size` counts words and must be an integer of at least 1": lambda: tutorials.TransformerEncoder(0),
        "`num_layers` counts layers": lambda: tutorials.TransformerEncoder(10, 8, 2, num_layers=-1),
        "`d_ff` is the width of the hidden layer": lambda: tutorials.FeedForward(8, 0),
        "`d_model` is the width of a token": lambda: tutorials.FeedForward(0, 8),
        "`max_seq_len` counts positions": lambda: tutorials.PositionalEncoding(8, 0),
        r"width 32, got 8: DotProductAttention\(8\)": lambda: tutorials.DotProductAttention(32)(*[randn(2, 3, 8)] * 3),
    }
    for message, make in refused.items():
        with pytest.raises(InputError, match=message):
            make()


def test_the_name_that_three_lessons_have_is_imported_from_one_of_them():
    with pytest.raises(
        ImportError, match=r"import it from regard\.nn\.tutorials\.multi_head .* \.encoder .* or \.cross"
    ):
        from regard.nn.tutorials import MultiHeadAttention  # noqa: F401
    with pytest.raises(AttributeError, match="has no attribute 'Attention'"):
        tutorials.Attention  # noqa: B018
