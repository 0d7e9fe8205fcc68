"""Chinese in one script."""

import pytest

from regard import InputError
from regard.data import to_script
from sweeps import sweep

pytest.importorskip("opencc", reason="pip install 'regard[train]'")

PAIRS = [
    ("图书馆在哪里？", "圖書館在哪裡？"),
    ("我爱深度学习。", "我愛深度學習。"),
    ("皇后在后面。", "皇后在後面。"),  # one simplified character, two traditional ones: phrases decide
    ("因为它看着我。", "因為它看著我。"),  # not OpenCC's own 爲, and 著 is a particle
    ("Hello, 世界 👍", "Hello, 世界 👍"),
]


def test_both_scripts_come_from_both():
    for case in sweep(PAIRS):
        with case as (hans, hant):
            assert to_script(hant, "hans") == to_script(hans, "hans") == hans
            assert to_script(hans, "hant") == to_script(hant, "hant") == hant


def test_another_script_is_refused():
    with pytest.raises(InputError, match=r'`script` must be "hans" \(simplified\) or "hant" \(traditional\), got .zh'):
        to_script("我", "zh")
