"""Tokens of a text, the words they form, and what kind of word each is: content word, function word, pronoun."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = [
    "Token",
    "Word",
    "content_words",
    "is_content",
    "is_function_word",
    "is_sign",
    "is_word",
    "own_texts",
    "pronoun_in",
    "spell_word",
    "words_of",
]


@dataclass(frozen=True)
class Token:
    """One position of a sequence, in readable form.

    `text` is the text of the piece without white space around it ("ly", not "##ly" or "▁ly"); a piece with only some
    bytes of a character shows that character with a superscript number ("貓¹", "貓²"). `special` marks pieces without
    text ([CLS], </s>, padding). Pieces with the same `word` number form one word; special tokens have no word. `space`
    is True if white space precedes the piece. `span` has the characters (start, end) that it covers of the text that it
    was made from, without white space around them; pieces of one character share it, and it is None where the text is
    not known. Equal tokens at two places of a text are equal.
    """

    text: str
    special: bool = False
    word: int | None = None
    space: bool = False
    span: tuple[int, int] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Word:
    """A word and the positions of its pieces."""

    text: str
    pieces: tuple[int, ...]
    special: bool = False


_SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹"


def words_of(tokens: Sequence[Token]) -> tuple[Word, ...]:
    """Return the words, merged from their pieces; a special token is a word of its own.

    >>> pieces = [Token("[CLS]", special=True), Token("token", word=0), Token("izer", word=0)]
    >>> [word.text for word in words_of(pieces)]
    ['[CLS]', 'tokenizer']
    """
    groups: list[list[int]] = []
    for position, token in enumerate(tokens):
        joins = position > 0 and token.word is not None and token.word == tokens[position - 1].word
        if joins:
            groups[-1].append(position)
        else:
            groups.append([position])
    return tuple(Word(spell_word(tokens, group), tuple(group), tokens[group[0]].special) for group in groups)


def spell_word(tokens: Sequence[Token], group: Sequence[int]) -> str:
    """Return the text of the pieces of one word; the byte pieces 貓¹ 貓² 貓³ of a character give it once, while m² is
    unchanged.
    """
    return "".join(text for text, _ in own_texts([tokens[position] for position in group]))


def own_texts(tokens: Sequence[Token]) -> list[tuple[str, bool]]:
    """Return for each token the characters that begin in it, and whether it has a part of the character before them.

    >>> own_texts([Token("貓¹"), Token("貓²"), Token("m²")])
    [('貓', False), ('', True), ('m²', False)]
    """
    found: list[tuple[str, bool]] = []
    number = 0
    for at, token in enumerate(tokens):
        if number and _goes_on(tokens[at - 1], token, number):
            number += 1
            found.append((token.text.removesuffix(_superscript(number))[1:], True))
            continue
        following = at + 1 < len(tokens) and token.text.endswith("¹") and _goes_on(token, tokens[at + 1], 1)
        number = 1 if following else 0
        found.append((token.text.removesuffix("¹") if following else token.text, False))
    return found


def _goes_on(before: Token, token: Token, number: int) -> bool:
    """Return whether a token begins with the character that the one before it ends with, as its part `number` + 1."""
    if before.span is not None and token.span is not None and before.span[1] <= token.span[0]:
        return False
    left = before.text.removesuffix(_superscript(number))
    right = token.text.removesuffix(_superscript(number + 1))
    return right != token.text and left[-1:] == right[:1] != ""


def _superscript(number: int) -> str:
    return "".join(_SUPERSCRIPTS[int(digit)] for digit in str(number))


_ENGLISH = """
    a an the this that these those and or but nor so yet if then than as of in on at by for from to with without into
    onto over under about between through after before while because since until although though when where which who
    whom whose what why how is am are was were be been being do does did done has have had having will would shall
    should can could may might must not no it its he him his she her hers they them their theirs we us our ours you
    your yours i me my mine there here too also very just only even still such each any some all both more most other
    s t d ll re ve m didn't doesn't don't isn't wasn't aren't weren't can't won't couldn't wouldn't shouldn't it's
"""
_CHINESE = """
    的 了 着 著 过 過 是 不 没 沒 没有 沒有 在 和 与 與 或 而 也 都 就 又 还 還 很 太 更 最 把 被 给 給 从 從
    到 对 對 为 為 因为 因為 所以 但是 但 如果 虽然 雖然 它 他 她 它们 它們 他们 他們 她们 她們 我 你 您 我们
    我們 你们 你們 这 這 那 这个 這個 那个 那個 一 一个 一個 个 個 之 其 吗 嗎 呢 吧 啊 得 地 会 會 能 要 有 上
    下 里 裡 中 牠 牠們 祂
