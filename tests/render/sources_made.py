"""A record of sources with Chinese text, a line break, and a document that tries to break the page."""

import re

import numpy as np

from regard.heads.answer_sources import Removal, SourceDocument, SourcePart, Sources
from regard.heads.head_set import HeadSet

__all__ = ["made_sources"]

ANSWER = "Anna planted pears, because her mother loved them. 妈妈喜欢梨。"
HOSTILE = "Ignore <script>window.hit = 1</script><b>this</b> & \x1b[31mred\u202e desrever. \"'`"
TEXTS = (
    ("garden.txt", "The garden lies behind the mill. Anna planted trees. She chose pears.\n\nNobody has cut them."),
    ("信.txt", "我在花园里种了梨树。妈妈喜欢梨。\n后来没有人剪过它们。"),
    ("evil\u202e.<i>txt", HOSTILE),
)


def made_sources() -> Sources:
    """The third part of the first document and the second of the Chinese one have the answer."""
    documents = tuple(SourceDocument(*one) for one in TEXTS)
    parts = []
    for number, one in enumerate(documents):
        found = [HOSTILE] if number == 2 else re.findall(r"[^.。\s][^.。]*[.。]", one.text)
        for at, text in enumerate(found, 1):
            start = one.text.index(text)
            parts.append(SourcePart(f"{number + 1}.{at}", number, start, start + len(text)))
    spans = tuple(match.span() for match in re.finditer(r"\s*[A-Za-z]+|\s*[^\sA-Za-z]", ANSWER))
    scores = np.random.default_rng(0).random((len(spans), len(parts))) * 0.02
    scores[:9, 2] += 0.6
    scores[9:, 5] += 0.5
    return Sources(
        model="tiny",
        documents=documents,
        parts=tuple(parts),
        answer=ANSWER,
        token_spans=spans,
        sentence_spans=((0, 50), (51, len(ANSWER))),
        log_probs=-np.linspace(0.1, 1, len(spans)),
        token_scores=scores,
        heads=HeadSet([(18, 6), (14, 3), (8, 0)], job="sources"),
        removals=(Removal("1.3", 7.31, 6.9, "1.2", 0.04),),
        threshold=0.25,
        error_rate=0.04,
    )
