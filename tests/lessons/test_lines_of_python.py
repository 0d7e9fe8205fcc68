"""The lines of Python that a lesson copies: they run, and compute what the page shows."""

import pytest
import torch

from chromium import needs_chromium
from lessons.lesson_numbers import TOLERANCE, Editor, difference, expected, mask_of, matrix
from lessons.page_functions import call, page_functions, state_of
from lessons.test_numbers import head_by_formula
from regard.lessons.lesson import example_lesson

pytestmark = [pytest.mark.browser, needs_chromium]


@pytest.fixture(scope="module")
def functions():
    with page_functions() as tab:
        yield tab


def test_the_lines_of_the_example_are_these(functions):
    text = call(functions, "asPython", dict(example_lesson().start))
    assert text == EXAMPLE


EXAMPLE = """\
import torch

import regard

x = torch.tensor([
    [1, 0, 1, 0],  # 我
    [0, 2, 0, 1],  # 爱
    [1, 1, 1, 1],  # 你
], dtype=torch.float64)
w_query = torch.tensor([
    [1, 0],
    [0, 1],
    [1, 0],
    [0, 1],
], dtype=torch.float64)
w_key = w_query
w_value = w_query

queries = x @ w_query
keys = x @ w_key
values = x @ w_value
output, weights = regard.attention(queries, keys, values, return_weights=True)
print(weights)
print(output)
"""


def test_lines_of_50_random_states_compute_what_the_page_shows(functions, capsys):
    editor, state = Editor(seed=7), dict(example_lesson().start)
    for number in range(50):
        if number < 40:
            for _ in range(6):
                state = editor.edit(state)
        else:  # queries, keys and values themselves
            state = editor.given(dict(example_lesson().start))
        text = call(functions, "asPython", state)
        names: dict = {}
        exec(compile(text, f"<state {number}>", "exec"), names)
        printed = capsys.readouterr().out
        wanted = expected(state)
        for name in ("weights", "output"):
            assert names[name].dtype == torch.float64
            assert str(names[name]) in printed
            for head, rows in enumerate(names[name] if len(state["heads"] or [None]) > 1 else [names[name]]):
                assert difference(rows.tolist(), wanted[f"{name}-{head}"]) <= TOLERANCE, (name, text)
        if state["output"] is not None:
            assert difference(names["result"].tolist(), wanted["result"]) <= TOLERANCE, text
            assert str(names["result"]) in printed


def test_a_mask_drawn_by_hand_is_that_of_as_many_heads_as_queries(functions):
    editor = Editor(seed=31)
    weights = {part: editor.rows(2, 2) for part in ("query", "key", "value")}
    state = dict(example_lesson().start) | {"x": editor.rows(3, 2), "heads": [weights] * 3}
    state |= {"mask": {"kind": "drawn", "rows": ["100", "011", "110"]}}
    names: dict = {}
    exec(call(functions, "asPython", state), names)
    for head in range(3):
        assert difference(names["weights"][head].tolist(), expected(state)[f"weights-{head}"]) <= TOLERANCE


def test_lines_of_a_real_head_have_its_bias_cap_and_sink(functions):
    editor = Editor(seed=3)
    for number in range(8):
        q, k, v, bias = editor.rows(3, 4), editor.rows(5, 4), editor.rows(5, 2), editor.rows(3, 5)
        heat, cap, sink = [1, 2.5][number % 2], [None, 2.0][number // 2 % 2], [None, -0.5][number // 4]
        state = state_of(x=q, keyX=k, valueX=v, tokens=list("abc"), keyTokens=list("vwxyz"), scale=0.3)
        state |= {"mask": editor.mask("drawn", 3, 5), "temperature": heat, "bias": bias, "softcap": cap, "sink": sink}
        visible = mask_of(state["mask"], 5).bind(3, 5).dense()[0, 0]
        wanted = head_by_formula(matrix(q), matrix(k), matrix(v), (matrix(bias), cap, sink, heat), visible)
        names: dict = {}
        exec(call(functions, "asPython", state), names)
        assert difference(names["weights"].tolist(), wanted[0]) <= TOLERANCE
        assert difference(names["output"].tolist(), wanted[1]) <= TOLERANCE


def test_names_of_tokens_can_do_nothing(functions):
    name = "a\n\rraise SystemExit('obeyed')\u2028\x0b\x0c#"
    text = call(functions, "asPython", state_of(tokens=[name, "'''"], x=[[1], [2]]))
    exec(text, {})
    (line,) = (line for line in text.split("\n") if "obeyed" in line)
    assert line == "    [1],  # araise SystemExit('obeyed')#"


def test_numbers_of_any_size_are_pythons_too(functions):
    rows = [[1e70, -1e-70, 12345678901234567890.0, 0.1, 0.0, 2.0**53]]
    names: dict = {}
    exec(call(functions, "asPython", state_of(x=rows)), names)
    assert names["queries"].tolist() == rows


@pytest.mark.parametrize("kind", ["dot", "additive", "bilinear", "cosine"])
def test_a_temperature_divides_the_usual_scale_of_each_score(functions, kind):
    """1/√3 for dot products of 3 numbers, of 2 queries and 4 keys; 10 for cosines; else 1."""
    editor = Editor(seed=21)
    state = state_of(x=editor.rows(2, 3), tokens=["a", "b"], keyX=editor.rows(4, 3), keyTokens=list("stuv"))
    state |= {"valueX": editor.rows(4, 1), "score": editor.score(kind, 3), "scale": "default", "temperature": 0.5}
    names: dict = {}
    exec(call(functions, "asPython", state), names)
    assert difference(names["weights"].tolist(), expected(state)["weights-0"]) <= TOLERANCE
