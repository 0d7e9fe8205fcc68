"""States of a lesson from addresses and files: shown, or refused with one sentence."""

import json
import re

import pytest

import regard
from chromium import needs_chromium
from lessons.lesson_numbers import Editor
from lessons.page_functions import page_functions, refusal
from regard import masks
from regard.lessons.lesson import example_lesson, lesson_of_translation
from regard.lessons.page import lesson_html
from sweeps import sweep

pytestmark = [pytest.mark.browser, needs_chromium]

SQUARE = {f"w_{part}": [[1, 0], [0, 1]] for part in ("query", "key", "value")}
CROSSED = {"x": [[1, 0], [0, 1]], "key_x": [[1, 1], [2, 0], [0, 3]]}

# Each with the sentence that it gets, and what the sentence is about.
BAD = [
    ('{"__proto__": {"step": "mask"}}', "unknown", "__proto__"),
    ('{"constructor": 1}', "unknown", "constructor"),
    ("[]", "object", "state"),
    ("null", "object", "state"),
    ('"x"', "object", "state"),
    ('{"x": [[1e400, 0, 1, 0], [0, 2, 0, 1], [1, 1, 1, 1]]}', "number", "x[0][0]"),
    ('{"x": [[1, 0, 1, "0"], [0, 2, 0, 1], [1, 1, 1, 1]]}', "number", "x[0][3]"),
    ('{"x": [[1, 0, 1, null], [0, 2, 0, 1], [1, 1, 1, 1]]}', "number", "x[0][3]"),
    ('{"x": [[1, 0, 1, 2e70], [0, 2, 0, 1], [1, 1, 1, 1]]}', "number", "x[0][3]"),
    ('{"x": [[1, 0], [0, 2, 0, 1], [1, 1, 1, 1]]}', "matrix", "x"),
    ('{"x": [[1, 0, 1, 0], [0, 2, 0], [1, 1, 1, 1]]}', "matrix", "x"),
    ('{"x": []}', "matrix", "x"),
    ('{"x": [[]]}', "matrix", "x"),
    ('{"x": {"length": 3}}', "matrix", "x"),
    ('{"tokens": ["a", "b"]}', "length", "tokens"),
    ('{"tokens": ["a", "b", 3]}', "text", "tokens[2]"),
    ('{"heads": []}', "most", "heads"),
    ('{"heads": [{"query": [[1]], "key": [[1]]}]}', "missing", "heads[0].value"),
    ('{"heads": [{"query": [[1]], "key": [[1]], "value": [[1]], "x": 0}]}', "unknown", "heads[0].x"),
    ('{"heads": [{"query": [[1]], "key": [[1]], "value": [[1]]}]}', "shape", "heads[0].query"),
    ('{"output": [[1], [2], [3]]}', "shape", "output"),
    ('{"keyX": [[1, 2, 3, 4]]}', "list", "keyTokens"),
    ('{"valueX": [[1, 2, 3, 4]]}', "together", "valueX"),
    ('{"positions": true}', "choice", "positions"),
    ('{"score": {"kind": "toString"}}', "choice", "score.kind"),
    ('{"score": {"kind": "bilinear", "weight": [[1]]}}', "shape", "score.weight"),
    ('{"score": {"kind": "additive", "query": [[1, 1]], "key": [[1, 1]], "vector": [1, 2]}}', "shape", "score.query"),
    ('{"scale": "big"}', "choice", "scale"),
    ('{"scale": null}', "choice", "scale"),
    ('{"temperature": 0}', "positive", "temperature"),
    ('{"temperature": "1"}', "number", "temperature"),
    ('{"mask": {"kind": "__proto__"}}', "choice", "mask.kind"),
    ('{"mask": {"kind": "causal", "left": 1}}', "unknown", "mask.left"),
    ('{"mask": {"kind": "window", "left": 1}}', "missing", "mask.right"),
    ('{"mask": {"kind": "window", "left": -1, "right": 0}}', "integer", "mask.left"),
    ('{"mask": {"kind": "window", "left": 0.5, "right": 0}}', "integer", "mask.left"),
    ('{"mask": {"kind": "padding", "hidden": [3]}}', "integer", "mask.hidden[0]"),
    ('{"mask": {"kind": "padding", "hidden": [1, 1]}}', "twice", "mask.hidden"),
    ('{"mask": {"kind": "longformer", "window": 3, "globals": []}}', "even", "mask.window"),
    ('{"mask": {"kind": "bigbird", "window": 2, "globals": 0, "table": [[], [], []]}}', "odd", "mask.window"),
    ('{"mask": {"kind": "bigbird", "window": 1, "globals": 0, "table": [[1], [], []]}}', "length", "mask.table[1]"),
    ('{"mask": {"kind": "bigbird", "window": 1, "globals": 0, "table": [[1],[2],[3]]}}', "integer", "mask.table[2][0]"),
    ('{"mask": {"kind": "drawn", "rows": ["111", "11", "111"]}}', "visible", "mask.rows[1]"),
    ('{"mask": {"kind": "drawn", "rows": ["111", "112", "111"]}}', "visible", "mask.rows[1]"),
    ('{"mask": {"kind": "drawn", "rows": ["111"]}}', "length", "mask.rows"),
    ('{"row": 3}', "integer", "row"),
    ('{"row": 0.5}', "integer", "row"),
    ('{"head": 1}', "integer", "head"),
    ('{"language": "de"}', "choice", "language"),
    ('{"step": "constructor"}', "choice", "step"),
    ('{"scoresStep": {"dim": "x", "seed": 1, "scores": [1]}}', "choice", "scoresStep.dim"),
    ('{"scoresStep": {"dim": 1, "seed": 1, "scores": []}}', "most", "scoresStep.scores"),
    ('{"scoresStep": {"dim": 1, "seed": 1}}', "missing", "scoresStep.scores"),
    ('{"why": {"length": 50, "example": 0.5}}', "integer", "why.example"),
    ('{"why": {"length": -5, "example": 0}}', "integer", "why.length"),
    ('{"transformer": {"model": "valueOf", "norm": "post", "written": 1, "head": 0}}', "choice", "transformer.model"),
    ('{"transformer": {"model": "base", "norm": "both", "written": 1, "head": -1}}', "choice", "transformer.norm"),
    ('{"transformer": {"model": "base", "norm": "pre", "written": 1e9, "head": -1}}', "integer", "transformer.written"),
    ('{"transformer": {"model": "base", "norm": "pre", "written": 1, "head": -2}}', "integer", "transformer.head"),
    ('{"maskStep": {"length": 1e9, "random": 1, "seed": 1}}', "integer", "maskStep.length"),
    ('{"maskStep": {"length": 3000, "random": 1, "seed": 1}}', "integer", "maskStep.length"),
    ('{"maskStep": {"length": -3.5, "random": 1, "seed": 1}}', "integer", "maskStep.length"),
    ('{"maskStep": {"length": 12, "random": 1e6, "seed": 1}}', "integer", "maskStep.random"),
    ('{"maskStep": {"length": 12}}', "missing", "maskStep.random"),
    ('{"maskStep": null}', "object", "maskStep"),
    ('{"otherScores": {"factor": 1e9}}', "between", "otherScores.factor"),
    ('{"otherScores": {"factor": "2"}}', "between", "otherScores.factor"),
    ('{"scoresStep": {"dim": 1e8, "seed": 1, "scores": [1]}}', "choice", "scoresStep.dim"),
    ('{"scoresStep": {"dim": 1, "seed": 0.5, "scores": [1]}}', "integer", "scoresStep.seed"),
    ('{"scoresStep": {"dim": 1, "seed": 1, "scores": [1e99]}}', "number", "scoresStep.scores[0]"),
    ('{"scoresStep": {"dim": 1, "seed": 1, "scores": [1,1,1,1,1,1,1,1,1,1,1,1,1]}}', "most", "scoresStep.scores"),
    ('{"real": {"layer": 0, "head": "x", "query": 0, "key": 0}}', "integer", "real.head"),
    ('{"temperature": 1e-320}', "overflow", "logits-0"),
]  # fmt: skip
# Lessons that have more than a page lets its readers make.
LARGE = {
    "long names": {"x": [[1, 0], [0, 1]], **SQUARE, "tokens": ["a" * 70, "b"]},
    "long names of queries": {**CROSSED, **SQUARE, "query_tokens": ["a" * 70, "b"]},
    "x": {"x": [[1] * 600], **dict.fromkeys(SQUARE, [[1]] * 600)},
    "W_Q and W_K": {"x": [[1, 0]], **SQUARE, "w_query": [[1] * 600] * 2, "w_key": [[1] * 600] * 2},
    "W_V": {"x": [[1, 0]], **SQUARE, "w_value": [[1] * 600] * 2},
    "W_O": {"x": [[1, 0]], **SQUARE, "w_output": [[1] * 600] * 2},
    "W_V of eight heads and W_O": {"x": [[1]], **dict.fromkeys(SQUARE, [[[1] * 600]] * 8), "w_output": [[1]] * 4800},
    "Q, K and V": {"x": [[1] * 600], "key_x": [[1] * 600] * 2, "value_x": [[1] * 700] * 2},
    "scale": {"scale": 1e70},
    "window": {"mask": masks.Window(left=2**31, right=2**31)},
    "prefix": {"mask": masks.prefix_lm(2**31)},
    "longformer": {"mask": masks.longformer(2**31, [0, 0, 2])},
}
CHECK = r"""([text, start]) => {
    const found = lesson.checkState(JSON.parse(text), start);
    const fill = (language) =>
        lesson.CHECK_WORDS[language][found.key].replace(/\{(\w+)\}/g, (_, name) => found.filled[name]);
    return found && { ...found, sentences: ["en", "zh"].map(fill) };
}"""


