"""Which words carry content: a short list of those that do not, in English and Chinese."""

import unicodedata

__all__ = ["is_content", "is_word"]

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
    下 里 裡 中
"""
_FUNCTION_WORDS = frozenset(_ENGLISH.split()) | frozenset(_CHINESE.split())


def is_word(text: str) -> bool:
    """Whether it has a letter, a digit or an ideograph: punctuation has none.

    >>> is_word("tired"), is_word("，"), is_word("它")
    (True, False, True)
    """
    return any(unicodedata.category(character)[0] in "LN" for character in text)


def is_content(text: str) -> bool:
    """Whether a word carries content: no punctuation and no function word.

    >>> is_content("animal"), is_content("because"), is_content("餓"), is_content("因為它")
    (True, False, True, False)
    """
    folded = text.strip().casefold()
    if not is_word(folded) or folded in _FUNCTION_WORDS:
        return False
    # A Unigram piece may hold several Chinese function words.
    return not any(folded[:cut] in _FUNCTION_WORDS and folded[cut:] in _FUNCTION_WORDS for cut in range(1, len(folded)))
