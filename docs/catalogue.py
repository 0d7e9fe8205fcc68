"""What the pages of the mechanisms show: for each a small picture, an example and a call of real size.

Formula, paper, cost and words are those of the docstrings; here is only what no docstring has.
"""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["CATALOGUE", "FAMILIES", "Argument", "Entry"]


@dataclass(frozen=True)
class Entry:
    """One page: expressions over torch, scores, masks, positions, normalizers, n (tokens) and the 8 heads of 64."""

    name: str
    zh: str
    call: str  # what regard.attention is asked for, at n tokens
    picture: str  # a mask, a bias, or a tensor of two dimensions
    example: str  # four lines, which print
    caption: str = ""
    size: int = 8  # queries and keys of the picture of a mask or bias
    queries: int | None = None  # n of them by default
    kv_heads: int = 8


@dataclass(frozen=True)
class Argument(Entry):
    """A page for what is no class of its own: its words come from an argument of `attention` and from a docstring."""

    role: str = ""
    formula: str = ""
    paper: str = ""
    cost: str = ""
    arguments: tuple[str, ...] = ()  # of attention()
    source: str = ""  # whose docstring is quoted


def _shown(family: str, word: str, small: str, size: int, part: str = "") -> list[str]:
    """Four lines that print weights which would be equal without the mask or bias."""
    return [
        "import torch",
        f"from regard import attention, {family}",
        "",
        f"{word}, zeros = {small}, torch.zeros({size}, 1)",
        f"print(attention(zeros, zeros, torch.eye({size}), {word}={word}){part})  # all scores 0: prints the weights",
    ]


def _mask(
    name: str, zh: str, call: str, small: str, *, size: int = 8, shown: int = 5, part: str = "", caption: str = ""
) -> Entry:
    """A mask, seen in its picture and in what it does to weights that would be equal without it."""
    lines = _shown("masks", "mask", small, shown, part)
    return Entry(name, zh, f"mask={call}", small, "\n".join(lines), caption, size)


def _bias(
    name: str, zh: str, call: str, small: str, *, size: int = 5, caption: str = "", factor: bool = False
) -> Entry:
    """A bias, seen in its numbers and in the weights that it makes of scores of 0."""
    word = "weight_factor" if factor else "bias"
    lines = _shown("positions", word, small, size)
    return Entry(name, zh, f"{word}={call}", small, "\n".join(lines), caption, size)


def _score(name: str, zh: str, call: str, small: str) -> Entry:
    """A score, seen in a tile and in the weights that the softmax makes of it."""
    lines = [
        "import torch",
        "from regard import attention, scores",
        "",
        "x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])",
        f"score = {small}",
        "print(attention(x, x, x, score=score, return_weights=True)[1])",
    ]
    return Entry(name, zh, f"score={call}", f"{small}.tile(x, x, at, at)[0, 0]", "\n".join(lines), _TILE)


def _scaling(name: str, zh: str, call: str, small: str) -> Entry:
    """A scaling, seen in what it makes of RoPE's frequencies."""
    pair = f"positions.RoPE(8).frequencies, positions.RoPE(8, scaling={small}).frequencies"
    lines = [
        "import torch",
        "from regard import attention, positions",
        "",
        f"rotary = positions.RoPE(8, scaling={small})",
        "print(attention(torch.ones(4, 8), torch.ones(4, 8), torch.eye(4), rotary=rotary))",
    ]
    caption = "Radians a position of each of the four pairs of RoPE(8), fastest first: without it, and with it."
    asked = f"rotary=positions.RoPE(64, scaling={call})"
    return Entry(name, zh, asked, f"torch.stack([{pair}])", "\n".join(lines), caption)


_TILE = (
    "A tile of scores, before the scale: rows are the queries (1, 0), (0, 1), (1, 1), columns the same vectors as keys."
)

