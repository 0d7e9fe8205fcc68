"""The numbers of a lesson, computed in a browser, against regard and PyTorch in float64."""

import itertools
import json

import numpy as np
import pytest
import torch

import regard
from chromium import needs_chromium
from lessons.lesson_numbers import MASK_KINDS, TOLERANCE, Editor, difference, expected, mask_of, matrix, wrong
from lessons.page_functions import call, computed, page_functions, refusal, state_of
from regard.lessons.lesson import example_lesson
from regard.normalizers import Softmax
from regard.positions import sinusoidal
from regard.scores import ScaledDot

pytestmark = [pytest.mark.browser, needs_chromium]


@pytest.fixture(scope="module")
def functions():
    with page_functions() as tab:
        yield tab


def test_numbers_are_those_of_regard_after_each_of_300_random_edits(functions):
    editor, state = Editor(seed=52), dict(example_lesson().start)
    kinds = set()
    for number in range(300):
        state = editor.edit(state)
        assert refusal(functions, state) is None
        wanted = expected(state)
        found = computed(functions, state)
        assert found.keys() >= {name for name in wanted if not name.startswith("w-")}
        assert wrong(found, wanted) == {}, (number, json.dumps(state, ensure_ascii=False))
        kinds |= {state["mask"]["kind"], state["score"]["kind"], f"{len(state['heads'])} heads"}
    assert len(kinds) == 8 + 4 + 3


def test_numbers_are_those_of_regard_where_queries_keys_and_values_are_given(functions):
    editor = Editor(seed=53)
    for number in range(100):
        state = editor.given(dict(example_lesson().start))
        assert refusal(functions, state) is None
        assert wrong(computed(functions, state), expected(state)) == {}, (number, json.dumps(state))


def test_the_example_has_its_weights_and_not_those_that_pages_print(functions):
    found = computed(functions, dict(example_lesson().start))
    assert found["scores-0"] == [[4, 0, 4], [0, 9, 6], [4, 6, 8]]
    rounded = [[round(weight, 2) for weight in row] for row in found["weights-0"]]
    assert rounded == [[0.49, 0.03, 0.49], [0.0, 0.89, 0.11], [0.05, 0.19, 0.77]]
    printed = [[0.43, 0.14, 0.43], [0.01, 0.71, 0.28], [0.05, 0.26, 0.69]]
    same = [[a == b for a, b in zip(*rows, strict=True)] for rows in zip(rounded, printed, strict=True)]
    assert same == [[False] * 3, [False] * 3, [True, False, False]]


def test_thinking_machines_has_four_scores(functions):
    """q1·k1 = 112, q1·k2 = 96, d = 64: 14 and 12, and weights .88 and .12 (Alammar's illustrated Transformer)."""
    names = ["Thinking", "Machines"]
    state = state_of(tokens=names, x=[[1] * 64, [0.5] * 64], scale="default")
    state |= {"keyTokens": names, "keyX": [[1.75] * 64, [1.5] * 64], "valueX": [[10, 0], [0, 100]]}
    found = computed(functions, state)
    assert found["scores-0"] == [[112, 96], [56, 48]]
    assert found["scaled-0"] == [[14, 12], [7, 6]]
    assert [round(weight, 2) for weight in found["weights-0"][0]] == [0.88, 0.12]
    assert [round(value, 2) for value in found["output-0"][0]] == [8.81, 11.92]


def test_positions_are_the_table_of_the_paper(functions):
    for length, width in [(1, 1), (3, 4), (7, 5), (32, 512), (50, 64), (4, 1)]:
        wanted = sinusoidal(length, width, dtype=torch.float64)
        assert torch.allclose(matrix(call(functions, "sinusoidal", length, width)), wanted, rtol=0, atol=1e-12)
    # of position 1 in 4 columns: sin 1, cos 1, sin 0.01, cos 0.01
    row = call(functions, "sinusoidal", 2, 4)[1]
    assert row == pytest.approx([0.8414709848, 0.5403023059, 0.0099998333, 0.9999500004])


