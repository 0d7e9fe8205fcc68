"""Every matrix on the page of a lesson after random edits, by its address and by typing, against regard in float64."""

import json
import math
from pathlib import Path

import pytest
import torch

from chromium import chromium, needs_chromium
from lessons.browser_lesson import open_lesson
from lessons.lesson_numbers import Editor, expected, matrix, wrong
from regard.lessons.lesson import example_lesson

pytestmark = [pytest.mark.browser, needs_chromium]

# Set the address, wait until the page has followed it, draw all steps, and read what is on the page.
FOLLOW = """async fields => {
    if (fields !== null) {
        const hash = `#${encodeURIComponent(JSON.stringify(fields))}`;
        const followed = new Promise(resolve => addEventListener("hashchange", resolve, { once: true }));
        if (location.hash !== hash) { location.hash = hash; await followed; }
    }
    dispatchEvent(new Event("beforeprint"));
    // what the other steps show is recorded, and no number of the state changes it
    const figures = [...document.querySelectorAll("section:not(#step-why, #step-real, #step-transformer) [data-name]")]
        .filter(element => element.checkVisibility());
    const trouble = document.getElementById("trouble");
    return {
        matrices: figures.map(({ dataset, values }) => [dataset.name, values]),
        trouble: trouble.hidden ? "" : trouble.textContent,
    };
}"""
ALWAYS = {"x", "mask-cells", "joined", "trial-scores", "trial-weights", "trial-gradient"}


@pytest.fixture(scope="module")
def browser():
    with chromium() as running:
        yield running


def on_the_page(tab, fields=None):
    """The matrices that are shown: [name, values], a name as often as it is there."""
    found = tab.evaluate(FOLLOW, fields)
    assert found["trouble"] == ""
    return found["matrices"]


def shown(state):
    """What the page shows besides the matrices of the computation, by the names that it has there."""
    wanted = expected(state)
    for name in ("x", "keyX", "valueX"):
        if state[name] is not None:
            wanted[f"{name}-words"] = matrix(state[name])
    row, score = state["row"], state["score"]
    for head in range(len(state["heads"] or [None])):
        weights, values = wanted[f"weights-{head}"], wanted[f"values-{head}"]
        parts = weights[row][:, None] * values
        wanted[f"sums-{head}"] = weights.sum(-1, keepdim=True)
        wanted[f"shares-{head}"] = torch.cat([parts, parts.sum(0, keepdim=True)])
        q, k = wanted[f"queries-{head}"], wanted[f"keys-{head}"]
        if score["kind"] == "additive":
            wanted[f"score-queries-{head}"] = q @ matrix(score["query"]).T
            wanted[f"score-keys-{head}"] = k @ matrix(score["key"]).T
        elif score["kind"] == "bilinear":
            wanted[f"score-queries-{head}"] = q @ matrix(score["weight"])
        elif score["kind"] == "cosine":
            wanted[f"score-queries-{head}"] = torch.nn.functional.normalize(q, dim=-1)
            wanted[f"score-keys-{head}"] = torch.nn.functional.normalize(k, dim=-1)
    wanted["mask-cells"] = wanted["visible-0"]
    for part, parameters in score.items():
        if part != "kind":
            wanted[f"score-{part}"] = matrix([parameters] if part == "vector" else parameters)
    trial = matrix([state["scoresStep"]["scores"]])
    wanted |= {"trial-scores": trial, "trial-weights": trial.softmax(-1)}
    wanted["trial-gradient"] = torch.func.jacrev(lambda row: row.softmax(-1))(trial[0])
    return wanted


def errors(matrices, state):
    """The matrices on the page that are not those of the state, as many of a name as there are."""
    wanted = shown(state)
    found = {}
    for name, values in matrices:
        rows = values
        if name.startswith("logits"):  # hidden pairs are −∞ where the mask is shown
            visible = wanted[name.replace("logits", "visible")].bool().tolist()
            pairs = [zip(*lines, strict=True) for lines in zip(values, visible, wanted[name].tolist(), strict=True)]
            rows = [
                [number if value == -math.inf and not flag else value for value, flag, number in line] for line in pairs
            ]
        found |= wrong({name: rows}, {name: wanted[name]})
    return found


