"""The driver of each lesson, its import changed and nothing else: it prints what it prints with the lesson's class."""

import matplotlib.pyplot as plt
import pytest

from sweeps import sweep

DRIVERS = {
    "single_head": """
import torch
import torch.nn as nn
from lessons.single_head import DotProductAttention

torch.manual_seed(0)
batch_size, seq_len, d_model, d_k = 2, 5, 64, 32
x = torch.randn(batch_size, seq_len, d_model)
W_q = nn.Linear(d_model, d_k)
W_k = nn.Linear(d_model, d_k)
W_v = nn.Linear(d_model, 48)
attention = DotProductAttention(d_k)
output = attention(W_q(x), W_k(x), W_v(x))
print(output.shape)  # (batch, n, d_v)
print(output.sum().item().__format__(".3f"))
print(DotProductAttention(d_k=d_k)(Q=W_q(x), K=W_k(x), V=W_v(x)).shape)
""",
    "multi_head": """
import torch
from lessons.multi_head import MultiHeadAttention

torch.manual_seed(0)
d_model, num_heads = 512, 8
batch_size, seq_len = 2, 10
mha = MultiHeadAttention(d_model=d_model, num_heads=num_heads)
x = torch.randn(batch_size, seq_len, d_model)
output, attention_weights = mha(x, x, x)
print(f"Input shape: {x.shape}")
print(f"Output shape: {output.shape}")
print(f"Attention weights shape: {attention_weights.shape}")
print(sum(p.numel() for p in mha.parameters()))

mha.eval()
causal = torch.tril(torch.ones(seq_len, seq_len))
padding = torch.ones(batch_size, 1, 1, seq_len)
padding[1, :, :, 6:] = 0
for mask in (None, causal, causal.unsqueeze(0), causal.unsqueeze(0).unsqueeze(0), padding, padding * causal):
    with torch.no_grad():
        output, attention_weights = mha(x, x, x, mask=mask)
    print(f"{output.std():.4f}", attention_weights[1, 0, -1].numpy().round(4) + 0.0)

Q = torch.randn(2, 8, 10, 64)
output, weights = mha.scaled_dot_product_attention(Q, Q, Q, mask=causal)
print(output.shape, weights.sum(-1).mean().item().__format__(".4f"))
""",
    "encoder": """
import torch
import torch.nn as nn
from lessons.encoder import TransformerEncoder, visualize_attention

torch.manual_seed(42)
vocab_size, d_model, num_heads, d_ff, num_layers = 1000, 128, 4, 512, 2
model = TransformerEncoder(
    vocab_size=vocab_size, d_model=d_model, num_heads=num_heads, d_ff=d_ff, num_layers=num_layers
)
print(f"{sum(p.numel() for p in model.parameters()):,}")
tokens = ["jane", "visits", "africa", "in", "september"]
x = torch.randint(0, vocab_size, (2, len(tokens)))
mask = torch.ones(2, 1, 1, len(tokens))
mask[0, :, :, 3:] = 0
output = model(x, mask)
print(output.shape)

attention_weights = [layer.self_attn.attention_weights for layer in model.layers]
print(model.layers[0].self_attn.attention_weights.shape)
visualize_attention(attention_weights, tokens, layer=1, head=2)

head = nn.Linear(d_model, 2)
optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()], lr=1e-3)
labels = torch.tensor([0, 1])
for step in range(3):
    optimizer.zero_grad()
    logits = head(model(x, mask).mean(dim=1))
    loss = nn.functional.cross_entropy(logits, labels)
    loss.backward()
    optimizer.step()
    print(f"{step}: {loss.item():.4f}")
model.eval()
print(f"{model(x, mask).abs().mean():.4f}")
""",
    "parts of the encoder": """
import torch
from lessons.encoder import (
    EncoderLayer, FeedForward, MultiHeadAttention, PositionalEncoding, scaled_dot_product_attention
)

torch.manual_seed(1)
Q, K, V = (torch.randn(2, 8, 10, 64) for _ in range(3))
output, weights = scaled_dot_product_attention(Q, K, V, mask=torch.tril(torch.ones(10, 10)))
print(output.shape, weights.shape, f"{output.norm():.3f}")
output, weights = scaled_dot_product_attention(Q[:, 0], K[:, 0], V[:, 0])
print(output.shape, weights.shape, f"{output.norm():.3f}")

mha = MultiHeadAttention(512, 8)
x = torch.randn(2, 10, 512)
output = mha(x, x, x)
print(output.shape, mha.attention_weights.shape, f"{output.norm():.3f}", mha.split_heads(x, 2).shape)

pos_encoding = PositionalEncoding(512, max_seq_len=100, dropout=0.0)
print(pos_encoding.pe.shape, f"{pos_encoding(x).norm():.3f}", f"{pos_encoding.pe[0, :50, :6].sum():.3f}")
print(FeedForward(512, 2048)(x).shape, PositionalEncoding(16).pe.shape)
layer = EncoderLayer(512, 8, 2048, dropout=0.1)
print(layer(x).shape, layer.self_attn.attention_weights[0, 0].sum(-1).mean().item().__format__(".4f"))
layer.eval()
print(f"{layer(x, mask=None).std():.4f}")
""",
    "cross_attention": """
import torch
from lessons.cross_attention import MultiHeadAttention

torch.manual_seed(0)
query = torch.rand(64, 12, 300)
key = torch.rand(64, 10, 300)
value = torch.rand(64, 10, 300)
attention = MultiHeadAttention(hid_dim=300, n_heads=6, dropout=0.1)
output = attention(query, key, value)
print(output.shape)
print(f"{sum(p.numel() for p in attention.parameters()):,}")
attention.eval()
mask = torch.ones(64, 1, 1, 10)
mask[:, :, :, 7:] = 0
print(f"{attention(query, key, value).sum():.2f} {attention(query, key, value, mask).sum():.2f}")
""",
}

