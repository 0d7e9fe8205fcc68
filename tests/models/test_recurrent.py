"""The recurrent encoder–decoder against its formulas: one text at a time, without padding, gates and all."""

from itertools import product

import pytest
import torch
from torch import nn

from regard.models.recurrent import RecurrentConfig, RecurrentSeq2Seq
from sweeps import sweep


def gates(kind, w_x, w_h, b_x, b_h, x, h, c):
    """One step of PyTorch's GRU or LSTM, from its documentation."""
    a, b = w_x @ x + b_x, w_h @ h + b_h
    if kind == "lstm":
        i, f, g, o = (a + b).chunk(4)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c
    (r, z, n), (r2, z2, n2) = a.chunk(3), b.chunk(3)
    r, z = (r + r2).sigmoid(), (z + z2).sigmoid()
    n = (n + r * n2).tanh()
    return (1 - z) * n + z * h, c


def tensors_of(state, prefix, suffix=""):
    return [state[f"{prefix}{name}{suffix}"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]


def read(kind, weights, xs, h, c):
    """All states of one layer in one direction, and the last cell state."""
    states = []
    for x in xs:
        h, c = gates(kind, *weights, x, h, c)
        states.append(h)
    return torch.stack(states), c


def encode(config, state, ids):
    """The memory, and of every layer the last states of each direction."""
    xs, last = state["encoder.embedding.weight"][ids], []
    zero = torch.zeros(config.hidden_size, dtype=xs.dtype)
    for layer in range(config.num_layers):
        weights = tensors_of(state, "encoder.layers.", f"_l{layer}")
        states, c = read(config.cell, weights, xs, zero, zero)
        ends, parts = [(states[-1], c)], [states]
        if config.bidirectional:
            weights = tensors_of(state, "encoder.layers.", f"_l{layer}_reverse")
            states, c = read(config.cell, weights, xs.flip(0), zero, zero)
            ends.append((states[-1], c))
            parts.append(states.flip(0))
        xs = torch.cat(parts, 1)
        last.append(ends)
    return xs, last


def first_states(config, state, last):
    """One (h, c) a layer."""
    found = []
    for layer, ends in enumerate(last):
        if config.attention == "bahdanau":
            h = torch.tanh(state[f"bridge.hidden_state.{layer}.weight"] @ ends[-1][0])
            found.append((h, torch.zeros_like(h)))
        elif config.bidirectional:
            pair = []
            for part, name in enumerate(("hidden_state", "cell_state") if config.cell == "lstm" else ("hidden_state",)):
                whole = torch.cat([end[part] for end in ends])
                pair.append(state[f"bridge.{name}.{layer}.weight"] @ whole + state[f"bridge.{name}.{layer}.bias"])
            found.append((pair[0], pair[-1]))
        else:
            found.append(ends[0])
    return found


def look(config, state, h, memory, t):
    """The weights over the memory, from the papers."""
    kind, size, window = config.attention, len(memory), slice(None)
    part = "decoder.cross_attention." + ("attention." if config.input_feeding else "")
    factor = torch.ones(size, dtype=h.dtype)
    if kind == "bahdanau":
        inner = state[part + "query_proj.weight"] @ h + memory @ state[part + "key_proj.weight"].T
        scores = inner.tanh() @ state[part + "vector"]
    elif kind == "dot":
        scores = memory @ h
    elif kind == "concat":
        part += "" if config.input_feeding else "score."
        pairs = torch.stack([torch.cat([h, one]) for one in memory])
        scores = (pairs @ state[part + "weight"].T).tanh() @ state[part + "vector"]
    else:
        scores = memory @ (h @ state[part + "weight"])
    if kind in ("local-m", "local-p"):
        p = torch.tensor(float(min(t, size - 1)), dtype=h.dtype)
        at = torch.arange(size)
        if kind == "local-p":
            p = size * (state[part + "place_vector"] @ (state[part + "place_proj.weight"] @ h).tanh()).sigmoid()
            factor = torch.exp(-((at - p) ** 2) / (2 * (config.radius / 2) ** 2))
        window = (at - p.floor()).abs() <= config.radius
    weights = torch.zeros_like(factor)
    weights[window] = scores[window].softmax(0)
    return weights * factor


def by_hand(config, state, ids, target):
    """Logits, states and weights for one text: ids (source,), target (n,)."""
    memory, last = encode(config, state, ids)
    layers = first_states(config, state, last)
    context = torch.cat([h for h, _ in last[-1]])
    fed = torch.zeros(config.hidden_size, dtype=memory.dtype)
    looping = config.attention is not None and config.input_feeding
    outputs, rows = [], []
    for t, x in enumerate(state["embedding.weight"][target]):
        if config.feed_context:
            x = torch.cat([x, context])
        for layer, (h, c) in enumerate(layers):
            if not looping or layer < config.num_layers - 1:
                weights = tensors_of(state, "decoder.layers.", f"_l{layer}")
            else:
                weights = tensors_of(state, "decoder.cross_attention.cell.")
                if config.attention == "bahdanau":
                    rows.append(look(config, state, h, memory, t))
                    x = torch.cat([x, rows[-1] @ memory])
                else:
                    x = torch.cat([x, fed])
            x, c = gates(config.cell, *weights, x, h, c)
            layers[layer] = (x, c)
        if config.attention not in (None, "bahdanau"):
            rows.append(look(config, state, x, memory, t))
            combine = "decoder.cross_attention.combine" if looping else "decoder.combine"
            x = fed = torch.tanh(state[combine + ".weight"] @ torch.cat([rows[-1] @ memory, x]))
        outputs.append(x)
    states = torch.stack(outputs)
    if config.tie_word_embeddings:
        logits = states @ state["embedding.weight"].T + state["output_bias"]
    else:
        logits = states @ state["output.weight"].T + state["output.bias"]
    return logits, states, torch.stack(rows) if rows else None


def made(**more):
    torch.manual_seed(0)
    sizes = {"src_vocab_size": 11, "tgt_vocab_size": 9, "embedding_dim": 5, "hidden_size": 6}
    model = RecurrentSeq2Seq(RecurrentConfig(**sizes | more)).double().eval()
    if model.output_bias is not None:
        model.output_bias.data.normal_()  # it begins with 0
    return model


IDS = torch.tensor([[3, 4, 5, 6, 7, 8, 9], [5, 9, 10, 0, 0, 0, 0], [4, 0, 0, 0, 0, 0, 0], [8, 7, 6, 5, 4, 0, 0]])
LENGTHS = [7, 3, 1, 5]
TARGET = torch.tensor([[1, 4, 5, 6, 3], [1, 3, 3, 4, 8], [1, 8, 7, 4, 5], [1, 5, 6, 7, 3]])


@pytest.fixture(autouse=True)
def one_thread():
    """Matrices of a few numbers: threads wait for each other longer than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


KINDS = [
    {"attention": None},
    {"attention": None, "feed_context": True},
    {"attention": None, "tie_word_embeddings": True, "embedding_dim": 6},
    {"attention": "bahdanau"},
    {"attention": "dot", "bidirectional": False},
    {"attention": "general"},
    {"attention": "concat"},
    {"attention": "local-m", "radius": 1},
    {"attention": "local-p", "radius": 2},
    {"attention": "dot", "bidirectional": False, "input_feeding": False},
    {"attention": "general", "input_feeding": False},
    {"attention": "concat", "input_feeding": False},
    {"attention": "local-m", "radius": 1, "input_feeding": False},
    {"attention": "local-p", "radius": 2, "input_feeding": False},
]


def test_a_padded_batch_is_each_text_by_hand():
    for case in sweep(product([{}, {"num_layers": 2, "cell": "lstm"}, {"bidirectional": False}], KINDS)):
        with case as (more, kind):
            model = made(**kind | more)
            found = model(IDS, decoder_input_ids=TARGET, return_weights=kind["attention"] is not None)
            assert (found.weights is None) == (kind["attention"] is None)
            for b, length in enumerate(LENGTHS):
                logits, states, weights = by_hand(model.config, model.state_dict(), IDS[b, :length], TARGET[b])
                torch.testing.assert_close(found.logits[b], logits)
                torch.testing.assert_close(found.last_hidden_state[b], states)
                if weights is not None:
                    torch.testing.assert_close(found.weights[b, :, :length], weights)
                    assert (found.weights[b, :, length:] == 0).all()


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_without_attention_it_is_two_of_pytorch_s_and_a_linear_layer(cell):
    model = made(attention=None, bidirectional=False, num_layers=2, cell=cell)
    kind = nn.GRU if cell == "gru" else nn.LSTM
    encoder, decoder = (kind(5, 6, 2, batch_first=True).double() for _ in range(2))
    encoder.load_state_dict(model.encoder.layers.state_dict())
    decoder.load_state_dict(model.decoder.layers.state_dict())
    _, last = encoder(model.encoder.embedding(IDS[:1]))
    states, _ = decoder(model.embedding(TARGET[:1]), last)
    torch.testing.assert_close(
        model(IDS[:1], decoder_input_ids=TARGET[:1]).logits, states @ model.output.weight.T + model.output.bias
    )
