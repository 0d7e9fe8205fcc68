"""Write docs/mechanisms, a page for each mechanism, docs/nn.md and the table of docs/models.md (`make docs`)."""

import contextlib
import inspect
import io
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docstrings
import models_table
import nn_page
import torch
from catalogue import CATALOGUE, FAMILIES, Argument, Entry
from torch import Tensor

import regard
from regard import masks, normalizers, positions, scores
from regard.backends.selection import named
from regard.problem import Problem
from regard.tensors import human_bytes

__all__ = ["pages"]

HERE = Path(__file__).resolve().parent / "mechanisms"
SHORT, LONG = 256, 4096  # tokens: whether a backend runs it at all, and what it costs
NOTE = "<!-- Written by docs/generate.py: change the docstring or docs/catalogue.py, then run `make docs`. -->"
MODULES = {"scores": scores, "masks": masks, "positions": positions, "normalizers": normalizers}
GIVEN: dict[str, Any] = {"torch": torch, "regard": regard, **MODULES}
GIVEN |= {"x": torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])[None, None], "at": torch.arange(3)}
NUMBERS = docstrings.arxiv_numbers(
    entry.paper if isinstance(entry, Argument) else getattr(MODULES[family], entry.name).__doc__
    for family, entries in CATALOGUE.items()
    for entry in entries
)


@dataclass(frozen=True)
class Page:
    """What a page says, before it is laid out."""

    family: str
    entry: Entry
    role: str
    formula: str
    paper: str
    cost: str
    words: str
    backends: tuple[tuple[str, str, str], ...]  # name, whether it runs, memory
    work: str

    @property
    def path(self) -> str:
        """Its file, from docs/mechanisms on."""
        return f"{self.family}/{self.entry.name.lower()}.md"

    @property
    def runs(self) -> str:
        """The backends that run it."""
        return ", ".join(name for name, answer, _ in self.backends if answer == "yes")


def pages() -> dict[str, str]:
    """Give every file of docs/mechanisms: its path and its text."""
    made = [_page(family, entry) for family, entries in CATALOGUE.items() for entry in entries]
    texts = {page.path: _text(page) for page in made}
    return texts | {"README.md": _index(made), "README.zh.md": _index(made, chinese=True)}


def _page(family: str, entry: Entry) -> Page:
    if isinstance(entry, Argument):
        role, formula, paper, cost = (
            entry.role,
            entry.formula,
            docstrings.papers(entry.paper, NUMBERS),
            docstrings.capital(entry.cost),
        )
        words = _argument_words(entry)
    else:
        one = getattr(MODULES[family], entry.name)
        doc = inspect.cleandoc(one.__doc__)
        formula, rest = docstrings.formula(doc)
        alone = sum(getattr(MODULES[family], other.name).__module__ == one.__module__ for other in CATALOGUE[family])
        described = inspect.getdoc(sys.modules[one.__module__]) or ""
        file = one.__module__.split(".")[-1]
        own = (alone == 1 and file != "base") or entry.name.lower() == file.replace("_", "")
        role = docstrings.own_role(described, entry.name) or docstrings.role(described if own else rest)
        words = docstrings.words(rest, doc, role)
        paper, cost = docstrings.papers(doc, NUMBERS), docstrings.capital(docstrings.section(doc, "Cost"))
    for name, said in (("formula", formula), ("cost", cost), ("role", role)):
        if not said:
            raise ValueError(f"the docstring of {entry.name} has no {name}")
    return Page(family, entry, role, formula, paper, cost, words, *_asked(entry))


def _argument_words(entry: Argument) -> str:
    """What `attention` says of its arguments, and what the docstring behind them says."""
    of_attention = docstrings.arguments(inspect.getdoc(regard.attention) or "")[0].splitlines()
    said = ["\n".join(line for line in of_attention if line.startswith(tuple(f"- `{one}`" for one in entry.arguments)))]
    if entry.source:
        *path, last = entry.source.split(".")
        source: Any = sys.modules.get(entry.source) or getattr(eval(".".join(path), dict(GIVEN)), last)
        doc = inspect.cleandoc(source.__doc__)
        rest = docstrings.formula(doc)[1] if inspect.isclass(source) else doc.split("\n\n")[0]
        said += [f"From the docstring of `{entry.source}`:", docstrings.words(rest, doc)]
    return "\n\n".join(one for one in said if one)


def _problem(entry: Entry, n: int) -> Problem:
    """The call of an entry at n tokens; the tensors are views of one number."""
    number = torch.zeros(1, 1, 1, 1)
    q, k = number.expand(1, 8, entry.queries or n, 64), number.expand(1, entry.kv_heads, n, 64)
    return Problem.of(q, k, k, **eval(f"dict({entry.call})", {**GIVEN, "n": n}))


def _asked(entry: Entry) -> tuple[tuple[tuple[str, str, str], ...], str]:
    """What each backend answers, and how much work there is."""
    short, long = _problem(entry, SHORT), _problem(entry, LONG)
    answers = []
    for backend in (named()[name] for name in ("sdpa", "strips", "reference")):
        reason = backend.refuses(short)
        at_length = backend.refuses(long)
        memory = f"refuses: {at_length}" if at_length else human_bytes(backend.bytes(long))
        answers.append((backend.name, "yes" if reason is None else f"no: {reason}", "–" if reason else memory))
    work = ""
    if long.mask and (share := long.mask.share_visible()) < 1:
        work = f" Of the blocks of 128 × 128 pairs {share:.0%} hold one that is seen; the others can be skipped."
    return tuple(answers), work


