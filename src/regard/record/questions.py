"""A question about a word, in English or Chinese, as a name of that word: "what does the second it look at?"."""

import re

from regard.errors import InputError

__all__ = ["asked_of"]

_ORDINALS = {
    name: number
    for number, names in enumerate(
        ("first 1st", "second 2nd", "third 3rd", "fourth 4th", "fifth 5th", "sixth 6th", "seventh 7th", "eighth 8th",
         "ninth 9th", "tenth 10th"), 1,
    ) for name in names.split()
} | {"last": -1}  # fmt: skip
_DIGITS = {digit: number for number, digit in enumerate("一二三四五六七八九十", 1)}
_QUOTES = "\"'“”‘’«»「」『』《》`"

_LOOKS = r"(?:attend|look|point|pay(?:s|ing)? attention|focus(?:es)?)(?:s|ing|ed)?"
_AT = r"(?: (?:mostly|most|mainly|the most))?(?: (?:at|to|on|towards?))?(?: (?:mostly|most|mainly|the most))?"
_ASKED = r"(?:to |at |on )?(?:(?:which|what) (?:words?|tokens?)|what|where|whom?)(?: else)?"
_ENGLISH = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"{_ASKED} (?:does|do|did|will|can|would) (?P<name>.+?) {_LOOKS}{_AT}",
        rf"{_ASKED} (?:is|are|was|were) (?P<name>.+?) {_LOOKS}{_AT}",
        rf"(?P<name>.+?) (?:{_LOOKS}|is {_LOOKS}){_AT} (?:what|where|which words?|whom?)",
        r"(?:what|where) (?:is|are|does) (?:the )?attention (?:of|from) (?P<name>.+?)(?: (?:go|on|to|at))?",
    )
)
_VERB = "(?:看向|看到|看|关注|關注|注意到|注意|注视|注視|指向|关心|關心|留意|聚焦)"
_WHAT = (
    "(?:什么词|什麼詞|什么|什麼|啥|哪里|哪裡|哪裏|哪儿|哪兒|哪个词|哪個詞|哪些词|哪些詞|哪一个词|哪个|哪個|哪些|何处|何處|"
    "谁|誰|何)"
)
_CHINESE = tuple(
    re.compile(pattern)
    for pattern in (
        rf"(?P<name>.+?)(?:的注意力)?(?:主要|最|都|会|會|正)*在?{_VERB}(?:了|着|著|在|的是|的)?{_WHAT}(?:上|词|詞)?",
        rf"(?P<name>.+?)的注意力(?:主要|最|都|集中|落|放|在|到|指向)*{_WHAT}(?:上)?",
        rf"{_WHAT}是(?P<name>.+?)(?:所)?{_VERB}的",
    )
)
_POLITE = re.compile("^(?:请问|請問|那么|那麼)[，, ]*|到底|究竟")
_NTH = re.compile(
    r"(?:第([一二三四五六七八九十]|\d{1,3})[个個只隻位名条條头頭匹]|(最后|最後)(?:一|的)?[个個]?|(首)[个個])(.+)"
)
_IS_ENGLISH = re.compile(r"(?:what|who|whom|whose|which|where|why|when|how) .+", re.IGNORECASE)
_IS_CHINESE = re.compile(f".+(?:{_WHAT}|怎么|怎麼|多少|吗$|嗎$).*|(?:{_WHAT}|怎么|怎麼|多少).+")
_REVERSED = re.compile(
    rf"(?:(?:which|what) (?:words?|tokens?)|what|who|where)(?: (?:is|are|does|do|did))? {_LOOKS}(?: (?:at|to|on))? .+"
    rf"|.+ (?:attended to|looked at)(?: by(?: .+)?)?|{_WHAT}(?:在|会|會|都)*{_VERB}.+|.+被{_WHAT}.*{_VERB}.*",
    re.IGNORECASE,
)


def asked_of(text: str, what: str = "token") -> tuple[str, int | None] | None:
    """Return the word that a question asks about and its occurrence, counted from 1 (−1 is the last), or None for a
    text that is no question.

    >>> asked_of("what does the second it look at?"), asked_of("第二个它看什么"), asked_of("它在看什么？")
    (('it', 2), ('它', 2), ('它', None))
    >>> asked_of("the second cat"), asked_of("the old cat")
    (('cat', 2), None)

    Raises:
        InputError: It asks who looks at a word, or something else.
    """
    question = _POLITE.sub("", " ".join(text.split())).rstrip("?？.。!！呢 ")
    if not question:
        return None
    if not _REVERSED.fullmatch(question):
        for pattern in (*_ENGLISH, *_CHINESE):
            match = pattern.fullmatch(question)
            if match and (named := _named(match["name"])):
                return named
    named = _named(question)
    if named is not None and named[1] is not None:  # "the second cat"
        return named
    if not (_IS_ENGLISH.fullmatch(question) or _IS_CHINESE.fullmatch(question)):
        bare = question.strip(_QUOTES + " ")  # “cat”, cat?
        return (bare, None) if bare and bare != text else None
    way = "ask what one word attends to, as in “what does it look at” or “第二个它看什么”, or give the word itself"
    if _REVERSED.fullmatch(question):
        raise InputError(
            f"`{what}` is the word that looks, and {text!r} asks which words look at one: {way}; "
            "seen.rank_heads(word, other) and a column of the page show who looks at a word"
        )
    raise InputError(
        f"`{what}` cannot be {text!r}: {way}; seen.rank_heads(word, other) has the weights from one word to another"
    )


def _named(name: str) -> tuple[str, int | None] | None:
    """Return a word without quotes, article and ordinal, and the number of the ordinal."""
    words = name.strip(" ").split(" ")
    if len(words) > 1 and words[0].casefold() in ("the", "this", "that"):
        words = words[1:]
    number = _ORDINALS.get(words[0].casefold()) if len(words) > 1 else None
    if number is not None:
        words = words[1:]
    if len(words) > 1 and words[0].casefold() in ("word", "token", "occurrence", "one"):
        words = words[2 if len(words) > 2 and words[1] == "of" else 1 :]
    rest = " ".join(words)
    if number is None and (match := _NTH.fullmatch(rest)):
        digit, _, first, rest = match.groups()
        number = -1 if digit is None and first is None else 1 if digit is None else _DIGITS.get(digit) or int(digit)
    found = rest.strip(_QUOTES + " ")
    for unit in ("这个词", "這個詞", "一词", "一詞"):
        found = found.removesuffix(unit).strip(_QUOTES + " ") or found
    return (found, number) if found else None