def test_every_matrix_on_the_page_is_regards_after_each_of_300_random_edits(browser, tmp_path: Path):
    start = dict(example_lesson().start)
    editor, state, names = Editor(seed=2052, most=5), start, set()
    with open_lesson(browser, tmp_path / "lesson.html", start, "vectors") as tab:
        for number in range(300):
            state = editor.edit(state)
            state["row"] = editor.random.randrange(len(state["x"]))
            state["head"] = editor.random.randrange(len(state["heads"]))
            difference_to_start = {name: value for name, value in state.items() if value != start[name]}
            matrices = on_the_page(tab, difference_to_start)
            assert errors(matrices, state) == {}, (number, json.dumps(difference_to_start, ensure_ascii=False))
            on_page = {name for name, _ in matrices}
            assert on_page >= ALWAYS
            head = state["head"]
            parts = ("queries", "keys", "values", "scores", "scaled", "logits", "weights", "output")
            assert on_page >= {f"{part}-{head}" for part in parts}
            assert on_page >= {f"output-{other}" for other in range(len(state["heads"]))}
            assert ("positions" in on_page) == (state["positions"] != "none")
            assert ("result" in on_page) == (state["output"] is not None)
            assert ("keyX" in on_page) == (state["keyX"] is not None)
            assert ("x-words" in on_page) == (state["positions"] != "none")
            names |= on_page
    assert {name for name in names if "score-" in name} >= {"score-query", "score-key", "score-vector", "score-weight"}


def test_every_matrix_on_the_page_is_regards_where_queries_keys_and_values_are_given(browser, tmp_path: Path):
    start = dict(example_lesson().start)
    editor = Editor(seed=2053, most=5)
    with open_lesson(browser, tmp_path / "lesson.html", start, "vectors") as tab:
        for number in range(30):
            state = editor.given(start)
            fields = {name: value for name, value in state.items() if value != start[name]}
            matrices = on_the_page(tab, fields)
            assert errors(matrices, state) == {}, (number, json.dumps(fields))
            assert {name for name, _ in matrices} >= {"scores-0", "scaled-0", "logits-0", "weights-0", "output-0"}


# Matrices that a reader can type into, and what each is of the state.
TYPED = {
    "x": lambda state: state["x"],
    "w-query-0": lambda state: state["heads"][0]["query"],
    "w-key-0": lambda state: state["heads"][0]["key"],
    "w-value-0": lambda state: state["heads"][0]["value"],
    "trial-scores": lambda state: [state["scoresStep"]["scores"]],
}


def test_numbers_that_are_typed_into_cells_are_computed_with(browser, tmp_path: Path):
    state = json.loads(json.dumps(dict(example_lesson().start)))
    editor = Editor(seed=9)
    with open_lesson(browser, tmp_path / "lesson.html", state, "vectors") as tab:
        on_the_page(tab)
        for name, part in TYPED.items():
            for _ in range(4):
                rows = part(state)
                row = editor.random.randrange(len(rows))
                column = editor.random.randrange(len(rows[0]))
                number = round(editor.random.gauss(0, 2), 3)
                table = tab.locator(f"section [data-name='{name}'] table").first
                table.locator("tbody tr").nth(row).locator("td").nth(column).click()
                tab.keyboard.type(str(number))
                tab.keyboard.press("Enter")
                rows[row][column] = number
                state["row"] = int(tab.locator("#row").input_value())  # a click on a cell of a token chooses its row
                assert errors(on_the_page(tab), state) == {}, (name, row, column, number)


def test_the_first_numbers_of_the_page_are_those_of_the_example(browser, tmp_path: Path):
    start = dict(example_lesson().start)
    with open_lesson(browser, tmp_path / "lesson.html", start, "vectors") as tab:
        found = dict(on_the_page(tab))
        weights = tab.locator("#step-mixing [data-name='weights-0'] tbody tr").all_inner_texts()
    assert [[round(weight, 2) for weight in row] for row in found["weights-0"]] == [
        [0.49, 0.03, 0.49],
        [0.0, 0.89, 0.11],
        [0.05, 0.19, 0.77],
    ]
    assert [line.split() for line in weights] == [
        ["我", "0.486", "0.0287", "0.486"],
        ["爱", "0.00154", "0.892", "0.107"],
        ["你", "0.0454", "0.187", "0.768"],
    ]
    assert found["trial-weights"] == [[1, pytest.approx(1.0112e-43, rel=1e-4), pytest.approx(1.0112e-43, rel=1e-4)]]
    power = math.exp(4 / math.sqrt(2))  # of the scores 4, 0, 4: values (2, 0), (0, 3) and (2, 2)
    assert found["output-0"][0] == pytest.approx([4 * power / (2 * power + 1), (3 + 2 * power) / (2 * power + 1)])
