"""Read a docstring of a mechanism: its role, formula, papers, sections and words."""

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping

__all__ = ["arguments", "arxiv_numbers", "capital", "formula", "papers", "role", "section", "words"]

# "Beltagy et al. 2020, 3.1, arXiv:2004.05150", "Gemma 2 (2024, arXiv:2408.00118)", "GPT-OSS 2025"
_PAPER = re.compile(
    r"(?P<who>(?!In )\w[\w-]*(?: (?:et al\.|& \w+|\d\w*))?),? \(?(?P<year>(?:19|20)\d\d)"
    r"(?P<where>(?:, (?:\d+(?:\.\d+)*(?:–[\d.]*\d)?|Fig\. \d+)(?: \([\w-]+\))?)?)"
    r"(?:, arXiv:(?P<arxiv>\d{4}\.\d{4,5}))?"
)
_ENDS = ("Args:", "Shapes:", "Raises:", "Returns:", "Cost:", "Formula:", ">>>")


def formula(doc: str) -> tuple[str, str]:
    """The formula, and what the first paragraph says besides it."""
    first = doc.split("\n\n")[0].replace("\n", " ")
    if given := section(doc, "Formula"):
        return given, first
    end = re.search(r" \((?=[^()]*\d{4})|: |; (?![^\[]*\])|, added|, to be| for each |\.$", first)
    assert end is not None, first
    rest = first[end.start() :]
    if rest.startswith(" ("):  # the paper, which has a line of its own
        rest = re.sub(r"^ \((?:[^()]|\([^()]*\))*\)", "", rest)
    return first[: end.start()].replace("`", ""), capital(rest.strip(" .,;:")) + "." if rest.strip(" .") else ""


def role(text: str) -> str:
    """The first sentence, without the name of the class and without the paper."""
    first = text.split("\n\n")[0].replace("\n", " ")
    first = re.sub(r"^\w+: ", "", first)
    return capital(_without_papers(first).strip())


def own_role(text: str, name: str) -> str:
    """What a module says of one of its names, in a paragraph "Name: what it is"; empty where it has none."""
    found = re.search(rf"^{name}: (.+?)(?:\n\n|\Z)", text, flags=re.MULTILINE | re.DOTALL)
    return role(found[0]) if found else ""


def section(doc: str, name: str) -> str:
    """The text of a section such as "Cost: ..."; empty where there is none."""
    found = re.search(rf"^{name}: (.+?)(?:\n\n|\Z)", doc, flags=re.MULTILINE | re.DOTALL)
    return " ".join(found[1].split()) if found else ""


def words(first: str, doc: str, said_already: str = "") -> str:
    """What the docstring says besides its role, as Markdown: paragraphs that are no section, then the arguments."""
    first = _without_papers(re.sub(rf"^{_PAPER.pattern}.*", "", first))
    said = [first] if len(first) > 20 and first != said_already else []
    for paragraph in doc.split("\n\n")[1:]:
        if paragraph.startswith(_ENDS):
            continue
        if paragraph.startswith("    "):
            said.append("```text\n" + textwrap.dedent(paragraph) + "\n```")
        elif not any(line.lstrip().startswith((">>>", "tensor(")) for line in paragraph.splitlines()):
            said.append(paragraph)
    return "\n\n".join([*said, *arguments(doc)])


def arguments(doc: str) -> list[str]:
    """The section "Args:" as one Markdown list; none where there is none."""
    found = re.search(r"^Args:\n((?: +.+\n?)+)", doc, flags=re.MULTILINE)
    if not found:
        return []
    entries = re.split(r"\n(?=\w[\w, ]*: )", textwrap.dedent(found[1]).strip())
    return ["\n".join("- " + re.sub(r"^[\w, ]+(?=:)", _quoted, " ".join(entry.split())) for entry in entries)]


def papers(text: str, numbers: Mapping[str, str]) -> str:
    """The papers named in a docstring, linked where their number is known."""
    found: dict[str, str] = {}
    for one in _named(text):
        name = f"{one['who']} {one['year']}"
        place = name + (one["where"] or "")
        found.setdefault(name, f"[{place}](https://arxiv.org/abs/{numbers[name]})" if name in numbers else place)
    return " · ".join(found.values())


def arxiv_numbers(texts: Iterable[str]) -> dict[str, str]:
    """The number of each paper: where one is named twice, once is enough."""
    return {f"{one['who']} {one['year']}": one["arxiv"] for text in texts for one in _named(text) if one["arxiv"]}


def _quoted(names: re.Match[str]) -> str:
    return ", ".join(f"`{name}`" for name in names[0].split(", "))


def _named(text: str) -> Iterator[re.Match[str]]:
    return _PAPER.finditer(" ".join(text.split(">>>")[0].split()))


def capital(text: str) -> str:
    """Begin a sentence; symbols stay as they are."""
    return text[:1].upper() + text[1:] if re.match(r"[a-z]{2}|a [a-z]", text) else text


def _without_papers(text: str) -> str:
    """The papers have a line of their own."""
    return re.sub(r" \((?=[^()]*\d{4})[^()]*\)", "", text)
