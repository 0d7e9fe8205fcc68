"""Running texts and questions about them, drawn by hash before any method is run on them.

    python benchmarks/running_texts.py FOLDER   # makes running_texts.txt again from the novels

`running_texts.txt` has passages of the six novels of Jane Austen (1811 to 1818, in the public domain), as the Debian
package r-cran-janeaustenr 1.0.0-1 has them (sha256 of the .deb df6bddf2...; the texts are Project Gutenberg's, without
its header). FOLDER has one file for each novel, emma.txt and so on, one line of the book per line.

A passage is a run of whole paragraphs of a chapter that reaches 20, 25 or 30 sentences (by the chapter's number) within
450 words; a chapter may have several, one after the other. A name of the passage is a word with a capital in the middle
of a sentence, with its title; it counts if its last word is in one sentence alone, of 6 to 40 words. The question is
"What does the text say about NAME?". Of several names, and of all passages with a name, those with the smallest sha256
of the seed and the text are taken.
"""

import hashlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from regard.record.text_parts import sentences

SEED = "regard sources, running texts, 2026-11-23"
TEXTS = Path(__file__).with_name("running_texts.txt")
NOVELS = {
    "emma": "Emma",
    "mansfieldpark": "Mansfield Park",
    "northangerabbey": "Northanger Abbey",
    "persuasion": "Persuasion",
    "prideprejudice": "Pride and Prejudice",
    "sensesensibility": "Sense and Sensibility",
}
_MOST_WORDS = 450
_CHAPTER = re.compile(r"\s*chapter\s+[\divxlc]+\s*", re.IGNORECASE)
_NAME = re.compile(
    r"(?<=[a-z] )((?:Mr|Mrs|Dr)\. |(?:Miss|Lady|Sir|Lord|Captain|Colonel|Admiral) )?[A-Z][a-z]{2,}(?: [A-Z][a-z]{2,})*"
)


@dataclass(frozen=True)
class RunningText:
    """A passage and a question about it; `source` is the number of the sentence that the question was made from."""

    title: str
    text: str
    question: str
    source: int


def draw_texts(count: int = 24, path: Path = TEXTS) -> list[RunningText]:
    """Draw passages: those with the smallest sha256, in its order."""
    asked = (question_of(title, text) for title, text in passages(path))
    return sorted((one for one in asked if one), key=lambda one: digest(one.title, one.text))[:count]


def digest(*texts: str) -> str:
    """The sha256 of texts, after the seed."""
    return hashlib.sha256("\n".join((SEED, *texts)).encode()).hexdigest()


def passages(path: Path = TEXTS) -> Iterator[tuple[str, str]]:
    """The title and the text of each passage of the file."""
    for block in path.read_text("utf-8").split("\n== ")[1:]:
        title, text = block.split("\n", 1)
        yield title, text.strip()


def question_of(title: str, text: str) -> RunningText | None:
    """The question about a passage, if it has a name that one sentence alone has."""
    said = [text[start:end] for start, end in sentences(text)]
    names = []
    for at, sentence in enumerate(said):
        for name in (match[0] for match in _NAME.finditer(sentence)):
            last = re.compile(rf"\b{name.split()[-1]}\b", re.IGNORECASE)
            if 6 <= len(sentence.split()) <= 40 and sum(bool(last.search(one)) for one in said) == 1:
                names.append((digest(title, name), name, at))
    if not names:
        return None
    _, name, source = min(names)
    return RunningText(title, text, f"What does the text say about {name}?", source)


def runs(chapter: list[str], wanted: int) -> Iterator[tuple[int, int]]:
    """The runs of paragraphs [start, end) that have so many sentences within the limit of words."""
    counts = [(len(sentences(one)), len(one.split())) for one in chapter]
    start = 0
    while start < len(chapter):
        said = words = 0
        end = start
        while end < len(chapter) and said < wanted and words <= _MOST_WORDS:
            said, words, end = said + counts[end][0], words + counts[end][1], end + 1
        if wanted <= said <= 60 and words <= _MOST_WORDS:
            yield start, end
            start = end
        else:
            start += 1


def chapters(book: str) -> Iterator[list[str]]:
    """The paragraphs of each chapter, one line each, without the marks of italics."""
    lines = [line for line in book.splitlines() if not re.fullmatch(r"\s*volume\s+\w+\s*", line, re.IGNORECASE)]
    starts = [at for at, line in enumerate(lines) if _CHAPTER.fullmatch(line)]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        text = "\n".join(lines[start + 1 : end]).replace("_", "")
        yield [" ".join(one.split()) for one in re.split(r"\n\s*\n", text) if one.strip()]


def main() -> None:
    """Make the file of passages from the novels."""
    if len(sys.argv) != 2:
        sys.exit("usage: running_texts.py FOLDER, which has " + ", ".join(f"{one}.txt" for one in NOVELS))
    found = "Passages of Jane Austen's novels, which are in the public domain; benchmarks/running_texts.py made this.\n"
    for file, title in NOVELS.items():
        book = (Path(sys.argv[1]) / f"{file}.txt").read_text("utf-8")
        for number, chapter in enumerate(chapters(book), 1):
            for start, end in runs(chapter, 20 + 5 * (number % 3)):
                paragraphs = "\n\n".join(chapter[start:end])
                found += f"\n== {title}, chapter {number}, paragraphs {start + 1} to {end}\n\n{paragraphs}\n"
    TEXTS.write_text(found, "utf-8")
    print(f"{len(list(passages()))} passages, {len(draw_texts(10**6))} with a question")


if __name__ == "__main__":
    main()