KEYWORDS = """
import torch
from lessons.{lesson} import MultiHeadAttention

torch.manual_seed(0)
decoder_hidden = torch.randn(2, 7, 64)
encoder_output = torch.randn(2, 11, 64)
cross_attention = MultiHeadAttention({sizes}).eval()
found = cross_attention(query=decoder_hidden, key=encoder_output, value=encoder_output)
output = found[0] if isinstance(found, tuple) else found
print(type(found).__name__, output.shape, f"{{output.norm():.4f}}")
"""
SIZES = {"multi_head": "64, 4, dropout=0.1", "encoder": "64, 4", "cross_attention": "64, 4, 0.1"}
DRIVERS |= {f"{name}, by keyword": KEYWORDS.format(lesson=name, sizes=sizes) for name, sizes in SIZES.items()}


def test_a_driver_prints_the_same_when_its_import_is_changed(capsys):
    for case in sweep(DRIVERS):
        with case as name, pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(plt, "show", lambda: plt.close("all"))
            printed = []
            for place in ("lessons.", "regard.nn.tutorials."):
                code = DRIVERS[name].replace("from lessons.", f"from {place}")
                exec(compile(code, name, "exec"), {"__name__": "__main__"})
                printed.append(capsys.readouterr().out)
            plt.close("all")
            theirs, ours = printed
            assert ours == theirs
            assert "torch.Size" in ours


def test_shapes_and_numbers_that_the_lessons_name(capsys, monkeypatch):
    monkeypatch.setattr(plt, "show", lambda: None)
    expected = {
        "encoder": ("523,776", "torch.Size([2, 5, 128])", "torch.Size([2, 4, 5, 5])"),
        "cross_attention": ("torch.Size([64, 12, 300])", "361,200"),
        "multi_head": ("torch.Size([2, 10, 512])", "torch.Size([2, 8, 10, 10])", "1050624"),
    }
    for name, found in expected.items():
        code = DRIVERS[name].replace("from lessons.", "from regard.nn.tutorials.")
        exec(compile(code, name, "exec"), {"__name__": "__main__"})
        printed = capsys.readouterr().out
        assert [one for one in found if one not in printed] == []
    plt.close("all")