_SCORES = [
    _score("ScaledDot", "缩放点积", "scores.ScaledDot()", "scores.ScaledDot()"),
    _score("Dot", "点积", "scores.Dot()", "scores.Dot()"),
    _score("Cosine", "余弦相似度", "scores.Cosine(temperature=0.1)", "scores.Cosine(temperature=0.5)"),
    _score(
        "Bilinear",
        "双线性（general）",
        "scores.Bilinear(torch.zeros(64, 64))",
        "scores.Bilinear(torch.tensor([[0.0, 1.0], [1.0, 0.0]]))",
    ),
    _score(
        "Additive",
        "加性",
        "scores.Additive(torch.zeros(64, 64), torch.zeros(64, 64), torch.zeros(64))",
        "scores.Additive(torch.eye(2), torch.eye(2), torch.ones(2))",
    ),
    _score(
        "Concat",
        "拼接（concat）",
        "scores.Concat(torch.zeros(64, 128), torch.zeros(64))",
        "scores.Concat(torch.tensor([[1.0, 0.0, 0.0, 1.0]]), torch.ones(1))",
    ),
    _score(
        "Shaw",
        "相对位置表示（Shaw）",
        "scores.Shaw(torch.zeros(33, 64), torch.zeros(33, 64))",
        "scores.Shaw(torch.tensor([[-1.0, 0.0], [0.0, 0.0], [1.0, 0.0]]))",
    ),
    _score(
        "RelativeKeyQuery",
        "查询与键的相对位置（BERT relative_key_query）",
        "scores.RelativeKeyQuery(torch.zeros(33, 64))",
        "scores.RelativeKeyQuery(torch.eye(3, 2))",
    ),
    _score(
        "DeBERTa",
        "解耦注意力（DeBERTa）",
        "scores.DeBERTa(*torch.zeros(2, 8, 512, 64), 256, 512)",
        "scores.DeBERTa(*torch.eye(4).view(2, 1, 4, 2))",
    ),
    _score(
        "TransformerXL",
        "Transformer-XL 相对位置",
        "scores.TransformerXL(torch.zeros(8, 64), torch.zeros(8, 64), torch.zeros(8, 64, 512))",
        "scores.TransformerXL(*torch.zeros(2, 1, 2), torch.eye(2)[None])",
    ),
]

