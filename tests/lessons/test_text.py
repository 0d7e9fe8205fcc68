"""`regard steps` as text: two pages exactly, and no line wider than the terminal whatever is shown."""

import io
import itertools
import re

import numpy as np
from rich.cells import cell_len
from rich.console import Console

from regard.lessons.matrix_text import clip, flow, matrix, number, vector
from regard.lessons.steps import work, work_from
from regard.lessons.text import Steps
from sweeps import sweep

X = [[1, 0, 1, 0], [0, 2, 0, 1], [1, 1, 1, 1]]
W = [[1, 0], [0, 1], [1, 0], [0, 1]]

ENGLISH = """
Attention step by step
Attention(Q, K, V) = softmax(Q Kᵀ / √d) V
scaled dot-product attention, Vaswani et al. 2017, equation 1

One token in scalars: “我” (number 1)

1. Query, key and value: the vector of “我” times W_Q, W_K and W_V
   x₁ = [1 0 1 0]
   q₁ = x₁ W_Q = [2 0]
     q₁[1] = 1·1 + 0·0 + 1·1 + 0·0 = 2
     q₁[2] = 1·0 + 0·1 + 1·0 + 0·1 = 0
   k₁ = x₁ W_K = [2 0]
   v₁ = x₁ W_V = [2 0]
   The other tokens' queries, keys and values come about in the same way.

2. Scores: the query of “我” times every key, q·k
   我  q₁·k₁ = 2·2 + 0·0 = 4
   爱  q₁·k₂ = 2·0 + 0·3 = 0
   你  q₁·k₃ = 2·2 + 0·2 = 4

3. Scaled: every score divided by √d = √2 = 1.41
   我  4 / √2 = 2.83
   爱  0 / √2 = 0
   你  4 / √2 = 2.83

4. Softmax: e to the power of every score
   我  e^2.83 = 16.9
   爱  e^0    = 1
   你  e^2.83 = 16.9
   sum = 34.8

5. Softmax: divided by the sum, the weights add up to 1
   我  w₁₁ = 16.9 / 34.8 = 0.486
   爱  w₁₂ = 1 / 34.8    = 0.0287
   你  w₁₃ = 16.9 / 34.8 = 0.486

6. Weighted sum: every value times its weight, added up
   z₁ = w₁₁ v₁ + w₁₂ v₂ + w₁₃ v₃
     z₁[1] = 0.486·2 + 0.0287·0 + 0.486·2 = 1.94
     z₁[2] = 0.486·0 + 0.0287·3 + 0.486·2 = 1.06
   z₁ = [1.94 1.06]

In matrices: all 3 tokens at once

The token vectors X and the three matrices
   X (3 × 4)          W_Q (4 × 2)    W_K (4 × 2)    W_V (4 × 2)
   我 [1  0  1  0]    [1  0]         [1  0]         [1  0]
   爱 [0  2  0  1]    [0  1]         [0  1]         [0  1]
   你 [1  1  1  1]    [1  0]         [1  0]         [1  0]
                      [0  1]         [0  1]         [0  1]

Queries, keys and values
   Q = X W_Q (3 × 2)    K = X W_K (3 × 2)    V = X W_V (3 × 2)
   我 [2  0]            我 [2  0]            我 [2  0]
   爱 [0  3]            爱 [0  3]            爱 [0  3]
   你 [2  2]            你 [2  2]            你 [2  2]

Scores, scaled scores and weights
   S = Q Kᵀ (3 × 3)    S / √2 (3 × 3)           W = softmax(S / √2) (3 × 3)
       我  爱  你            我    爱    你              我      爱     你
   我 [ 4   0   4]     我 [2.83  0     2.83]    我 [0.486    0.0287  0.486]
   爱 [ 0   9   6]     爱 [0     6.36  4.24]    爱 [0.00154  0.892   0.107]
   你 [ 4   6   8]     你 [2.83  4.24  5.66]    你 [0.0454   0.187   0.768]

Weighted sum
   Z = W V (3 × 2)
   我 [1.94   1.06]
   爱 [0.217  2.89]
   你 [1.63   2.10]

Numbers are shown with 3 significant digits and computed with all of theirs.
"""