def _picture(entry: Entry) -> str:
    drawn: Any = eval(entry.picture, {**GIVEN, "seeded": torch.Generator().manual_seed(3)})
    n = entry.size
    if isinstance(drawn, masks.Mask):
        drawn = drawn.bind(n, n).dense()[0, 0]
    if isinstance(drawn, positions.Bias):
        at = torch.arange(n)
        drawn = drawn.resolve(n, n, 0).tile(slice(0, 1), slice(0, 1), at, at)[0, 0]
    return _matrix(drawn.detach())


def _matrix(drawn: Tensor) -> str:
    """Cells, or numbers with as many digits as they need."""
    if drawn.dtype == torch.bool:
        cells = [["█" if seen else "·" for seen in row] for row in drawn.tolist()]
    else:
        digits = next((n for n in (0, 1, 2, 3) if torch.allclose(drawn, drawn.round(decimals=n), atol=1e-6)), 4)
        rounded = (drawn.double().round(decimals=digits) + 0.0).tolist()  # + 0.0: there is no −0
        cells = [[f"{value:.{digits}f}" for value in row] for row in rounded]
    width = max(len(cell) for row in cells for cell in row)
    between = " " if width == 1 else "  "
    return "\n".join(between.join(cell.rjust(width) for cell in row) for row in cells)


def _printed(example: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(example, "example", "exec"), {"__name__": "example"})
    return out.getvalue().rstrip()


def _text(page: Page) -> str:
    entry = page.entry
    title = f"{page.family}.{entry.name}" if page.family in MODULES else f"{entry.name.replace('_', ' ')}".capitalize()
    drawn, made_of = _picture(entry), re.sub(r"\.tile\(.*|^\(lambda.*|^torch.stack.*", "", entry.picture)
    seen = (
        "Rows are queries, columns keys; █ is seen, · is hidden." if "█" in drawn else "Rows are queries, columns keys."
    )
    asked = f"attention(q, k, v{', ' if entry.call else ''}{entry.call})"
    shape = f"q (1, 8, {entry.queries or 'n'}, 64), k and v (1, {entry.kv_heads}, n, 64), float32 on a CPU"
    parts = [
        f"# {title}",
        NOTE,
        page.role,
        f"```text\n{page.formula}\n```",
        f"Paper: {page.paper}" if page.paper else "",
        "## Picture",
        f"`{made_of}`" if made_of and page.family not in ("normalizers", "arguments") and len(made_of) < 100 else "",
        f"```text\n{drawn}\n```",
        entry.caption or seen,
        "## Example",
        f"```python\n{entry.example}\n```",
        f"prints\n\n```text\n{_printed(entry.example)}\n```",
        "## In words" if page.words else "",
        page.words,
        "## Cost",
        page.cost,
        "## Backends",
        f"Asked of each backend: does it run this call (n = {SHORT}), and what memory does it need besides the output "
        f"at n = {LONG:,}?{page.work}",
        f"```text\n{asked}\n{shape}\n```",
        f"| backend | runs it | memory at n = {LONG:,} |\n|---|---|---|\n"
        + "\n".join(f"| {name} | {answer} | {memory} |" for name, answer, memory in page.backends),
        "[All mechanisms](../README.md)",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _index(made: list[Page], *, chinese: bool = False) -> str:
    if chinese:
        head = "| 名称 | 机制 | 公式 | 论文 | 后端 |"
        parts = [
            "# 注意力机制一览",
            NOTE,
            "每个机制一页：公式、矩阵图、论文、时间与内存开销、能运行它的后端，以及一个可以直接运行的小例子。各页内容由文档"
            "字符串生成，为英文。",
            "[English](README.md)",
        ]
    else:
        head = "| mechanism | what it does | formula | paper | backends |"
        parts = [
            "# Mechanisms",
            NOTE,
            "Each has a page with its formula, a picture of its matrix, the paper, its cost in time and memory, the "
            "backends that run it, and an example. All of them are arguments of one function:",
            "```text\nweights = weight_factor · normalize(cap(scale · score(q, k)) + bias where mask)\n"
            "output = dropout(weights) · v\n```",
            "[中文](README.zh.md)",
        ]
    for family, titles in FAMILIES.items():
        rows = [
            f"| [{page.entry.name}]({page.path}) | {page.entry.zh if chinese else page.role.rstrip('.')} | "
            f"`{page.formula.replace('|', chr(92) + '|')}` | {page.paper or '–'} | {page.runs} |"
            for page in made
            if page.family == family
        ]
        parts += [f"## {titles[chinese]}", "\n".join([head, "|---|---|---|---|---|", *rows])]
    return "\n\n".join(parts) + "\n"


def _write() -> None:
    made = pages()
    shutil.rmtree(HERE, ignore_errors=True)
    for path, text in made.items():
        (HERE / path).parent.mkdir(parents=True, exist_ok=True)
        (HERE / path).write_text(text, encoding="utf-8")
    nn_page.PAGE.write_text(nn_page.page(), encoding="utf-8")
    models_table.PAGE.write_text(models_table.page(), encoding="utf-8")


if __name__ == "__main__":
    _write()