_MASKS = [
    _mask("Causal", "因果掩码", "masks.Causal()", "masks.Causal()"),
    _mask("Window", "滑动窗口", "masks.Causal() & masks.Window(512)", "masks.Window(3)"),
    _mask(
        "DilatedWindow",
        "空洞滑动窗口",
        "masks.DilatedWindow(left=64, right=64, dilation=4)",
        "masks.DilatedWindow(left=1, right=1, dilation=2)",
    ),
    _mask("Strided", "跨步掩码", "masks.Strided(64)", "masks.Strided(3)"),
    _mask("BlockLocal", "分块局部注意力", "masks.BlockLocal(512)", "masks.BlockLocal(2)"),
    _mask("Global", "全局词元", "masks.Global([0])", "masks.Global([0])"),
    _mask(
        "Sinks",
        "注意力汇聚点（attention sink）",
        "masks.Causal() & (masks.Window(1020) | masks.Sinks(4))",
        "masks.Sinks(1)",
    ),
    _mask("RandomBlocks", "随机块", "masks.RandomBlocks(3)", "masks.RandomBlocks(1, block=2, seed=1)"),
    _mask("Prefix", "前缀掩码", "masks.Prefix(512)", "masks.Prefix(2)"),
    _mask(
        "Padding",
        "填充掩码",
        "masks.Padding(torch.arange(n)[None] < n // 2)",
        "masks.Padding(torch.tensor([[True, True, True, False, False]]))",
        size=5,
    ),
    _mask(
        "Document",
        "文档掩码（打包序列）",
        "masks.Document(torch.arange(n) // 256)",
        "masks.Document(torch.tensor([0, 0, 1, 1, 1, 2, 2]))",
        size=7,
        shown=7,
    ),
    _mask(
        "Neighborhood",
        "邻域注意力",
        "masks.Neighborhood((n // 64, 64), 3)",
        "masks.Neighborhood((4, 4), 3)",
        size=16,
        shown=16,
        part="[5].reshape(4, 4)",
        caption="Queries and keys are the cells of a grid of 4 × 4, row by row; the example shows one query's weights "
        "as the image.",
    ),
    _mask(
        "Axial",
        "轴向注意力",
        "masks.Axial((n // 64, 64), axis=0) | masks.Axial((n // 64, 64), axis=1)",
        "masks.Axial((4, 4), axis=0)",
        size=16,
        shown=16,
        part="[5].reshape(4, 4)",
        caption="Queries and keys are the cells of a grid of 4 × 4, row by row; the example shows one query's weights "
        "as the image.",
    ),
    _mask("LocalMonotonic", "局部单调（local-m）", "masks.LocalMonotonic(64)", "masks.LocalMonotonic(1)"),
    _mask(
        "LocalPredictive",
        "局部预测（local-p）",
        "masks.LocalPredictive(torch.linspace(0, n - 1, n)[None], radius=64)",
        "masks.LocalPredictive(torch.tensor([[0.5, 3.2, 1.9, 4.0, 2.5]]), radius=1)",
        size=5,
    ),
    _mask(
        "Dense",
        "任意布尔矩阵",
        "torch.eye(n, dtype=torch.bool)",
        "masks.Dense(torch.tensor([[1, 0, 0], [1, 1, 0], [0, 1, 1]]) == 1)",
        size=3,
        shown=3,
    ),
    _mask(
        "MaskMod",
        "任意规则",
        "masks.MaskMod(lambda batch, head, i, j: (i + j) % 2 == 0)",
        "masks.MaskMod(lambda batch, head, i, j: (i + j) % 3 == 0)",
    ),
    _mask("prefix_lm", "前缀语言模型", "masks.prefix_lm(512)", "masks.prefix_lm(3)"),
    _mask(
        "sparse_transformer", "稀疏 Transformer", "masks.sparse_transformer(64)", "masks.sparse_transformer(3)", size=12
    ),
    _mask(
        "longformer",
        "Longformer",
        "masks.longformer(512, global_positions=[0])",
        "masks.longformer(2, global_positions=[0])",
        size=10,
    ),
    _mask(
        "bigbird",
        "BigBird",
        "masks.bigbird()",
        "masks.bigbird(num_random_blocks=1, block=1, seed=1)",
        size=12,
        shown=7,
    ),
]

