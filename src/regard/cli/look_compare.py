"""`regard look TEXT --compare OTHER`: one head over two texts, what moved, and how many heads change sides."""

from pathlib import Path

from regard.cli.console import TextConsole
from regard.cli.output_files import check_output
from regard.cli.progress import Watched
from regard.cli.text_argument import title_of
from regard.errors import InputError

__all__ = ["look_compare"]

_SUFFIXES = (".html", ".png", ".svg")


def look_compare(
    text: str,
    other: str,
    *,
    model: str | None,
    token: str | None,
    layer: int | None,
    head: int | None,
    words: str | None,
    out: Path | None,
) -> None:
    """Look at both texts, and print or write what is seen."""
    compared = None if words is None else _two(words)
    if out is not None:
        check_output("--out", out, *_SUFFIXES)
    progress = TextConsole(stderr=True)
    with Watched(progress) as watched:
        from regard.interpret.compare import compare_looks  # here, because torch takes seconds to load
        from regard.interpret.model_loading import load_to_look_once

        loaded = load_to_look_once(model, f"{text}\n{other}")
        pair = compare_looks(
            text, other, model=loaded, token=token, layer=layer, head=head, words=compared, progress=watched.say
        )
        if out is not None:
            watched.say(f"drawing {out}")
            if out.suffix.lower() == ".html":
                from regard.render.pair_page import write_pair_page

                write_pair_page(pair, pair.change, out, titles=(title_of(text), title_of(other)))
            else:
                from regard.render.figure import save_pair_figure

                save_pair_figure(pair, pair.change, out)
    if pair.warning:
        progress.print(f"warning: {pair.warning}", soft_wrap=True)
    if out is not None:
        progress.print(f"{pair.model}: two texts → {out}", soft_wrap=True)
        return
    from regard.render.pair_text import NARROWEST, pair_picture

    screen = TextConsole()
    screen.width = max(screen.width, NARROWEST)  # in a narrower terminal lines are folded
    screen.print(pair_picture(pair, pair.change, width=screen.width))


def _two(words: str) -> tuple[str, str]:
    """The two words, as they were typed."""
    parts = [part.strip() for part in words.replace("，", ",").replace("、", ",").split(",")]
    if len(parts) != 2 or not all(parts) or parts[0].casefold() == parts[1].casefold():
        raise InputError(f"`--words` must be two different words with a comma between, animal,street, got {words!r}")
    return parts[0], parts[1]
