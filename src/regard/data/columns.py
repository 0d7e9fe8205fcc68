"""Which columns of a table of texts are meant: by the names in its first row, or by what the columns hold.

Files with texts come with headers (GLUE's `sentence`, pandas' default), with numbers before each text (Tatoeba's
exports) and with the columns in another order. Columns are taken by place only where nothing speaks against that.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from regard.errors import InputError
from regard.languages import find_language, language_of_name

__all__ = ["Columns", "columns_of_keys", "find_columns"]

Row = Sequence[str]

_NAMES: dict[str, set[str]] = {
    "source": {"source", "src"},
    "target": {"target", "tgt", "trg"},
    "text": {"text", "sentence", "content", "review", "comment", "tweet", "message", "document", "utterance", "query"}
    | {"question", "premise", "hypothesis"},
    "label": {"label", "labels", "class", "category", "sentiment", "polarity", "intent", "topic", "emotion", "rating"},
    "": {"id", "idx", "index", "no", "nr", "guid", "uuid", "lang", "language", "split", "licence", "license", "date"}
    | {"attribution", "author", "user", "username", "url", "domain", "score", "stars", "title", "quality", "key"},
}
# Words beside a name: "source_text", "sentence1", "column 2", "Unnamed: 0".
_BESIDE = {"text", "sentence", "string", "segment", "column", "col", "line", "side", "lang", "language", "unnamed"}
# Words that say which one is meant, before a name: "gold_label", "clean_text".
_WHICH = {"gold", "clean", "cleaned", "raw", "original", "true", "class", "full", "short", "processed"}
# What stands for a number that is missing.
_MISSING = r"(?i:#?n/?a|<na>|nan|none|null|nil|missing|[-+−]?inf(inity)?|[-–—?.*]+)"
_NUMBER = r"[-+−]?(?:\d+(?:[.,]\d+)*|\.\d+)(?:[eE][-+]?\d+)?"


@dataclass(frozen=True)
class Columns:
    """The places of the columns in a row, whether the first row has their names, and what a person should know."""

    places: tuple[int, ...]
    is_header: bool = False
    note: str = ""


def find_columns(rows: Sequence[Row], names: Sequence[str], path: str, languages: Sequence[str] = ()) -> Columns:
    """Return the places of the columns that are called `names` in a table.

    Args:
        rows: The first rows, with all their fields.
        names: What the columns are called here: ("source", "target"), ("text",), ("text", "label").
        path: The file, for errors.
        languages: The codes of the languages of the columns, in their order; a header may have these.

    Raises:
        InputError: A header names several columns that could be meant, or the columns hold something else.
    """
    if not rows:
        return Columns(tuple(range(len(names))))
    if _are_numbers_of_columns(rows):  # pandas calls columns 0, 1 …, and its index by no name
        num_blank = int(not rows[0][0].strip())
        found = _by_content([row[num_blank:] for row in rows[1:]], names, path)
        return replace(found, places=tuple(place + num_blank for place in found.places), is_header=True)
    roles, note = _roles(rows[0], names, languages), ""
    if roles is None and _is_header_by_content(rows, names, languages):
        roles, note = _roles_by_content(rows, names, languages)
        if any(name not in roles for name in names) and "label" not in names:
            return replace(_by_content(rows[1:], names, path), is_header=True)
    if roles is not None:
        places = _places(roles, names)
        if places is None:
            shown = ", ".join(field for field in rows[0] if field.strip())
            raise InputError(
                f"the first line of {path} names the columns {shown}: call {_listed(names)} those that are meant"
            )
        return Columns(places, is_header=True, note=note)
    return _by_content(rows, names, path)


def columns_of_keys(keys: Sequence[str], names: Sequence[str], languages: Sequence[str] = ()) -> Mapping[str, str]:
    """Return the key of each column among the keys of an object; none where no other key than its name is meant.

    >>> dict(columns_of_keys(["id", "sentence", "label"], ["text", "label"]))
    {'text': 'sentence', 'label': 'label'}
    """
    if all(name in keys for name in names):
        return dict(zip(names, names, strict=True))
    roles = [_role(key, names, languages) or "" for key in keys]
    places = _places(roles, names)
    return {} if places is None else {name: keys[place] for name, place in zip(names, places, strict=True)}


def _are_numbers_of_columns(rows: Sequence[Row]) -> bool:
    """Whether the first row is 0, 1 …, above texts."""
    first = [field.strip() for field in rows[0]]
    named = first[not first[0] :]
    place = len(first) - len(named)
    return (
        len(rows) > 2
        and len(first) > 1
        and named == [str(number) for number in range(len(named))]
        and not any(len(row) > place and re.fullmatch(_NUMBER, row[place].strip()) for row in rows[1:])
    )


def _numeric(rows: Sequence[Row]) -> list[int]:
    """The places of the columns that hold nothing but numbers."""
    width = min(map(len, rows))
    return [place for place in range(width) if all(re.fullmatch(_NUMBER, row[place].strip()) for row in rows)]


def _is_header_by_content(rows: Sequence[Row], names: Sequence[str], languages: Sequence[str]) -> bool:
    """Whether the first row has words above columns that hold nothing but numbers below, a label's or an extra one."""
    fields = [field.strip() for field in rows[0]]
    if len(rows) < (3 if "label" in names else 4) or (len(fields) <= len(names) and "label" not in names):
        return False
    if len(set(fields)) < len(fields) or any(len(field) > 40 or re.search(r"[.!?。！？]", field) for field in fields):
        return False
    words = [fields[place] for place in _numeric(rows[1:]) if place < len(fields) and fields[place]]
    if not words or any(re.fullmatch(f"{_NUMBER}|{_MISSING}", word) for word in words):
        return False
    columns = list(zip(*rows[1:], strict=False))
    return not any(  # a label that other rows have, too: many, plural; 1, singular; 2, plural
        field in column and _do_repeat(column) and _role(field, names, languages) is None
        for field, column in zip(fields, columns, strict=False)
    )


