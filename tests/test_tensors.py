"""What is remembered between calls: how many, how many bytes, and for how long."""

import gc

from regard.tensors import Remembered


class Holder:
    pass


def test_the_latest_are_kept_up_to_a_number_and_up_to_bytes():
    made, holder = [], Holder()

    def ask(kept, key):
        return kept.of(key, [holder], lambda: made.append(key) or key)

    few = Remembered(2)
    for key in (1, 2, 1, 3, 2, 1):  # the third leaves no room for the first
        ask(few, key)
    assert made == [1, 2, 3, 1]
    made.clear()
    light = Remembered(9, most_bytes=10, bytes_of=lambda one: one)
    for key in (4, 6, 4, 5, 6, 4):  # 4 and 6 fit; of 4, 6 and 5 the oldest goes, then 6
        ask(light, key)
    assert made == [4, 6, 5, 6, 4]
    made.clear()
    assert ask(light, 20) == ask(light, 20) == 20  # the latest is kept whatever its size
    assert made == [20]


def test_what_was_made_for_an_object_that_is_gone_is_made_anew():
    kept, made = Remembered(2), []
    for _ in range(2):
        holder = Holder()
        kept.of("the same address", [holder], lambda: made.append(1) or 1)
        del holder
        gc.collect()
    assert made == [1, 1]
