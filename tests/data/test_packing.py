"""Packed rows hold every text once, within their width, and a mask of documents keeps the texts apart."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard import InputError
from regard.data import chunk_tokens, collate_packed, pack_sequences, pad
from regard.masks import Document
from sweeps import sweep

LENGTHS = st.lists(st.integers(1, 30), max_size=60)


@given(LENGTHS, st.integers(30, 90))
def test_every_text_is_in_one_row_and_no_row_is_wider(lengths, width):
    rows = pack_sequences(lengths, width)
    assert sorted(text for row in rows for text in row) == list(range(len(lengths)))
    assert all(0 < sum(lengths[text] for text in row) <= width for row in rows)
    assert rows == pack_sequences(list(lengths), width)


@given(LENGTHS, st.integers(30, 90))
def test_rows_are_few_and_each_text_goes_where_it_fits_tightest(lengths, width):
    rows = pack_sequences(lengths, width)
    assert sorted(width - sum(lengths[text] for text in row) for row in rows) == best_fit(lengths, width)


def best_fit(lengths, width):
    """The room left in each row by best-fit decreasing that looks at every row."""
    rooms = []
    for length in sorted(lengths, reverse=True):
        fitting = [index for index, room in enumerate(rooms) if room >= length]
        if not fitting:
            rooms.append(width)
            fitting = [len(rooms) - 1]
        rooms[min(fitting, key=rooms.__getitem__)] -= length
    return sorted(rooms)


@given(st.lists(st.lists(st.integers(5, 99), min_size=1, max_size=6), min_size=1, max_size=12))
def test_texts_are_read_back_from_ids_and_documents(texts):
    bins = pack_sequences([len(text) for text in texts], 8)
    ids, documents = collate_packed(texts, bins, 8, pad_token_id=0)
    assert ids.shape == documents.shape == (len(bins), 8)
    for row, chosen in enumerate(bins):
        found = [ids[row, documents[row] == document].tolist() for document in range(len(chosen))]
        assert found == [texts[text] for text in chosen]
    assert torch.equal(ids == 0, documents == -1)


def test_documents_are_what_the_mask_of_documents_reads():
    _, documents = collate_packed([[5, 6], [7], [8]], [(0, 1), (2,)], 4, pad_token_id=0)
    seen = Document(documents).bind(4, 4).dense(batch=2).int()
    assert seen[0, 0].tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    assert seen[1, 0].tolist() == [[1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]


@given(st.lists(st.lists(st.integers(1, 99), max_size=7), min_size=1, max_size=9), st.integers(1, 5))
def test_padding_stands_behind_the_tokens_and_the_mask_tells_which_are_real(rows, multiple):
    ids, real = pad(rows, 0, pad_to_multiple_of=multiple)
    width = ids.shape[1]
    assert width % multiple == 0
    assert width - multiple < max(map(len, rows)) <= width or width == max(map(len, rows)) == 0
    assert real.dtype == torch.bool
    assert [ids[index, mask].tolist() for index, mask in enumerate(real)] == rows
    assert not ids[~real].any()
    assert real.int().diff(dim=1).le(0).all()


@given(st.lists(st.integers(0, 99), min_size=2, max_size=60), st.integers(1, 20))
def test_windows_predict_every_token_but_the_first_once(ids, length):
    rows = chunk_tokens(ids, length)
    assert [token for row in rows for token in row[1:]] == ids[1:]
    assert [token for row in rows for token in row[:-1]] == ids[:-1]
    assert all(len(row) == length + 1 for row in rows[:-1])
    assert 2 <= len(rows[-1]) <= length + 1


def test_what_fits_no_row_is_refused():
    cases = [
        (lambda: pack_sequences([3, 9], 8), r"`block_size` \(8\), got 9 for sequence 1: cut"),
        (lambda: pack_sequences([3, 0], 8), r"`block_size` \(8\), got 0 for sequence 1: cut"),
        (
            lambda: collate_packed([[5, 6], [7]], [(0, 1)], 2, pad_token_id=0),
            r"`rows` .* `block_size` \(2\) tokens each, got 3 in row 0",
        ),
        (lambda: collate_packed([[5, 6]], [], 2, pad_token_id=0), "`rows` must have at least one row"),
        (lambda: pad([], 0), "`sequences` must have at least one"),
        (lambda: pad([[1]], 0, pad_to_multiple_of=0), "`pad_to_multiple_of` must be at least 1, got 0"),
        (lambda: chunk_tokens([5], 4), "`token_ids` must be at least two, .*got 1"),
        (lambda: chunk_tokens([5, 6], 0), "`block_size` must be at least 1, got 0"),
    ]
    for case in sweep(cases, lambda row: row[1]):
        with case as (call, words), pytest.raises(InputError, match=words):
            call()
