"""The Elman recurrence against nn.RNN, and decoder cells with attention against their formulas."""

import copy
from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

import regard
from regard import masks, scores
from regard.errors import InputError
from regard.nn import AdditiveAttention, AttentionDecoderCell, DecoderState, Elman, ElmanCell, LocalAttention
from sweeps import sweep


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_elman_is_pytorch_s_rnn_and_a_linear_layer(activation):
    torch.manual_seed(0)
    theirs = nn.RNN(3, 5, nonlinearity=activation, batch_first=True).double()
    ours = Elman(3, 5, output_size=2, nonlinearity=activation).double()
    ours.cell.input_to_hidden.weight.data = theirs.weight_ih_l0.data
    ours.cell.input_to_hidden.bias.data = theirs.bias_ih_l0.data + theirs.bias_hh_l0.data
    ours.cell.hidden_to_hidden.weight.data = theirs.weight_hh_l0.data
    x, start, read = randn(4, 6, 3), randn(4, 5, seed=1), ours.cell.hidden_to_output
    for given in (None, start):
        outputs, hidden = ours(x, given)
        states, last = theirs(x, None if given is None else given[None])
        torch.testing.assert_close(hidden, last[0])
        torch.testing.assert_close(outputs, states @ read.weight.T + read.bias)
        stepped = given
        for t in range(6):
            output, stepped = ours.cell(x[:, t], stepped)
            torch.testing.assert_close(output, outputs[:, t])
        torch.testing.assert_close(stepped, hidden)


def test_elman_refuses_what_does_not_fit():
    with pytest.raises(InputError, match='`nonlinearity` must be "tanh" or "relu", got \'gelu\''):
        ElmanCell(3, 5, nonlinearity="gelu")
    with pytest.raises(InputError, match=r"`x` must be .*`input_size=4`"):
        Elman(3, 5)(torch.zeros(2, 6, 4))
    with pytest.raises(InputError, match=r"`hidden_state` must be .*`hidden_size=4`"):
        Elman(3, 5)(torch.zeros(2, 6, 3), torch.zeros(2, 4))
    assert Elman(3, 5)(torch.zeros(2, 6, 3))[0].shape == (2, 6, 5)


def weights_by_hand(cell, name, hidden, memory, seen):
    """The softmax over the keys that are seen."""
    if name == "additive":
        part = cell.attention
        energies = torch.tanh((part.query_proj(hidden))[:, None] + part.key_proj(memory)) @ part.vector
    elif name == "general":
        energies = torch.einsum("bi,ij,bkj->bk", hidden, cell.attention.weight, memory)
    else:
        energies = torch.einsum("bi,bki->bk", hidden, memory)
    return energies.masked_fill(~seen, -torch.inf).softmax(-1)


def test_three_steps_are_the_formula():
    for case in sweep(product(["gru", "lstm"], [("bahdanau", "additive"), ("luong", "general"), ("luong", "dot")])):
        with case as (kind, (order, name)):
            torch.manual_seed(0)
            width = 5 if name == "dot" else 6
            attention = scores.Dot() if name == "dot" else None
            cell = AttentionDecoderCell(
                3, 5, width, attention_architecture=order, cell=kind, attention=attention
            ).double()
            memory, x = randn(4, 7, width), randn(3, 4, 3, seed=1)
            seen = torch.arange(7) < torch.tensor([7, 3, 5, 1])[:, None]
            hidden = kept = fed = torch.zeros(4, 5, dtype=torch.float64)
            state = None
            for given in x:
                output, state, weights = cell(given, memory, state, mask=masks.Padding(seen), need_weights=True)

                def renew(more, given=given, hidden=hidden, kept=kept, cell=cell):
                    whole = torch.cat([given, more], 1)
                    return cell.cell(whole, (hidden, kept)) if kind == "lstm" else (cell.cell(whole, hidden), kept)

                if order == "bahdanau":
                    expected_weights = weights_by_hand(cell, name, hidden, memory, seen)
                    hidden, kept = renew((expected_weights[..., None] * memory).sum(1))
                    expected = hidden
                else:
                    hidden, kept = renew(fed)
                    expected_weights = weights_by_hand(cell, name, hidden, memory, seen)
                    context = (expected_weights[..., None] * memory).sum(1)
                    expected = fed = torch.tanh(torch.cat([context, hidden], 1) @ cell.combine.weight.T)
                torch.testing.assert_close(weights, expected_weights)
                torch.testing.assert_close(output, expected)
                torch.testing.assert_close(state.hidden_state, hidden)
            assert (state.cell_state is not None) == (kind == "lstm")
            assert (state.attentional_hidden is not None) == (order == "luong")
            if order == "luong":
                assert cell.combine.bias is None


def test_a_first_state_can_be_given_and_must_be_whole():
    cell = AttentionDecoderCell(3, 5, attention_architecture="luong", cell="lstm")
    memory, x = torch.zeros(2, 4, 5), torch.ones(2, 3)
    zero = cell(x, memory)[0]
    assert torch.equal(cell(x, memory, cell.start(torch.zeros(2, 5)))[0], zero)
    assert not torch.equal(cell(x, memory, cell.start(torch.ones(2, 5)))[0], zero)
    with pytest.raises(InputError, match=r"`state` lacks a part .* cell\.start\(hidden_state\)"):
        cell(x, memory, DecoderState(torch.zeros(2, 5)))


