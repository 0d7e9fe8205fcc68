"""Write the notebooks of examples/ and their pages in docs/notebooks, two languages of one source (`make notebooks`).

A source is Python in cells: `# %% [en]` and `# %% [zh]` open a text of one language, `# %%` code of both, `# %% en` and
`# %% zh` code of one. A name that stands in `QUICK` may be set to less where a test runs the notebook.

Usage: python docs/notebooks.py [NAME …]
"""

import base64
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

__all__ = ["LANGUAGES", "NAMES", "QUICK", "build", "execute", "notebook", "page"]

ROOT = Path(__file__).resolve().parent.parent
SOURCES, NOTEBOOKS = ROOT / "docs/notebooks", ROOT / "examples"
NAMES = ("from_query_key_value_to_a_transformer", "what_does_this_model_look_at")
LANGUAGES = {"en": "", "zh": ".zh"}
QUICK: Mapping[str, int] = {"EPOCHS": 1}
SECONDS = 900  # of one cell
_KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
_ENVIRONMENT = {
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",  # Jupyter's own, whatever the shell has
    "PYTHONWARNINGS": "ignore:IProgress not found",  # progress bars without ipywidgets
}
_CELL = re.compile(r"^# %%(?: \[(en|zh)\]| (en|zh))?$", re.MULTILINE)
_CHINESE = "\u2014\u201c\u201d\u3000-\u303f\u4e00-\u9fff\uff00-\uffef"
_SPLIT_CHINESE = re.compile(f"(?<=[{_CHINESE}])\n(?=[{_CHINESE}])")


@dataclass(frozen=True)
class Cell:
    """A text or a piece of code."""

    kind: str
    text: str


def notebook(name: str, language: str) -> Any:
    """The notebook of a source in one language, before it is run."""
    made = nbformat.v4.new_notebook(metadata={"kernelspec": _KERNEL, "language_info": {"name": "python"}})
    for number, cell in enumerate(_cells((SOURCES / f"{name}.py").read_text("utf-8"), language)):
        new = nbformat.v4.new_markdown_cell if cell.kind == "markdown" else nbformat.v4.new_code_cell
        made.cells.append(new(cell.text, id=f"cell-{number}"))
    return made


def execute(made: Any, folder: Path, quick: bool = False) -> Any:
    """Run a notebook in a kernel of Jupyter's, in `folder`; whatever it says on stderr is an error."""
    for cell in made.cells:
        for constant, less in QUICK.items() if quick and cell.cell_type == "code" else ():
            cell.source = re.sub(rf"^{constant} = \d+", f"{constant} = {less}", cell.source, flags=re.MULTILINE)
    where = {"metadata": {"path": str(folder)}}
    client = NotebookClient(
        made, kernel_name="python3", timeout=SECONDS, record_timing=False, coalesce_streams=True, resources=where
    )
    client.execute(env=os.environ | _ENVIRONMENT)
    for cell in made.cells:
        for output in cell.get("outputs", ()):
            if output.get("name") == "stderr":
                raise RuntimeError(f"cell {cell.id} wrote to stderr:\n{output.text}")
    made.metadata = nbformat.from_dict({"kernelspec": _KERNEL, "language_info": {"name": "python"}})
    return made


def page(made: Any, name: str, language: str) -> tuple[str, dict[str, bytes]]:
    """A notebook that was run as a page of Markdown, and its pictures by their names."""
    other = next(one for one in LANGUAGES if one != language)
    texts = {"en": "Run it yourself", "zh": "自己运行"}
    lines = [
        "<!-- Written by docs/notebooks.py: change the source beside this page, then run `make notebooks`. -->\n",
        f"[{'中文' if other == 'zh' else 'English'}]({name}{LANGUAGES[other]}.md) · "
        f"[{texts[language]}](../../examples/{name}{LANGUAGES[language]}.ipynb)\n",
    ]
    pictures: dict[str, bytes] = {}
    for cell in made.cells:
        lines.append(cell.source + "\n" if cell.cell_type == "markdown" else f"```python\n{cell.source}\n```\n")
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "image/png" in data:
                picture = f"{name}{LANGUAGES[language]}-{len(pictures) + 1}.png"
                pictures[picture] = base64.b64decode(data["image/png"])
                lines.append(f"![{_heading(made, cell)}](images/{picture})\n")
            elif said := output.get("text") or data.get("text/plain"):
                lines.append(f"```text\n{said.rstrip()}\n```\n")
    return "\n".join(lines), pictures


def build(name: str, language: str) -> None:
    """Run a notebook, and write it and its page."""
    file = NOTEBOOKS / f"{name}{LANGUAGES[language]}.ipynb"
    made = execute(notebook(name, language), NOTEBOOKS)
    text, pictures = page(made, name, language)
    (SOURCES / "images").mkdir(exist_ok=True)
    for old in (SOURCES / "images").glob(f"{name}{LANGUAGES[language]}-*.png"):
        old.unlink()
    for picture, data in pictures.items():
        (SOURCES / "images" / picture).write_bytes(data)
    (SOURCES / f"{name}{LANGUAGES[language]}.md").write_text(text, "utf-8")
    nbformat.write(made, file)


def _cells(source: str, language: str) -> Iterator[Cell]:
    """The cells of one language; the docstring before the first cell is about the source, not of the notebook."""
    _, *parts = _CELL.split(source)
    for text_of, code_of, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        if text_of == language:
            lines = [line.removeprefix("#").removeprefix(" ") for line in body.strip().splitlines()]
            yield Cell("markdown", _SPLIT_CHINESE.sub("", "\n".join(lines)))
        elif not text_of and code_of in (None, language):
            yield Cell("code", body.strip())


def _heading(made: Any, cell: Any) -> str:
    """The last heading before a cell, which names its picture."""
    before = [one.source for one in made.cells[: made.cells.index(cell)] if one.cell_type == "markdown"]
    headings = re.findall(r"^#+ (.+)$", "\n".join(before), re.MULTILINE)
    return str(headings[-1])


if __name__ == "__main__":
    for chosen in sys.argv[1:] or NAMES:
        for one in LANGUAGES:
            build(chosen, one)
