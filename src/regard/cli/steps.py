"""`regard steps`: how one output of attention comes about, with the numbers; and `steps_command`, for one of a look."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from regard.cli.arguments import check_output, model_option, read_text
from regard.cli.console import TextConsole
from regard.errors import InputError

if TYPE_CHECKING:  # what needs NumPy is imported where it is used
    from regard.cli.matrix_files import Inputs, Projections
    from regard.lessons.lesson import Lesson
    from regard.lessons.own_numbers import OwnNumbers
    from regard.lessons.text import Steps
    from regard.record.highlight import Focus
    from regard.record.records import Record

__all__ = ["quote", "steps", "steps_command"]

LARGEST = 2048  # rows of `--x`: every pair of them is worked out


def steps(
    text: Annotated[
        str | None, typer.Argument(help="A text, a text file, or - for standard input, for a head of a real model.")
    ] = None,
    *,
    x: Annotated[
        Path | None,
        typer.Option(
            "--x",
            help='Your own X, a row a token: .json, .csv or .npy; or JSON with "query", "key", "value" where queries '
            'are not the keys, and "tokens", "query_tokens" as names.',
        ),
    ] = None,
    w: Annotated[
        Path | None,
        typer.Option(
            "--w",
            help='One matrix for W_Q, W_K and W_V, or JSON with "query", "key", "value" (of several heads a list each) '
            'and "output" for W_O; without it, those three of `--x` are Q, K and V.',
        ),
    ] = None,
    tokens: Annotated[
        str | None, typer.Option(help="Names of the rows of X (of the keys), with spaces between them.")
    ] = None,
    model: Annotated[
        str | None, model_option("A model to take a head from; by default the text chooses, as in `regard look`.")
    ] = None,
    layer: Annotated[int | None, typer.Option(help="Its layer, counted from 0.")] = None,
    head: Annotated[int | None, typer.Option(help="The layer's head, or that of `--w`, counted from 0.")] = None,
    token: Annotated[
        str | None,
        typer.Option(help="The token worked out in scalars: a word, such as it or it#2, or a number from 1."),
    ] = None,
    translator: Annotated[
        str | None,
        typer.Option(
            metavar="RUN", help="With --out: show how a run of `regard train` translates TEXT, token by token."
        ),
    ] = None,
    lang: Annotated[Literal["en", "zh"], typer.Option(help="Language of the text, and of the page.")] = "en",
    out: Annotated[
        Path | None,
        typer.Option(help="Save a lesson, page.html: the same numbers, each of which can be changed in a browser."),
    ] = None,
) -> None:
    """Show how one output of attention comes about, with the numbers, first in scalars, then in matrices.

    Without arguments: three tokens, 我 爱 你, with numbers small enough to check by hand.
    With --out page.html: a page on which every number can be touched.
    """
    out = None if out is None else out.expanduser()
    check_output("--out", out, ".html")
    own = x is not None or w is not None or tokens is not None
    if translator is not None:
        others = {"--x": x, "--w": w, "--tokens": tokens, "--model": model, "--layer": layer}
        others |= {"--head": head, "--token": token}
        _translation(text, translator, others, lang, out)
        return
    if own and any(option is not None for option in (text, model, layer)):
        raise InputError("`--x`, `--w`, `--tokens` are for your own numbers: leave out TEXT, `--model`, `--layer`")
    if own or not any(option is not None for option in (text, model, layer, head)):
        _numbers(_own(x, w, tokens) if own else None, head or 0, token, lang, out)
        return
    if text is None or not text.strip():
        raise InputError(
            f'a head needs a TEXT to read, got none: regard steps --model {model or "minilm"} "The cat sat."'
        )
    read = read_text(text)
    if model is None:
        from regard.interpret.model_loading import name_for

        model = name_for(read)
    if out is None:
        TextConsole().print(_head(read, model, (layer, head, token), lang))
        return
    from regard.interpret.lesson import lesson

    _save(lesson(read, model=model, layer=layer, head=head, token=token, lang=lang), out, lang)


def _translation(
    text: str | None, translator: str, others: Mapping[str, Any], lang: Literal["en", "zh"], out: Path | None
) -> None:
    """Save the lesson of a translation as it is written."""
    for option, value in others.items():
        if value is not None:
            raise InputError(
                f"`--translator` shows a translation, and `{option}` belongs to other lessons: leave it out"
            )
    if text is None or not text.strip():
        raise InputError(
            f'`--translator` needs a TEXT: regard steps --translator {translator} --out page.html "I sleep."'
        )
    if out is None:
        raise InputError("`--translator` needs a page to show it on: give --out page.html")
    read = read_text(text)
    from regard.interpret.lesson import lesson

    _save(lesson(read, translator=translator, lang=lang), out, lang)


def _numbers(
    numbers: "OwnNumbers | None", head: int, token: str | None, lang: Literal["en", "zh"], out: Path | None
) -> None:
    """Print numbers of the reader's own, or the example, or save the lesson of them."""
    from regard.lessons.example import EXAMPLE
    from regard.lessons.lesson import lesson_of_heads, steps_of_heads
    from regard.record.places import find_place
    from regard.record.tokens import Token

    heads = (numbers or EXAMPLE).work()
    if not 0 <= head < len(heads.heads):
        raise InputError(f"`--head` must be from 0 to {len(heads.heads) - 1} for these matrices, got {head}")
    names = [Token(name) for name in heads.heads[0].query_tokens]
    row = 0 if token is None else find_place(names, token).first
    if out is None:
        TextConsole().print(steps_of_heads(heads, language=lang, row=row, head=head))
    else:
        _save(lesson_of_heads(heads, language=lang, row=row, head=head), out, lang)


