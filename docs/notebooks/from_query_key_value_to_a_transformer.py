"""The source of the notebook "From query, key and value to a Transformer", made by docs/notebooks.py."""

# %% [en]
# # From query, key and value to a Transformer
#
# Attention from its numbers up: one head, several heads, positions, an encoder, attention across two sequences, and a
# translator that learns in a minute and shows its alignment. Every module is first written out, as in a lesson, and then
# checked against the library's own with the same weights. You need `pip install 'regard[all]'`.

# %% [zh]
# # 从查询、键、值到 Transformer
#
# 从数字开始讲注意力：单头、多头、位置编码、编码器、两个序列之间的交叉注意力，最后训练一个小翻译模型（大约一分钟），看看它的对齐。
# 每个模块都先像教材里那样亲手写一遍，再用同样的参数和库里的模块核对。需要 `pip install 'regard[all]'`。

# %%
import math

import torch
from torch import nn

import regard
from regard.nn import tutorials

torch.manual_seed(0)


def check(ours, written):
    torch.testing.assert_close(ours, written)
    print("the same:", tuple(ours.shape))


# %% [en]
# ## Query, key, value
#
# You come to a library with a question (the **query**). Every book has a label (its **key**) and a content (its
# **value**). The better a label fits the question, the more you read in that book. With three words and numbers small
# enough to check by hand, Q = K = V = X W:

# %% [zh]
# ## 查询、键、值
#
# 你带着问题走进图书馆，这就是**查询**（query）。每本书有一个标签，即**键**（key），还有内容，即**值**（value）。标签和问题越对得上，
# 就从那本书里读得越多。先用三个词和几个能手算的数，这里 Q = K = V = X W：

# %% en
WORDS = ["I", "love", "you"]

# %% zh
WORDS = ["我", "爱", "你"]

# %%
X = torch.tensor([[1.0, 0, 1, 0], [0, 2, 0, 1], [1, 1, 1, 1]])
W = torch.tensor([[1.0, 0], [0, 1], [1, 0], [0, 1]])
Q = K = V = X @ W

scores = [sum(q * k for q, k in zip(Q[0].tolist(), key, strict=True)) / math.sqrt(2) for key in K.tolist()]
powers = [math.exp(score) for score in scores]
weights = [power / sum(powers) for power in powers]
output = [sum(w * value[i] for w, value in zip(weights, V.tolist(), strict=True)) for i in range(2)]
print("scores  q·k / √2 ", [round(one, 3) for one in scores])
print("weights softmax  ", [round(one, 3) for one in weights])
print("output  Σ w·v    ", [round(one, 3) for one in output])

# %% [en]
# `softmax(Q Kᵀ / √d) V` for all words at once. The lesson's module and `regard.attention` say the same:

# %% [zh]
# 所有的词一起算，就是 `softmax(Q Kᵀ / √d) V`。教材里的模块和 `regard.attention` 给出同样的结果：


# %%
class DotProductAttention(nn.Module):
    def __init__(self, d_k):
        super().__init__()
        self.d_k = d_k

    def forward(self, Q, K, V):
        scores = Q @ K.transpose(-2, -1) / math.sqrt(self.d_k)
        return torch.softmax(scores, dim=-1) @ V


written = DotProductAttention(2)(Q, K, V)
check(torch.tensor(output), written[0])
check(tutorials.DotProductAttention(2)(Q, K, V), written)
output, weights = regard.attention(Q, K, V, return_weights=True)
check(output, written)
print(WORDS, weights.round(decimals=3), sep="\n")

# %% [en]
# Why √d? With random entries q · k has the variance d. Without the division softmax would put nearly everything on one key,
# and nearly no gradient would pass:

# %% [zh]
# 为什么要除以 √d？分量随机时，q · k 的方差是 d。不除的话，softmax 会把几乎全部权重给一个键，梯度也就几乎传不过去：

# %%
for d in (4, 64, 1024):
    q, k = torch.randn(1000, d), torch.randn(1000, 8, d)
    products = (k @ q[:, :, None])[..., 0]
    plain, divided = (torch.softmax(one, -1).amax(-1).mean() for one in (products, products / math.sqrt(d)))
    print(f"d {d:>4}: variance / d {products.var() / d:.2f}, largest weight {plain:.2f} and {divided:.2f}")

