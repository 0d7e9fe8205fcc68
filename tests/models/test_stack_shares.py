"""What the layers of one pass share is made once."""

import torch

from regard.models.stack import _Seen


def test_layers_that_see_as_many_keys_share_one_mask():
    seen = _Seen(4, torch.tensor([[True, True, False, True, True, True]]), None)
    x = torch.zeros(1, 4, 8)
    first, again, other = seen.by(6, x), seen.by(6, x), seen.by(5, x)
    assert first["mask"] is again["mask"]
    assert first["mask"] is not other["mask"]
    assert other["mask"].dense()[0, 0, -1].tolist() == [True, False, True, True, True]
