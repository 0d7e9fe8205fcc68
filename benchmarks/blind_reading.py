"""Draw passages of regard's and of PyTorch's documentation for a blind comparison of their prose.

Ten paragraphs of 60 to 120 words are drawn from docs/*.md and public docstrings, and ten from docstrings of torch.nn,
torch.nn.functional, torch.optim and torch.utils.data. They are shuffled, names that reveal the origin are replaced, and
two files are written: the text for the readers, and a key with the origin of each passage. A passage that equals or
nearly equals one that was already drawn is left out. The passages of PyTorch are not part of this repository; they come
from the installed version.

    python benchmarks/blind_reading.py passages.txt key.json
"""

import argparse
import difflib
import importlib
import inspect
import json
import pkgutil
import random
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch.nn
import torch.nn.functional
import torch.optim
import torch.utils.data

import regard

DOCS = Path(__file__).resolve().parents[1] / "docs"
TORCH = (torch.nn, torch.nn.functional, torch.optim, torch.utils.data)
SHORTEST, LONGEST = 60, 120  # words of a passage
EACH = 10  # passages of each origin
ALIKE = 0.6  # similarity of the words of two passages from which on they count as the same
NEUTRAL = (  # applied to the passages of both origins
    (r":\w+:`~?([^`<]*?)(\s*<[^`]*>)?`", r"`\1`"),  # roles of Sphinx, which only PyTorch uses
    (r":math:", ""),
    (r"``", "`"),
    (r"\[([^\]]+)\]\([^)]*\)", r"\1"),  # links of Markdown, which only regard uses
    (r"`([^`<]+?)\s*<[^`>]*>`__?", r"\1"),  # links of Sphinx
    (r"\\ (?=s\b)", ""),
    (r"\*\*?([^*\n]+)\*\*?", r"\1"),
    (r"(?i)\b(pytorch|torch|regard)\b", "library"),
    (r"(?i)\b(library)(\.(nn|optim|utils|data|functional|masks|models|capture|render|positions|scores)\b)+", r"\1"),
)


def main() -> None:
    """Draw the passages and save the text and the key."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="file for the shuffled passages")
    parser.add_argument("key", type=Path, help="file for the origin of each passage")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    generator = random.Random(options.seed)
    drawn = [
        (origin, place, passage)
        for origin, passages in (("regard", own_passages()), ("torch", torch_passages()))
        for place, passage in draw(sorted(set(passages)), generator)
    ]
    generator.shuffle(drawn)
    text = "\n\n".join(f"[{number}]\n{neutral(passage)}" for number, (_, _, passage) in enumerate(drawn, 1))
    options.text.write_text(text + "\n", encoding="utf-8")
    key = {number: {"origin": origin, "place": place} for number, (origin, place, _) in enumerate(drawn, 1)}
    about = {"seed": options.seed, "torch": torch.__version__, "passages": key}
    options.key.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def draw(passages: list[tuple[str, str]], generator: random.Random) -> list[tuple[str, str]]:
    """Draw passages, none of which equals or nearly equals another."""
    drawn: list[tuple[str, str]] = []
    for place, passage in generator.sample(passages, len(passages)):
        if len(drawn) < EACH and all(similarity(passage, other) < ALIKE for _, other in drawn):
            drawn.append((place, passage))
    return drawn


def similarity(one: str, other: str) -> float:
    """Return the share of words that two passages have in common in the same order, from 0 to 1."""
    return difflib.SequenceMatcher(None, one.split(), other.split(), autojunk=False).ratio()


def own_passages() -> Iterator[tuple[str, str]]:
    """Yield place and text of the prose paragraphs of docs/*.md and of regard's public docstrings."""
    for path in sorted(DOCS.glob("*.md")):
        for passage in paragraphs(re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)):
            yield f"docs/{path.name}", passage
    names = [found.name for found in pkgutil.iter_modules(regard.__path__, "regard.") if "__main__" not in found.name]
    packages = [regard, *map(importlib.import_module, names)]
    yield from docstrings(packages, belongs=lambda module: module.split(".")[0] == "regard")


def torch_passages() -> Iterator[tuple[str, str]]:
    """Yield place and text of the prose paragraphs of PyTorch's public docstrings."""
    yield from docstrings(TORCH, belongs=lambda module: module.split(".")[0] == "torch")


def docstrings(modules: Iterable[ModuleType], belongs: Callable[[str], bool]) -> Iterator[tuple[str, str]]:
    """Yield place and text of the paragraphs in the docstrings of the modules' public names and their methods."""
    seen = set()
    for module in modules:
        for name in getattr(module, "__all__", [one for one in dir(module) if not one.startswith("_")]):
            thing = getattr(module, name, None)
            for place, one in [(f"{module.__name__}.{name}", thing), *methods(module, name, thing)]:
                document = inspect.getdoc(one) if callable(one) or inspect.isclass(one) else None
                if document and document not in seen and belongs(getattr(one, "__module__", None) or module.__name__):
                    seen.add(document)
                    for passage in paragraphs(document):
                        yield place, passage


def methods(module: ModuleType, name: str, thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield place and value of the public methods that a class defines itself."""
    if inspect.isclass(thing):
        for method, value in vars(thing).items():
            if not method.startswith("_") and inspect.isfunction(value):
                yield f"{module.__name__}.{name}.{method}", value


def paragraphs(document: str) -> Iterator[str]:
    """Yield the paragraphs that are plain prose of the right length: no tables, lists, headings, code or formulas."""
    for block in re.split(r"\n\s*\n", document):
        lines = block.splitlines()
        words = len(block.split())
        indented = any(line.startswith((" ", "\t")) for line in lines)
        marked = re.match(r"\s*([#|>*+\-!<]|\d+\.|\.\.|\w[\w ,*]*:\s*$|>>>|:\w+)", block)
        formula = ".. math" in block or "\\frac" in block or "$$" in block or "|---" in block
        if SHORTEST <= words <= LONGEST and not (indented or marked or formula) and block.rstrip().endswith((".", ":")):
            yield " ".join(block.split())


def neutral(passage: str) -> str:
    """Replace names and markup that reveal the origin, alike in all passages."""
    for pattern, replacement in NEUTRAL:
        passage = re.sub(pattern, replacement, passage)
    return passage


if __name__ == "__main__":
    main()
