"""The Python and the tables of a Markdown file, for the tests that run what the documentation says."""

import re
from pathlib import Path

__all__ = ["ROOT", "first_cells", "python_blocks"]

ROOT = Path(__file__).resolve().parent.parent


def python_blocks(name: str) -> list[str]:
    """The blocks fenced as python, on the lines they have in the file, so that a traceback points into it."""
    text = (ROOT / name).read_text(encoding="utf-8")
    found = re.finditer(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return ["\n" * (text.count("\n", 0, block.start()) + 1) + block[1] for block in found]


def first_cells(name: str) -> list[str]:
    """The first cell of every row of every table, without its header, as plain text."""
    text = (ROOT / name).read_text(encoding="utf-8")
    cells = []
    for table in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        cells += [row.split("|")[1].strip().replace("`", "") for row in table.splitlines()[2:]]
    return cells