@pytest.fixture(scope="module")
def functions():
    with page_functions() as tab:
        yield tab


def test_each_bad_state_gets_one_sentence_that_names_what_is_wrong(functions):
    start = page_state(example_lesson())
    assert functions.evaluate(CHECK, ["{}", start]) is None
    for text, key, field in BAD:
        found = functions.evaluate(CHECK, [text, start])
        assert found is not None, text
        assert (found["key"], found["filled"]["field"]) == (key, field), text
        for sentence in found["sentences"]:
            assert field in sentence
            assert "undefined" not in sentence
            assert "{" not in sentence.replace("{…}", "")


def page_state(lesson):
    """The state that the page of a lesson opens with."""
    page = lesson_html(lesson.start, lesson.data)
    return json.loads(re.search(r'id="start"[^>]*>(.*?)</script>', page, re.DOTALL)[1])


def test_what_python_makes_can_be_changed_and_opened_again(functions):
    for case in sweep(LARGE):
        with case as name:
            start = page_state(regard.lesson(**LARGE[name]))
            assert refusal(functions, start, start) is None
            changed = json.loads(json.dumps(start))
            changed["x"][0][0] = 7
            assert refusal(functions, changed, start) is None
            changed["x"][0].append(1)  # and still, what does not fit is refused
            assert refusal(functions, changed, start) is not None


