"""What has changed: `regard compare`, in all heads, and `regard look TEXT --compare OTHER`, in one head."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.status import Status

from regard.cli.arguments import check_output, model_option, read_text, title_of
from regard.cli.console import TextConsole, Watched
from regard.cli.heads import Files
from regard.errors import InputError

__all__ = ["compare", "look_compare"]

_FIGURES = (".html", ".png", ".svg")


def compare(
    a: Annotated[str | None, typer.Argument(help="A text, a text file, or an .atlas.", show_default=False)] = None,
    b: Annotated[str | None, typer.Argument(help="What to compare it with.", show_default=False)] = None,
    *,
    model: Annotated[str | None, model_option("The model that reads two texts; by default they choose.")] = None,
    text: Annotated[str | None, typer.Option(help="For --models: a text, or a text file.")] = None,
    models: Annotated[
        tuple[str, str] | None, model_option("Two models, or two checkpoints, of the same layers and heads.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="How many heads to list.")] = 10,
    out: Annotated[Path | None, typer.Option(help="Write figure.png or figure.svg, layers by heads.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write all numbers to a .json file.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write all numbers to a .csv file.")] = None,
) -> None:
    """See which heads have changed most between two texts, two models, two checkpoints, or two atlases.

    Of texts with equally many tokens, half of them the same, rows of weights
    are compared (Jensen–Shannon, Clark et al. 2019); of others, such as two
    languages, the scores of `regard heads`.
    """
    _check(a, b, model, text, models)
    files = Files(out, json, csv)
    files.check()
    progress = TextConsole(stderr=True)
    with progress.status("loading the libraries") as status:
        change = _changed(a, b, model, text, models, status)
        if files.any:
            _write(change, files)
            return
    from regard.render.head_lists_text import change_lines

    screen = TextConsole()
    for line in change_lines(change, top=top, width=screen.width):
        screen.print(line)


def _check(a: str | None, b: str | None, model: str | None, text: str | None, models: tuple[str, str] | None) -> None:
    if models is not None:
        if a is not None or model is not None:
            raise InputError(
                "`--models` compares two models over one text: give that with --text, and no A, B, --model"
            )
        return
    if a is None or b is None:
        raise InputError("give two texts, files or atlases, A and B; or one --text and two --models")
    if text is not None:
        raise InputError("`--text` is for --models: A and B are the texts here")
    atlases = [one for one in (a, b) if _is_atlas(one)]
    if len(atlases) == 1:
        raise InputError(
            f"{atlases[0]!r} is the name of an atlas, so the other must be one too: write it with regard look --out"
        )
    if atlases and model is not None:
        raise InputError("`--model` is for texts: an atlas was made by its own")


def _is_atlas(name: str) -> bool:
    return name.lower().endswith(".atlas") and "\n" not in name


def _changed(
    a: str | None, b: str | None, model: str | None, text: str | None, models: tuple[str, str] | None, status: Status
) -> Any:
    if models is not None:
        words = None if text is None else read_text(text)
        from regard.interpret.compare import compare_models

        return compare_models(*models, text=words, progress=status.update)
    assert a is not None and b is not None  # noqa: PT018  checked
    if _is_atlas(a):
        from regard.interpret.compare import compare_records
        from regard.interpret.observation import load_atlas

        return compare_records(load_atlas(a).record, load_atlas(b).record, names=(a, b))
    texts = read_text(a), read_text(b)
    from regard.interpret.compare import compare_texts

    return compare_texts(*texts, model=model, progress=status.update)


def _write(change: Any, files: Files) -> None:
    from regard.render.csv_and_npz_files import head_rows
    from regard.render.head_figure import Panel

    columns = {"change": change.change, "distance": change.distance}
    for name in change.before.scores:
        if name in change.after.scores:
            columns |= {f"{name} before": change.before.scores[name], f"{name} after": change.after.scores[name]}
    title = f"what changed from {change.names[0]} to {change.names[1]}"
    panel = Panel("Jensen–Shannon / ln 2" if change.by_rows else "largest change of a share", change.change, top=None)
    about = {"before": change.names[0], "after": change.names[1], "compared_rows": change.rows, "why": change.why}
    files.write(head_rows(columns), [panel], title, model=change.before.model, **about)


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
        check_output("--out", out, *_FIGURES)
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