def _roles_by_content(rows: Sequence[Row], names: Sequence[str], languages: Sequence[str]) -> tuple[list[str], str]:
    """What each field of a header means that has names of its own, and a note of those that its column tells."""
    found = [_role(field, names, languages) if field.strip() else "" for field in rows[0]]
    roles = [role or "" for role in found]
    if "label" not in names:
        return roles, ""
    numeric = _numeric(rows[1:])
    unnamed = [place for place, role in enumerate(found) if role is None]
    texts = [place for place in unnamed if place not in numeric]
    guessed = {}
    if "text" not in roles and len(texts) == 1:
        guessed[texts[0]] = "text"
    others = [place for place in unnamed if place not in guessed]
    if "label" not in roles and len(others) == 1 and others[0] in numeric:
        labels = [row[others[0]].strip() for row in rows[1:]]
        # Where no name says which one is the text, it is the one with more different values.
        if _do_repeat(labels) and all(
            len(set(labels)) < len({"".join(row[place : place + 1]) for row in rows[1:]}) for place in guessed
        ):
            guessed[others[0]] = "label"
    for place, role in guessed.items():
        roles[place] = role
    return roles, "; ".join(
        f"column {place + 1}, `{rows[0][place].strip()}`, is read as the {guessed[place]}" for place in sorted(guessed)
    )