# %% [en]
# ## A mask
#
# A mask says who may see whom. In lessons 1 is seen and 0 is hidden; in regard `True` is seen, everywhere. The causal mask
# of a language model hides what comes later:

# %% [zh]
# ## 掩码
#
# 掩码决定谁能看见谁。教材里 1 表示看得见，0 表示看不见；regard 里 `True` 一律表示看得见。语言模型的因果掩码遮住后面的词：

# %%
causal = torch.tril(torch.ones(3, 3))
_, hidden = tutorials.scaled_dot_product_attention(Q[None], K[None], V[None], mask=causal)
check(regard.attention(Q, K, V, mask=regard.masks.Causal(), return_weights=True)[1], hidden[0])
print(hidden[0].round(decimals=3))

# %% [en]
# ## Several heads
#
# One head has one set of weights for each word. Several heads, each on a part of the width, can look at several things at
# once. Written out, with the four projections of the lesson:

# %% [zh]
# ## 多头注意力
#
# 一个头对每个词只有一组权重。把宽度分给多个头，就能同时看向不同的地方。照教材写出来，有四个投影矩阵：


# %%
class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads, dropout=0.1):
        super().__init__()
        self.num_heads, self.d_k = num_heads, d_model // num_heads
        self.W_q = nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, d_model)
        self.W_v = nn.Linear(d_model, d_model)
        self.W_o = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)

    def split(self, x):
        return x.view(x.size(0), -1, self.num_heads, self.d_k).transpose(1, 2)

    def forward(self, query, key, value, mask=None):
        Q, K, V = self.split(self.W_q(query)), self.split(self.W_k(key)), self.split(self.W_v(value))
        scores = Q @ K.transpose(-2, -1) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        weights = torch.softmax(scores, dim=-1)
        heads = self.dropout(weights) @ V
        return self.W_o(heads.transpose(1, 2).flatten(2)), weights


mine, ours = MultiHeadAttention(64, 4).eval(), tutorials.multi_head.MultiHeadAttention(64, 4).eval()
ours.load_state_dict(mine.state_dict(), strict=True)
x, mask = torch.randn(2, 5, 64), torch.tril(torch.ones(5, 5))
for one, other in zip(ours(x, x, x, mask), mine(x, x, x, mask), strict=True):
    check(one, other)

# %% [en]
# `regard.watch` sees the weights of either, without a line changed:

# %% [zh]
# 两个模块都可以用 `regard.watch` 观察，一行代码也不用改：

# %%
with torch.no_grad(), regard.watch(mine) as seen:
    _, weights = mine(x, x, x, mask)
check(torch.from_numpy(seen.weights(layer=0, head=3)), weights[:, 3])

# %% [en]
# ## Positions
#
# Attention is blind to order: shuffle the words, and the outputs are shuffled alike. So positions are added to the words,
# as sines and cosines of many wavelengths:

# %% [zh]
# ## 位置编码
#
# 注意力不知道顺序：把词打乱，输出只是跟着打乱。所以要把位置加到词向量上，这里用多种波长的正弦和余弦：

# %%
order = torch.tensor([3, 0, 4, 1, 2])
check(mine(x[:, order], x[:, order], x[:, order])[0], mine(x, x, x)[0][:, order])


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, max_seq_len=5000):
        super().__init__()
        position = torch.arange(max_seq_len).float()[:, None]
        rate = torch.exp(torch.arange(0, d_model, 2).float() * (-math.log(10000.0) / d_model))
        pe = torch.zeros(max_seq_len, d_model)
        pe[:, 0::2], pe[:, 1::2] = torch.sin(position * rate), torch.cos(position * rate)
        self.register_buffer("pe", pe[None])

    def forward(self, x):
        return x + self.pe[:, : x.size(1)]


positions = PositionalEncoding(64, 100)
check(tutorials.PositionalEncoding(64, 100, dropout=0.0)(x), positions(x))