CHINESE = """
注意力分步计算
Attention(Q, K, V) = softmax(Q Kᵀ / √d) V
缩放点积注意力，Vaswani 等，2017，公式 1

先看一个词元，逐个数计算：“爱”（第 2 个）

1. 查询 Query、键 Key、值 Value：“爱”的向量分别乘以 W_Q、W_K、W_V
   x₂ = [0 2 0 1]
   q₂ = x₂ W_Q = [0 3]
     q₂[1] = 0·1 + 2·0 + 0·1 + 1·0 = 0
     q₂[2] = 0·0 + 2·1 + 0·0 + 1·1 = 3
   k₂ = x₂ W_K = [0 3]
   v₂ = x₂ W_V = [0 3]
   其他词元的查询、键、值用同样的方法得到。

2. 打分：“爱”的查询与每个键做点积 q·k
   我  q₂·k₁ = 0·2 + 3·0 = 0
   爱  q₂·k₂ = 0·0 + 3·3 = 9
   你  q₂·k₃ = 0·2 + 3·2 = 6

3. 缩放：每个分数除以 √d = √2 = 1.41
   我  0 / √2 = 0
   爱  9 / √2 = 6.36
   你  6 / √2 = 4.24

4. Softmax 第一步：对每个分数取指数，即 e 的分数次方
   我  e^0    = 1
   爱  e^6.36 = 581
   你  e^4.24 = 69.6
   总和 = 651

5. Softmax 第二步：除以总和，得到权重（权重之和为 1）
   我  w₂₁ = 1 / 651    = 0.00154
   爱  w₂₂ = 581 / 651  = 0.892
   你  w₂₃ = 69.6 / 651 = 0.107

6. 加权求和：每个值乘以自己的权重，再相加
   z₂ = w₂₁ v₁ + w₂₂ v₂ + w₂₃ v₃
     z₂[1] = 0.00154·2 + 0.892·0 + 0.107·2 = 0.217
     z₂[2] = 0.00154·0 + 0.892·3 + 0.107·2 = 2.89
   z₂ = [0.217 2.89]

矩阵形式：3 个词元一起算

词元向量 X 与三个矩阵
   X (3 × 4)          W_Q (4 × 2)    W_K (4 × 2)    W_V (4 × 2)
   我 [1  0  1  0]    [1  0]         [1  0]         [1  0]
   爱 [0  2  0  1]    [0  1]         [0  1]         [0  1]
   你 [1  1  1  1]    [1  0]         [1  0]         [1  0]
                      [0  1]         [0  1]         [0  1]

查询 Query、键 Key、值 Value
   Q = X W_Q (3 × 2)    K = X W_K (3 × 2)    V = X W_V (3 × 2)
   我 [2  0]            我 [2  0]            我 [2  0]
   爱 [0  3]            爱 [0  3]            爱 [0  3]
   你 [2  2]            你 [2  2]            你 [2  2]

分数、缩放后的分数、权重
   S = Q Kᵀ (3 × 3)    S / √2 (3 × 3)           W = softmax(S / √2) (3 × 3)
       我  爱  你            我    爱    你              我      爱     你
   我 [ 4   0   4]     我 [2.83  0     2.83]    我 [0.486    0.0287  0.486]
   爱 [ 0   9   6]     爱 [0     6.36  4.24]    爱 [0.00154  0.892   0.107]
   你 [ 4   6   8]     你 [2.83  4.24  5.66]    你 [0.0454   0.187   0.768]

加权求和
   Z = W V (3 × 2)
   我 [1.94   1.06]
   爱 [0.217  2.89]
   你 [1.63   2.10]

数字显示三位有效数字，计算时使用全部精度。
"""


def shown(worked, row=0, *, width=80, **given):
    console = Console(width=width, file=io.StringIO(), highlight=False, color_system=None)
    console.print(Steps(worked, row, **given))
    return console.file.getvalue()


def small():
    return work(X, W, W, W, ["我", "爱", "你"])


