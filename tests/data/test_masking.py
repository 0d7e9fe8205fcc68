"""Which tokens a masked language model has to find: Devlin's shares, and never a special one."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard import InputError
from regard.data import mask_tokens

SPECIAL = (0, 1, 2, 3, 4)


def masked(ids, real, seed=0, **options):
    generator = torch.Generator().manual_seed(seed)
    return mask_tokens(ids, real, 50, 4, all_special_ids=SPECIAL, generator=generator, **options)


@given(st.integers(1, 6), st.integers(1, 40), st.integers(0, 99), st.sampled_from((0.15, 0.5)))
def test_in_each_row_the_share_is_chosen_and_no_special_token(batch, length, seed, share):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 50, (batch, length), generator=generator)
    real = torch.arange(length) < torch.randint(0, length + 1, (batch, 1), generator=generator)
    inputs, labels = masked(ids, real, seed, mlm_probability=share)
    chosen = labels != -100
    text = real & (ids > 4)
    assert not (chosen & ~text).any()
    assert torch.equal(labels[chosen], ids[chosen])
    assert torch.equal(inputs[~chosen], ids[~chosen])
    assert not torch.isin(inputs[chosen], torch.tensor([0, 1, 2, 3])).any()
    for row in range(batch):
        count = int(text[row].sum())
        assert int(chosen[row].sum()) == (max(1, round(share * count)) if count else 0)


def test_of_those_chosen_80_percent_are_hidden_10_exchanged_and_10_left():
    ids = torch.randint(5, 50, (200, 200), generator=torch.Generator().manual_seed(1))
    inputs, labels = masked(ids, torch.ones_like(ids, dtype=torch.bool))
    before, after = ids[labels != -100], inputs[labels != -100]
    assert len(before) == 200 * 30
    hidden = (after == 4).double().mean().item()
    left = (after == before).double().mean().item()
    assert hidden == pytest.approx(0.8, abs=0.02)  # four standard errors
    assert left == pytest.approx(0.1 + 0.1 / 45, abs=0.016)  # 45 texts: one in 45 is exchanged for itself
    exchanged = after[(after != 4) & (after != before)]
    assert set(exchanged.tolist()) == set(range(5, 50))


def test_the_generator_alone_decides():
    ids = torch.randint(5, 50, (4, 30), generator=torch.Generator().manual_seed(1))
    real = torch.ones_like(ids, dtype=torch.bool)
    torch.manual_seed(1)
    first = masked(ids, real, 3)
    torch.manual_seed(2)
    assert all(torch.equal(a, b) for a, b in zip(first, masked(ids, real, 3), strict=True))
    assert not torch.equal(first[0], masked(ids, real, 4)[0])


def test_shares_and_vocabularies_without_meaning_are_refused():
    ids = torch.tensor([[7]])
    with pytest.raises(InputError, match=r"`mlm_probability` must be above 0 and below 1, got 15: 0\.15 is usual"):
        masked(ids, ids > 0, mlm_probability=15)
    with pytest.raises(InputError, match=r"`vocab_size` must be above the special tokens \(5\), got 5"):
        mask_tokens(ids, ids > 0, 5, 4, all_special_ids=SPECIAL, generator=torch.Generator())