def additive(kind):
    """A cell with an additive score of that kind, and the score as it is."""
    torch.manual_seed(0)
    w_query, w_key, vector = (nn.Parameter(one) for one in (randn(4, 5), randn(4, 6, seed=1), randn(4, seed=2)))
    if kind == "module":
        cell = AttentionDecoderCell(3, 5, 6).double()
        part = cell.attention
        return cell, scores.Additive(part.query_proj.weight, part.key_proj.weight, part.vector)
    if kind == "concat":
        score = scores.Concat(nn.Parameter(torch.cat([w_query, w_key], 1).detach()), vector, randn(4, seed=3))
    elif kind == "keys alone":
        score = scores.Additive(randn(6, 5), None, randn(6, seed=3), softcap=1.5)
    else:
        score = scores.Additive(w_query, w_key, vector, randn(4, seed=3))
    return AttentionDecoderCell(3, 5, 6, attention=score).double(), score


def test_a_prepared_memory_gives_the_same_and_is_projected_once():
    for case in sweep(["module", "additive", "concat", "keys alone"]):
        with case as kind:
            cell, score = additive(kind)
            memory, x, hidden = randn(2, 4, 6, seed=4).requires_grad_(), randn(2, 3, seed=5), randn(2, 5, seed=6)
            mask = masks.Padding(torch.tensor([[True] * 4, [True, True, False, False]]))
            once = cell.prepare(memory)
            found = cell(x, once, cell.start(hidden), mask=mask, need_weights=True)
            _, wanted = regard.attention(hidden[:, None], memory, memory, score=score, mask=mask, return_weights=True)
            torch.testing.assert_close(found[2], wanted[:, 0])
            plain = cell(x, memory, cell.start(hidden), mask=mask)[0]
            assert torch.equal(found[0], plain)
            wanted_grad, grad = (
                torch.autograd.grad(one.sin().sum(), memory, retain_graph=True)[0] for one in (plain, found[0])
            )
            torch.testing.assert_close(grad, wanted_grad)
            assert (once.keys is memory) == (kind == "keys alone")
            # What was prepared is what the score compares: other keys, other weights.
            other = cell(x, once._replace(keys=once.keys.flip(1)), cell.start(hidden), need_weights=True)[2]
            torch.testing.assert_close(other, cell(x, memory, cell.start(hidden), need_weights=True)[2].flip(1))


def test_a_score_of_another_width_is_refused_in_its_own_words():
    cell = AttentionDecoderCell(3, 5, 6, attention=scores.Concat(torch.zeros(4, 9), torch.zeros(4)))
    with pytest.raises(InputError, match=r"`weight` must have a column for each of 5 \+ 6 entries"):
        cell(torch.zeros(2, 3), torch.zeros(2, 4, 6))
    cell = AttentionDecoderCell(
        3, 5, 6, attention=scores.Additive(torch.zeros(4, 5), torch.zeros(4, 7), torch.zeros(4))
    )
    with pytest.raises(InputError, match=r"`w_key` must have the width of k \(6\)"):
        cell(torch.zeros(2, 3), torch.zeros(2, 4, 6))


def test_dropout_of_additive_attention_is_in_training_alone():
    cell = AttentionDecoderCell(3, 5, attention=AdditiveAttention(5, dropout=0.5))
    x, memory = torch.ones(2, 3), torch.randn(2, 9, 5, generator=torch.Generator().manual_seed(0))
    assert not torch.equal(cell(x, memory)[0], cell(x, memory)[0])
    assert torch.equal(cell.eval()(x, memory)[0], cell(x, memory)[0])


@pytest.mark.parametrize("padded", [False, True])
def test_each_sequence_can_be_at_a_step_of_its_own(padded):
    part = LocalAttention(5, 1, alignment="monotonic").double()
    query, source = randn(3, 2, 5), randn(3, 6, 5, seed=1)
    padding = torch.arange(6) >= torch.tensor([[6], [2], [4]]) if padded else None
    together = part(query, source, key_padding_mask=padding, q_offset=torch.tensor([0, 3, 7]))
    for b, first in enumerate((0, 3, 7)):
        alone = part(
            query[b, None],
            source[b, None],
            key_padding_mask=None if padding is None else padding[b, None],
            q_offset=first,
        )
        torch.testing.assert_close(together[b], alone[0])


def test_local_attention_can_be_the_attention():
    local = LocalAttention(5, 1, alignment="monotonic")
    cell = AttentionDecoderCell(3, 5, attention_architecture="luong", attention=local)
    output, _, weights = cell(torch.ones(2, 3), torch.randn(2, 6, 5), need_weights=True, q_offset=3)
    assert output.shape == (2, 5)
    assert (weights > 0).tolist() == [[False, False, True, True, True, False]] * 2


@pytest.mark.parametrize(
    ("asked", "words"),
    [({"attention_architecture": "both"}, '"bahdanau" or "luong"'), ({"cell": "rnn"}, '"gru" or "lstm"')],
    ids=["order", "cell"],
)
def test_orders_and_cells_that_do_not_exist_are_refused(asked, words):
    with pytest.raises(InputError, match=words):
        AttentionDecoderCell(3, 5, **asked)


@pytest.mark.parametrize("order", ["bahdanau", "luong"])
def test_a_cell_is_copied_moved_saved_and_watched(order):
    torch.manual_seed(0)
    cell = AttentionDecoderCell(3, 5, 6, attention_architecture=order)
    x, memory = torch.randn(2, 3), torch.randn(2, 4, 6)
    plain, _, weights = cell(x, memory, need_weights=True)
    assert torch.equal(copy.deepcopy(cell)(x, memory)[0], plain)
    other = AttentionDecoderCell(3, 5, 6, attention_architecture=order)
    other.load_state_dict(cell.state_dict())
    assert torch.equal(other(x, memory)[0], plain)
    assert other.double()(x.double(), memory.double())[0].dtype == torch.float64
    with regard.watch(cell, keep="weights") as seen, torch.no_grad():
        assert torch.equal(cell(x, memory)[0], plain)
    np.testing.assert_allclose(seen.weights(layer=0, head=0)[:, 0], weights.detach(), atol=1e-5)
