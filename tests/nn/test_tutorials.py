"""What tutorials write, in its correct form, against ours with the same tensors; and where tutorials break."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

import regard
from regard.errors import InputError
from regard.nn import tutorials


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def close(ours, theirs, atol=1e-6):
    torch.testing.assert_close(ours, theirs, atol=atol, rtol=0)


def count(module):
    return sum(one.numel() for one in module.parameters())


# --- the snippets


class TheirAttention(nn.Module):
    def __init__(self, d_model, num_heads, dropout=0.1, bias=True):
        super().__init__()
        self.num_heads, self.d_k = num_heads, d_model // num_heads
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(d_model, d_model, bias=bias) for _ in range(4))
        self.dropout = nn.Dropout(dropout)

    def forward(self, query, key, value, mask=None):
        q, k, v = (
            project(x).view(len(x), -1, self.num_heads, self.d_k).transpose(1, 2)
            for project, x in ((self.W_q, query), (self.W_k, key), (self.W_v, value))
        )
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        weights = functional.softmax(scores, dim=-1)
        output = torch.matmul(self.dropout(weights), v)
        return self.W_o(output.transpose(1, 2).contiguous().view(len(query), -1, self.num_heads * self.d_k)), weights


class TheirPositions(nn.Module):
    def __init__(self, d_model, max_seq_len=5000, dropout=0.1):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        position = torch.arange(max_seq_len).unsqueeze(1).float()
        div_term = torch.exp(torch.arange(0, d_model, 2).float() * (-math.log(10000.0) / d_model))
        pe = torch.zeros(max_seq_len, d_model)
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe.unsqueeze(0))

    def forward(self, x):
        return self.dropout(x + self.pe[:, : x.size(1)])


class TheirFeedForward(nn.Module):
    def __init__(self, d_model, d_ff, dropout=0.1):
        super().__init__()
        self.linear1, self.linear2 = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return self.linear2(self.dropout(functional.relu(self.linear1(x))))


class TheirLayer(nn.Module):
    def __init__(self, d_model, num_heads, d_ff, dropout=0.1):
        super().__init__()
        self.attention = TheirAttention(d_model, num_heads, dropout, bias=False)
        self.feed_forward = TheirFeedForward(d_model, d_ff, dropout)
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask=None):
        attended, weights = self.attention(x, x, x, mask)
        x = self.norm1(x + self.dropout(attended))
        return self.norm2(x + self.dropout(self.feed_forward(x))), weights


class TheirEncoder(nn.Module):
    def __init__(self, vocab_size, d_model, num_heads, d_ff, num_layers, max_seq_len=512, dropout=0.1):
        super().__init__()
        self.d_model = d_model
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.positions = TheirPositions(d_model, max_seq_len, dropout)
        self.layers = nn.ModuleList([TheirLayer(d_model, num_heads, d_ff, dropout) for _ in range(num_layers)])
        self.norm = nn.LayerNorm(d_model)

    def forward(self, x, mask=None):
        x, all_weights = self.positions(self.embedding(x) * math.sqrt(self.d_model)), []
        for layer in self.layers:
            x, weights = layer(x, mask)
            all_weights.append(weights)
        return self.norm(x), all_weights


def copy_attention(ours, theirs):
    for mine, its in (("q_proj", "W_q"), ("k_proj", "W_k"), ("v_proj", "W_v"), ("out_proj", "W_o")):
        getattr(ours, mine).load_state_dict(getattr(theirs, its).state_dict())


def copy_feed_forward(ours, theirs):
    ours.up_proj.load_state_dict(theirs.linear1.state_dict())
    ours.down_proj.load_state_dict(theirs.linear2.state_dict())


def copy_layer(ours, theirs):
    copy_attention(ours.block.attention, theirs.attention)
    copy_feed_forward(ours.block.feed_forward, theirs.feed_forward)
    for mine, its in zip(ours.block.norms, (theirs.norm1, theirs.norm2), strict=True):
        nn.init.normal_(its.weight, mean=1.0, std=0.2)
        mine.load_state_dict(its.state_dict())


# --- every row of the table


def test_dot_product_attention_on_three_linear_layers():
    torch.manual_seed(0)
    x, layers = randn(2, 5, 64), [nn.Linear(64, 32) for _ in range(3)]
    q, k, v = (layer(x) for layer in layers)
    ours = tutorials.DotProductAttention(32)
    weights = functional.softmax(q @ k.transpose(-2, -1) / math.sqrt(32), dim=-1)
    assert ours(q, k, v).shape == (2, 5, 32)
    close(ours(q, k, v), weights @ v)
    close(ours(q, k, v, weights=True)[1], weights)
    with pytest.raises(InputError, match=r"width 32, got 64: DotProductAttention\(64\)"):
        ours(x, x, x)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", [torch.int64, torch.float32, torch.bool], ids=str)
def test_multi_head_attention_of_512_in_8_heads(bias, kind):
    torch.manual_seed(0)
    ours = tutorials.MultiHeadAttention(512, 8, dropout=0.1, bias=bias).eval()
    theirs = TheirAttention(512, 8, bias=bias).eval()
    copy_attention(ours.attention, theirs)
    assert count(ours) == count(theirs) == (1_050_624 if bias else 1_048_576)
    x, mask = randn(2, 10, 512), torch.ones(2, 1, 1, 10)
    mask[1, ..., 6:] = 0
    for given in (None, mask.to(kind), torch.ones(10, 10).tril().to(kind)):
        output, weights = ours(x, x, x, given)
        expected, expected_weights = theirs(x, x, x, given)
        assert (output.shape, weights.shape) == ((2, 10, 512), (2, 8, 10, 10))
        close(output, expected)
        close(weights, expected_weights)


def test_positional_encoding_and_feed_forward():
    x = randn(2, 10, 64)
    close(tutorials.PositionalEncoding(64, 50, 0.1).eval()(x), TheirPositions(64, 50).eval()(x), atol=1e-5)
    assert tutorials.PositionalEncoding(64).table.shape == (5000, 64)
    assert tutorials.PositionalEncoding(64).dropout == tutorials.FeedForward(64, 8).dropout == 0.1
    torch.manual_seed(0)
    ours, theirs = tutorials.FeedForward(64, 256, dropout=0.1).eval(), TheirFeedForward(64, 256).eval()
    copy_feed_forward(ours, theirs)
    close(ours(x), theirs(x))


def test_an_encoder_layer():
    torch.manual_seed(0)
    ours, theirs = tutorials.EncoderLayer(64, 4, 128).eval().double(), TheirLayer(64, 4, 128).eval().double()
    copy_layer(ours, theirs)
    x = randn(2, 10, 64).double()
    for one, other in zip(ours(x), theirs(x), strict=True):
        close(one, other)


def test_the_whole_encoder_with_padding():
    torch.manual_seed(0)
    ours = tutorials.TransformerEncoder(1000, d_model=128, num_heads=4, d_ff=512, num_layers=2).eval().double()
    theirs = TheirEncoder(1000, 128, 4, 512, 2).eval().double()
    theirs.positions.pe = ours.positions.table[None]  # theirs is rounded at every step; compared above
    ours.embedding.load_state_dict(theirs.embedding.state_dict())
    ours.norm.load_state_dict(theirs.norm.state_dict())
    for mine, its in zip(ours.layers, theirs.layers, strict=True):
        copy_layer(mine, its)
    assert count(ours) == count(theirs) == 523_776
    tokens, mask = torch.randint(1000, (2, 10)), torch.ones(2, 1, 1, 10)
    mask[0, ..., 7:] = 0
    for given in (None, mask):
        output, weights = ours(tokens, given)
        expected, expected_weights = theirs(tokens, given)
        assert output.shape == (2, 10, 128)
        close(output, expected)
        assert [one.shape for one in weights] == [(2, 4, 10, 10)] * 2
        for one, other in zip(weights, expected_weights, strict=True):
            close(one, other)
    with regard.watch(ours, keep="weights") as seen, torch.no_grad():
        output, weights = ours(tokens, mask)
    for layer, one in enumerate(weights):
        for head in range(4):
            close(torch.as_tensor(seen.weights(layer=layer, head=head)), one[:, head], atol=1e-5)


def test_queries_and_keys_of_different_length():
    torch.manual_seed(0)
    ours, theirs = tutorials.MultiHeadAttention(300, 6, 0.1).eval(), TheirAttention(300, 6).eval()
    copy_attention(ours.attention, theirs)
    assert count(ours) == 361_200
    q, k = randn(64, 12, 300), randn(64, 10, 300, seed=1)
    output, weights = ours(q, k, k)
    assert (output.shape, weights.shape) == ((64, 12, 300), (64, 6, 12, 10))
    for one, other in zip((output, weights), theirs(q, k, k), strict=True):
        close(one, other)


def test_jane_visits_africa_as_a_table():
    torch.manual_seed(0)
    words = {word: index for index, word in enumerate("jane visits africa in september <pad>".split())}
    text = "jane visits africa".split()
    x = nn.Embedding(len(words), 64)(torch.tensor([[words[word] for word in text]]))
    _, weights = tutorials.MultiHeadAttention(64, 4, dropout=0.1)(x, x, x)
    table = weights[0].mean(0)
    assert table.shape == (3, 3)
    close(table.sum(-1), torch.ones(3))
    lines = [" " * 8 + "".join(f"{word:>8}" for word in text)]
    lines += [f"{word:>8}" + "".join(f"{one:8.3f}" for one in row) for word, row in zip(text, table, strict=True)]
    assert {len(line) for line in lines} == {32}


# --- where those snippets break


@pytest.mark.parametrize("width", [1, 7, 33])
def test_an_odd_width_has_positions(width):
    found = tutorials.PositionalEncoding(width, 20, 0.0)(torch.zeros(1, 20, width))
    assert found.shape == (1, 20, width)
    wide = width + 1  # sines stand in even columns, with the wavelengths of their own width
    angles = torch.arange(20)[:, None] / 10000 ** (torch.arange(0, wide, 2) / width)
    close(found[0, :, ::2], angles.sin(), atol=1e-5)
    with pytest.raises(RuntimeError):
        TheirPositions(7, 20)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_row_that_sees_nothing_has_weights_0_in_every_type(dtype):
    torch.manual_seed(0)
    ours = tutorials.TransformerEncoder(50, 16, 4, 32, 2).to(dtype).eval()
    mask = torch.ones(2, 1, 1, 10)
    mask[1] = 0
    output, weights = ours(torch.randint(50, (2, 10)), mask)
    assert output.dtype == dtype
    assert output.isfinite().all()
    assert all((one[1] == 0).all() for one in weights)
    close(weights[0][0].float().sum(-1), torch.ones(4, 10), atol=1e-2)
    if dtype == torch.float16:
        with pytest.raises(RuntimeError, match="without overflow"):
            torch.zeros(2, dtype=dtype).masked_fill(torch.tensor([True, False]), -1e10)


def test_weights_are_those_before_dropout():
    torch.manual_seed(0)
    layer, x = tutorials.MultiHeadAttention(16, 4, dropout=0.5).train(), randn(2, 30, 16)
    first, weights = layer(x, x, x)
    close(weights.sum(-1), torch.ones(2, 4, 30))
    assert not torch.equal(first, layer(x, x, x)[0])
    close(layer.eval()(x, x, x)[1], weights)


def test_dropout_of_the_encoder_is_for_training():
    torch.manual_seed(0)
    model, tokens = tutorials.TransformerEncoder(50, 16, 4, 32, 2, dropout=0.5), torch.randint(50, (2, 10))
    assert not torch.equal(model(tokens)[0], model(tokens)[0])
    model.eval()
    assert torch.equal(model(tokens)[0], model(tokens)[0])
    model.dropout = 0.9  # that of the sum of embeddings and positions
    for layer in model.layers:
        layer.eval()
    assert torch.equal(model(tokens)[0], model(tokens)[0])
    model.training = True
    assert not torch.equal(model(tokens)[0], model(tokens)[0])


def test_a_mask_of_three_dimensions_is_refused():
    x = randn(2, 5, 16)
    with pytest.raises(InputError, match=r"broadcast its batch over the heads: write mask\[:, None\]"):
        tutorials.MultiHeadAttention(16, 2)(x, x, x, torch.ones(2, 5, 5))


def test_a_model_of_no_words_or_layers_is_refused():
    with pytest.raises(InputError, match="`vocab_size` counts words and must be an integer of at least 1, got 0"):
        tutorials.TransformerEncoder(0)
    with pytest.raises(InputError, match="`num_layers` counts layers and must be an integer of at least 1, got -1"):
        tutorials.TransformerEncoder(10, 8, 2, num_layers=-1)