@pytest.mark.parametrize(
    ("heads", "width", "queries", "keys", "hidden"), [(5, 100, 4, 6, [2, 4]), (2, 4, 3, 3, []), (8, 512, 5, 5, [0])]
)
def test_multi_head_attention_is_pytorchs_in_the_shapes_of_the_lessons(functions, heads, width, queries, keys, hidden):
    torch.manual_seed(heads)
    module = torch.nn.MultiheadAttention(width, heads, bias=False, batch_first=True, dtype=torch.float64)
    x = torch.randn(queries, width, dtype=torch.float64)
    other = torch.randn(keys, width, dtype=torch.float64)
    padding = torch.tensor([[key in hidden for key in range(keys)]])
    with torch.no_grad():
        call_of_torch = module(x[None], other[None], other[None], key_padding_mask=padding, average_attn_weights=False)
        output, weights = call_of_torch
        parts = [part.T.reshape(width, heads, -1).unbind(1) for part in module.in_proj_weight.chunk(3)]
    state = state_of(x=x.tolist(), keyX=other.tolist(), tokens=list("abcdefgh"[:queries]), scale="default")
    state |= {"keyTokens": list("stuvwxyz"[:keys]), "mask": {"kind": "padding", "hidden": hidden}}
    names = ("query", "key", "value")
    state["heads"] = [
        {name: part[head].tolist() for name, part in zip(names, parts, strict=True)} for head in range(heads)
    ]
    state["output"] = module.out_proj.weight.T.tolist()
    assert refusal(functions, state) is None
    found = computed(functions, state)
    for head in range(heads):
        assert difference(found[f"weights-{head}"], weights[0, head]) <= TOLERANCE
    assert difference(found["result"], output[0]) <= TOLERANCE


def test_masks_of_all_kinds_are_those_of_regard_for_all_lengths_of_queries_and_keys(functions):
    editor = Editor(seed=11)
    assert functions.evaluate("() => lesson.MASK_KINDS") == list(MASK_KINDS)
    for kind, queries, keys, _ in itertools.product(MASK_KINDS, range(1, 6), range(1, 6), range(3)):
        mask = editor.mask(kind, queries, keys)
        found = call(functions, "visibleOf", mask, queries, keys)
        own = mask_of(mask, keys)
        wanted = torch.ones(queries, keys) if own is None else own.bind(queries, keys).dense()[0, 0]
        assert torch.tensor(found).equal(wanted.long()), (mask, queries, keys)
        assert call(functions, "countVisible", found) == int(wanted.sum())


RULES = [
    {"kind": "none"},
    {"kind": "causal"},
    {"kind": "window", "left": 2, "right": 1},
    {"kind": "prefix", "length": 4},
    {"kind": "longformer", "window": 4, "globals": [0, 3, 4, 9]},
    {"kind": "bigbird", "window": 3, "globals": 2, "table": [[]]},
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["kind"])
def test_pairs_of_a_rule_are_counted_for_any_length(functions, rule):
    for length in range(1, 14):
        mask = mask_of(rule, length)
        visible = torch.ones(length, length) if mask is None else mask.bind(length, length).dense()[0, 0]
        assert call(functions, "pairsAt", rule, length) == int(visible.sum()), length
        if rule["kind"] == "bigbird":  # each row sees two more keys, where there are so many
            more = call(functions, "pairsAt", rule | {"table": [[0, 0]]}, length)
            assert more == int((visible.sum(-1) + 2).clamp(max=length).sum())


def test_cells_drawn_by_hand_are_no_rule_for_other_lengths(functions):
    assert call(functions, "pairsAt", {"kind": "drawn", "rows": ["1"]}, 3) is None
    assert call(functions, "pairsAt", {"kind": "padding", "hidden": [0]}, 3) is None


def test_a_mask_over_other_lengths_is_one_that_fits(functions):
    editor = Editor(seed=12)
    for kind, _ in itertools.product(MASK_KINDS, range(20)):
        before, after = (editor.size(), editor.size()), (editor.size(), editor.size())
        mask = editor.mask(kind, *before)
        fitted = call(functions, "fitMask", mask, *after)
        queries, keys = after
        state = state_of(tokens=["q"] * queries, x=[[1]] * queries, mask=fitted)
        state |= {"keyTokens": ["k"] * keys, "keyX": [[1]] * keys}
        assert refusal(functions, state) is None
        if kind == "drawn":
            rows, columns = min(before[0], after[0]), min(before[1], after[1])
            assert [row[:columns] for row in fitted["rows"][:rows]] == [row[:columns] for row in mask["rows"][:rows]]
        if kind == "padding":
            assert fitted["hidden"] == [key for key in mask["hidden"] if key < keys]