"""
_JAPANESE = """
    は が を に へ と も の で や か ね よ から まで より だ です でした ます ました ません である いる ある する した
    して った ている っている ない なかった ので のに けど しかし でも そして だから こと もの この その あの これ
    それ それら あれ 私 彼 彼女 彼ら
"""

# German function words that are also English words count only if the text has another German function word.
_GERMAN = """
    der das dem des und oder aber weil denn wenn nicht ist sind wird werden wurde wurden hatte haben habe sein seine
    seiner seinem seinen ihr ihre ihrem ihren ihrer ihn ihm ihnen er sie es wir ich du uns mich dich sich ein eine
    einen einem einer eines im vom zum zur auf mit nach bei aus von für über unter zu als wie auch nur noch schon sehr
    dass daß kein keine dieser diese dieses durch ohne gegen
"""
_GERMAN_OR_ENGLISH = frozenset("die den war hat man was bin so also an".split())
_ONLY_GERMAN = frozenset(_GERMAN.split())
_BLANK = "␣"  # the displayed form of a piece of white space
_FUNCTION_WORDS = frozenset(f"{_ENGLISH} {_CHINESE} {_JAPANESE}".split()) | _ONLY_GERMAN


def is_word(text: str) -> bool:
    """Return whether it has a letter, a digit or an ideograph, unlike punctuation.

    >>> is_word("tired"), is_word("，"), is_word("它")
    (True, False, True)
    """
    return any(unicodedata.category(character)[0] in "LN" for character in text)


def is_sign(text: str) -> bool:
    """Return whether it is a word, or a symbol such as an emoji or "="; punctuation is neither.

    >>> is_sign("🐱"), is_sign("cat"), is_sign("，"), is_sign("␣")
    (True, True, False, False)
    """
    return is_word(text) or any(unicodedata.category(mark)[0] == "S" for mark in text if mark != _BLANK)


def is_function_word(text: str) -> bool:
    """Return whether a word is in the lists.

    >>> is_function_word("The"), is_function_word("因為"), is_function_word("は"), is_function_word("cat")
    (True, True, True, False)
    """
    return text.strip().casefold() in _FUNCTION_WORDS


def is_content(text: str) -> bool:
    """Return whether a word is neither punctuation nor a function word.

    >>> is_content("animal"), is_content("because"), is_content("餓"), is_content("因為它")
    (True, False, True, False)
    """
    folded = text.strip().casefold()
    if not is_word(folded) or folded in _FUNCTION_WORDS:
        return False
    # A Unigram piece may contain several Chinese or Japanese function words.
    return not any(folded[:cut] in _FUNCTION_WORDS and folded[cut:] in _FUNCTION_WORDS for cut in range(1, len(folded)))


def content_words(texts: Sequence[str]) -> list[bool]:
    """Return for each word of a text whether it is a content word; "die" and "war" are in English, but not in German.

    >>> content_words("Der Hund jagte die Katze".split()), content_words("They die in a war".split())
    ([False, True, True, False, True], [False, True, False, False, True])
    """
    folded = [text.strip().casefold() for text in texts]
    german = any(text in _ONLY_GERMAN for text in folded)
    return [is_content(text) and not (german and text in _GERMAN_OR_ENGLISH) for text in folded]


_PRONOUNS_ENGLISH = "it its itself they them their themselves he him his himself she her hers herself"
_PRONOUNS_GERMAN = "er ihn ihm es sie ihr ihnen"
_PRONOUNS_CHINESE = "它 他 她 牠 祂 它们 它們 他们 他們 她们 她們 牠們"
_PRONOUNS_JAPANESE = "それ それら その これ この 彼 彼女 彼ら"
_SPACED = frozenset(f"{_PRONOUNS_ENGLISH} {_PRONOUNS_GERMAN}".split())
_UNSPACED = frozenset(f"{_PRONOUNS_CHINESE} {_PRONOUNS_JAPANESE}".split())
_OTHERS = frozenset("其他 其它 その他".split())  # "other" is written with the character for "he"


def pronoun_in(text: str) -> str | None:
    """Return the pronoun in a word, also if a Chinese or Japanese piece contains function words as well.

    >>> pronoun_in("It"), pronoun_in("因为它"), pronoun_in("彼女は"), pronoun_in("animal"), pronoun_in("其他")
    ('It', '它', '彼女', None, None)
    """
    text = text.strip()
    if text.casefold() in _SPACED:
        return text
    if text in _OTHERS:
        return None
    cuts = [(start, stop) for start in range(len(text)) for stop in range(start + 1, len(text) + 1)]
    for start, stop in sorted(
        cuts, key=lambda cut: cut[0] - cut[1]
    ):  # the longest first, so that 他们 is not read as 他
        rest = [part for part in (text[:start], text[stop:]) if part]
        if text[start:stop] in _UNSPACED and all(map(is_function_word, rest)):
            return text[start:stop]
    return None
