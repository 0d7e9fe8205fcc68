"""Luong's local attention, monotonic and predictive, on a page of numpy."""

from itertools import product

import numpy as np
import pytest
import torch

from oracles import f64, softmax
from regard.errors import InputError
from regard.nn import LocalAttention
from sweeps import sweep


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def made(alignment, radius=2):
    torch.manual_seed(0)
    return LocalAttention(5, radius, kdim=6, alignment=alignment).double()


def page(module, query, source, lengths, first=0):
    """Weights and output, sentence by sentence and target by target."""
    query, source, matrix, radius = f64(query), f64(source), f64(module.weight), module.radius
    weights = np.zeros((len(query), query.shape[1], source.shape[1]))
    for b, length in enumerate(lengths):
        for t, h in enumerate(query[b]):
            if module.alignment == "monotonic":
                p = float(min(first + t, length - 1))
            else:
                inner = f64(module.place_vector) @ np.tanh(f64(module.place_proj.weight) @ h)
                p = length / (1 + np.exp(-inner))
            window = np.arange(max(0, int(p) - radius), min(length, int(p) + radius + 1))
            row = softmax((h @ matrix @ source[b, window].T)[None])[0][0]
            if module.alignment == "predictive":
                row = row * np.exp(-((window - p) ** 2) / (2 * (radius / 2) ** 2))
            weights[b, t, window] = row
    return weights, weights @ source


def test_equals_the_page():
    for case in sweep(product([False, True], ["monotonic", "predictive"])):
        with case as (padded, alignment):
            module, query, source = made(alignment), 3 * randn(2, 12, 5), randn(2, 9, 6, seed=1)
            lengths = [9, 6] if padded else [9, 9]
            padding = torch.arange(9)[None] >= torch.tensor(lengths)[:, None] if padded else None
            output, weights = module(query, source, key_padding_mask=padding, need_weights=True)
            wanted_weights, wanted = page(module, query, source, lengths)
            # p is computed in float64 here, so that ⌊p⌋ is the same on both sides.
            np.testing.assert_allclose(f64(weights), wanted_weights, atol=1e-12)
            np.testing.assert_allclose(f64(output), wanted, atol=1e-12)


def test_one_step_at_a_time_is_the_same():
    for case in sweep(product([False, True], ["monotonic", "predictive"])):
        with case as (padded, alignment):
            module, query, source = made(alignment), randn(2, 12, 5), randn(2, 9, 6, seed=1)
            padding = torch.arange(9)[None] >= torch.tensor([[9], [6]]) if padded else None
            steps = [module(query[:, t : t + 1], source, key_padding_mask=padding, q_offset=t) for t in range(12)]
            torch.testing.assert_close(torch.cat(steps, 1), module(query, source, key_padding_mask=padding))


def test_the_place_is_learned_through_the_gaussian():
    module, query, source = made("predictive"), randn(2, 4, 5), randn(2, 9, 6, seed=1)

    def run(vector, matrix):
        state = {"place_vector": vector, "place_proj.weight": matrix}
        return torch.func.functional_call(module, state, (query, source))

    parameters = (module.place_vector, module.place_proj.weight)
    assert torch.autograd.gradcheck(run, parameters)
    grads = torch.autograd.grad(run(*parameters).square().sum(), parameters)
    assert all((one != 0).all() for one in grads)


def test_a_monotonic_module_has_nothing_to_predict_with():
    assert [name for name, _ in made("monotonic").named_parameters()] == ["weight"]


def test_refusals_name_the_way_out():
    module, query, source = made("predictive"), randn(1, 2, 5), randn(1, 4, 6)
    with pytest.raises(InputError, match="pad on the right"):
        module(query, source, key_padding_mask=torch.tensor([[True, False, False, False]]))
    with pytest.raises(InputError, match=r"`key_padding_mask` must be boolean \(batch, tokens\) for source"):
        module(query, source, key_padding_mask=torch.zeros(1, 3, dtype=torch.bool))
    with pytest.raises(InputError, match='`alignment` must be "monotonic" or "predictive"'):
        LocalAttention(5, 2, alignment="global")
    with pytest.raises(InputError, match="`radius` counts the positions on either side"):
        LocalAttention(5, 0)
    with pytest.raises(InputError, match="build the module with `kdim=5`"):
        module(query, query)
