"""A lesson page in Chromium: how it is opened, what it shows, and the state that its address holds."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import torch
from torch import Tensor

import regard
from chromium import address
from lessons.lesson_numbers import mask_of, matrix, score_of
from regard.lessons.lesson import example_lesson
from regard.lessons.page import lesson_html


def start_state(**fields: Any) -> dict[str, Any]:
    """The state of the worked example with some fields replaced."""
    return {**example_lesson().start, **fields}


def random_state(tokens: int = 5, width: int = 4, dim: int = 3, heads: int = 2, seed: int = 0) -> dict[str, Any]:
    """A state of random numbers with two decimals."""
    generator = np.random.default_rng(seed)

    def rows_of(rows: int, columns: int) -> list[list[float]]:
        return generator.normal(size=(rows, columns)).round(2).tolist()

    return start_state(
        tokens=[f"t{index}" for index in range(tokens)],
        x=rows_of(tokens, width),
        heads=[
            {"query": rows_of(width, dim), "key": rows_of(width, dim), "value": rows_of(width, 2)} for _ in range(heads)
        ],
    )


@contextmanager
def open_lesson(
    browser, path: Path, state: Mapping[str, Any], step: str, data: Mapping[str, Any] | None = None, **context: Any
) -> Iterator:
    """Open a page at a step, with `data` in place of the package's; in the end, nothing may have complained, asked the
    network or opened a dialog.
    """
    path.write_text(lesson_html(state, data or {}), encoding="utf-8")
    trouble: list[str] = []
    with browser.new_context(**{"viewport": {"width": 1100, "height": 900}} | context) as fresh:
        tab = fresh.new_page()
        tab.on("console", lambda message: trouble.append(f"console: {message.text}"))
        tab.on("pageerror", lambda error: trouble.append(f"error: {error}"))
        tab.on("dialog", lambda dialog: (trouble.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        tab.on("request", lambda request: request.url == path.as_uri() or trouble.append(f"request: {request.url}"))
        tab.goto(path.as_uri())
        tab.wait_for_selector("html[data-ready]", timeout=20_000)
        tab.locator(f"#step-{step}").scroll_into_view_if_needed()
        settle(tab)
        yield tab
    assert trouble == []


def act(tab, action: Callable[[], Any]) -> None:
    """Do something that redraws the page, and wait until it has."""
    before = tab.evaluate("document.documentElement.dataset.ready")
    action()
    tab.wait_for_function("before => document.documentElement.dataset.ready !== before", arg=before)
    settle(tab)


def settle(tab) -> None:
    """Wait until all steps are drawn, also those off the screen."""
    tab.wait_for_function("() => document.documentElement.dataset.settled === document.documentElement.dataset.ready")


def values(tab, name: str, step: str) -> np.ndarray:
    """The exact values of a matrix of a step."""
    return np.array(
        tab.evaluate(
            "([step, name]) => document.querySelector(`#step-${step} [data-name='${name}']`).values", [step, name]
        ),
        dtype=np.float64,
    )


def state_of(tab, start: Mapping[str, Any]) -> dict[str, Any]:
    """The state, from the page's address."""
    text = unquote(address(tab).removeprefix("#"))
    return {**start, **(json.loads(text) if text else {})}


def scrolls_sideways(tab, step: str) -> bool:
    """Whether a step makes the page wider than its window."""
    return tab.evaluate(
        """step => {
          const others = [...document.querySelectorAll("#road > section")].filter(({ id }) => id !== `step-${step}`);
          for (const { style } of others) style.display = "none";
          const { scrollWidth, clientWidth } = document.documentElement;
          for (const { style } of others) style.display = "";
          return scrollWidth > clientWidth;
        }""",
        step,
    )


def visible_pairs(mask: Mapping[str, Any], queries: int, keys: int) -> np.ndarray:
    """Which key each query may see, by regard's masks."""
    meaning = mask_of(dict(mask), keys)
    if meaning is None:
        return np.ones((queries, keys), dtype=bool)
    return meaning.bind(queries, keys).dense()[0, 0].expand(queries, keys).numpy()


def attend(state: Mapping[str, Any], head: int, *, factor: float = 1.0, **options: Any) -> tuple[Tensor, Tensor]:
    """Output and weights of a head of a state by `regard.attention`, in float64. The temperature must be 1."""
    x = matrix(state["x"])
    key_x = x if state["keyX"] is None else matrix(state["keyX"])
    value_x = key_x if state["valueX"] is None else matrix(state["valueX"])
    q, k, v = x, key_x, value_x
    if state["heads"] is not None:
        q, k, v = (
            rows @ matrix(state["heads"][head][part])
            for rows, part in ((x, "query"), (key_x, "key"), (value_x, "value"))
        )
    visible = torch.from_numpy(visible_pairs(state["mask"], len(x), len(key_x)).copy())
    scale = {"default": {}, "none": {"scale": 1.0}}.get(state["scale"], {"scale": state["scale"]})
    output, weights = regard.attention(
        q * factor,
        k,
        v,
        **{"score": score_of(state["score"]), "mask": visible, **scale, "return_weights": True} | options,
    )
    return output, weights
