"""`regard score`: BLEU and chrF of translations, accuracy and F1 of labels."""

import json
import re
from collections import Counter
from itertools import accumulate
from typing import Annotated, Any

import typer

from regard.cli.line_stream import LineStream, refuse_table
from regard.errors import InputError

__all__ = ["score"]

_N_BEST = re.compile(r"\d+ \|\|\| .*\|\|\| ")


def score(
    hypotheses: Annotated[str, typer.Argument(help="A file with a translation or a label on each line, or -.")],
    references: Annotated[list[str], typer.Argument(help="One or several files with a reference on each line, or -.")],
    *,
    language: Annotated[
        str | None, typer.Option(help="Language of the translations, which chooses BLEU's tokenizer: de, zh, cmn …")
    ] = None,
    tokenize: Annotated[
        str | None, typer.Option(help="sacreBLEU's tokenizer for BLEU in place of --language: 13a, zh, char, intl …")
    ] = None,
    lowercase: Annotated[bool, typer.Option("--lowercase", metavar="", help="Ignore the case of letters.")] = False,
    chrf_word_order: Annotated[int, typer.Option(help="Longest n-gram of words in chrF; 2 for chrF++.")] = 0,
    labels: Annotated[
        bool, typer.Option("--labels", metavar="", help="The lines are labels: accuracy and F1.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", metavar="", help="Print JSON.")] = False,
) -> None:
    """Score translations by sacreBLEU (BLEU, chrF), or labels (accuracy, macro and micro F1)."""
    _check(hypotheses, references, language, tokenize, lowercase, chrf_word_order, labels)
    predicted, *expected = (_lines(name) for name in (hypotheses, *references))
    for name, lines in zip((hypotheses, *references), (predicted, *expected), strict=True):
        refuse_table(_name(name), lines)
    _check_n_best(hypotheses, predicted)
    _drop_empty_ends([predicted, *expected])
    for name, lines in zip(references, expected, strict=True):
        _check_lengths(hypotheses, predicted, name, lines, are_labels=labels)
    if not predicted:
        raise InputError(f"{_name(hypotheses)} has no line: there is nothing to score")
    rows: list[tuple[str, str, str]]
    if labels:
        from regard.metrics import classification_scores

        classes = classification_scores(predicted, expected[0])
        values: dict[str, Any] = vars(classes)
        rows = [(name, f"{value:.4f}", "") for name, value in values.items()]
    else:
        from regard.metrics import translation_scores

        found = translation_scores(
            predicted,
            list(zip(*expected, strict=True)),
            language,
            tokenize=tokenize,
            lowercase=lowercase,
            chrf_word_order=chrf_word_order,
        )
        values = vars(found)
        chrf = "chrF" + "+" * chrf_word_order
        rows = [("BLEU", f"{found.bleu:.1f}", found.bleu_signature), (chrf, f"{found.chrf:.1f}", found.chrf_signature)]
    if as_json:
        print(json.dumps({**values, "lines": len(predicted)}))
    else:
        width = max(len(name) for name, _, _ in rows)
        for name, value, signature in rows:
            print(f"{name:<{width}} {value:>6}  {signature}".rstrip())


def _lines(name: str) -> list[str]:
    """The lines of a file, without the white space at their ends, which sacreBLEU does not see either."""
    return [line.rstrip() for line in LineStream.open(name, is_file=True)]


def _name(name: str) -> str:
    return "standard input" if name == "-" else name


def _drop_empty_ends(files: list[list[str]]) -> None:
    """Drop the empty lines at the end of each file by which it is longer than the shortest."""
    shortest = min(map(len, files))
    for lines in files:
        while len(lines) > shortest and not lines[-1]:
            lines.pop()


def _check_lengths(name: str, predicted: list[str], reference: str, expected: list[str], *, are_labels: bool) -> None:
    """Refuse files of different lengths."""
    if len(predicted) == len(expected):
        return
    place = None if are_labels else _first_shifted(predicted, expected)
    where = "" if place is None else f"; from line {place + 1:,} on they seem to be shifted"
    raise InputError(
        f"{_name(name)} has {len(predicted):,} lines and {_name(reference)} has {len(expected):,}{where}: each line "
        "needs its reference"
    )


def _first_shifted(predicted: list[str], expected: list[str]) -> int | None:
    """Return the line from which on the texts fit better if the longer file had its surplus of lines there.

    Both sides are in one language, and so a translation has more characters in common with its own reference than with
    another; None where that does not show.
    """
    surplus = len(predicted) - len(expected)
    count = min(len(predicted), len(expected))
    skip_predicted, skip_expected = max(surplus, 0), max(-surplus, 0)
    together = [_likeness(predicted[row], expected[row]) for row in range(count)]
    shifted = [_likeness(predicted[row + skip_predicted], expected[row + skip_expected]) for row in range(count)]
    gains = [0.0, *accumulate(before - after for before, after in zip(together, shifted, strict=True))]
    place = max(range(count + 1), key=lambda row: gains[row])
    # What is gained by shifting the lines from there on; a tenth of a line's likeness may be chance.
    gained = gains[place] - gains[-1]
    return place if gained > 0.1 * max(count - place, 3) else None


def _likeness(one: str, other: str) -> float:
    """Share of characters that two texts have in common (Dice's coefficient, 0 to 1)."""
    common = sum((Counter(one) & Counter(other)).values())
    return 2 * common / max(len(one) + len(other), 1)


def _check_n_best(name: str, predicted: list[str]) -> None:
    """Refuse several translations of each line."""
    first = [line for line in predicted if line][:10]
    if first and all(_N_BEST.match(line) for line in first):
        raise InputError(
            f"{_name(name)} is a list of several translations of each line (line ||| translation ||| score): translate "
            "without --n-best"
        )


def _check(
    hypotheses: str,
    references: list[str],
    language: str | None,
    tokenize: str | None,
    lowercase: bool,
    chrf_word_order: int,
    labels: bool,
) -> None:
    """Refuse wrong options before anything is read."""
    if [hypotheses, *references].count("-") > 1:
        raise InputError("standard input (-) can be one of the files only")
    if labels:
        given: dict[str, Any] = {"--language": language, "--tokenize": tokenize, "--lowercase": lowercase or None}
        given["--chrf-word-order"] = chrf_word_order or None
        for option, value in given.items():
            if value is not None:
                raise InputError(f"`{option}` is for translations, and --labels for labels: leave one out")
        if len(references) > 1:
            raise InputError(f"labels have one file of references, got {len(references)}")
    elif (language is None) == (tokenize is None):
        raise InputError(
            "name the language of the translations, such as --language zh, or sacreBLEU's tokenizer with --tokenize "
            "(for labels of a classifier: --labels)"
            if language is None
            else "`--language` chooses BLEU's tokenizer, and so does `--tokenize`: leave one out"
        )
    if not 0 <= chrf_word_order <= 9:
        raise InputError(f"`--chrf-word-order` must be from 0 to 9, got {chrf_word_order}")
