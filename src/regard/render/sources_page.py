"""Where an answer came from, as one self-contained page: a token of the answer lights up the parts it came from."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from regard.files import write_atomically
from regard.heads.answer_sources import Sources
from regard.render.browser_script import content_policy
from regard.render.labels import apart, visible
from regard.render.page import client_text
from regard.render.sources_text import caution, removal_sentence, signed, verdict

__all__ = ["sources_card", "sources_page", "write_sources_page"]

Piece = tuple[str, Any]


def write_sources_page(found: Sources, path: str | Path, *, question: str = "") -> None:
    """Save `sources_page` to a file, atomically."""
    write_atomically(Path(path), sources_page(found, question=question).encode())


def sources_page(found: Sources, *, question: str = "") -> str:
    """Return a page that needs no network: the answer with its tokens, the documents with their parts, and the checks.

    The token under the pointer or chosen with the arrow keys shades the parts by their scores for it; without one, the
    shades are those of the whole answer.
    """
    style = client_text("theme.css") + client_text("sources.css")
    script = f'"use strict";\n{client_text("sources.js")}'
    scores = {"scores": _short(found.scores.tolist()), "tokens": [_short(row) for row in found.token_scores.tolist()]}
    return _filled(
        "sources.html",
        policy=content_policy(script, style),
        title=visible(question) if question else "Where the answer came from",
        model=visible(found.model),
        style=style,
        script=script,
        answer=list(_answer(found)),
        documents=_documents(found),
        notes=_notes(found),
        scores=json.dumps(scores, separators=(",", ":")),
    )


def sources_card(found: Sources) -> str:
    """Return the HTML for a notebook: one element without scripts, shaded by the scores for the whole answer."""
    return _filled("sources_card.html", answer=_lines(found.answer), documents=_documents(found), notes=_notes(found))


def _filled(template: str, **values: Any) -> str:
    from jinja2 import Environment
    from markupsafe import Markup

    environment = Environment(autoescape=True)
    environment.filters["bdi"] = lambda text: Markup(apart(text))  # apart() escapes it
    return environment.from_string(client_text(template)).render(**values)


def _short(row: list[float]) -> list[float]:
    return [round(one, 4) for one in row]


def _lines(text: str) -> str:
    """Return a text in which everything hidden is visible, apart from its line breaks and tabs."""
    return "\n".join(
        "\t".join(visible(cell) if cell.strip(" ") else cell for cell in line.split("\t")) for line in text.split("\n")
    )


def _answer(found: Sources) -> Iterator[Piece]:
    """Yield the answer's text with the number of the token that covers it, or None."""
    at = 0
    for number, (start, end) in enumerate(found.token_spans):
        if start > at:
            yield _lines(found.answer[at:start]), None
        if end > max(start, at):
            yield _lines(found.answer[max(start, at) : end]), number
        at = max(at, end)
    if found.answer[at:]:
        yield _lines(found.answer[at:]), None


def _documents(found: Sources) -> list[dict[str, Any]]:
    most = max(float(found.scores.max()), 1e-12)
    drops = {one.part: f"without it {signed(-one.drop)}" for one in found.removals}
    drops |= {
        one.control: f"without it {signed(-one.control_drop)}"
        for one in found.removals
        if one.control_drop is not None and one.control is not None
    }
    shown = []
    for number, document in enumerate(found.documents):
        pieces: list[Piece] = []
        at = 0
        for index, part in enumerate(found.parts):
            if part.document != number:
                continue
            if part.start > at:
                pieces.append((_lines(document.text[at : part.start]), None))
            score = float(found.scores[index])
            about = {
                "at": index,
                "id": part.id,
                "score": f"{score:.2f}",
                "drop": drops.get(part.id),
                "share": score / most,
            }
            pieces.append((_lines(document.text[part.start : part.end]), about))
            at = part.end
        if document.text[at:].strip():
            pieces.append((_lines(document.text[at:]), None))
        score = found.document_scores[number]
        shown.append({"name": visible(document.name), "score": f"{score:.2f}", "pieces": pieces})
    return shown


def _notes(found: Sources) -> list[str]:
    return [*(removal_sentence(found, one) for one in found.removals), verdict(found), caution(found)]