def _save(lesson: "Lesson", out: Path, lang: Literal["en", "zh"]) -> None:
    """Save the page, and say what to do with it."""
    lesson.to_html(out)
    way = {
        "en": "open it in a browser, and touch a number: it shows what made it, and what follows from it",
        "zh": "用浏览器打开它，动一动上面的数：它由什么得来，改了会怎样，都看得到",
    }
    TextConsole(stderr=True).print(f"{lesson.name} → {out}\n{way[lang]}", soft_wrap=True)


def _own(x: Path | None, w: Path | None, tokens: str | None) -> "OwnNumbers":
    """The reader's own numbers."""
    from regard.cli.matrix_files import read_inputs, read_projections
    from regard.lessons.own_numbers import OwnNumbers

    if x is None and w is None:
        raise InputError(
            "`--tokens` names the rows of your own numbers: give `--x FILE` and `--w FILE` with it; the words of the "
            "example are renamed on its page (--out page.html)"
        )
    inputs = None if x is None else read_inputs(x)
    if inputs is None or (w is None and inputs.key is None):
        alone = "--x" if x is not None else "--w"
        raise InputError(
            f"your own numbers need both `--x FILE` and `--w FILE`, got `{alone}` alone; a JSON file of "
            '"query", "key" and "value" needs `--x` alone'
        )
    names = _check_rows(inputs, x, tokens)
    if w is None and inputs.key is not None and inputs.key.shape[1] != inputs.query.shape[1]:
        raise InputError(
            '"query" and "key" of `--x` must have as many columns as each other for q·k, got shapes '
            f"{inputs.query.shape} and {inputs.key.shape}: or give `--w`, whose products have"
        )
    queries = None
    if inputs.key is not None:
        queries = inputs.query_tokens or [f"query {row + 1}" for row in range(len(inputs.query))]
    projections = None if w is None else _check_heights(read_projections(w), inputs)
    return OwnNumbers(
        inputs.query,
        None if projections is None else (projections.query, projections.key, projections.value),
        None if projections is None else projections.output,
        inputs.key,
        inputs.value,
        None if names is None else tuple(names),
        None if queries is None else tuple(queries),
    )


def _check_rows(inputs: "Inputs", x: Path | None, tokens: str | None) -> list[str] | None:
    """The names of the keys, after a look at how many rows there are."""
    keys = inputs.query if inputs.key is None else inputs.key
    largest = max(len(keys), len(inputs.query))
    if largest > LARGEST:
        raise InputError(f"`--x` must have at most {LARGEST} rows, got {largest} in {x}: take fewer tokens")
    names = inputs.tokens if tokens is None else tokens.split()
    if names is not None and len(names) != len(keys):
        raise InputError(f"`--tokens` must name the {len(keys)} rows of `--x`, got {len(names)} names: {tokens}")
    return names


