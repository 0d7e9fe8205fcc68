"""`regard heads`: every head of a model, ranked by what it does; who looks from word to word; what a head is worth."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.status import Status

from regard.cli.arguments import check_output, model_option, read_text
from regard.cli.console import TextConsole
from regard.cli.each_line import NumWorkers, scores_of_lines
from regard.errors import InputError

__all__ = ["Files", "Replace", "heads"]

_HEAD = re.compile(r"(\d+)\.(\d+)")
# "best", then the rules and measures of regard.heads.scores, whose import takes NumPy's time.
_SORTS = (
    *("best", "previous", "next", "self", "duplicate_token", "induction", "first", "special_tokens", "separators"),
    *("entropy", "distance", "confidence", "sink"),
)
_JOBS = ("sources", "retrieval", "induction", "previous", "alignment", "sink", "local")  # those of regard.heads.jobs
_TOP = 10


class Replace(StrEnum):
    """What stands in place of a head's output."""

    ZERO = "zero"
    MEAN = "mean"


@dataclass(frozen=True)
class Files:
    """What is written instead of printed."""

    out: Path | None
    json: Path | None
    csv: Path | None

    def check(self) -> None:
        """Raise for a bad file name before minutes of work."""
        check_output("--out", self.out, ".png", ".svg")
        check_output("--json", self.json, ".json")
        check_output("--csv", self.csv, ".csv")

    @property
    def any(self) -> bool:
        """Whether there is one."""
        return any((self.out, self.json, self.csv))

    @property
    def parts(self) -> Path | None:
        """The folder of what is finished of an interrupted run, beside the first file."""
        first = self.json or self.csv or self.out
        return None if first is None else first.with_name(f"{first.name}.part")

    def write(self, rows: Sequence[Any], panels: Sequence[Any], title: str, **about: Any) -> None:
        """Save the files that were requested, and print their names."""
        from regard.render.csv_and_npz_files import write_csv, write_json
        from regard.render.head_figure import save_head_figure

        if self.json is not None:
            write_json(self.json, rows, **about)
        if self.csv is not None:
            write_csv(self.csv, rows)
        if self.out is not None:
            save_head_figure(panels, self.out, title=title)
        written = ", ".join(str(path) for path in (self.out, self.json, self.csv) if path)
        TextConsole(stderr=True).print(f"{title} → {written}", soft_wrap=True)


def _sorts(incomplete: str) -> list[str]:
    return [name for name in _SORTS if name.startswith(incomplete)]


def _jobs(incomplete: str) -> list[str]:
    return [name for name in _JOBS if name.startswith(incomplete)]


_Model = Annotated[
    str | None,
    model_option("me5, minilm, smollm2, a folder (Hugging Face, regard train), or an id; by default the text chooses."),
]
_Text = Annotated[
    str | None,
    typer.Option(
        help="A text, a text file, or - for standard input; by default some sentences. For --pair one a line."
    ),
]
_EachLine = Annotated[
    bool, typer.Option("--each-line", metavar="", help="Take each line of the file --text as a text; means over all.")
]