def test_a_mask_of_what_is_kept_says_of_it_what_it_said_before(functions):
    """Of padding and of cells drawn by hand all cells stay; of global tokens, which they are."""
    editor = Editor(seed=21)
    for kind, _ in itertools.product(("padding", "drawn", "longformer", "bigbird"), range(20)):
        queries = keys = editor.size() + 1
        if kind in ("padding", "drawn"):
            keys += 2
        mask = editor.mask(kind, queries, keys)
        rows = sorted(set(range(queries)) - {editor.random.randrange(queries)})
        columns = rows if queries == keys else sorted(set(range(keys)) - {editor.random.randrange(keys)})
        kept = call(functions, "keepOfMask", mask, rows, columns)
        if kind in ("padding", "drawn"):
            before = np.array(call(functions, "visibleOf", mask, queries, keys))
            after = call(functions, "visibleOf", kept, len(rows), len(columns))
            assert after == before[np.ix_(rows, columns)].tolist()
        if kind == "longformer":
            assert [columns[at] for at in kept["globals"]] == [at for at in mask["globals"] if at in columns]
        if kind == "bigbird":
            assert len(kept["table"]) == len(columns)
            for position, drawn in zip(columns, kept["table"], strict=True):
                was = [key for key in mask["table"][position] if key in columns]
                assert {columns[key] for key in drawn} == set(was) or not was


def test_large_scores_zero_vectors_and_rows_that_see_nothing_have_numbers(functions):
    hidden = {"kind": "drawn", "rows": ["11", "00"]}
    large = computed(functions, state_of(tokens=["a", "b"], x=[[1e70, -1e70], [1e70, 1e70]], mask=hidden))
    assert large["weights-0"] == [[1, 0], [0, 0]]
    assert large["output-0"] == [[1e70, -1e70], [0, 0]]
    close = computed(functions, state_of(tokens=["a", "b"], x=[[1e4], [1e4 - 1e-4]]))
    assert close["weights-0"][0] == pytest.approx([0.7310585786, 0.2689414214])  # 1 / (1 + e^−1)
    zero = state_of(tokens=["a", "b", "c"], x=[[0, 0], [3e-300, 4e-300], [9, 0]], score={"kind": "cosine"})
    assert matrix(computed(functions, zero)["scores-0"]).allclose(matrix([[0, 0, 0], [0, 1, 0.6], [0, 0.6, 1]]))


def test_a_real_head_has_its_bias_cap_and_sink(functions):
    """The temperature divides all that is added up: scores that are scaled and capped, bias, and sink."""
    editor = Editor(seed=3)
    for number in range(8):
        q, k, v = editor.rows(3, 4), editor.rows(5, 4), editor.rows(5, 2)
        heat, cap, sink = [1, 2.5][number % 2], [None, 2.0][number // 2 % 2], [None, -0.5][number // 4]
        bias, mask = editor.rows(3, 5), editor.mask("drawn", 3, 5)
        visible = mask_of(mask, 5).bind(3, 5).dense()[0, 0]
        weights, output = head_by_formula(matrix(q), matrix(k), matrix(v), (matrix(bias), cap, sink, heat), visible)
        options = {"score": {"kind": "dot"}, "scale": 0.3, "temperature": heat, "visible": visible.int().tolist()}
        extras = {"bias": bias, "softcap": cap} | ({} if sink is None else {"sink": sink})
        found = call(functions, "attend", q, k, v, options | extras)
        assert difference(found["weights"], weights) <= TOLERANCE
        assert difference(found["output"], output) <= TOLERANCE


def head_by_formula(q, k, v, parts, visible):
    """As written down, and where the temperature is 1, as regard computes it too."""
    bias, cap, sink, heat = parts
    scaled = 0.3 * q @ k.T
    logits = ((scaled if cap is None else cap * torch.tanh(scaled / cap)) + bias) / heat
    powers = logits.exp() * visible
    total = powers.sum(-1, keepdim=True) + (0 if sink is None else matrix(sink / heat).exp())
    weights = powers / total.masked_fill(total == 0, 1)
    if heat == 1:
        normalizer = Softmax(None if sink is None else matrix([sink]))
        own = regard.attention(
            q, k, v, score=ScaledDot(softcap=cap), scale=0.3, mask=visible, bias=bias, normalizer=normalizer
        )
        assert torch.allclose(own, weights @ v)
    return weights, weights @ v
