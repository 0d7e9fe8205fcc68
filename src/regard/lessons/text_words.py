"""The texts of `regard steps`, one table per language; the numbers and formulas between them are the same."""

from dataclasses import dataclass
from typing import Literal, get_args

from regard.errors import InputError

__all__ = ["CHINESE", "ENGLISH", "Language", "Wording", "check_language", "wording"]

Language = Literal["en", "zh"]


@dataclass(frozen=True)
class Wording:
    """All texts of the page, in its order; the renderer fills in the braces."""

    title: str
    head: str
    one_head: str
    paper: str
    scalars: str
    pieces: str
    project: str
    project_query: str
    given: str
    others_alike: str
    keys_of_others: str
    no_values: str
    scores: str
    some_keys: str
    hidden: str
    hidden_keys: str
    blind: str
    divided: str
    multiplied: str
    capped: str
    biased: str
    powers: str
    shifted: str
    sink: str
    total: str
    weights: str
    others: str
    output: str
    matrices: str
    matrices_one: str
    matrices_row: str
    given_matrices: str
    vectors: str
    products: str
    logits: str
    result: str
    heads: str
    head_outputs: str
    joined: str
    projected: str
    numbers: str
    terms: str
    size: str
    rounded: str


ENGLISH = Wording(
    title="Attention step by step",
    head=": {model}, layer {layer}, head {head}",
    one_head=": head {head} of {count}, counted from 0",
    paper="scaled dot-product attention, Vaswani et al. 2017, equation 1",
    scalars="One token in scalars: “{token}” (number {number})",
    pieces="“{word}” is {count} pieces to the model; this is the first.",
    project="Query, key and value: the vector of “{token}” times W_Q, W_K and W_V",
    project_query="Query: the vector of “{token}” times W_Q",
    given="Query, key and value of “{token}”, as they enter the formula",
    others_alike="The other tokens' queries, keys and values come about in the same way.",
    keys_of_others="Keys and values are made of other vectors: K = X_K W_K, V = X_V W_V (below, in matrices).",
    no_values='The record has no values, so the steps end with the weights: keep="qkv" keeps the values too.',
    scores="Scores: the query of “{token}” times every key, q·k",
    some_keys="The strongest {shown} of {count} keys, by weight:",
    hidden="hidden by the mask",
    hidden_keys="hidden by the mask, weight 0: {count} of {keys} keys",
    blind="Every key is hidden: all weights are 0, and so is the output.",
    divided="Scaled: every score divided by √d = {root}",
    multiplied="Scaled: every score times {scale}",
    capped="Soft cap: c·tanh(score / c) with c = {cap}",
    biased="Bias: added to every score",
    powers="Softmax: e to the power of every score",
    shifted="Softmax: e to the power of every score less {largest}, the largest (the weights stay the same)",
    sink="sink",
    total="sum",
    weights="Softmax: divided by the sum, the weights add up to 1",
    others="the other {count} keys share {weight}",
    output="Weighted sum: every value times its weight, added up",
    matrices="In matrices: all {count} tokens at once",
    matrices_one="In matrices",
    matrices_row="In matrices: “{token}” and the keys it weighs most",
    given_matrices="The token vectors X and the three matrices",
    vectors="Queries, keys and values",
    products="Scores, scaled scores and weights",
    logits="L = capped, biased",
    result="Weighted sum",
    heads="All heads together",
    head_outputs="The outputs of the {count} heads",
    joined="Joined: side by side",
    projected="Times W_O",
    numbers=" ({count} numbers, {shown} shown)",
    terms=" ({count} terms, {shown} shown)",
    size=" ({count}, {shown} shown)",
    rounded="Numbers are shown with 3 significant digits and computed with all of theirs.",
)

CHINESE = Wording(
    title="注意力分步计算",
    head="：{model}，层 {layer}，头 {head}",
    one_head="：{count} 个头中的头 {head}（从 0 数起）",
    paper="缩放点积注意力，Vaswani 等，2017，公式 1",
    scalars="先看一个词元，逐个数计算：“{token}”（第 {number} 个）",
    pieces="模型把“{word}”切成 {count} 个词元，这里取第一个。",
    project="查询 Query、键 Key、值 Value：“{token}”的向量分别乘以 W_Q、W_K、W_V",
    project_query="查询 Query：“{token}”的向量乘以 W_Q",
    given="“{token}”的查询 Query、键 Key、值 Value（代入公式的向量）",
    others_alike="其他词元的查询、键、值用同样的方法得到。",
    keys_of_others="键和值来自另外的向量：K = X_K W_K，V = X_V W_V（见下面的矩阵）。",
    no_values='记录里没有值，所以只能算到权重：用 keep="qkv" 观察，就连值一起保存。',
    scores="打分：“{token}”的查询与每个键做点积 q·k",
    some_keys="权重最大的 {shown} 个键（共 {count} 个），按权重排列：",
    hidden="被掩码遮住",
    hidden_keys="{keys} 个键中有 {count} 个被掩码遮住，权重为 0",
    blind="所有键都被遮住：权重全为 0，输出也为 0。",
    divided="缩放：每个分数除以 √d = {root}",
    multiplied="缩放：每个分数乘以 {scale}",
    capped="软上限：c·tanh(分数 / c)，其中 c = {cap}",
    biased="偏置：加到每个分数上",
    powers="Softmax 第一步：对每个分数取指数，即 e 的分数次方",
    shifted="Softmax 第一步：每个分数先减去最大值 {largest}，再取指数（权重不变）",
    sink="sink",
    total="总和",
    weights="Softmax 第二步：除以总和，得到权重（权重之和为 1）",
    others="其余 {count} 个键共占 {weight}",
    output="加权求和：每个值乘以自己的权重，再相加",
    matrices="矩阵形式：{count} 个词元一起算",
    matrices_one="矩阵形式",
    matrices_row="矩阵形式：“{token}”与它最关注的键",
    given_matrices="词元向量 X 与三个矩阵",
    vectors="查询 Query、键 Key、值 Value",
    products="分数、缩放后的分数、权重",
    logits="L = 加上限与偏置后",
    result="加权求和",
    heads="所有头合在一起",
    head_outputs="{count} 个头各自的输出",
    joined="拼接：并排放在一起",
    projected="乘以 W_O",
    numbers="（共 {count} 个数，显示 {shown} 个）",
    terms="（共 {count} 项，显示 {shown} 项）",
    size="（{count}，显示 {shown}）",
    rounded="数字显示三位有效数字，计算时使用全部精度。",
)


def check_language(lang: object) -> None:
    """Refuse what is no language of a lesson.

    Raises:
        InputError: It is neither "en" nor "zh".
    """
    if lang not in get_args(Language):
        raise InputError(f'`lang` must be "en" or "zh", got {lang!r}')


def wording(lang: Language) -> Wording:
    """Return the texts of one language."""
    return CHINESE if lang == "zh" else ENGLISH