_POSITIONS = [
    Entry(
        "sinusoidal",
        "正弦位置编码",
        "",
        "positions.sinusoidal(6, 6, base=100.0)",
        "import torch\nfrom regard import attention, positions\n\n"
        "x = 2 * positions.sinusoidal(4, 8, base=100.0)  # nothing but the positions: near ones look at each other\n"
        "print(attention(x, x, torch.eye(4)))",
        "The table that is added to the embeddings: a row for each position, pairs of sine and cosine side by side.",
    ),
    Entry(
        "learned",
        "可学习位置编码",
        "",
        "positions.learned(torch.tensor([[0.3, -0.1], [0.7, 0.2], [-0.4, 0.9], [0.1, 0.0]]), 3)",
        "import torch\nfrom regard import positions\n\n"
        "table = torch.tensor([[0.3, -0.1], [0.7, 0.2], [-0.4, 0.9]])\n"
        "print(torch.ones(2, 2) + positions.learned(table, 2))  # two embeddings of ones, and where they stand",
        "Three rows of a table of four positions and two numbers, as they are added to the embeddings.",
    ),
    Entry(
        "RoPE",
        "旋转位置编码",
        "rotary=positions.RoPE(64)",
        "(lambda x: x @ x.T)(positions.RoPE(2).rotate(torch.tensor([[1.0, 0.0]]).expand(5, 2), torch.arange(5)))",
        "import torch\nfrom regard import attention, positions\n\n"
        "x = torch.tensor([[2.0, 0.0]]).expand(4, 2)  # the same vector everywhere: only the distance differs\n"
        "print(attention(x, x, torch.eye(4), rotary=positions.RoPE(2)))",
        "Products of queries and keys that are all the vector (1, 0), after turning: the same along each diagonal.",
    ),
    _scaling("LinearScaling", "线性插值", "positions.LinearScaling(4.0)", "positions.LinearScaling(4.0)"),
    _scaling("NTK", "NTK 感知缩放", "positions.NTK(4.0)", "positions.NTK(4.0)"),
    _scaling(
        "DynamicNTK",
        "动态 NTK 缩放",
        "positions.DynamicNTK(2.0, original_max_position_embeddings=2048)",
        "positions.DynamicNTK(2.0, original_max_position_embeddings=8, length=20)",
    ),
    _scaling(
        "YaRN",
        "YaRN",
        "positions.YaRN(4.0, original_max_position_embeddings=2048)",
        "positions.YaRN(4.0, original_max_position_embeddings=1024)",
    ),
    _scaling(
        "LongRoPE",
        "LongRoPE",
        "positions.LongRoPE(4.0, (1.0,) * 32, (2.0,) * 32, original_max_position_embeddings=2048)",
        "positions.LongRoPE(4.0, (1, 1, 2, 3), (1, 2, 5, 9), 1024, length=4096)",
    ),
    _scaling("Proportional", "p-RoPE", "positions.Proportional(0.25)", "positions.Proportional(0.5)"),
    _scaling("Llama3", "Llama 3 缩放", "positions.Llama3()", "positions.Llama3(original_max_position_embeddings=1024)"),
    _bias(
        "ALiBi",
        "ALiBi（线性偏置）",
        "positions.ALiBi(num_heads=8)",
        "positions.ALiBi(num_heads=1, slopes=torch.tensor([0.5]), bidirectional=True)",
    ),
    _bias(
        "T5Bias",
        "T5 相对位置偏置",
        "positions.T5Bias(torch.zeros(32, 8), bidirectional=True)",
        "positions.T5Bias(torch.tensor([[0.0], [-1.0], [1.0], [2.0]]), bidirectional=True)",
    ),
    _bias(
        "RelativePositionBias",
        "相对位置偏置表",
        "positions.RelativePositionBias(torch.zeros(65, 8))",
        "positions.RelativePositionBias(torch.tensor([[-1.0], [0.0], [2.0]]))",
    ),
    _bias(
        "RelativePositionBiasND",
        "网格相对位置偏置（Swin）",
        "positions.RelativePositionBiasND(torch.zeros((n // 32 - 1) * 127, 8), (n // 64, 64))",
        "positions.RelativePositionBiasND(torch.arange(9.0)[:, None], (2, 2))",
        size=4,
    ),
    _bias(
        "DenseBias",
        "任意偏置",
        "positions.DenseBias(torch.zeros(n, n))",
        "positions.DenseBias(torch.tensor([[0.0, 1.0, 2.0], [1.0, 0.0, 1.0], [2.0, 1.0, 0.0]]))",
        size=3,
    ),
    _bias(
        "Gaussian",
        "高斯因子（local-p）",
        "positions.Gaussian(torch.zeros(1, n), radius=64)",
        "positions.Gaussian(torch.tensor([[0.0, 1.5, 3.0, 4.0, 2.0]]), radius=4)",
        factor=True,
    ),
]

_WEIGHTS = "Weights of the scores 0, 1, 2, 3 in each row, under a causal mask."
_NORMALIZED = ".weights(torch.arange(4.0).expand(1, 1, 4, 4), masks.Causal().bind(4, 4).dense())[0][0, 0]"
_NORMALIZERS = [
    Entry(
        name,
        zh,
        f"normalizer={small}".replace("(1)", "(8)"),
        small + _NORMALIZED,
        "import torch\nfrom regard import attention, normalizers\n\n"
        "q, k = torch.ones(1, 1), torch.tensor([[0.0], [1.0], [2.0]])  # the scores are 0, 1 and 2\n"
        f"print(attention(q, k, k, normalizer={small}, return_weights=True)[1])",
        _WEIGHTS,
    )
    for name, zh, small in (
        ("Softmax", "Softmax 归一化", "normalizers.Softmax()"),
        ("Sigmoid", "Sigmoid 归一化", "normalizers.Sigmoid()"),
    )
]

