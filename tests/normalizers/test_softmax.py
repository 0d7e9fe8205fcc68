"""The softmax's own refusals; its formula and its sink are tested with every backend."""

import pytest
import torch

from regard.errors import InputError
from regard.normalizers import Softmax
from sweeps import sweep


def test_a_sink_is_a_tensor_of_floats():
    cases = [
        (0.5, r"`sink` must be a tensor \(heads,\) or None, got float"),
        ([0.5], r"`sink` must be a tensor \(heads,\) or None, got list"),
        (torch.zeros(4, dtype=torch.long), r"`sink` must be of a floating-point type, got torch.int64: .*\.float\(\)"),
    ]
    for case in sweep(cases):
        with case as (sink, words), pytest.raises(InputError, match=words):
            Softmax(sink)