def _do_repeat(values: Sequence[str]) -> bool:
    """Whether they are as few as labels are."""
    return len(set(values)) <= max(2, len(values) // 4)


def _roles(row: Row, names: Sequence[str], languages: Sequence[str]) -> list[str] | None:
    """What each field of a header means; None if the row is none: a field is no name, or two are the same."""
    fields = [field.strip() for field in row]
    named = [field.casefold() for field in fields if field]
    if not named or len(set(named)) < len(named) or len(named) < min(len(names), 2):
        return None
    roles = [_role(field, names, languages) if field else "" for field in fields]
    found = [role for role in roles if role is not None]
    is_pair = found.count("source") > 1 or found.count("target") > 1  # German and Deutsch: a word and its translation
    return found if len(found) == len(roles) and any(found) and not is_pair else None


def _role(field: str, names: Sequence[str], languages: Sequence[str]) -> str | None:
    """The column that a name in a header means: one of `names`, "*" for any of them, "" for none; None if no name."""
    folded = field.strip().casefold()
    if folded in {name.casefold() for name in names}:
        return next(name for name in names if name.casefold() == folded)
    if len(folded) > 40 or re.search(r"[.!?,;。！？，]", folded):
        return None
    if (language := _language(folded, languages)) is not None:
        return language
    words = re.findall(r"[^\W\d_]+|\d+", folded)
    if not words:
        return None
    for role, called in _NAMES.items():
        wanted = role if role in names else "*" if role == "text" and len(names) > 1 and "label" not in names else ""
        wanted = "label" if role == "target" and "label" in names else wanted
        if any(word in called for word in words) and all(
            word in called | _BESIDE | _WHICH or word.isdigit() for word in words
        ):
            return wanted
    if (
        len(words) > 1
        and (language := _language(" ".join(w for w in words if w not in _BESIDE), languages)) is not None
    ):
        return language
    return "*" if any(word in _BESIDE for word in words) and all(w in _BESIDE or w.isdigit() for w in words) else None


def _language(name: str, languages: Sequence[str]) -> str | None:
    """ "source" or "target" if it is the code or the name of that language, "*" for another language's name."""
    code = language_of_name(name)
    if code is None and re.fullmatch(r"[a-z]{2,3}([-_][a-z]{2,4})?", name):
        try:
            code = find_language(name).code
        except InputError:
            return None
        if not languages and name in _WORDS_TOO:
            return None
    if code is None:
        return None
    known = [find_language(one).code for one in languages]
    if code in known and known.count(code) == 1:
        return ("source", "target")[known.index(code)]
    return "*" if not languages or language_of_name(name) is not None else None


_WORDS_TOO = set(
    "am an as at be do go he hi ho id if in io is it la me mi my na no of oh ok om or pa so to ty us".split()
)


def _places(roles: Sequence[str], names: Sequence[str]) -> tuple[int, ...] | None:
    """The places of the columns by their roles; by their order if they have no roles of their own."""
    by_name = [[place for place, role in enumerate(roles) if role == name] for name in names]
    if all(len(places) == 1 for places in by_name):
        return tuple(places[0] for places in by_name)
    free = [place for place, role in enumerate(roles) if role == "*"]
    missing = [index for index, places in enumerate(by_name) if not places]
    if any(len(places) > 1 for places in by_name) or len(free) != len(missing):
        return None
    if any(names[index] == "label" for index in missing):  # a name for texts is none for a label
        return None
    chosen = [places[0] if places else -1 for places in by_name]
    for index, place in zip(missing, free, strict=True):
        chosen[index] = place
    return tuple(chosen)


def _by_content(rows: Sequence[Row], names: Sequence[str], path: str) -> Columns:
    width = sorted(len(row) for row in rows)[len(rows) // 2]
    plain = tuple(range(len(names)))
    table = [row for row in rows if len(row) >= max(width, len(names))]
    if not table or len(table) < 2:
        return Columns(plain)
    columns = [[row[place].strip() for row in table] for place in range(min(width, 8))]
    ids = [place for place, column in enumerate(columns) if _are_ids(column)]
    codes = [place for place, column in enumerate(columns) if _are_codes(column)]
    texts = [place for place in range(len(columns)) if place not in ids + codes]
    needed = len(names) - ("label" in names)  # columns of text
    way = f"name the columns that are meant in a first line, such as {'<TAB>'.join(names)}"
    if len(names) == 2 and "label" in names:
        return _label(columns, ids, path, way) or Columns(plain)
    if not any(place in ids + codes for place in plain[:needed]) or len(table) < 3:
        return Columns(plain)
    if needed == 2 and ids[:2] == [0, 2] and texts[:2] == [1, 3]:
        return Columns(
            (1, 3), note="columns 2 and 4 are read: 1 and 3 are numbers of the texts, as Tatoeba exports them"
        )
    if codes:
        raise InputError(
            f"column {codes[0] + 1} of {path} holds codes of languages, such as {columns[codes[0]][0]!r}: {way}"
            + (" (Tatoeba's sentences need its links, too: take its sentence pairs)" if ids and len(texts) == 1 else "")
        )
    before = len(columns) if not texts else texts[0]
    if len(texts) >= needed and texts[:needed] == list(range(before, before + needed)):
        first = [str(place + 1) for place in texts[:needed]]
        read = f"columns {' and '.join(first)} are" if needed > 1 else f"column {first[0]} is"
        held = "column 1 holds numbers" if before == 1 else f"columns 1 to {before} hold numbers"
        return Columns(tuple(texts[:needed]), note=f"{read} read: {held}, and no texts")
    if len(texts) < needed and (len(ids) == 1 and width == len(names)):
        return Columns(plain)  # numbers to words, say
    raise InputError(
        f"column {ids[0] + 1} of {path} holds numbers, such as {columns[ids[0]][0]!r}, and no texts: {way}"
        + (" (Tatoeba's links are of no use without its sentences)" if not texts else "")
    )


def _label(columns: Sequence[Sequence[str]], ids: Sequence[int], path: str, way: str) -> Columns | None:
    """Texts and labels: refused where the columns are rather the other way round, or further away."""
    num_rows = len(columns[0])
    if num_rows < 8:
        return None

    def is_label(place: int) -> bool:
        return _do_repeat(columns[place]) and _length(columns[place]) <= 20

    def is_text(place: int) -> bool:
        return len(set(columns[place])) >= 0.7 * num_rows and place not in ids

    if len(columns) > 2 and 0 in ids and is_text(1) and is_label(2):
        return Columns((1, 2), note="columns 2 and 3 are read: column 1 holds numbers of the texts")
    if is_text(0):
        return None
    text = next((place for place in range(1, len(columns)) if is_text(place) and not is_label(place)), None)
    if text is None or not (is_label(0) or 0 in ids) or _length(columns[text]) < 2 * _length(columns[0]):
        return None
    raise InputError(
        f"column 1 of {path} holds labels or numbers, such as {columns[0][0]!r}, and column {text + 1} texts: {way}, "
        "with any name for a column that is not"
    )


def _length(column: Sequence[str]) -> float:
    return sum(map(len, column)) / max(1, len(column))


def _are_ids(column: Sequence[str]) -> bool:
    """Whether they are numbers, names that end with numbers, or hashes."""
    ids = sum(
        bool(re.fullmatch(_NUMBER + r"|#\d+|[A-Za-z][A-Za-z_.]*[-_.:#/]\d+(?:[-_.:]\d+)*|[0-9a-f-]{16,36}", one))
        for one in column
    )
    return ids >= 0.95 * len(column)


def _are_codes(column: Sequence[str]) -> bool:
    """Whether they are codes of a few languages."""
    values = set(column)
    if len(values) > max(5, len(column) // 10) or not all(
        re.fullmatch(r"[a-z]{2,3}(_[A-Za-z]{2,4})?", one) for one in values
    ):
        return False
    for code in values:
        try:
            find_language(code)
        except InputError:
            return False
    return len(column) > 2


def _listed(names: Sequence[str]) -> str:
    return " and ".join(f"`{name}`" for name in names)
