"""The numbers of a lesson, computed in a browser, against regard in float64."""

import json
import re

import pytest
import torch

from chromium import chromium, needs_chromium
from lessons.lesson_numbers import Editor, difference, expected
from regard.lessons.lesson import example_lesson
from regard.render.browser_script import modules, one_script

pytestmark = [pytest.mark.browser, needs_chromium]

TOLERANCE = 1e-9
MODULES = ("check_state", "python", "score_experiment")


@pytest.fixture(scope="module")
def browser():
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def functions(browser):
    """An empty tab that has the modules of numbers as `lesson`."""
    tab = browser.new_page()
    for name in MODULES:
        entry = f"lessons/page/{name}.js"
        variables = ", ".join(re.sub(r"\W", "_", module.removesuffix(".js")) for module in modules(entry))
        tab.evaluate(f"() => {{ {one_script(entry)}\nObject.assign(window.lesson ??= {{}}, {variables}); }}")
    return tab


def computed(functions, state):
    """Every matrix by its name on the page, as the browser computes it."""
    numbers = functions.evaluate("state => lesson.compute(state)", state)
    assert numbers.pop("overflow") is None
    named = {name: numbers[name] for name in ("x", "joined")}
    named |= {name: numbers[name] for name in ("positions", "result") if numbers[name] is not None}
    named |= {name: numbers[name] for name in ("keyX", "valueX") if state[name] is not None}
    for at, head in enumerate(numbers["heads"]):
        named |= {f"{name}-{at}": rows for name, rows in head.items() if not name.startswith("projected")}
    return named


def wrong(found, wanted):
    """The matrices that differ, with their largest error."""
    errors = {name: difference(rows, wanted[name]) for name, rows in found.items()}
    return {name: error for name, error in errors.items() if not error <= TOLERANCE}


def test_numbers_are_those_of_regard_after_each_of_300_random_edits(functions):
    editor, state = Editor(seed=52), dict(example_lesson().start)
    kinds = set()
    for number in range(300):
        state = editor.edit(state)
        assert functions.evaluate("([state, start]) => lesson.checkState(state, start)", [state, state]) is None
        wanted = expected(state)
        found = computed(functions, state)
        assert found.keys() >= wanted.keys() - {name for name in wanted if name.startswith("w-")}
        assert wrong(found, wanted) == {}, (number, json.dumps(state, ensure_ascii=False))
        kinds |= {state["mask"]["kind"], state["score"]["kind"], f"{len(state['heads'])} heads"}
    assert len(kinds) == 8 + 4 + 3


def test_the_lines_of_python_compute_what_the_page_shows(functions, capsys):
    editor, state = Editor(seed=7), dict(example_lesson().start)
    for number in range(40):
        for _ in range(6):
            state = editor.edit(state)
        text = functions.evaluate("state => lesson.asPython(state)", state)
        names: dict = {}
        exec(compile(text, f"<state {number}>", "exec"), names)
        printed = capsys.readouterr().out
        wanted = computed(functions, state)
        heads = len(state["heads"])
        for name in ("weights", "output"):
            rows = names[name] if heads > 1 else names[name][None]
            assert rows.dtype == torch.float64
            for at in range(heads):
                assert difference(wanted[f"{name}-{at}"], rows[at]) <= TOLERANCE, (number, name, text)
            assert str(names[name]) in printed
        if state["output"] is not None:
            assert difference(wanted["result"], names["result"]) <= TOLERANCE, (number, text)
            assert str(names["result"]) in printed
