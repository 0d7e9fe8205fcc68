"""The page of regard.nn is complete, is what its modules are, its examples run, and what it calls equal is equal."""

import doctest
import importlib
import re

import pytest
import torch
from torch import nn
from torch.nn import functional

import regard
from documents import ROOT
from regard import masks
from sweeps import sweep

PAGE = ROOT / "docs/nn.md"
TEXT = PAGE.read_text(encoding="utf-8")
SECTIONS = {
    title: body
    for title, _, body in (part.partition("\n") for part in re.split(r"^### ", TEXT, flags=re.MULTILINE)[1:])
}


@pytest.fixture(scope="module")
def nn_page():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs"))
        yield importlib.import_module("nn_page")


def test_page_is_what_make_docs_writes(nn_page):
    assert nn_page.page() == TEXT, "docs/nn.md is not what the docstrings say: run `make docs`"


def test_every_exported_module_has_a_section():
    assert sorted(SECTIONS) == sorted(set(regard.nn.__all__) - {"tutorials"})
    assert "regard.nn.tutorials" in TEXT


def test_section_has_a_sentence_a_signature_its_peers_and_an_example():
    for case in sweep(SECTIONS):
        with case as name:
            body = SECTIONS[name].strip()
            assert re.match(r".+\.\n", body), "a sentence"
            assert f"```text\n{name}(" in body
            assert "In PyTorch and transformers: " in body
            assert re.search(rf"import .*\b{name}\b", body) or name in ("DecoderState", "Summary")
            module = getattr(regard.nn, name)
            if isinstance(module, type) and issubclass(module, nn.Module):
                assert "\nforward(" in body
                assert "Shapes: " in body or name == "ValueModule"


def test_example_prints_what_the_page_shows():
    for case in sweep(SECTIONS):
        with case as name:
            (code,) = re.findall(r"^```pycon\n(.*?)^```$", SECTIONS[name], flags=re.MULTILINE | re.DOTALL)
            test = doctest.DocTestParser().get_doctest(code, {}, name, "docs/nn.md", 0)
            said: list[str] = []
            assert doctest.DocTestRunner(verbose=False).run(test, out=said.append).failed == 0, "".join(said)
            assert test.examples


# --- what the page says is the same elsewhere, where tests/nn has not compared it


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_feed_forward_is_a_sequence_of_layers_and_llamas_mlp():
    torch.manual_seed(0)
    ours, x = regard.nn.FeedForward(4, 6, activation="gelu"), randn(2, 3, 4)
    torch.testing.assert_close(ours(x), nn.Sequential(ours.up_proj, nn.GELU(), ours.down_proj)(x))
    modeling = pytest.importorskip("transformers.models.llama.modeling_llama")
    theirs = modeling.LlamaMLP(modeling.LlamaConfig(hidden_size=4, intermediate_size=6, num_attention_heads=2))
    ours = regard.nn.FeedForward(4, 6, activation="swiglu", bias=False)
    ours.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(ours(x), theirs(x))


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
def test_elman_is_pytorchs_recurrence(nonlinearity):
    torch.manual_seed(0)
    theirs = nn.RNN(4, 6, nonlinearity=nonlinearity, batch_first=True)
    ours, x = regard.nn.Elman(4, 6, output_size=6, nonlinearity=nonlinearity), randn(2, 5, 4)
    cell = ours.cell
    with torch.no_grad():
        cell.input_to_hidden.weight.copy_(theirs.weight_ih_l0)
        cell.input_to_hidden.bias.copy_(theirs.bias_ih_l0 + theirs.bias_hh_l0)
        cell.hidden_to_hidden.weight.copy_(theirs.weight_hh_l0)
        cell.hidden_to_output.weight.copy_(torch.eye(6))
        cell.hidden_to_output.bias.zero_()
    states, last = theirs(x)
    outputs, hidden = ours(x)
    torch.testing.assert_close(outputs, states)
    torch.testing.assert_close(hidden, last[0])
    step = nn.RNNCell(4, 6, nonlinearity=nonlinearity)
    step.load_state_dict({name.removesuffix("_l0"): one for name, one in theirs.state_dict().items()})
    torch.testing.assert_close(cell(x[:, 0], hidden)[1], step(x[:, 0], hidden))


def test_learned_positions_are_an_embedding_of_positions():
    ours, x = regard.nn.LearnedPositions(4, max_len=9), randn(2, 5, 4)
    theirs = nn.Embedding.from_pretrained(ours.weight)
    torch.testing.assert_close(ours(x), x + theirs(torch.arange(5)))


def test_sliding_window_is_multi_head_attention_with_its_mask():
    torch.manual_seed(0)
    ours, x = regard.nn.SlidingWindowAttention(8, num_heads=2, sliding_window=3), randn(2, 7, 8)
    theirs = regard.nn.MultiHeadAttention(8, num_heads=2, mask=masks.Causal() & masks.Window(3))
    state = {name.removeprefix("attention."): one for name, one in ours.state_dict().items()}
    theirs.load_state_dict({name: one for name, one in state.items() if name in theirs.state_dict()})
    torch.testing.assert_close(ours(x), theirs(x))


def test_bilinear_attention_scores_each_pair_by_pytorchs_bilinear():
    torch.manual_seed(0)
    ours, q, k = regard.nn.BilinearAttention(4, 6), randn(3, 4), randn(5, 6, seed=1)
    pairs = (one.flatten(0, 1) for one in (q[:, None].expand(3, 5, 4), k.expand(3, 5, 6)))
    scores = functional.bilinear(*pairs, ours.weight[None]).view(3, 5)
    torch.testing.assert_close(ours(q, k), scores.softmax(-1) @ k)
