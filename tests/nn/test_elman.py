"""The simple recurrence takes states and steps as they are, and refuses what would broadcast into another batch."""

import pytest
import torch

from regard.errors import InputError
from regard.nn import Elman, ElmanCell
from sweeps import sweep


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_one_sequence_and_more_dimensions_give_what_a_batch_gives():
    torch.manual_seed(0)
    layer, x, hidden = Elman(4, 8, output_size=3), randn(2, 3, 5, 4), randn(2, 3, 8, seed=1)
    many, few, one = layer(x, hidden), layer(x[1], hidden[1]), layer(x[1, 2], hidden[1, 2])
    for a, b, c in zip(many, few, one, strict=True):
        torch.testing.assert_close(a[1], b)
        torch.testing.assert_close(b[2], c)
    torch.testing.assert_close(layer(x[1, 2])[0], layer(x)[0][1, 2])
    output, state = layer.cell(x[1, 2, 0], hidden[1, 2])
    torch.testing.assert_close(output, one[0][0])
    assert state.shape == (8,)


def test_a_state_of_another_batch_is_refused():
    for case in sweep([(2, 8), (1, 1, 8), (8,)]):
        with case as shape:
            with pytest.raises(
                InputError, match=r"`hidden_state` must be \(1, 8\) for x .* take hx\[0\] of an nn\.RNN"
            ):
                Elman(4, 8)(randn(1, 5, 4), torch.zeros(shape))
            with pytest.raises(InputError, match=r"`hx` must be \(1, 8\) for x"):
                ElmanCell(4, 8)(randn(1, 4), torch.zeros(shape))


def test_a_step_of_another_width_and_a_sequence_without_steps_are_refused():
    with pytest.raises(InputError, match=r"`x` must be \(batch, 4\), got shape \(2, 5\): .*`input_size=`"):
        ElmanCell(4, 8)(randn(2, 5))
    with pytest.raises(InputError, match=r"`x` must have a step at least, got shape \(2, 0, 4\)"):
        Elman(4, 8)(randn(2, 0, 4))
