"""The page of a lesson: its data and its browser client as one self-contained HTML file."""

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from regard.render.browser_script import content_policy, inert_json, one_script, one_style, package_text

__all__ = ["TITLES", "lesson_html"]

TITLES = {"en": "Attention, every number of it", "zh": "注意力：每个数都可以动手改"}
_DESCRIPTIONS = {
    "en": "Attention step by step, from words to a Transformer. Every number can be changed, and all after it follow.",
    "zh": "从词语到 Transformer，一步一步看注意力。每个数都可以改，后面的数随即重新算出。",
}
_NOSCRIPT = {
    "en": "The lesson needs JavaScript, which is switched off here.",
    "zh": "这一页需要 JavaScript，这里关闭了。",
}


@cache
def recorded_data() -> dict[str, Any]:
    """Return what is recorded in the package (lessons/data), by the name of its file without .json."""
    folder = resources.files("regard") / "lessons" / "data"
    files = [file for file in folder.iterdir() if file.name.endswith(".json")] if folder.is_dir() else []
    return {file.name.removesuffix(".json"): json.loads(file.read_text(encoding="utf-8")) for file in files}


def lesson_html(start: Mapping[str, Any], data: Mapping[str, Any]) -> str:
    """Return a page that opens with a state (see state.js).

    `data` is what is recorded of real models, by names that the steps know; it replaces that of the package.
    """
    from jinja2 import Environment

    style = one_style("render/page/theme.css", "lessons/page/lesson.css")
    script = one_script("lessons/page/main.js")
    language = start["language"]
    template = Environment(autoescape=True).from_string(package_text("lessons/page/lesson.html"))
    known = {**recorded_data(), **data}
    return template.render(
        language=language,
        title=TITLES[language],
        description=_DESCRIPTIONS[language],
        noscript=_NOSCRIPT[language],
        policy=content_policy(script, style),
        style=style,
        script=script,
        start=inert_json({"real": known["real"]["start"], **start}),
        data=inert_json(known),
    )