def _check_heights(projections: "Projections", inputs: "Inputs") -> "Projections":
    """The projections, when they fit what they multiply, and each other."""
    pairs = {
        "query": (inputs.query, projections.query),
        "key": (inputs.query if inputs.key is None else inputs.key, projections.key),
        "value": (inputs.query if inputs.value is None else inputs.value, projections.value),
    }
    for name, (rows, projection) in pairs.items():
        if projection.shape[1] != rows.shape[1]:
            of_x = "`--x`" if inputs.key is None else f'"{name}" of `--x`'
            raise InputError(
                f'"{name}" of `--w` must have as many rows as {of_x} has columns ({rows.shape[1]}), got {of_x} of '
                f"shape {rows.shape} and a matrix of shape {projection.shape[1:]}; one matrix in `--w` is all three"
            )
    query, key, value = (projection.shape for _, projection in pairs.values())
    if query[2] != key[2]:
        raise InputError(
            f'"query" and "key" of `--w` must have as many columns as each other for q·k, got {query[1:]} and {key[1:]}'
        )
    if projections.output is not None and len(projections.output) != (joined := value[0] * value[2]):
        raise InputError(
            f'"output" of `--w` must have a row for each number of the outputs side by side ({value[0]} × {value[2]} = '
            f"{joined}), got {projections.output.shape}"
        )
    return projections


def _head(
    text: str, model: str, chosen: tuple[int | None, int | None, str | None], lang: Literal["en", "zh"]
) -> "Steps":
    """A head of a real model at work on `text`: layer, head and token as requested, or as regard chooses them."""
    from regard.interpret import head_vectors as capture  # here: it loads torch, which the example does without
    from regard.lessons.text import Steps, pieces_note

    layer, head, token = capture.choose(model, text, layer=chosen[0], head=chosen[1], token=chosen[2])
    found = capture.head_steps(capture.capture_head(model, text, layer, head), token)
    note = pieces_note(found.token.text, len(found.token.positions), lang)
    return Steps(found.worked, found.row, lang, model=model, layer=layer, head=head, note=note)


def steps_command(record: "Record", focus: "Focus", model: str, text: str) -> tuple[str, ...]:
    """The options and the text of `regard steps` for the first look as a lesson, or nothing where steps cannot show it.

    It cannot for an encoder–decoder, whose target `regard steps` does not take. `text` is what `regard look` was given.
    """
    token = _token_option(record, focus)
    if token is None:
        return ()
    first = focus.looks[0]
    options = ["--model", model, "--layer", str(first.layer), "--head", str(first.head), "--token", token]
    words = " ".join(["regard", "steps", *map(quote, options)])
    dashes = "-- " if text.startswith("-") and text != "-" else ""  # else the text is taken for an option
    return words, "--out lesson.html", dashes + quote(text)


def _token_option(record: "Record", focus: "Focus") -> str | None:
    """The word where that says which token is meant, else the number of its first piece."""
    from regard.record.places import find_place

    if len(record.tokens) != 1:
        return None
    (stream,) = record.tokens.values()
    tokens, word = stream[focus.batch_index], focus.queries[focus.word]
    alone = sum(other.text.casefold() == word.text.casefold() for other in focus.queries) == 1
    number = str(word.pieces[0] + 1)
    for name in (word.text, number) if alone and len(word.pieces) == 1 else (number,):
        try:
            if not name.startswith("-") and find_place(tokens, name).positions == word.pieces[:1]:
                return name
        except InputError:
            continue
    return None


def quote(word: str) -> str:
    r"""A word as a shell takes it, so that people can read it and no terminal obeys it.

    >>> print(quote("didn't cross"), quote("a\tb's"), quote("cat"))
    "didn't cross" $'a\tb\'s' cat
    """
    from regard.render.labels import visible

    if word and visible(word) != word and word.strip(" "):
        return "$'" + "".join(map(_spell, word)) + "'"
    plain = not set(word) & set('"$`\\!\n')
    return f'"{word}"' if plain and ("'" in word or " " in word or not word.isascii()) else shlex.quote(word)


def _spell(character: str) -> str:
    r"""A character within $'…', where \x stands for a byte and \u for a character."""
    from regard.render.labels import visible

    if character in "\\'":
        return "\\" + character
    shown, code = visible(character), ord(character)
    if character == " " or shown == character:
        return character
    return f"\\u{code:04x}" if 128 <= code < 256 else shown