# %%
from matplotlib import pyplot

figure, axes = pyplot.subplots(figsize=(6, 3))
image = axes.imshow(positions.pe[0], aspect="auto", cmap="RdBu", interpolation="nearest")
axes.set(xlabel="d_model", ylabel="position")
figure.colorbar(image)
pyplot.show()

# %% [en]
# ## The encoder
#
# A layer is attention and a feed-forward network, each added to what it was given and normalized. The encoder of the first
# Transformer is a stack of them:

# %% [zh]
# ## 编码器
#
# 一层由自注意力和前馈网络组成，各自与输入相加（残差连接）后再做层归一化。最初的 Transformer 的编码器就是这样一层层叠起来的：


# %%
class EncoderAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads, self.d_k = num_heads, d_model // num_heads
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, d_model, bias=False)
        self.W_v = nn.Linear(d_model, d_model, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x, mask=None):
        projected = (self.W_q(x), self.W_k(x), self.W_v(x))
        Q, K, V = (one.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for one in projected)
        scores = Q @ K.transpose(-2, -1) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        self.attention_weights = torch.softmax(scores, dim=-1)
        return self.W_o((self.attention_weights @ V).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, d_model, d_ff, dropout=0.1):
        super().__init__()
        self.linear1, self.linear2 = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return self.linear2(self.dropout(torch.relu(self.linear1(x))))


class EncoderLayer(nn.Module):
    def __init__(self, d_model, num_heads, d_ff, dropout=0.1):
        super().__init__()
        self.self_attn = EncoderAttention(d_model, num_heads)
        self.feed_forward = FeedForward(d_model, d_ff, dropout)
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask=None):
        x = self.norm1(x + self.dropout(self.self_attn(x, mask)))
        return self.norm2(x + self.dropout(self.feed_forward(x)))


class TransformerEncoder(nn.Module):
    def __init__(self, vocab_size, d_model=512, num_heads=8, d_ff=2048, num_layers=6, max_seq_len=512):
        super().__init__()
        self.d_model = d_model
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.pos_encoding = PositionalEncoding(d_model, max_seq_len)
        self.layers = nn.ModuleList(EncoderLayer(d_model, num_heads, d_ff) for _ in range(num_layers))
        self.norm = nn.LayerNorm(d_model)

    def forward(self, x, mask=None):
        x = self.pos_encoding(self.embedding(x) * math.sqrt(self.d_model))
        for layer in self.layers:
            x = layer(x, mask)
        return self.norm(x)


sizes = {"vocab_size": 1000, "d_model": 128, "num_heads": 4, "d_ff": 512, "num_layers": 2}
mine, ours = TransformerEncoder(**sizes).eval(), tutorials.TransformerEncoder(**sizes).eval()
ours.load_state_dict(mine.state_dict(), strict=True)
ids = torch.randint(1000, (2, 10))
check(ours(ids), mine(ids))
check(ours.layers[1].self_attn.attention_weights, mine.layers[1].self_attn.attention_weights)
print(f"{sum(one.numel() for one in ours.parameters()):,} parameters")

# %% [en]
# ## Across two sequences
#
# In a translator the queries come from the sentence that is written, the keys and values from the one that is read. They may
# differ in length, and the weights are then an alignment:

# %% [zh]
# ## 交叉注意力
#
# 翻译时，查询来自正在写的句子，键和值来自读到的句子，两者长度可以不同。这时的注意力权重就是一种对齐：

# %%
query, memory = torch.rand(64, 12, 300), torch.rand(64, 10, 300)
across = tutorials.cross_attention.MultiHeadAttention(hid_dim=300, n_heads=6, dropout=0.1).eval()
mine = MultiHeadAttention(300, 6).eval()
names = {"w_q": "W_q", "w_k": "W_k", "w_v": "W_v", "fc": "W_o"}
for theirs, my in names.items():
    getattr(mine, my).load_state_dict(getattr(across, theirs).state_dict())
check(across(query=query, key=memory, value=memory), mine(query, memory, memory)[0])

