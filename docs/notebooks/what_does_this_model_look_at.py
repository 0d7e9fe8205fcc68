"""The source of the notebook "What does this model look at?", made by docs/notebooks.py."""

# %% [en]
# # What does this model look at?
#
# A Hugging Face model encodes a sentence. We watch its attention, rank its heads, change one word of the sentence,
# remove a head, and note at each step what the numbers prove and what they do not.
#
# You need `pip install 'regard[all]'` and, for the bundled models, `regard models get`. Any other encoder works as well:
# `regard.load_model("bert-base-uncased")` takes an id of the Hugging Face Hub or a folder, and `regard.watch` any model
# that you have loaded yourself.

# %% [zh]
# # 这个模型在看什么？
#
# 让一个 Hugging Face 模型读一句话：先观察它的注意力，再给注意力头排序，然后只改一个词，最后去掉一个头。每一步都说清楚：
# 这些数字能说明什么，不能说明什么。
#
# 需要 `pip install 'regard[all]'`，自带的模型用 `regard models get` 下载。别的编码器也可以：
# `regard.load_model("bert-base-chinese")` 接受 Hugging Face 模型库的 id 或本地文件夹；自己加载好的模型，直接交给 `regard.watch`。

# %% en
MODEL = "minilm"
TIRED = "The animal didn't cross the street because it was too tired"
WIDE = "The animal didn't cross the street because it was too wide"
IT, ANIMAL, ROAD = "it", "animal", "street"

# %% zh
MODEL = "me5"
TIRED = "那只动物没有穿过街道，因为它太累了"
WIDE = "那只动物没有穿过街道，因为它太宽了"
IT, ANIMAL, ROAD = "它", "动物", "街道"

# %%
import numpy as np
import torch

import regard

loaded = regard.load_model(MODEL)
model, tokenizer = loaded.model, loaded.tokenizer
print(f"{type(model).__name__}: {model.config.num_hidden_layers} layers of {model.config.num_attention_heads} heads")

# %% [en]
# ## Watch
#
# `regard.watch` sees every call of attention inside the block. No line of the model is changed, and neither is its output:

# %% [zh]
# ## 观察
#
# `regard.watch` 会看到 `with` 语句里的每一次注意力计算。模型的代码一行不改，输出也一位不变：


# %%
def read(text):
    inputs = tokenizer(text, return_tensors="pt")
    with torch.no_grad(), regard.watch(model, tokenizer=tokenizer) as seen:
        output = model(**inputs)
    return seen, output.last_hidden_state[0]


seen, states = read(TIRED)
with torch.no_grad():
    unwatched = model(**tokenizer(TIRED, return_tensors="pt")).last_hidden_state[0]
print("the output is the same to the bit:", torch.equal(states, unwatched))
print("tokens:", *(token.text for token in seen.tokens["text"][0]))

# %% [en]
# The text was cut into tokens; `[CLS]` and `[SEP]` are the model's own. Each head gives every token (the **query**) a
# weight for every token (the **keys**); a row adds up to 1. Which heads look from "it" to "animal" most?

# %% [zh]
# 文本先被切成词元，`<s>` 和 `</s>` 是模型自己加的；“因为它”在这个模型里是一个词元，所以下面说“它”看向哪里，其实是这个词元看向哪里。
# 每个头都给每个词元（**查询**）一行权重，分配给所有词元（**键**），每行之和为 1。哪些头最多地从“它”看向“动物”？

# %%
ranked = seen.rank_heads(IT, ANIMAL)
for one in ranked[:4]:
    print(f"layer {one.layer:>2} head {one.head:>2}: {one.weight:.2f}")
best = ranked[0]
seen.plot(layer=best.layer, head=best.head)

# %% [en]
# Rows look at columns. Two things to note before drawing conclusions. The head was *chosen*: of all heads the one with
# the largest weight for this pair of words, and some head comes first whatever the pair. And look down the column: not
# only "it" looks at "animal", most words do. So what do the other heads do?
#
# ## Rank the heads
#
# `regard.head_scores` puts every head to the tests of the literature, on a text and on random tokens that are repeated
# once, and shows which rule takes more than half of its weight:

# %% [zh]
# 每一行看向各列。下结论之前先注意两点。第一，这个头是*挑出来的*：在所有的头里，它在这一对词上的权重最大；换任何一对词，都会有
# 一个头排第一。第二，顺着“动物”那一列往下看：看向“动物”的不只是“因为它”，许多词都看向它。那么其他的头在做什么？
#
# ## 给注意力头排序
#
# `regard.head_scores` 用文献里的办法测试每一个头（读一段文字，再读两遍相同的随机词元），看哪条规则占了它一半以上的权重：

# %%
scores = regard.head_scores(loaded)
counts = scores.counts()
for rule in scores.rules:
    (layer, head, share), *_ = scores.top(rule, 1)
    print(f"{rule:<16} {counts[rule]:>3} heads   strongest: layer {layer} head {head} ({share:.2f})")
print(f"{'none':<16} {counts['none']:>3} heads")

# %%
names = [token.text for token in seen.tokens["text"][0]]
special = [at for at, token in enumerate(seen.tokens["text"][0]) if token.special]
everything = np.stack([seen.weights(layer=layer, head=head)[0] for layer, head in np.ndindex(scores.shape)])
share = everything[:, :, special].sum(-1).mean()
print(f"mean weight on {' '.join(names[at] for at in special)}: {share:.2f}")

# %% [en]
# Much of the weight rests on tokens without content: softmax must spend 1 somewhere, also where a head has nothing to
# do. Most heads follow no rule that has a name.
#
# ## Compare a minimal pair
#
# A famous picture shows "it" looking at "animal", and claims that the model has understood the sentence. Here is the
# test: replace *tired* by *wide*, and "it" is the street. Does the head turn?

# %% [zh]
# 很大一部分权重落在没有内容的词元上：softmax 的权重之和必须是 1，一个头无事可做时，权重也总得有个去处。大多数头不符合任何一条
# 有名字的规则。
#
# ## 比较一对只差一个词的句子
#
# 有一张著名的图画着“它”看向“动物”，并说模型读懂了这句话。检验的办法是：把“累”换成“宽”，“它”指的就是街道了。这个头会转过去吗？

# %%
pair = regard.compare_looks(TIRED, WIDE, model=loaded, token=IT, layer=best.layer, head=best.head, words=(ANIMAL, ROAD))
for word in pair.moved:
    if word.compared is not None:
        print(f"{IT} → {word.before_word}: {word.before:.2f}, then {word.after:.2f}")
print("other words → {}, on average: {:.2f}, then {:.2f}".format(ANIMAL, *pair.elsewhere))

# %%
flips = pair.flips
print(f"{flips.counted} of {flips.heads} heads give the two words together 0.1 or more in both texts;")
print(f"{flips.prefer(0)} weigh {ANIMAL} more in both, {flips.prefer(1)} weigh {ROAD} more in both")
for one in flips.flips:
    turn = f"{ANIMAL} to {ROAD}" if one.to_second else f"{ROAD} to {ANIMAL}"
    print(f"layer {one.layer} head {one.head} turns from {turn}, with a lead of {one.lead:.3f}")

# %% [en]
# It does not turn: the head looks at the animal in both sentences, and so do other words. What it follows may be the
# subject of the sentence, or the first noun; it is not the meaning. Of the heads that do turn, look which way, and how far:
# a lead of 0.01 is next to nothing. `pair.change` is how far each head moved over all words, from 0 (the same) to 1 (no
# key in common):

# %% [zh]
# 它没有转过去：在两句话里，这个头看的都是动物，别的词也一样看向动物。它跟随的也许是主语，也许是第一个名词，总之不是句子的意思。
# 若有转了向的头，还要看朝哪个方向转、领先多少：只领先 0.01，几乎等于没有转。`pair.change` 说明在所有的词上各个头变了多少：
# 0 表示完全相同，1 表示没有看向任何共同的键。

# %%
change = pair.change.change
print(f"half of the heads change by less than {np.median(change):.3f}")
for layer, head in sorted(np.ndindex(change.shape), key=lambda at: -change[at])[:3]:
    print(f"layer {layer:>2} head {head:>2}: {change[layer, head]:.3f}")

# %% [en]
# One sentence is little, too. Here are six others, with the head that the first one chose. In the fifth "it" is the street:

# %% [zh]
# 只看一句话也太少。用第一句话选出的头，再看另外六句。其中第五句的“它”指的是街道：

# %% en
SENTENCES = """\
The animal ran away because it was afraid of the dogs.
The animal slept all day because it was very old.
The hunter saw the animal before it saw him.
When the animal was hungry, it came to the house.
The street was closed, so the animal crossed it at night.
We fed the animal, but it wanted more."""

