"""Luong's local attention, windows with gaps and blocks: what the contract does not draw."""

from itertools import product

import pytest
import torch

import regard
from regard import masks
from regard.errors import InputError
from regard.masks.rectangles import EMPTY, FULL, PARTIAL, edges
from sweeps import sweep


def test_monotonic_queries_beyond_the_keys_look_at_the_end():
    seen = masks.LocalMonotonic(1).bind(6, 3).dense()[0, 0]
    assert seen.int().tolist() == [[1, 1, 0], [1, 1, 1], [0, 1, 1], [0, 1, 1], [0, 1, 1], [0, 1, 1]]


def test_monotonic_queries_count_from_zero_wherever_they_stand():
    for case in sweep([None, 0, 40]):
        with case as start:
            whole = masks.LocalMonotonic(2).bind(9, 7, q_offset=start).dense()
            assert torch.equal(whole, masks.LocalMonotonic(2).bind(9, 7).dense())
            steps = [masks.LocalMonotonic(2, first=t).bind(1, 7).dense() for t in range(9)]
            assert torch.equal(torch.cat(steps, 2), whole)


LENGTHS = torch.tensor([7, 3, 1, 0])
PADDING = masks.Padding.from_lengths(LENGTHS, kv_len=7)


WITH_PADDING = {
    "local & padding": lambda local: local & PADDING,
    "padding & local": lambda local: PADDING & local,
    "local & prefix & padding": lambda local: (local & masks.Prefix(7)) & PADDING,
    "~~local & padding": lambda local: ~(~local) & PADDING,
    "(local | local) & padding": lambda local: (local | local) & PADDING,
}


def test_monotonic_queries_beyond_their_own_sentence_look_at_its_end():
    for case in sweep(product(WITH_PADDING, [0, 4])):
        with case as (name, first):
            found = WITH_PADDING[name](masks.LocalMonotonic(2, first=first)).bind(9, 7, q_offset=5).dense(batch=4)[:, 0]
            for sentence, length in enumerate(LENGTHS.tolist()):
                alone = torch.zeros(9, 7, dtype=torch.bool)
                if length:
                    alone[:, :length] = masks.LocalMonotonic(2, first=first).bind(9, length).dense()[0, 0]
                assert torch.equal(found[sentence], alone)


def test_monotonic_and_padding_are_the_modules_of_luong():
    for case in sweep(["reference", "strips", "sdpa"]):
        with case as backend:
            torch.manual_seed(0)
            module = regard.nn.LocalAttention(8, 2, alignment="monotonic").double()
            query, source = torch.randn(4, 9, 8).double(), torch.randn(4, 7, 8).double()
            wanted = module(query, source, key_padding_mask=~PADDING.attention_mask)
            found = regard.attention(
                query,
                source,
                source,
                score=regard.scores.Bilinear(module.weight),
                mask=masks.LocalMonotonic(2) & PADDING,
                backend=backend,
            )
            torch.testing.assert_close(found, wanted)


def test_monotonic_queries_of_sentences_that_begin_with_padding_are_refused():
    padding = masks.Padding(torch.tensor([[1, 1, 1], [0, 1, 1]]))
    with pytest.raises(InputError, match=r"one begins with padding: pad after the tokens, or .*LocalPredictive"):
        (masks.LocalMonotonic(1) & padding).bind(3, 3)
    assert (masks.Window(2) & padding).bind(3, 3).dense(batch=2).shape == (2, 1, 3, 3)


def test_predicted_centres_are_rounded_down():
    center = torch.tensor([[-0.5, 0.0, 0.999, 1.0, 5.2]])
    seen = masks.LocalPredictive(center, radius=0).bind(5, 6).dense()[0, 0]
    assert seen.int().argmax(1).tolist()[1:] == [0, 0, 1, 5]
    assert seen.sum(1).tolist() == [0, 1, 1, 1, 1]


def test_predicted_windows_leave_blocks_out_even_if_centres_jump():
    jump = torch.tensor([900.0] * 64 + [100.0] * 64 + [500.0] * 64)[None]
    bound = masks.LocalPredictive(jump, radius=100).bind(192, 1024)
    kinds = bound.blocks(edges(192, 64), edges(1024, 128))[0, 0]
    assert (kinds != EMPTY).sum(1).tolist() == [2, 2, 2]  # keys 800–1000, 0–200 and 400–600
    assert (kinds == FULL).sum(1).tolist() == [0, 1, 0]
    narrow = bound.blocks(torch.tensor([0, 192]), edges(1024, 64))[0, 0, 0]
    assert narrow.tolist() == [PARTIAL] * 16
    assert bound.blocks(torch.tensor([64, 192]), torch.tensor([0, 450, 700, 1024]))[0, 0, 0].tolist() == [1, 1, 0]
    short = masks.LocalPredictive(jump[:, :20], radius=100).bind(20, 1024)
    assert short.blocks(torch.tensor([0, 16, 20]), torch.tensor([0, 512, 1024])).tolist() == [[[[0, 1], [0, 1]]]]