def causal(count, dim=64, **given):
    random = np.random.default_rng(0)
    q, k, v = (random.normal(size=(count, dim)) for _ in range(3))
    tokens = [["token", "的", "注意力机制很有意思啊", "don't\n"][index % 4] for index in range(count)]
    return work_from(q, k, v, tokens, visible=np.tril(np.ones((count, count), dtype=bool)), **given)


def thinking_machines():
    values = [[10, 0], [0, 100]]
    return work_from([[1] * 64, [0.5] * 64], [[1.75] * 64, [1.5] * 64], values, ["Thinking", "Machines"])


def test_the_example_in_english_at_80_columns():
    assert shown(small()) == ENGLISH.lstrip("\n")


def test_the_example_in_chinese_at_80_columns():
    assert shown(small(), 1, lang="zh") == CHINESE.lstrip("\n")


WORKED = [
    (small(), 2),
    (thinking_machines(), 0),
    (causal(1), 0),
    (causal(7, bias=np.full((7, 7), -0.5), softcap=30.0, sink=0.5, scale=0.2), 4),
    (causal(512), 300),
    (work(np.eye(12), np.full((12, 768), 1e-7), np.full((12, 768), 1e7), np.full((12, 9), -1 / 3)), 11),
]


def test_no_line_is_wider_than_the_terminal():
    for case in sweep(
        itertools.product(["en", "zh"], [80, 60, 40], WORKED), name=lambda shape: f"{shape[:2]}, row {shape[2][1]}"
    ):
        with case as (lang, width, (worked, row)):
            lines = shown(worked, row, width=width, lang=lang, model="a-model", layer=3, head=5).splitlines()
            assert len(lines) > 20
            assert max(map(cell_len, lines)) <= width
            assert not [line for line in lines if line != line.rstrip()]


def test_formulas_stay_on_one_line():
    """Only prose wraps: a line that ends in = or · is a formula cut in two."""
    for case in sweep([80, 60]):
        with case as width:
            text = shown(causal(512), 300, width=width) + shown(causal(7), 4, width=width)
            assert not re.findall(r".*[=·+(]$", text, flags=re.MULTILINE)


def test_thinking_machines_adds_two_values():
    text = shown(thinking_machines())
    assert "Thinking  14 / √64" not in text  # the raw score is scaled, not the scaled one
    assert "Thinking  112 / √64 = 14" in text
    assert "Machines  e^(12 - 14) = 0.135" in text
    assert "Machines  w₁₂ = 0.135 / 1.14 = 0.119" in text
    assert "z₁ = w₁₁ v₁ + w₁₂ v₂\n" in text
    assert "z₁[1] = 0.881·10 + 0.119·0 = 8.81" in text
    assert "z₁[2] = 0.881·0 + 0.119·100 = 11.9" in text


def test_hidden_keys_are_dashes():
    worked = work(X, W, W, W, ["a", "b", "c"], visible=np.tril(np.ones((3, 3), dtype=bool)))
    text = shown(worked, 1)
    assert "   c  q₂·k₃  — hidden by the mask\n" in text
    assert "   c  w₂₃  — hidden by the mask\n" in text
    assert "z₂ = w₂₁ v₁ + w₂₂ v₂\n" in text
    assert "   a [4  —  —]" in text
    assert "a [1        —      —    ]" in text


def test_a_row_that_sees_nothing_says_so():
    worked = work_from([[1], [1]], [[1], [1]], [[1], [1]], visible=np.array([[True, True], [False, False]]))
    assert "Every key is hidden: all weights are 0, and so is the output." in shown(worked, 1)


def test_a_row_of_512_keys_shows_the_strongest_and_what_the_others_share():
    worked = causal(512)
    text = shown(worked, 300)
    weights = worked.weights[300]
    best = sorted(range(301), key=lambda key: -weights[key])[:8]
    places = [text.index(f"q₃₀₁·k{''.join('₀₁₂₃₄₅₆₇₈₉'[int(d)] for d in str(key + 1))} ") for key in best]
    assert places == sorted(places)
    rest = 1 - sum(weights[key] for key in best)
    assert f"the other 293 keys share {rest:.3g}" in text
    assert "hidden by the mask, weight 0: 211 of 512 keys" in text
    assert "(64 numbers, 6 shown)" in text
    assert "(301 terms, 3 shown)" in text
    assert "W = softmax(S / √64) (512 × 512, 1 × 8 shown)" in text


