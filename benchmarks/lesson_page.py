"""What a lesson page costs in Chromium: an edit of 12 tokens × 64 numbers × 4 heads, opening the page, its size.

    python benchmarks/lesson_page.py [--edits 100] [--opens 20] [--head-width 16] [--out results.json]

An edit is Alt+↑ on a number of X. Its times are from the key to the end of its handling, when all numbers are computed
and the steps near the screen are redrawn; and to the second animation frame after it, before which the first has been
painted. `compute` is the part that only computes. Opening is from the start of the navigation until the first numbers
are on the page. All are medians, with the 95th percentile. The limits are those of the page: 16 ms, 50 ms, 500 ms, and
500 KB for the worked example.
"""

import argparse
import json
import platform
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from regard.lessons.lesson import example_lesson
from regard.lessons.page import lesson_html
from regard.render.browser_script import modules, one_script

CHROMIUM = "/usr/bin/chromium"
TOKENS, NUMBERS, HEADS = 12, 64, 4
LIMITS = {"numbers_ms": 16, "painted_ms": 50, "opened_ms": 500, "example_bytes": 500_000}

EDIT = """async count => {
    const canvas = document.querySelector("#step-vectors [data-name='x'] canvas");
    canvas.focus();
    const frame = () => new Promise(requestAnimationFrame);
    const times = [];
    for (let edit = 0; edit < count; edit += 1) {
        await frame();
        const { ready } = document.documentElement.dataset;
        const begin = performance.now();
        canvas.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowUp", altKey: true, bubbles: true }));
        const numbers = performance.now() - begin;
        if (document.documentElement.dataset.ready === ready) throw new Error("the edit changed nothing");
        await frame();
        await frame();
        times.push([numbers, performance.now() - begin]);
    }
    return times;
}"""
COMPUTE = """([state, count]) => Array.from({ length: count }, (_, edit) => {
    const edited = { ...state, x: state.x.map((row, at) => (at ? row : row.map((value) => value + edit / 100))) };
    const begin = performance.now();
    lesson.compute(edited);
    return performance.now() - begin;
})"""
OPENED = """new MutationObserver((_, observer) => {
    if (document.documentElement.dataset.ready === undefined) return;
    window.opened = performance.now();
    observer.disconnect();
}).observe(document, { subtree: true, attributes: true, attributeFilter: ["data-ready"] });"""


def large_state(head_width: int) -> dict[str, Any]:
    """Return a state with all that the page has: positions, a mask, heads and W_O."""
    generator = torch.Generator().manual_seed(0)

    def matrix(rows: int, columns: int) -> list[list[float]]:
        return (torch.randn(rows, columns, generator=generator, dtype=torch.float64) / rows**0.5).tolist()

    parts = ("query", "key", "value")
    return dict(example_lesson().start) | {
        "tokens": [f"token{token}" for token in range(1, TOKENS + 1)],
        "x": matrix(TOKENS, NUMBERS),
        "heads": [{part: matrix(NUMBERS, head_width) for part in parts} for _ in range(HEADS)],
        "output": matrix(HEADS * head_width, NUMBERS),
        "positions": "none",
        "mask": {"kind": "causal"},
    }


def summary(times: list[float]) -> dict[str, float]:
    """Return the median and the 95th percentile."""
    return {"median": statistics.median(times), "p95": statistics.quantiles(times, n=20)[-1]}


def measure(browser: Any, page: Path, state: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    """Return all times in milliseconds, and the size of the worked example."""
    results: dict[str, Any] = {}
    tab = browser.new_page(viewport={"width": 1280, "height": 900})
    entry = "lessons/page/numbers.js"
    tab.evaluate(
        f"() => {{ {one_script(entry)}\nwindow.lesson = m{len(modules(entry)) - 1}; }}"
    )  # as the script names it
    results["compute_ms"] = summary(tab.evaluate(COMPUTE, [state, arguments.edits]))
    page.write_text(lesson_html(state, {}), encoding="utf-8")
    tab.goto(page.as_uri())
    tab.wait_for_selector("html[data-settled]")
    times = tab.evaluate(EDIT, arguments.edits)
    results["numbers_ms"] = summary([numbers for numbers, _ in times])
    results["painted_ms"] = summary([painted for _, painted in times])
    tab.close()
    for name, start in (("opened_ms", dict(example_lesson().start)), ("opened_large_ms", state)):
        page.write_text(lesson_html(start, {}), encoding="utf-8")
        results[name] = summary([open_page(browser, page) for _ in range(arguments.opens)])
    results["example_bytes"] = len(example_lesson().html().encode())
    return results


def open_page(browser: Any, page: Path) -> float:
    """Return the milliseconds from the start of the navigation until the first numbers are there."""
    with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        tab = context.new_page()
        tab.add_init_script(OPENED)
        tab.goto(page.as_uri())
        tab.wait_for_selector("html[data-ready]")
        return float(tab.evaluate("window.opened"))


def main() -> None:
    """Measure, print a table, and say which limits are kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edits", type=int, default=100)
    parser.add_argument("--opens", type=int, default=20)
    parser.add_argument("--head-width", type=int, default=16)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        results = measure(browser, Path(folder) / "lesson.html", large_state(arguments.head_width), arguments)
        results["chromium"] = browser.version
        browser.close()
    print(f"{TOKENS} tokens × {NUMBERS} numbers × {HEADS} heads of {arguments.head_width}; {platform.processor()}")
    for name, value in results.items():
        if not isinstance(value, dict):
            print(f"{name:>16} {value}")
            continue
        limit = f"   at most {LIMITS[name]}" if name in LIMITS else ""
        print(f"{name:>16} median {value['median']:7.1f}   95 % {value['p95']:7.1f}{limit}")
    if arguments.out:
        arguments.out.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    kept = {name: median(results[name]) <= limit for name, limit in LIMITS.items()}
    if not all(kept.values()):
        sys.exit(f"beyond its limit: {', '.join(name for name, is_kept in kept.items() if not is_kept)}")


def median(value: dict[str, float] | float) -> float:
    """Return the median of times, or the number itself."""
    return value["median"] if isinstance(value, dict) else value


if __name__ == "__main__":
    main()