def test_one_centre_that_jumps_is_never_overlooked():
    for odd in range(0, 100, 9):
        center = torch.full((1, 100), 5.0)
        center[0, odd] = 90.0
        bound = masks.LocalPredictive(center, radius=2).bind(100, 100)
        for top in range(0, 100, 7):
            for bottom in range(top + 1, 101, 6):
                kinds = bound.blocks(torch.tensor([top, bottom]), torch.tensor([0, 3, 8, 50, 88, 93, 100]))[0, 0, 0]
                assert (kinds[4] != EMPTY) or not top <= odd < bottom
                assert (kinds[1] != FULL) or not top <= odd < bottom
                assert kinds[2] == EMPTY or top // 16 <= odd // 16 <= (bottom - 1) // 16
                assert kinds[1] != EMPTY or odd == top == bottom - 1


def test_a_wrong_mask_says_what_is_right():
    cases = [
        (lambda: masks.DilatedWindow(), "either a size or `left=` and `right=`"),
        (lambda: masks.DilatedWindow(4, left=1), "either a size or"),
        (lambda: masks.DilatedWindow(0), "`size` counts the query itself and must be an integer of at least 1, got 0"),
        (lambda: masks.DilatedWindow(True), "`size` .* got True"),
        (lambda: masks.DilatedWindow(left=-1), "`left` .* at least 0, got -1"),
        (lambda: masks.DilatedWindow(3, dilation=0), "`dilation` .* at least 1, got 0"),
        (lambda: masks.Strided(0), "`stride` .* at least 1, got 0"),
        (lambda: masks.BlockLocal(0), "`size` .* at least 1, got 0"),
        (lambda: masks.BlockLocal(1, look_forward=-1), "`look_forward` .* at least 0, got -1"),
        (lambda: masks.Sinks(-1), "`num_sink_tokens` .* at least 0, got -1"),
        (lambda: masks.Prefix(1.5), "`length` .* at least 0, got 1.5"),
        (lambda: masks.Prefix(torch.ones(2)), r"integer tensor \(batch,\), got torch.float32 of shape \(2,\)"),
        (lambda: masks.Prefix(torch.ones(2, 1).long()), r"of shape \(2, 1\)"),
        (lambda: masks.Global((0, -1)), "`tokens` .* at least 0, got -1"),
        (lambda: masks.Global(torch.tensor([[0, 1]])), r"boolean tensor \(batch, keys\), got torch.int64"),
        (lambda: masks.Global(torch.ones(1, 3).bool()).bind(4, 4), "one flag for each of 4 keys, got 3"),
        (lambda: masks.LocalMonotonic(-1), "`radius` .* at least 0, got -1"),
        (lambda: masks.LocalMonotonic(1, first=-1), "`first` .* at least 0, got -1"),
        (
            lambda: masks.LocalPredictive(torch.zeros(1, 2).long(), 1),
            r"float tensor \(batch, queries\), got torch.int64",
        ),
        (lambda: masks.LocalPredictive(torch.zeros(2), 1), r"of shape \(2,\)"),
        (lambda: masks.LocalPredictive(torch.tensor([[torch.nan]]), 1), "`center` must be finite"),
        (lambda: masks.LocalPredictive(torch.zeros(1, 2), -1), "`radius` .* at least 0, got -1"),
        (lambda: masks.LocalPredictive(torch.zeros(1, 2), 1).bind(3, 3), "each of 3 queries, got 2"),
        (lambda: masks.longformer(3), "`window` .* must be even, got 3"),
        (lambda: masks.bigbird(num_window_blocks=2), "`num_window_blocks` .* must be odd, got 2"),
        (lambda: masks.bigbird(num_global_blocks=-1), "`num_global_blocks` .* at least 0, got -1"),
        (lambda: masks.bigbird(num_random_blocks=-1), "`num_random_blocks` .* at least 0, got -1"),
    ]
    for case in sweep(cases):
        with case as (make, words), pytest.raises(InputError, match=words):
            make()