# %% [en]
# ## A translator
#
# Encoder and decoder together translate. 3,000 sentence pairs of a small world, whose words stand in different orders in
# English and Chinese; a Transformer of 0.2 million parameters; about a minute on one core of a processor. None of the
# sentences below was trained on.

# %% [zh]
# ## 一个小翻译模型
#
# 编码器加解码器就能翻译。这里用一个小世界里的 3,000 个英汉句对，两种语言的词序不同；模型是一个约 20 万参数的 Transformer，
# 在 CPU 的一个核上训练大约一分钟。下面用来检验的句子都没有训练过。

# %%
import tempfile
from pathlib import Path

from regard.train import Translator, train
from regard.train.config import Config, Training
from regard.train.model_types import TransformerSettings
from regard.train.settings import TokenizerConfig
from regard.train.tasks import TranslationSettings
from regard_lab.cat_and_mat import ASKED, pairs

EPOCHS = 12
unseen = pairs(60, seed=10_000)
asked = {english for english, _ in unseen}
with tempfile.TemporaryDirectory() as folder:
    data = Path(folder) / "pairs.tsv"
    lines = [f"{english}\t{chinese}\n" for english, chinese in pairs(3000, seed=0) if english not in asked]
    data.write_text("".join(lines), encoding="utf-8")
    tokenizer = TokenizerConfig(model_type="bpe", vocab_size=400, lowercase=True)
    config = Config(
        task=TranslationSettings(
            train_file=str(data),
            validation_size=20,
            src_tokenizer=tokenizer,
            num_completions_to_print=0,
            max_predict_samples=0,
        ),
        model=TransformerSettings(
            hidden_size=64, num_attention_heads=4, intermediate_size=128, num_hidden_layers=2, dropout=0.1
        ),
        training=Training(
            output_dir=f"{folder}/run",
            num_train_epochs=EPOCHS,
            learning_rate=3e-3,
            lr_scheduler_type="cosine",
            warmup_steps=50,
            label_smoothing=0.1,
            max_tokens_per_batch=1024,
            eval_steps=10**6,
            num_threads=1,
        ),
    )
    train(config)
    translator = Translator.load(config.training.output_dir)
print(*lines[:3], sep="")

# %%
said = translator.translate([english for english, _ in unseen])
right = sum(one == chinese for one, (_, chinese) in zip(said, unseen, strict=True))
print(f"{right} of 60 unseen sentences come out as they were written")
for english in (ASKED[0], unseen[0][0], unseen[1][0]):
    print(english, *translator.translate([english]))

# %% [en]
# ## Its alignment
#
# Rows are the characters that are written, columns the English words; each cell is the mean over the heads of all
# cross-attention. Does 猫 look at *cat*?

# %% [zh]
# ## 对齐
#
# 行是写出的汉字，列是英文单词，每一格是所有交叉注意力头的平均。“猫”看向 cat 吗？

# %%
from regard.render.alignment_figure import alignment_figure

alignment_figure(translator.align(ASKED[0], num_beams=1), rows="written")

# %%
from regard_lab.aligned_words import read, share

readings = [read(translator, english) for english, _ in unseen]
for layer in readings[0].looks:
    found = share(readings, layer)
    print(f"decoder layer {layer}: {found:.0%} of the content words look at their translation most")

# %% [en]
# So here alignment is learned from sentence pairs alone; nobody told the model which word belongs to which. What it does not
# show: that a larger model aligns as neatly, or that the weights are why it chose a word. The encoder has mixed the words
# before the decoder looks at them, so "looks at *cat*" means the state that stands at *cat*.
#
# Next: *What does this model look at?*, the other notebook in this folder, with a real model.

# %% [zh]
# 可见，这里的对齐完全是从句对里学来的，没有人告诉模型哪个词对应哪个词。它不能说明：更大的模型也会对得这么整齐，或者模型就是因为
# 这些权重才选了某个词。而且解码器去看的时候，编码器已经把各个词混合过了，“看向 cat”其实是看向 cat 所在位置的状态。
#
# 接下来可以看同一文件夹里的另一个笔记本《这个模型在看什么？》，那里用的是真实的模型。
