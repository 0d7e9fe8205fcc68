"""The functions of a lesson's page that need no page, in a tab of Chromium as the object `lesson`."""

from collections.abc import Iterator
from contextlib import contextmanager

from chromium import chromium
from regard.lessons.lesson import example_lesson
from regard.render.browser_script import modules, one_script

MODULES = ("check_state", "python", "score_experiment", "real_numbers", "number_text")


@contextmanager
def page_functions() -> Iterator:
    """A tab that has every export of these modules and of those that they need."""
    with chromium() as browser:
        tab = browser.new_page()
        for name in MODULES:
            entry = f"lessons/page/{name}.js"
            variables = ", ".join(f"m{number}" for number in range(len(modules(entry))))  # as the script names them
            tab.evaluate(f"() => {{ {one_script(entry)}\nObject.assign(window.lesson ??= {{}}, {variables}); }}")
        yield tab


def call(tab, name: str, *arguments):
    """What a function of the page returns."""
    return tab.evaluate("([name, parts]) => lesson[name](...parts)", [name, list(arguments)])


def refusal(tab, state, start=None):
    """What `checkState` says of a state; by default of one that a page opens with."""
    return call(tab, "checkState", state, state if start is None else start)


def state_of(**fields):
    """A whole state with one query, key and value of one number each, and what a test needs instead."""
    plain = {"tokens": ["a"], "x": [[1.0]], "heads": None, "scale": "none"}
    return dict(example_lesson().start) | plain | fields


def computed(tab, state):
    """Every matrix by its name on the page, as the browser computes it."""
    numbers = call(tab, "compute", state)
    assert numbers.pop("overflow") is None
    named = {name: numbers[name] for name in ("x", "joined")}
    named |= {name: numbers[name] for name in ("positions", "result") if numbers[name] is not None}
    named |= {name: numbers[name] for name in ("keyX", "valueX") if state[name] is not None}
    for at, head in enumerate(numbers["heads"]):
        named |= {
            f"{name}-{at}": rows for name, rows in head.items() if rows is not None and not name.startswith("projected")
        }
    return named
