"""States of a lesson from addresses and files: shown, or refused with one sentence."""

import json

import pytest

from chromium import needs_chromium
from lessons.lesson_numbers import Editor
from lessons.page_functions import page_functions
from regard.lessons.lesson import example_lesson

pytestmark = [pytest.mark.browser, needs_chromium]

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
    ('{"scoresStep": {"dim": "x", "seed": 1, "scores": [1]}}', "type", "scoresStep.dim"),
    ('{"scoresStep": {"dim": 1, "seed": 1, "scores": []}}', "most", "scoresStep.scores"),
    ('{"scoresStep": {"dim": 1, "seed": 1}}', "missing", "scoresStep.scores"),
    ('{"scoresStep": {"dim": 2048, "seed": 1, "scores": [1]}}', "integer", "scoresStep.dim"),
    ('{"scoresStep": {"dim": 64, "seed": 0.5, "scores": [1]}}', "integer", "scoresStep.seed"),
    ('{"scoresStep": {"dim": 64, "seed": 1, "scores": [1,2,3,4,5,6,7,8,9,10,11,12,13]}}', "most", "scoresStep.scores"),
    ('{"maskStep": {"length": 1e9, "random": 1, "seed": 1}}', "integer", "maskStep.length"),
    ('{"maskStep": {"length": -3.5, "random": 1, "seed": 1}}', "integer", "maskStep.length"),
    ('{"maskStep": {"length": 12, "random": 33, "seed": 1}}', "integer", "maskStep.random"),
    ('{"maskStep": {"length": 12, "random": 1, "seed": -1}}', "integer", "maskStep.seed"),
    ('{"otherScores": {"factor": 0.5}}', "range", "otherScores.factor"),
    ('{"otherScores": {"factor": 1e60}}', "range", "otherScores.factor"),
    ('{"temperature": 1e-320}', "overflow", "logits-0"),
]  # fmt: skip
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
    start = dict(example_lesson().start)
    assert functions.evaluate(CHECK, ["{}", start]) is None
    for text, key, field in BAD:
        found = functions.evaluate(CHECK, [text, start])
        assert found is not None, text
        assert (found["key"], found["filled"]["field"]) == (key, field), text
        for sentence in found["sentences"]:
            assert field in sentence
            assert "undefined" not in sentence
            assert "{" not in sentence.replace("{…}", "")


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
    editor, start = Editor(seed=5), dict(example_lesson().start)
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