def test_lessons_of_steps_can_be_opened_again(functions):
    for lesson in (example_lesson("zh", row=2), lesson_of_translation({"sizes": None})):
        start = page_state(lesson)
        assert refusal(functions, start, start) is None


def test_the_page_hides_what_masks_of_python_hide(functions):
    """By the name that the page has for it, or drawn by hand."""
    others = [masks.Causal().with_place(shift=1), masks.Causal(align="start"), ~masks.Window(2), masks.Sinks(1)]
    named = [masks.Causal(), masks.Window(2), masks.prefix_lm(1), masks.longformer(2, [1]), masks.longformer(0, [0, 9])]
    for mask in others + named:
        for arguments in ({"x": CROSSED["x"]}, CROSSED):
            start = regard.lesson(**arguments, **SQUARE, mask=mask).start
            size = len(start["x"]), len(start["keyX"] or start["x"])
            visible = functions.evaluate("parts => lesson.visibleOf(...parts)", [start["mask"], *size])
            assert visible == mask.bind(*size).dense()[0, 0].int().expand(size).tolist(), mask


def test_every_sentence_is_there_in_both_languages(functions):
    words = functions.evaluate("() => lesson.CHECK_WORDS")
    assert words["en"].keys() == words["zh"].keys()
    holes = r"text => [...text.matchAll(/\{\w+\}/g)].map(String).sort()"
    for name, sentence in words["en"].items():
        assert functions.evaluate(holes, sentence) == functions.evaluate(holes, words["zh"][name]), name


def test_only_some_fields_are_those_of_the_start_with_these_instead(functions):
    start = dict(example_lesson().start)
    fields = {"temperature": 2, "mask": {"kind": "causal"}}
    assert functions.evaluate("parts => lesson.completed(...parts)", [fields, start]) == start | fields


def test_what_passes_has_numbers_whatever_was_broken_in_it(functions):
    """Values of a good state are replaced at random by others of any type: it is refused, or all its numbers exist."""
    editor, start = Editor(seed=5), page_state(example_lesson())
    state = start
    values = [None, True, -1, 0, 1, 3, 1e71, 1e69, "x", "", [], [[]], {}, [1], [[1.0]], "110"]
    show = """([state, start]) => {
        if (lesson.checkState(state, start) !== null) return null;
        lesson.asPython(state);
        return JSON.stringify(lesson.compute(state));
    }"""
    accepted = 0
    for _ in range(400):
        state = editor.edit(state)
        broken = json.loads(json.dumps(state))
        replace_at_random(broken, values, editor.random)
        found = functions.evaluate(show, [broken, start])
        if found is not None:
            accepted += 1
            assert json.loads(found)["overflow"] is None
    assert 20 < accepted < 380


def replace_at_random(value, values, random):
    while True:
        key = random.choice(list(value) if isinstance(value, dict) else range(len(value)))
        inner = value[key]
        if not isinstance(inner, dict | list) or not inner or random.random() < 0.2:
            value[key] = random.choice(values)
            return
        value = inner
