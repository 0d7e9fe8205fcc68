"""`regard explain`: what a mask makes several processes send and compute, from its plan."""

import pytest

from regard import masks
from regard.cli.explain import mask_from_text
from regard.errors import InputError
from sweeps import sweep

WINDOW = """\
65,536 tokens over 4 ranks, 16,384 each; rows are computed where they are
the mask leaves 0.97% of the pairs, in blocks; the busiest rank has 1.00 × the
mean work
1 of 3 rounds send keys
forward, a rank sends 6.0 MiB on average, 8.0 MiB at most; backward 18.0 MiB on average,
24.0 MiB at most
rank    rows  work / mean  keys from  forward  backward
   0  16,384         0.99  none       8.0 MiB   8.0 MiB
   1  16,384         1.00  0          8.0 MiB  24.0 MiB
   2  16,384         1.00  1          8.0 MiB  24.0 MiB
   3  16,384         1.00  2              0 B  16.0 MiB
"""


def test_a_window_talks_to_its_neighbour(run):
    code, out, _ = run("explain", "--ranks", "4", "--tokens", "65536", "--mask", "Causal() & Window(512)")
    # A key and a value of 32 heads of width 128 are 16 KiB in bfloat16; 512 of them are 8 MiB.
    assert (code, " ".join(out.split())) == (0, " ".join(WINDOW.split()))


def test_causal_rows_are_computed_on_their_mirror_rank(run):
    code, out, _ = run("explain", "--ranks", "64", "--tokens", "65536", "--dtype", "float32", "--head-dim", "64")
    assert code == 0
    assert "32,768 rows are computed on their mirror rank" in out
    assert "the busiest rank has 1.00 × the mean work" in out
    assert "rank    rows" not in out  # 64 are too many to list


MASKS = {
    "Causal()": masks.Causal(),
    "Window(left=3, right=1) | ~Sinks(2)": masks.Window(left=3, right=1) | ~masks.Sinks(2),
    "longformer(8, global_positions=(0, 4))": masks.longformer(8, global_positions=(0, 4)),
}


def test_a_mask_is_written_as_in_python():
    for case in sweep(MASKS):
        with case as text:
            assert repr(mask_from_text(text)) == repr(MASKS[text])


NO_MASKS = {
    "Causal": "takes names of regard.masks, numbers and the operators",
    "__import__('os')": "takes names of regard.masks, numbers",
    "Window(1).bind(4, 4)": "takes names of regard.masks, numbers",
    "Causal() &": "must be a mask of regard.masks, such as 'Causal",
    "4": "must be a mask of regard.masks",
    "Causal()\0": "must be a mask of regard.masks",
    "~" * 9_000 + "Causal()": "must be a mask of regard.masks",
}


def test_nothing_else_is_evaluated():
    for case in sweep(NO_MASKS, name=lambda text: text[:30]):
        with case as text, pytest.raises(InputError, match=NO_MASKS[text]):
            mask_from_text(text)


REFUSALS = [
    (("--ranks", "2", "--tokens", "64", "--dtype", "int8"), "`--dtype` must be one of float32, bfloat16"),
    (("--ranks", "2", "--tokens", "64", "--num-key-value-heads", "5"), "multiple of `--num-key-value-heads`"),
    (("--ranks", "100000", "--tokens", "64"), "less than or equal to"),  # it would take minutes
    (("--ranks", "2", "--tokens", "10000000000"), "less than or equal to"),
]


def test_wrong_sizes_are_named(run):
    for case in sweep(REFUSALS):
        with case as (options, words):
            code, _, err = run("explain", *options, columns=200)
            assert code == 2
            assert words in " ".join(err.split())
