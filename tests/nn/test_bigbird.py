"""BigBird: transformers' full and block-sparse attention with copied weights, fed with its own random plan."""

import numpy as np
import pytest
import torch

from regard import masks
from regard.errors import InputError
from regard.nn import BigBirdAttention, ValueModule


def copied(theirs, ours):
    for mine, other in (("q_proj", "query"), ("k_proj", "key"), ("v_proj", "value")):
        getattr(ours.attention, mine).load_state_dict(getattr(theirs, other).state_dict())
    with torch.no_grad():
        ours.attention.out_proj.weight.copy_(torch.eye(ours.attention.embed_dim))
        ours.attention.out_proj.bias.zero_()
    return ours


def config(**options):
    transformers = pytest.importorskip("transformers")
    return transformers.BigBirdConfig(
        hidden_size=24, num_attention_heads=3, block_size=4, attention_probs_dropout_prob=0.0, **options
    )


def test_its_block_sparse_attention_with_its_random_plan(monkeypatch):
    from transformers.models.big_bird import modeling_big_bird as big_bird

    torch.manual_seed(0)
    theirs = big_bird.BigBirdBlockSparseAttention(config(num_random_blocks=2), seed=3).train()
    plans = []
    original = theirs._bigbird_block_rand_mask_with_head
    monkeypatch.setattr(
        theirs, "_bigbird_block_rand_mask_with_head", lambda **kw: plans.append(original(**kw)) or plans[-1]
    )
    ours = copied(theirs, BigBirdAttention(24, 3, block=4, num_random_blocks=0))
    x = torch.randn(2, 48, 24, requires_grad=True)
    real = torch.arange(48)[None] < torch.tensor([[48], [37]])
    inner = real.float().view(2, 12, 4)
    band = torch.einsum("blq,blk->blqk", inner[:, 2:-2], torch.cat([inner[:, 1:-3], inner[:, 2:-2], inner[:, 3:-1]], 2))
    expected = theirs(x, band[:, None], real.float()[:, None, :, None], real.float()[:, None, None, :], inner, inner)[0]
    expected = expected * real[..., None]

    # Row r of the plan is block row r + 1; the first and the last see all anyway.
    blocks = torch.zeros(3, 12, 12, dtype=torch.bool)
    for head, rows in enumerate(plans[0]):
        for row, drawn in enumerate(rows):
            blocks[head, row + 1, torch.as_tensor(np.asarray(drawn, dtype=np.int64))] = True
    drawn = masks.Dense(blocks.repeat_interleave(4, 1).repeat_interleave(4, 2)[None])
    ours.attention.mask = ValueModule(ours.attention.mask() | drawn)
    output = ours(x, key_padding_mask=~real)
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=0)
    up = torch.randn(2, 48, 24)
    mine = [p for name in ("q_proj", "k_proj", "v_proj") for p in getattr(ours.attention, name).parameters()]
    other = [p for name in ("query", "key", "value") for p in getattr(theirs, name).parameters()]
    for got, wanted in zip(
        torch.autograd.grad(output, [x, *mine], up), torch.autograd.grad(expected, [x, *other], up), strict=True
    ):
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)


def test_its_full_attention_where_the_window_covers_all():
    from transformers.models.big_bird.modeling_big_bird import BigBirdSelfAttention

    torch.manual_seed(0)
    theirs = BigBirdSelfAttention(config(attention_type="original_full")).eval()
    ours = copied(theirs, BigBirdAttention(24, 3, block=4, num_window_blocks=15, num_random_blocks=0))
    x = torch.randn(2, 32, 24)
    torch.testing.assert_close(ours(x), theirs(x)[0], atol=1e-5, rtol=0)


def test_the_plan_is_one_a_head_and_the_same_for_the_same_seed_and_length():
    def seen(seed):
        attend = BigBirdAttention(8, 2, block=1, num_random_blocks=2, seed=seed)
        return attend(torch.zeros(1, 32, 8), need_weights=True)[1][0] > 0

    assert torch.equal(seen(1), seen(1))
    assert not torch.equal(seen(1), seen(2))
    assert not torch.equal(seen(1)[0], seen(1)[1])


def test_padding_is_seen_by_no_one_and_gives_zero():
    attend, x = BigBirdAttention(8, 2, block=1, num_random_blocks=0), torch.randn(1, 9, 8)
    real = torch.arange(9)[None] < 6
    output, weights = attend(x, key_padding_mask=~real, need_weights=True)
    assert (output[0, 6:] == 0).all()
    assert (weights[..., 6:] == 0).all()
    assert (weights[:, :, 6:] == 0).all()
    torch.testing.assert_close(weights[:, :, :6].sum(-1), torch.ones(1, 2, 6))


def test_refusals_name_the_way_out():
    with pytest.raises(InputError, match="must be odd, got 2"):
        BigBirdAttention(8, 2, num_window_blocks=2)
    with pytest.raises(InputError, match="`key_padding_mask` must be boolean"):
        BigBirdAttention(8, 2)(torch.zeros(1, 4, 8), key_padding_mask=torch.ones(1, 4))
