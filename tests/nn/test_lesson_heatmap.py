"""The lesson's picture: each weight in its place, tokens down and across, shown where there is a screen."""

import subprocess
import sys

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from regard.errors import InputError
from regard.nn.tutorials import TransformerEncoder
from regard.nn.tutorials.encoder import visualize_attention
from sweeps import sweep

TOKENS = ["jane", "visits", "africa"]


@pytest.fixture(autouse=True)
def _closed():
    yield
    plt.close("all")


def weights(layers=2, batch=2, heads=4, n=3):
    return torch.rand(layers, batch, heads, n, n, generator=torch.Generator().manual_seed(0)).softmax(-1)


def names(axes):
    return [[one.get_text() for one in found] for found in (axes.get_yticklabels(), axes.get_xticklabels())]


GIVEN = {
    "a list of layers": lambda w: list(w),
    "a tuple of layers without a batch": lambda w: tuple(w[:, 0]),
    "layers stacked": lambda w: w,
    "numpy": lambda w: [one.numpy() for one in w],
    "with a gradient": lambda w: [one.clone().requires_grad_() for one in w],
    "one layer": lambda w: w[1],
    "one layer without a batch": lambda w: w[1, 0],
}


def test_queries_go_down_and_keys_across():
    for case in sweep(GIVEN):
        with case as kind:
            w = weights()
            axes = visualize_attention(GIVEN[kind](w), TOKENS, layer=1, head=2)
            np.testing.assert_allclose(axes.images[0].get_array(), w[1, 0, 2].numpy())
            assert axes.images[0].get_extent() == [0, 3, 3, 0]  # the first query on top, the first key on the left
            assert names(axes) == [TOKENS, TOKENS]
            assert (axes.get_xlabel(), axes.get_ylabel()) == ("keys", "queries")
            assert axes.get_title() == "Attention weights: layer 1, head 2"
            assert plt.gcf() is axes.figure  # so that a driver's plt.savefig writes it


def test_one_matrix_half_precision_and_a_layer_that_sees_nothing():
    assert visualize_attention(weights()[0, 0, 0].bfloat16(), TOKENS).images[0].get_array().shape == (3, 3)
    axes = visualize_attention([torch.zeros(1, 1, 3, 3)], TOKENS)
    assert axes.images[0].get_clim() == (0, 1)


def test_chinese_and_signs_of_mathtext_are_drawn_as_they_are(chinese_font, tmp_path):
    text = list("貓追老鼠，因為它餓了")
    axes = visualize_attention(weights(n=10), text, layer=0, head=0)
    assert names(axes) == [text, text]
    axes.figure.savefig(tmp_path / "it.png")  # a missing glyph is a warning, and warnings are errors
    axes = visualize_attention(weights(n=3), ["$a_b$", "a\nb", ""], layer=0, head=0)
    assert names(axes)[0] == ["$a_b$", r"a\nb", "␣"]
    assert not any(one.get_parse_math() for one in (*axes.get_xticklabels(), *axes.get_yticklabels()))
    axes.figure.savefig(tmp_path / "it.png")


def test_of_many_tokens_places_are_numbered():
    axes = visualize_attention(weights(n=60), [f"w{i}" for i in range(60)])
    assert "w0" not in names(axes)[0]
    assert len(axes.get_yticks()) < 12


@pytest.mark.parametrize(("backend", "shown"), [("agg", 0), ("svg", 0), ("tkagg", 1), ("inline", 1)])
def test_it_is_shown_where_there_is_something_to_show_it_on(monkeypatch, backend, shown):
    calls = []
    monkeypatch.setattr(plt, "get_backend", lambda: backend)
    monkeypatch.setattr(plt, "show", lambda: calls.append(1))
    visualize_attention(weights(), TOKENS)
    assert len(calls) == shown


def test_what_does_not_fit_is_refused():
    refused = {
        r"`tokens` must be the 3 of 3 × 3 weights, got 2: cut off the padding": (weights(), TOKENS[:2]),
        r"`tokens` must be the 3 of 3 × 7 weights, got 3: .*regard\.watch": ([torch.ones(1, 1, 3, 7)], TOKENS),
        r"`layer` must be from 0 to 1 \(layers: 2\), got 2": (weights(), TOKENS, 2),
        r"`head` must be from 0 to 3 \(heads: 4\), got 4": (weights(), TOKENS, 0, 4),
        r"`attention_weights` must be a list of layers, .* got shape \(3,\)": (torch.ones(3), TOKENS),
    }
    for message, given in refused.items():
        with pytest.raises(InputError, match=message):
            visualize_attention(*given)
    model = TransformerEncoder(10, 8, 2, 12, 1)
    with pytest.raises(InputError, match="no weights yet, got None: call the model first"):
        visualize_attention([layer.self_attn.attention_weights for layer in model.layers], TOKENS)
    assert plt.get_fignums() == []


@pytest.mark.slow
def test_the_lessons_import_without_matplotlib():
    code = """
import sys
sys.modules["matplotlib"] = None
import torch
from regard.nn.tutorials import visualize_attention
try:
    visualize_attention(torch.eye(2), ["a", "b"])
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "this needs the package `matplotlib`: pip install 'regard[figures]'\n"
