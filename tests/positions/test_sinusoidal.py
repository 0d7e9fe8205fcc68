"""Sinusoids against the formulas written out and against the libraries whose tables they are."""

import math

import numpy as np
import pytest
import torch

from regard.errors import InputError
from regard.positions import sinusoidal
from sweeps import sweep


def _paper(length, dim, base=10000.0):
    """Vaswani et al., 3.5, number by number."""
    table = np.empty((length, dim))
    for p in range(length):
        for column in range(dim):
            angle = p / base ** (2 * (column // 2) / dim)
            table[p, column] = math.cos(angle) if column % 2 else math.sin(angle)
    return torch.tensor(table)


def test_the_paper_interleaves_sine_and_cosine():
    for case in sweep([1, 2, 7, 8, 512]):
        with case as dim:
            torch.testing.assert_close(sinusoidal(50, dim, dtype=torch.float64), _paper(50, dim), rtol=0, atol=1e-12)
            torch.testing.assert_close(sinusoidal(50, dim, base=77.0, dtype=torch.float64), _paper(50, dim, 77.0))


def test_marian_is_the_paper_with_all_sines_first():
    for case in sweep([1, 6, 7, 512]):
        with case as dim:
            marian = sinusoidal(30, dim, variant="marian")
            paper = sinusoidal(30, dim)
            assert torch.equal(marian, torch.cat([paper[:, ::2], paper[:, 1::2]], 1))


@pytest.mark.parametrize("dim", [8, 9])
def test_marian_is_that_of_transformers(dim):
    marian = pytest.importorskip("transformers.models.marian.modeling_marian")
    theirs = marian.MarianSinusoidalPositionalEmbedding(100, dim)
    torch.testing.assert_close(sinusoidal(100, dim, variant="marian"), theirs.create_weight(), rtol=0, atol=1e-7)


def test_tensor2tensor_is_that_of_m2m_100():
    for case in sweep([8, 9, 64]):
        with case as dim:
            m2m = pytest.importorskip("transformers.models.m2m_100.modeling_m2m_100")
            theirs = m2m.M2M100SinusoidalPositionalEmbedding.get_embedding(100, dim)
            # Theirs has angles in float32: at position 100 they are off by some 1e-6.
            torch.testing.assert_close(sinusoidal(100, dim, variant="tensor2tensor"), theirs, rtol=0, atol=1e-5)


def test_tensor2tensor_is_that_of_whisper():
    whisper = pytest.importorskip("transformers.models.whisper.modeling_whisper")
    ours = sinusoidal(1500, 384, variant="tensor2tensor")
    torch.testing.assert_close(ours, whisper.sinusoids(1500, 384), rtol=0, atol=1.5e-4)


def test_the_slowest_pair_of_tensor2tensor_turns_by_one_in_the_base():
    slowest = sinusoidal(2, 10, variant="tensor2tensor", dtype=torch.float64)[1, 4]
    assert slowest.item() == pytest.approx(math.sin(1e-4), rel=1e-12)


def test_an_odd_width_ends_with_zeros_in_tensor2tensor():
    assert torch.equal(sinusoidal(5, 9, variant="tensor2tensor")[:, 8], torch.zeros(5))
    assert sinusoidal(3, 3, variant="tensor2tensor").shape == (3, 3)


def test_start_moves_the_first_row():
    for case in sweep(["paper", "tensor2tensor", "marian"]):
        with case as variant:
            whole = sinusoidal(10, 6, variant=variant)
            assert torch.equal(sinusoidal(6, 6, variant=variant, start=4), whole[4:])
            assert torch.equal(sinusoidal(1, 6, variant=variant, start=0), whole[:1])
            before = sinusoidal(1, 6, variant=variant, start=-3)[0]
            sines = [0, 2, 4] if variant == "paper" else [0, 1, 2]
            after = whole[3].clone()
            after[sines] *= -1
            assert torch.equal(before, after)


def test_it_is_rounded_once():
    far = sinusoidal(1, 16, start=1_000_000)
    exact = [f(1e6 / 10000 ** (i / 8)) for i in range(8) for f in (math.sin, math.cos)]
    torch.testing.assert_close(far[0], torch.tensor(exact), rtol=0, atol=1e-7)
    assert sinusoidal(2, 4).dtype == torch.float32
    assert sinusoidal(2, 4, dtype=torch.bfloat16).dtype == torch.bfloat16
    assert sinusoidal(2, 4, device="meta").device.type == "meta"


def test_it_is_made_within_a_graph_and_on_the_default_device():
    graph = torch.compile(lambda x: x + sinusoidal(3, 4), backend="eager", fullgraph=True)
    assert torch.equal(graph(torch.zeros(3, 4)), sinusoidal(3, 4))
    with torch.device("meta"):
        assert sinusoidal(3, 4).is_meta


def test_a_wrong_call_says_what_is_right():
    cases = [
        (lambda: sinusoidal(2, 4, variant="halves"), "one of 'paper', 'tensor2tensor', 'marian', got 'halves'"),
        (lambda: sinusoidal(-1, 4), "`length` counts positions and must be an integer of at least 0, got -1"),
        (lambda: sinusoidal(2, 0), "`dim` is the width of the embedding and must be an integer of at least 1, got 0"),
        (lambda: sinusoidal(2, 1, variant="tensor2tensor"), "at least 2, got 1"),
        (lambda: sinusoidal(2, 4, base=1.0), "`base` .* above 1, got 1.0"),
        (lambda: sinusoidal(2, 4, start=0.5), "`start` .* must be an integer, got 0.5"),
        (lambda: sinusoidal(2, 4, dtype=torch.int64), "`dtype` must be a floating-point type, got torch.int64"),
    ]
    for case in sweep(cases):
        with case as (make, words), pytest.raises(InputError, match=words):
            make()