_ARGUMENTS = [
    Argument(
        "dropout",
        "注意力 dropout",
        "dropout=0.1",
        "regard.attention(torch.zeros(8, 1), torch.zeros(8, 1), torch.eye(8), dropout=0.5, generator=seeded) > 0",
        "import torch\nfrom regard import attention\n\n"
        "x, generator = torch.zeros(4, 1), torch.Generator().manual_seed(0)  # all weights are 1/4 before dropout\n"
        "print(attention(x, x, torch.eye(4), dropout=0.5, generator=generator))",
        "Which weights are kept, one draw with probability 1/2: rows are queries, columns keys.",
        role="While training, weights are dropped at random, and those that stay are made larger.",
        formula="weights_ij · keep_ij / (1 − p)",
        paper="Srivastava et al. 2014",
        cost="three passes over a tile in 32-bit integers; no memory: the backward draws the same again.",
        arguments=("dropout", "generator"),
        source="regard.dropout",
    ),
    Argument(
        "packed_input",
        "打包输入（变长序列）",
        "mask=masks.Document.from_lengths(torch.full((n // 256,), 256), within=masks.Causal())",
        "masks.Document.from_lengths(torch.tensor([3, 1, 4]), within=masks.Causal())",
        "import torch\nfrom regard import attention, masks\n\n"
        "mask = masks.Document.from_lengths(torch.tensor([3, 2]), within=masks.Causal())\n"
        "print(attention(torch.zeros(5, 1), torch.zeros(5, 1), torch.eye(5), mask=mask))",
        role="Several texts stand one after the other in one sequence, without padding, and do not see each other.",
        formula="document(i) = document(j), and within(i − start, j − start)",
        paper="Krell et al. 2021, arXiv:2107.02027",
        cost="O(Σ length² · dim) time, where padding would take O(texts · longest² · dim); one id a position.",
        source="regard.masks.Document.from_lengths",
    ),
    Argument(
        "softcap",
        "分数软上限",
        "score=scores.ScaledDot(softcap=50.0)",
        "(lambda s: torch.stack([s, 2 * torch.tanh(s / 2)]))(torch.tensor([-9.0, -2.0, -0.5, 0.0, 0.5, 2.0, 9.0]))",
        "import torch\nfrom regard import attention, scores\n\n"
        "q, k = torch.ones(1, 1), torch.tensor([[0.0], [1.0], [9.0]])  # the scores are 0, 1 and 9\n"
        "print(attention(q, k, k, score=scores.ScaledDot(softcap=2.0), return_weights=True)[1])",
        "Scores, and what a softcap of 2 makes of them: small ones stay, great ones end at ±2.",
        role="Scores are bent smoothly so that none goes beyond ±softcap, and no key can win by as much as it likes.",
        formula="softcap · tanh(scale · score / softcap)",
        paper="Gemma 2, 2024, arXiv:2408.00118",
        cost="one tanh a pair; no memory. PyTorch's fused kernel has none, so another backend runs it.",
        source="regard.scores.ScaledDot",
    ),
    Argument(
        "sink_logit",
        "汇聚点 logit（sink logit）",
        "normalizer=normalizers.Softmax(torch.zeros(8))",
        "normalizers.Softmax(torch.zeros(1))" + _NORMALIZED,
        "import torch\nfrom regard import attention, normalizers\n\n"
        "q, k = torch.zeros(1, 1), torch.zeros(3, 1)  # three scores of 0, and a sink of 0: each takes 1/4\n"
        "print(attention(q, k, k, normalizer=normalizers.Softmax(torch.zeros(1)), return_weights=True)[1])",
        _WEIGHTS + " The sink, here 0, takes its part, so that rows sum to less than 1.",
        role="One more logit stands in the softmax of each head: a query that finds nothing can look there.",
        formula="exp(s_ij) / (Σ_j exp(s_ij) + exp(sink_h))",
        paper="GPT-OSS 2025, arXiv:2508.10925",
        cost="one exponential a row; one parameter a head.",
        source="regard.normalizers.Softmax",
    ),
    Argument(
        "grouped_queries",
        "分组查询注意力",
        "",
        "torch.arange(8)[:, None] // 4 == torch.arange(2)",
        "import torch\nfrom regard import attention\n\n"
        "q, k = torch.zeros(1, 4, 1, 1), torch.zeros(1, 2, 3, 1)  # four heads of queries, two of keys and values\n"
        "print(attention(q, k, torch.tensor([10.0, 20.0])[:, None, None].expand(1, 2, 3, 1)).flatten())",
        "Which of 8 query heads (rows) reads which of 2 key heads (columns).",
        role="Several heads of queries share one head of keys and values; one for all is multi-query attention.",
        formula="query head h reads key head ⌊h / (heads / kv_heads)⌋",
        paper="Ainslie et al. 2023, arXiv:2305.13245; Shazeer 2019, arXiv:1911.02150",
        cost="the time is that of all query heads; keys and values, and a cache of them, take kv_heads/heads of the "
        "memory.",
        arguments=("k",),
        kv_heads=2,
    ),
    Argument(
        "log_sum_exp",
        "log-sum-exp 合并",
        "return_lse=True",
        "torch.tensor([[1.0, 1.0, 0, 0], [0, 0, 1, 1]]) == 1",
        "import torch\nfrom regard import attention\n\n"
        "q, x = torch.ones(1, 1), torch.arange(4.0)[:, None]  # two keys at a time, then all four\n"
        "(a, s), (b, t) = (attention(q, part, part, return_lse=True) for part in x.split(2))\n"
        "print(a * (s - t).sigmoid() + b * (t - s).sigmoid(), attention(q, x, x))",
        "Two calls (rows), each over half of the keys (columns); their outputs are mixed by exp(lse).",
        role="Outputs over parts of the keys are merged into that over all of them, exactly.",
        formula="lse = log Σ_p exp(lse_p), output = Σ_p exp(lse_p − lse) · output_p",
        paper="Rabe & Staats 2021, arXiv:2112.05682; Dao et al. 2022, arXiv:2205.14135",
        cost="one number a query and part; merging takes O(queries · parts · value_dim) time.",
        arguments=("return_lse",),
    ),
    Argument(
        "one_query",
        "软注意力（单个查询）",
        "score=scores.Additive(torch.zeros(64, 64), torch.zeros(64, 64), torch.zeros(64))",
        "torch.tensor([[0.0, 1.0, 2.0, 0.0]]).softmax(-1)",
        "import torch\nfrom regard import attention\n\n"
        "states = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])  # of an encoder, or the words of a sentence\n"
        "print(attention(torch.tensor([[0.0, 4.0]]), states, states, return_weights=True))",
        "The weights of one query for four keys with the scores 0, 1, 2, 0.",
        role="One query, such as a decoder's state or a learned vector, sums up all states by how well they fit.",
        formula="context = Σ_j softmax_j(score(q, h_j)) · h_j",
        paper="Bahdanau et al. 2015, arXiv:1409.0473; Xu et al. 2015, arXiv:1502.03044",
        cost="O(keys · dim) time and memory: one row of weights.",
        arguments=("q",),
        queries=1,
    ),
]

FAMILIES = {
    "scores": ("Scores: how well a query and a key fit", "打分函数：查询与键有多匹配"),
    "masks": ("Masks: who may see whom", "掩码：谁能看见谁"),
    "positions": ("Positions: where a token stands", "位置编码：词元在哪里"),
    "normalizers": ("Normalizers: how scores become weights", "归一化：分数怎样变成权重"),
    "arguments": ("Arguments of attention()", "attention() 的参数"),
}

CATALOGUE: dict[str, Sequence[Entry]] = dict(
    zip(FAMILIES, (_SCORES, _MASKS, _POSITIONS, _NORMALIZERS, _ARGUMENTS), strict=True)
)
