"""`regard sources`: which sentence of which file an answer came from, and what happens without it."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from regard.cli.arguments import check_output, model_option, read_text
from regard.cli.console import TextConsole
from regard.errors import InputError

__all__ = ["sources"]


def sources(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Text files, or - for standard input.")],
    *,
    question: Annotated[str, typer.Option(help="The question that the model answers from the files.")],
    answer: Annotated[str | None, typer.Option(help="The answer, if the model is not to write it.")] = None,
    model: Annotated[str, model_option("smollm2, or a Hugging Face folder or id.")] = "smollm2",
    parts: Annotated[
        Literal["auto", "sentence", "paragraph", "line", "document"],
        typer.Option(help="The parts that are scored; auto: lines of code and tables, else sentences."),
    ] = "auto",
    heads: Annotated[
        Path | None, typer.Option(help="A file of `regard heads --for sources`, or AT2's coefficients (.safetensors).")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", metavar="", help="Remove the first part, and show what the answer loses.")
    ] = False,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Largest number of tokens of the answer.")] = 64,
    top: Annotated[int, typer.Option(min=1, help="How many parts to show.")] = 10,
    out: Annotated[Path | None, typer.Option(help="Save a page, .html.")] = None,
    json: Annotated[Path | None, typer.Option(help="Save all numbers to a .json file.")] = None,
) -> None:
    """Show which sentence an answer came from: the model answers a question from your files.

    Each part of the files is scored by what a few heads read while the model
    predicts the answer, in the same pass. --verify removes the first part, and
    another one for comparison: a weight by itself is not an explanation.
    """
    check_output("--out", out, ".html")
    check_output("--json", json, ".json")
    documents = _documents(files)
    console = TextConsole(stderr=True)
    with console.status("loading the libraries") as status:
        from regard.heads import HeadSet
        from regard.interpret.model_loading import load_model
        from regard.interpret.sources import sources as find
        from regard.render.sources_text import source_lines

        chosen = None
        if heads is not None:
            chosen = HeadSet.load_at2(heads) if heads.suffix == ".safetensors" else HeadSet.load(heads)
        status.update(f"loading {model}")
        found = find(
            load_model(model),
            documents=documents,
            question=question,
            answer=answer,
            parts=parts,
            heads=chosen,
            max_new_tokens=max_new_tokens,
            verify=verify,
            progress=status.update,
        )
    if json is not None:
        found.save(json)
    if out is not None:
        from regard.render.sources_page import write_sources_page

        write_sources_page(found, out, question=question)
    if json is not None or out is not None:
        written = ", ".join(str(path) for path in (out, json) if path)
        console.print(f"where the answer came from → {written}", soft_wrap=True)
    screen = TextConsole()
    for line in source_lines(found, top=top, width=screen.width):
        screen.print(line)


def _documents(files: list[str]) -> dict[str, str]:
    if twice := sorted({one for one in files if files.count(one) > 1}):
        raise InputError(f"the file {twice[0]} is given twice: name it once")
    for file in files:
        if Path(file).is_dir():
            raise InputError(f"{file} is a folder: name the text files in it")
        if file != "-" and not Path(file).is_file():
            raise InputError(f"there is no file {file}: name text files, and put the question into `--question`")
    names = ["standard input" if file == "-" else Path(file).name for file in files]
    # Files of one name in several folders have their paths for names.
    return {file if names.count(name) > 1 else name: read_text(file) for file, name in zip(files, names, strict=True)}