def test_a_query_that_sees_few_of_many_keys_shows_these_alone():
    text = shown(causal(512), 2)
    assert "The strongest 3 of 512 keys, by weight:" in text
    assert "hidden by the mask, weight 0: 509 of 512 keys" in text
    assert "the other" not in text
    assert "W = softmax(S / √64) (512 × 512, 1 × 3 shown)" in text


def test_one_row_of_a_long_text_keeps_its_number():
    text = shown(work_from([[1]], [[1]] * 30, [[1]] * 30, ["a"] * 30, query_tokens=["b"], first_query=36))
    assert "“b” (number 37)" in text
    assert "q₃₇·k₁ " in text


def test_cap_bias_and_sink_are_steps_of_their_own():
    text = shown(causal(3, bias=np.full((3, 3), -0.5), softcap=30.0, sink=0.0, scale=0.2), 0)
    for heading in ("every score times 0.2", "4. Soft cap", "5. Bias", "W = softmax(L)"):
        assert heading in text
    assert re.search(r"sink +e\^0 = 1\n", text)


def test_components_show_first_and_last_with_their_numbers():
    text = shown(causal(2), 0)
    assert re.search(r"z₁\[3\] +=", text)
    assert "z₁[64] =" in text
    assert "z₁[4]" not in text


def test_labels_show_what_is_invisible_and_are_cut_by_cells():
    assert clip("\n", 4) == "␣"
    assert clip("a\x1b[31m", 9) == "a␣[31m"
    assert clip("注意力机制", 6) == "注意…"
    assert clip("注意力", 6) == "注意力"


NUMBERS = [
    (1e8, "1.00e8"),
    (123456.0, "123456"),
    (0.25, "0.25"),
    (3.0, "3"),
    (-2.0, "-2"),
    (1e-13, "1.00e-13"),
    (0.99999, "1.00"),
    (-0.033333, "-0.0333"),
    (12345.678, "12346"),
]


def test_numbers_have_three_digits():
    for case in sweep(NUMBERS):
        with case as (value, text):
            assert number(value) == text


def test_vectors_say_how_much_they_show():
    values = np.arange(64.0)
    assert vector(values, 60, " ({count} numbers, {shown} shown)") == "[0 1 2 3 4 … 63] (64 numbers, 6 shown)"
    assert vector(values[:8], 60, "") == "[0 1 2 3 4 5 6 7]"


def test_matrices_are_cut_in_both_directions():
    assert matrix("M", np.arange(81.0).reshape(9, 9), 30) == [
        "M (9 × 9, 6 × 6 shown)",
        "[ 0   1   2   3   4  …   8]",
        "[ 9  10  11  12  13  …  17]",
        "[18  19  20  21  22  …  26]",
        "[27  28  29  30  31  …  35]",
        "[36  37  38  39  40  …  44]",
        "[ ⋮   ⋮   ⋮   ⋮   ⋮  ⋮   ⋮]",
        "[72  73  74  75  76  …  80]",
    ]


def test_matrices_show_as_many_columns_as_fit():
    values = np.arange(1000.0, 1008.0)[None]
    assert matrix("M", values, 24) == ["M (1 × 8, 1 × 3 shown)", "[1000  1001  …  1007]"]
    assert matrix("M", values, 48) == ["M (1 × 8)", "[1000  1001  1002  1003  1004  1005  1006  1007]"]


def test_blocks_stand_beside_one_another_while_they_fit():
    blocks = [["我", "bb"], ["cc"]]
    assert list(flow(blocks, 8)) == ["我    cc", "bb"]
    assert list(flow(blocks, 7)) == ["我", "bb", "", "cc"]