def heads(
    *,
    model: _Model = None,
    text: _Text = None,
    sort: Annotated[
        str | None, typer.Option(help=f"Rank all heads by one of {', '.join(_SORTS)}.", autocompletion=_sorts)
    ] = None,
    top: Annotated[int | None, typer.Option(min=1, help="How many heads of each list.")] = None,
    pair: Annotated[
        list[str] | None,
        typer.Option(help='Rank heads by how they look from word to word: "it>animal". Again for further pairs.'),
    ] = None,
    for_: Annotated[
        str | None,
        typer.Option("--for", help=f"Find the heads for a job, one of {', '.join(_JOBS)}.", autocompletion=_jobs),
    ] = None,
    examples: Annotated[
        Path | None, typer.Option(help="A file of JSON Lines with examples for --for, instead of the program's.")
    ] = None,
    ablate: Annotated[
        list[str] | None,
        typer.Option(help="Run the model without a head, LAYER.HEAD, and show what it loses. Again for further heads."),
    ] = None,
    replace: Annotated[
        Replace | None, typer.Option(help="What --ablate puts in place of a head's output.", show_default="zero")
    ] = None,
    random: Annotated[int, typer.Option(min=0, help="Random sets of heads that --ablate compares with.")] = 20,
    out: Annotated[Path | None, typer.Option(help="Save figure.png or figure.svg, layers by heads.")] = None,
    json: Annotated[Path | None, typer.Option(help="Save all numbers to a .json file.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Save all numbers to a .csv file.")] = None,
    each_line: _EachLine = False,
    num_workers: NumWorkers = None,
) -> None:
    """See what every head of a model does: which look at the previous token, the same one, the first …

    Each head is scored by the tests of the literature, on a text and on random
    tokens that are repeated. --pair finds the heads that look from one given
    word to another. --for finds those that do a job, with a readout that is
    scored on held-out examples; --json saves them as a head set.
    --ablate takes heads out: a weight by itself is not an
    explanation. Heads are named LAYER.HEAD, counted from 0.
    """
    _check(pair, ablate, replace, sort, out)
    _check_job(for_, examples, model, others=bool(pair or ablate or sort or text or out or csv))
    removed = _heads_of(ablate or ())
    files = Files(out, json, csv)
    files.check()
    if each_line or num_workers is not None:
        if pair or ablate or for_ or text is None:
            raise InputError(
                "`--each-line` scores the heads on the lines of --text FILE: name it, and leave --pair, --ablate and "
                "--for out"
            )
        with scores_of_lines(text, model=model, folder=files.parts, num_workers=num_workers) as scores:
            _print(_shown(scores, sort, top, files))
        return
    words = None if text is None else read_text(text)
    progress = TextConsole(stderr=True)
    with progress.status("loading the libraries") as status:
        if for_ is not None:
            lines = _find(for_, examples, model, top, files, status)
        elif pair:
            lines = _pairs(pair, words, model, top or _TOP, files, status)
        elif removed:
            lines = _ablate(removed, words, model, str(replace or Replace.ZERO), random, files, status)
        else:
            lines = _score(words, model, sort, top, files, status)
    _print(lines)


def _print(lines: Iterable[Any]) -> None:
    screen = TextConsole()
    for line in lines:
        screen.print(line)


def _check(
    pair: list[str] | None, ablate: list[str] | None, replace: Replace | None, sort: str | None, out: Path | None
) -> None:
    if replace is not None and not ablate:
        raise InputError(f"`--replace {replace}` is for `--ablate LAYER.HEAD`: name the heads that are taken out")
    if pair and ablate:
        raise InputError("`--pair` and `--ablate` are two questions: ask one at a time")
    if sort is not None and (pair or ablate):
        raise InputError("`--sort` ranks scores: leave it out with `--pair` and `--ablate`")
    if sort is not None and sort not in _SORTS:
        raise InputError(f"`--sort` must be one of {', '.join(_SORTS)}, got {sort!r}")
    if ablate and out is not None:
        raise InputError("`--out` draws one number a head, and `--ablate` gives a few of one set: use --json or --csv")


def _check_job(job: str | None, examples: Path | None, model: str | None, *, others: bool) -> None:
    if job is None:
        if examples is not None:
            raise InputError("`--examples` brings examples for a job: name it with --for")
        return
    if job not in _JOBS:
        raise InputError(f"`--for` must be one of {', '.join(_JOBS)}, got {job!r}")
    if others:
        raise InputError("`--for` takes --model, --examples, --top and --json: leave the other options out")
    if model is None and job == "alignment":
        raise InputError("`--for alignment` needs `--model`, an encoder–decoder: no bundled model is one")


def _heads_of(names: Iterable[str]) -> list[tuple[int, int]]:
    found = []
    for name in (part.strip() for one in names for part in one.split(",")):
        if not (match := _HEAD.fullmatch(name)):
            raise InputError(f"`--ablate` takes LAYER.HEAD, such as 5.11, got {name!r}")
        found.append((int(match[1]), int(match[2])))
    return found


def _find(
    job: str, examples: Path | None, model: str | None, top: int | None, files: Files, status: Status
) -> list[Any]:
    from regard.interpret.find_heads import find_heads
    from regard.render.head_lists_text import head_set_lines

    status.update(f"reading {model or 'smollm2'}")
    found = find_heads(model or "smollm2", job=job, examples=examples, num_heads=top, progress=status.update)
    if found.control_failed:
        TextConsole(stderr=True).print(
            f"warning: a readout of shuffled labels scores {found.shuffled_labels}, above chance ({found.chance:.2f}): "
            "the right candidate can be told without the model; give the examples' answers other places",
            soft_wrap=True,
        )
    if files.json is not None:
        found.save(files.json)
        TextConsole(stderr=True).print(f"{len(found)} heads for {job} → {files.json}", soft_wrap=True)
        return []
    return list(head_set_lines(found))