# %% zh
SENTENCES = """\
动物跑掉了，因为它害怕狗。
动物睡了一整天，因为它很老了。
猎人看见动物的时候，它正在喝水。
动物饿了，它来到房子旁边。
街道被封了，动物在晚上穿过它。
我们喂了动物，可是它还想要。"""

# %%
(found,) = regard.score_heads_for_pairs([f"{IT}>{ANIMAL}"], SENTENCES.splitlines(), model=loaded).pairs
weights = found.weights[:, best.layer, best.head]
print(f"layer {best.layer} head {best.head}:", *(f"{weight:.2f}" for weight in weights))
print(f"mean {weights.mean():.2f}; a head that weighs all tokens alike would give {found.even:.2f}")
mean = found.weights.mean(0)
layer, head = np.unravel_index(mean.argmax(), mean.shape)
print(f"the strongest head over these sentences: layer {layer} head {head}, mean {mean.max():.2f}")

# %% [en]
# ## Take the head out
#
# A weight shows where a head looks, not whether the model needs it. `regard.ablate_heads` sets a head's output to 0
# while the block lasts. This encoder predicts nothing, so we measure how far its vector of the sentence (the mean over the
# tokens) moves, 1 − cosine, and compare with every other head:

# %% [zh]
# ## 去掉这个头
#
# 权重只说明一个头看向哪里，不说明模型是否用得着它。`regard.ablate_heads` 在 `with` 语句里把一个头的输出设为 0。这个编码器不做预测，
# 所以我们测量句向量（各词元的平均）移动了多少，即 1 − 余弦相似度，并和其他每一个头比较：


# %%
def moved(head):
    with torch.no_grad(), regard.ablate_heads(model, [head]):
        without = model(**tokenizer(TIRED, return_tensors="pt")).last_hidden_state[0]
    return 1 - torch.cosine_similarity(states.mean(0), without.mean(0), dim=0).item()


moves = {head: moved(head) for head in np.ndindex(scores.shape)}
chosen = moves.pop((best.layer, best.head))
print(f"without layer {best.layer} head {best.head}: {chosen:.1e}")
print(f"more than without {sum(chosen > one for one in moves.values())} of the {len(moves)} other heads")
layer, head = max(moves, key=moves.get)
print(f"the largest of the others: {moves[layer, head]:.1e}, without layer {layer} head {head}")

# %% [en]
# ## What this does not prove
#
# - **A weight is where a value comes from, not what the value contains or whether it is used.** Other weights can
#   give the same output (Jain & Wallace 2019, [arXiv:1902.10186](https://arxiv.org/abs/1902.10186); Wiegreffe &
#   Pinter 2019, [arXiv:1908.04626](https://arxiv.org/abs/1908.04626)).
# - **The head was chosen by the sentence that it is shown on.** Test it on others, and on the sentence whose meaning turns.
# - **That a head looks at the animal does not show that the model knows what "it" is.** It did so in both sentences.
# - **A head whose removal changes little may still do something**: others take over. One whose removal changes much may
#   have carried something else.
# - These are one small model and a few sentences. Other models do other things: put your own in the first cell.
#
# On the command line: `regard look TEXT --compare OTHER`, `regard heads`, and `regard heads --ablate`.

# %% [zh]
# ## 这些不能证明什么
#
# - **权重说明值从哪里来，不说明值里有什么，也不说明它有没有被用上。** 换一组权重，可能得到同样的输出（Jain & Wallace 2019，
#   [arXiv:1902.10186](https://arxiv.org/abs/1902.10186)；Wiegreffe & Pinter 2019，
#   [arXiv:1908.04626](https://arxiv.org/abs/1908.04626)）。
# - **这个头正是用这句话挑出来的。** 应当换别的句子检验，尤其是意思相反的那一句。
# - **一个头看向“动物”，不等于模型知道“它”指什么。** 两句话里它看的都是动物。
# - **去掉一个头而变化不大，不等于它没有作用**，别的头可能接替了它；变化很大，也可能是因为它还带着别的信息。
# - 这里只有一个小模型和几句话。别的模型会有别的表现：把第一个代码单元换成你自己的模型和句子。
#
# 命令行里对应的是 `regard look 一句话 --compare 另一句`、`regard heads` 和 `regard heads --ablate`。
