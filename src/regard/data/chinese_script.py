"""Simplified and traditional Chinese characters, by OpenCC."""

from collections.abc import Callable
from functools import lru_cache
from typing import Literal, get_args

from regard.errors import InputError, MissingExtraError

__all__ = ["Script", "to_script"]

Script = Literal["hans", "hant"]

_CONVERSIONS = {"hans": "tw2s", "hant": "s2tw"}


def to_script(text: str, script: Script) -> str:
    """Write Chinese in simplified ("hans") or traditional ("hant") characters, phrase by phrase.

    Text that is already in this script, or is not Chinese, is unchanged. Japanese would be changed, so do not pass it.
    If standards differ, the traditional characters are those of Taiwan (裡, 為, 看著), as in most sentences of Tatoeba.
    Words are not replaced by the words of a region.

    Raises:
        InputError: `script` is neither.
        MissingExtraError: OpenCC is not installed.

    >>> to_script("圖書館在哪裡？", "hans")
    '图书馆在哪里？'
    """
    if script not in get_args(Script):
        raise InputError(f'`script` must be "hans" (simplified) or "hant" (traditional), got {script!r}')
    return _converter(_CONVERSIONS[script])(text)


@lru_cache(maxsize=2)  # each reads a dictionary of its own: milliseconds, but not for every sentence
def _converter(conversion: str) -> Callable[[str], str]:
    try:
        from opencc import OpenCC
    except ImportError as missing:
        raise MissingExtraError("opencc", "train") from missing
    convert: Callable[[str], str] = OpenCC(conversion).convert
    return convert