def _warn(loaded: Any, text: str | None) -> None:
    """Say what a model does not know of the text."""
    from regard.interpret.model_loading import advice

    if text is not None and (warning := advice(loaded, text)):
        TextConsole(stderr=True).print(f"warning: {warning}", soft_wrap=True)


def _score(
    text: str | None, model: str | None, sort: str | None, top: int | None, files: Files, status: Status
) -> list[Any]:
    from regard.interpret.head_scores import head_scores, read

    status.update(f"reading {model or 'the model'}")
    loaded = read(model, text)
    _warn(loaded, text)
    return _shown(head_scores(loaded, text, progress=status.update), sort, top, files)


def _shown(scores: Any, sort: str | None, top: int | None, files: Files) -> list[Any]:
    """Return the table of the scores, or write the files that were requested."""
    from regard.heads.scores import MEASURES, RULES
    from regard.render.csv_and_npz_files import head_rows
    from regard.render.head_figure import score_panels
    from regard.render.head_table_text import head_table

    if files.any:
        columns = {"best": scores.best, **scores.scores}
        rows = [{**one, "rule": scores.rule(one["layer"], one["head"])} for one in head_rows(columns)]
        tests = {name: {"formula": one.formula, "source": one.source} for name, one in {**RULES, **MEASURES}.items()}
        about = {"model": scores.model, "tokens": scores.tokens, "probe": scores.probe, "tests": tests}
        files.write(rows, score_panels(scores), f"what the heads of {scores.model} look at", **about)
        return []
    width = max(TextConsole().width, 80)
    return [head_table(scores, sort=sort, top=top, width=width)]


def _pairs(
    pairs: Sequence[str], text: str | None, model: str | None, top: int, files: Files, status: Status
) -> list[Any]:
    from regard.interpret.head_scores import read
    from regard.interpret.word_pairs import pair_of, score_heads_for_pairs
    from regard.render.csv_and_npz_files import head_rows
    from regard.render.head_figure import Panel
    from regard.render.head_lists_text import pair_score_lines

    for pair in pairs:
        pair_of(pair)
    if text is None:
        raise InputError("`--pair` needs `--text`: a file of sentences, one a line, that have both words")
    status.update(f"reading {model or 'the model'}")
    loaded = read(model, text)
    _warn(loaded, text)
    found = score_heads_for_pairs(
        pairs, text.splitlines(), model=loaded,
        progress=lambda done, all_: status.update(f"{loaded.name} has read {done} of {all_} sentences"),
    )  # fmt: skip
    if files.any:
        columns = {f"{pair.name} {what}": array for pair in found.pairs for what, array in _columns(pair)}
        panels = [Panel(pair.name, pair.mean) for pair in found.pairs]
        about = {"model": found.model, "sentences": found.sentences, "unused": found.unused}
        files.write(head_rows(columns), panels, f"from word to word: the heads of {found.model}", **about)
        return []
    return list(pair_score_lines(found, top=top, width=TextConsole().width))


def _columns(pair: Any) -> list[tuple[str, Any]]:
    return [("mean", pair.mean), ("spread", pair.spread)]


def _ablate(
    removed: Sequence[tuple[int, int]],
    text: str | None,
    model: str | None,
    replace: Any,
    random: int,
    files: Files,
    status: Status,
) -> list[Any]:
    from regard.interpret.head_loss import head_loss
    from regard.interpret.head_scores import read
    from regard.render.csv_and_npz_files import loss_rows
    from regard.render.head_lists_text import loss_lines

    status.update(f"reading {model or 'the model'}")
    loaded = read(model, otherwise="smollm2")
    _warn(loaded, text)
    lost = head_loss(
        removed, model=loaded, text=text, replace=replace, random=random,
        progress=lambda done, all_: status.update(f"{loaded.name} without heads: run {done} of {all_}"),
    )  # fmt: skip
    if files.any:
        about = {"model": lost.model, "heads": [list(one) for one in lost.heads], "replace": lost.replace}
        files.write(loss_rows(lost), (), f"{lost.model} without {len(lost.heads)} heads", **about, probe=lost.probe)
        return []
    return list(loss_lines(lost, width=TextConsole().width))
