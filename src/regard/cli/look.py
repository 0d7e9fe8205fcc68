"""`regard look`: see a real model attend to a text."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.arguments import check_output, model_option, read_text, title_of
from regard.cli.compare import look_compare
from regard.cli.console import TextConsole, Watched
from regard.cli.each_line import NumWorkers, atlas_of_each_line
from regard.cli.steps import steps_command
from regard.errors import InputError
from regard.extensions import extension, extension_names

__all__ = ["look"]

_TABLES = (".csv", ".npy", ".npz")  # the weights of the first head
_SUFFIXES = (".html", ".png", ".svg", ".atlas", *_TABLES)


_Text = Annotated[str, typer.Argument(help="A text, the name of a text file, or - for standard input.")]
_Model = Annotated[
    str | None,
    model_option("me5, minilm, smollm2, a folder (Hugging Face, regard train), or an id; by default the text chooses."),
]
_Tokens = Annotated[
    str | None,
    typer.Option(metavar="FIRST:LAST", help="Only these tokens of a long text, such as 1:8192, counted from 1."),
]
_Token = Annotated[str | None, typer.Option(help="The word to look from: it, it#2, a number from 1, or a question.")]
_Layer = Annotated[int | None, typer.Option(help="The layer of the first head, counted from 0.")]
_Head = Annotated[int | None, typer.Option(help="The first head, counted from 0 within its layer.")]
_Target = Annotated[
    str | None, typer.Option(help="For an encoder–decoder: what it writes; by default what it would write.")
]
_Compare = Annotated[
    str | None,
    typer.Option(help="A second text: one head in both, what moved, and how many heads change sides."),
]
_Words = Annotated[
    str | None, typer.Option(metavar="ONE,OTHER", help="For --compare: the two words to compare, animal,street.")
]
_Out = Annotated[
    Path | None,
    typer.Option(
        help="Write page.html, figure.png or .svg, it.atlas, or weights.csv, .npy, .npz; for --each-line a folder."
    ),
]
_Keep = Annotated[
    str,
    typer.Option(
        help="maps; qk: any weight of a long text, computed on demand; qkv: the values too, for a lesson; weights: "
        "every one at once."
    ),
]
_Layers = Annotated[str | None, typer.Option(help="The layers that are watched, such as 3,4; all of them by default.")]
_Heads = Annotated[
    str | None, typer.Option(help="The heads that are watched, such as 17.3,17.4 or 17 for all of a layer.")
]
_Statistics = Annotated[
    str | None, typer.Option(help="What else an atlas is to hold, such as distance,first,induction.")
]
_Strict = Annotated[
    bool, typer.Option("--strict/--no-strict", metavar="", help="Whether a layer that cannot be seen is an error.")
]
_EachLine = Annotated[
    bool,
    typer.Option("--each-line", metavar="", help="Save an atlas of each line of the file TEXT in the folder --out."),
]


def look(
    text: _Text,
    *,
    model: _Model = None,
    tokens: _Tokens = None,
    token: _Token = None,
    layer: _Layer = None,
    head: _Head = None,
    target: _Target = None,
    compare: _Compare = None,
    words: _Words = None,
    out: _Out = None,
    keep: _Keep = "maps",
    layers: _Layers = None,
    heads: _Heads = None,
    statistics: _Statistics = None,
    strict: _Strict = True,
    each_line: _EachLine = False,
    num_workers: NumWorkers = None,
) -> None:
    """See what a real model attends to: one word, two heads that look from it, a heat map, and the rest in a line."""
    chosen = _chosen(keep, layers, heads, statistics, strict=strict)
    if each_line or num_workers is not None:
        others = (tokens, token, layer, head, target, compare, words)
        atlas_of_each_line(text, model=model, out=_folder(out, others), num_workers=num_workers, **chosen)
        return
    read = read_text(text)
    part = None if tokens is None else _part(tokens)
    if out is not None:
        added = () if out.suffix.lower() in _SUFFIXES else extension_names("regard.renderers")
        check_output("--out", out, *_SUFFIXES, *(f".{name}" for name in added))
    if compare is not None:
        _check_pair(tokens, target, layers, heads, statistics, keep != "maps" or not strict)
        look_compare(read, read_text(compare), model=model, token=token, layer=layer, head=head, words=words, out=out)
        return
    atlas = out if out is not None and out.suffix.lower() == ".atlas" else None
    _check_single(words, for_atlas=atlas is None and (keep != "maps" or bool(layers or heads or statistics)))
    screen = TextConsole()
    progress = TextConsole(stderr=True)
    with Watched(progress) as watched:
        from regard.interpret.look import look as look_at  # here, because torch and transformers take seconds to load
        from regard.interpret.model_loading import load_to_look_once

        watched.say(f"{model or 'the model'} reads the text")
        looked = look_at(
            read,
            # An atlas is opened beside others, so that its layers are named as in transformers.
            model=model if atlas else load_to_look_once(model, read),
            token=token,
            layer=layer,
            head=head,
            target=target,
            **chosen,
            out=atlas,
            tokens=part,
            progress=watched.layer,
        )
        if out is not None and atlas is None:
            watched.say(f"drawing {out}")
            _write(looked, out, read, whole=part is None)
    _show(looked, text, out, screen, progress, whole=part is None)


def _chosen(
    keep: str, layers: str | None, heads: str | None, statistics: str | None, *, strict: bool
) -> dict[str, Any]:
    """What is recorded, as arguments of `look`."""
    return {
        "keep": keep,
        "layers": _numbers(layers),
        "heads": None if heads is None else [one for one in heads.split(",") if one.strip()],
        "statistics": [name.strip() for name in statistics.split(",")] if statistics else (),
        "strict": strict,
    }


def _folder(out: Path | None, others: Iterable[Any]) -> Path:
    """The folder of the atlases of lines; refuse what is for one text."""
    if any(one is not None for one in others):
        raise InputError(
            "`--each-line` saves whole atlases: leave --tokens, --token, --layer, --head, --target, --compare and "
            "--words out"
        )
    if out is None or out.suffix.lower() in _SUFFIXES:
        raise InputError(f"`--each-line` saves an atlas of each line: name a folder, as in --out atlases, got {out}")
    return out


def _show(looked: Any, text: str, out: Path | None, screen: TextConsole, progress: TextConsole, *, whole: bool) -> None:
    """Print the picture, or what was written and what could not be seen."""
    if looked.warning:
        progress.print(f"warning: {looked.warning}", soft_wrap=True)
    from regard.record.missing_attention import missing_lines

    if out is not None:
        progress.print(f"{looked.model}: {_what(looked, out)} → {out}", soft_wrap=True)
        for line in missing_lines(looked.record.missing):
            progress.print(f"not seen: {line}", soft_wrap=True)
        return
    from regard.render.terminal import NARROWEST, picture

    screen.width = max(screen.width, NARROWEST)  # in a narrower terminal lines are folded
    screen.print(picture(looked.record, looked.highlight, width=screen.width))
    command = steps_command(looked.record, looked.highlight, looked.model, text) if whole else ()
    if command:
        focus = looked.highlight
        words = focus.queries[focus.word], focus.keys[focus.looks[0].target]
        is_part = any(len(word.pieces) > 1 for word in words)
        weights = "The weights of its first token" if is_part else "The same weight"
        screen.print(f"\n{weights} as a lesson:")
        lines = " \\\n    ".join(command)  # not wrapped: a line that was cut would not be the command
        screen.print(f"  {lines}", soft_wrap=True)


def _what(looked: Any, out: Path) -> str:
    """What was written: tables hold the weights of the first head alone."""
    if out.suffix.lower() not in _TABLES:
        return f"{len(looked.record)} layers"
    from regard.render.labels import head_name

    first = looked.highlight.looks[0]
    return f"weights of {head_name(looked.record, first.layer, first.head)}"


def _check_pair(*others: str | bool | None) -> None:
    """Refuse what is for one text."""
    if any(others):
        raise InputError(
            "`--compare` is for two short texts: only --model, --token, --layer, --head, --words and --out go with it"
        )


def _check_single(words: str | None, *, for_atlas: bool) -> None:
    """Refuse what is for two texts, and what only an atlas holds."""
    if words is not None:
        raise InputError(
            "`--words` are the two words that --compare compares: give it a second text, or leave them out"
        )
    if for_atlas:
        raise InputError(
            "--keep, --layers, --heads and --statistics are for an atlas: add --out it.atlas, or leave them out"
        )


def _part(tokens: str) -> tuple[int, int]:
    """The first and the last token, as they were typed."""
    if not (found := re.fullmatch(r"(\d{1,9}):(\d{1,9})", tokens.strip())):
        raise InputError(f"`--tokens` must be FIRST:LAST, counted from 1, such as 1:8192, got {tokens!r}")
    return int(found[1]), int(found[2])


def _numbers(layers: str | None) -> list[int | str] | None:
    """Layers by number or name, as they were typed between commas."""
    if layers is None:
        return None
    named = [one.strip() for one in layers.split(",")]
    return [int(one) if one.isdecimal() else one for one in named if one]


def _write(looked: Any, out: Path, text: str, *, whole: bool) -> None:
    suffix = out.suffix.lower()
    if suffix == ".html":
        from regard.render.page import write_page

        write_page(
            looked.record,
            looked.highlight,
            out,
            title=title_of(text),
            command=" ".join(steps_command(looked.record, looked.highlight, looked.model, text)) if whole else "",
        )
    elif suffix in _TABLES:
        from regard.interpret.export import export

        first = looked.highlight.looks[0]
        export(looked.record, out, layer=looked.record.layers[first.layer], head=first.head)
    elif suffix in (".png", ".svg"):
        from regard.render.figure import save_figure

        save_figure(looked.record, looked.highlight, out)
    else:
        from regard.files import write_atomically

        content = extension("regard.renderers", suffix[1:])(looked.record, looked.highlight)
        if not isinstance(content, bytes):
            raise InputError(
                f"the renderer of {suffix} must return bytes, got {type(content).__name__}: see its package"
            )
        write_atomically(out, content)
