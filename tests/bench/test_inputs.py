"""What figures are held against: the limit does as many operations as attention."""

import pytest
from torch.utils.flop_counter import FlopCounterMode

from regard.bench.cases.inputs import HEADS, inputs, products


def flops(call):
    with FlopCounterMode(display=False) as counted:
        call()
    return counted.get_total_flops()


@pytest.mark.parametrize("n", [16, 512, 700, 1024, 1500])
def test_the_limit_multiplies_as_often_as_attention_does(n):
    q, k, v = inputs(n)
    attention = flops(lambda: (q @ k.mT) @ v)
    row = 2 * 1024**2
    assert attention > 0
    assert flops(products(HEADS * n * n)) == pytest.approx(attention, abs=row)
