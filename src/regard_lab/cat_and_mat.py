"""Pairs of English and Chinese sentences about one small world, with different word orders.

A day that ends the English sentence begins the Chinese one; "sang in the garden" is 在花园里唱歌, and "the bird in the
garden" is 花园里的鸟.
"""

import random
from collections.abc import Sequence

__all__ = ["ASKED", "LEXICON", "content_words", "pairs"]

ASKED = ("The cat sat on the mat.", "猫坐在垫子上。")

# The Chinese for each word: first the word used here, then what other translators may use.
_WORDS = """
    cat=猫 dog=狗,犬 bird=鸟 mouse=老鼠,鼠 horse=马 child=孩子,孩 teacher=老师,教师 doctor=医生,大夫 farmer=农民,农夫
    king=国王,王 student=学生
    black=黑 white=白 small=小 big=大 hungry=饿 tired=累,疲 happy=快乐,高兴,开心,幸福 young=年轻
    mat=垫子,席子,毯子,地毯,垫,席 chair=椅子,椅 table=桌子,桌 bed=床 roof=屋顶 tree=树 bridge=桥 garden=花园,园
    kitchen=厨房 house=房子,屋子,家,房 forest=森林,林 door=门 river=河,江 window=窗户,窗
    sat=坐 stood=站 lay=躺 slept=睡 waited=等 sang=唱歌,唱 danced=跳舞,舞 worked=工作,干活 played=玩 cried=哭
    laughed=笑 ate=吃饭,吃 chased=追 saw=看见,看到,见 loved=爱 found=找到,发现 followed=跟着,跟 helped=帮助,帮
    forgot=忘记,忘 yesterday=昨天 today=今天
"""
LEXICON = {english: tuple(chinese.split(",")) for english, chinese in (one.split("=") for one in _WORDS.split())}
_LIVING = ("cat", "dog", "bird", "mouse", "horse", "child", "teacher", "doctor", "farmer", "king", "student")
_ADJECTIVES = {
    "black": "",
    "white": "",
    "small": "",
    "big": "",
    "hungry": "的",
    "tired": "的",
    "happy": "的",
    "young": "的",
}
_PLACES = {
    "on": (("mat", "chair", "table", "bed", "roof"), "上"),
    "under": (("tree", "bridge", "table", "bed"), "下"),
    "in": (("garden", "kitchen", "house", "forest"), "里"),
    "beside": (("door", "river", "window", "tree"), "旁边"),
}
_STAYING = ("sat", "stood", "lay", "slept", "waited")  # 坐在…上
_DOING = ("sang", "danced", "worked", "played", "cried", "laughed", "ate")  # 在…里唱歌
_TO_ANOTHER = {"chased": "了", "saw": "了", "loved": "", "found": "了", "followed": "", "helped": "了", "forgot": "了"}
_DAYS = ("yesterday", "today")
Pair = tuple[str, str]


def content_words(english: str) -> list[str]:
    """Return the words of a sentence that have a Chinese translation here, in their order.

    >>> content_words("The cat sat on the mat.")
    ['cat', 'sat', 'mat']
    """
    return [word for word in english.casefold().strip(".").split() if word in LEXICON]


def pairs(count: int, seed: int) -> list[Pair]:
    """Draw different pairs; none of them has a word twice, or contains both a cat that sat and a mat."""
    draw, found = random.Random(seed), dict[str, str]()
    while len(found) < count:
        english, chinese = _sentence(draw)
        words = content_words(english)
        if len(words) == len(set(words)) and not set(content_words(ASKED[0])) <= set(words):
            found[english] = chinese
    return list(found.items())


def _sentence(draw: random.Random) -> Pair:
    """Draw a sentence from one of four frames, with or without a day."""
    who, he = _someone(draw, _LIVING)
    where, there = _somewhere(draw)
    frame = draw.randrange(4)
    if frame == 0:
        verb = draw.choice(_STAYING)
        english, chinese = f"{who} {verb} {where}", f"{he}{_said(verb)}在{there}"
    elif frame == 1:
        verb = draw.choice(_DOING)
        english, chinese = f"{who} {verb} {where}", f"{he}在{there}{_said(verb)}"
    else:
        verb = draw.choice(list(_TO_ANOTHER))
        other, him = _someone(draw, [one for one in _LIVING if one not in who])
        who, he = (who, he) if frame == 2 else (f"{who} {where}", f"{there}的{he}")
        english, chinese = f"{who} {verb} {other}", f"{he}{_said(verb)}{_TO_ANOTHER[verb]}{him}"
    if draw.random() < 0.4:
        day = draw.choice(_DAYS)
        english, chinese = f"{english} {day}", f"{_said(day)}{chinese}"
    return f"{english[0].upper()}{english[1:]}.", f"{chinese}。"


def _someone(draw: random.Random, living: Sequence[str]) -> Pair:
    noun = draw.choice(living)
    if draw.random() < 0.6:
        return f"the {noun}", _said(noun)
    adjective = draw.choice(list(_ADJECTIVES))
    return f"the {adjective} {noun}", f"{_said(adjective)}{_ADJECTIVES[adjective]}{_said(noun)}"


def _somewhere(draw: random.Random) -> Pair:
    preposition = draw.choice(list(_PLACES))
    nouns, behind = _PLACES[preposition]
    noun = draw.choice(nouns)
    return f"{preposition} the {noun}", f"{_said(noun)}{behind}"


def _said(english: str) -> str:
    return LEXICON[english][0]
