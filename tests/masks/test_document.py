"""Packed documents, against block-diagonal matrices put together by hand."""

from itertools import pairwise

import numpy as np
import pytest
import torch

import regard
from regard import masks
from regard.errors import InputError
from regard.masks.rectangles import EMPTY, FULL, PARTIAL, edges

LENGTHS, QUERY_LENGTHS = [4, 0, 17, 3, 1, 25], [2, 3, 5, 3, 0, 30]  # more queries than keys in the second and the last


def _diagonal(lengths, query_lengths, rule):
    """One matrix a document, its queries the last positions, along the diagonal."""
    matrix = np.zeros((sum(query_lengths), sum(lengths)), bool)
    top = left = 0
    for keys, queries in zip(lengths, query_lengths, strict=True):
        for row in range(queries):
            for column in range(keys):
                matrix[top + row, left + column] = rule(row + keys - queries, column)
        top, left = top + queries, left + keys
    return matrix


def _truth(matrix, rows, columns):
    parts = [[matrix[a:b, c:d] for c, d in pairwise(columns)] for a, b in pairwise(rows)]
    return np.array([[PARTIAL + part.all() - (not part.any()) for part in line] for line in parts])


def _kinds(bound, size):
    rows, columns = edges(bound.q_len, size), edges(bound.kv_len, size)
    matrix = bound.dense()[0, 0].numpy()
    return bound.blocks(rows, columns)[0, 0].numpy(), _truth(matrix, rows.tolist(), columns.tolist())


INNER = [
    (masks.Causal() & masks.Window(4), lambda i, j: i - 4 < j <= i),
    (masks.Causal(), lambda i, j: j <= i),
    (~masks.Window(left=2, right=1) | masks.Sinks(1), lambda i, j: not -1 <= i - j <= 2 or j == 0),
    (masks.BlockLocal(3), lambda i, j: i // 3 == j // 3),
]


@pytest.mark.parametrize(("within", "rule"), INNER)
@pytest.mark.parametrize("query_lengths", [LENGTHS, QUERY_LENGTHS])
def test_a_mask_within_documents_is_block_diagonal_with_the_queries_last_in_each(within, rule, query_lengths):
    mask = masks.Document.from_lengths(torch.tensor(LENGTHS), torch.tensor(query_lengths), within=within)
    bound = mask.bind(sum(query_lengths), sum(LENGTHS))
    np.testing.assert_array_equal(bound.dense()[0, 0].numpy(), _diagonal(LENGTHS, query_lengths, rule))
    for size in (1, 2, 3, 5, 11, 50):
        kinds, truth = _kinds(bound, size)
        assert (truth[kinds == EMPTY] == EMPTY).all()
        assert (truth[kinds == FULL] == FULL).all()
        if size == 1:
            assert (kinds == truth).all()


def test_a_tile_that_reaches_over_one_document_is_cut_to_it():
    within = masks.Causal() & masks.Window(2)
    bound = masks.Document.from_lengths(torch.tensor([8, 8]), within=within).bind(16, 16)
    kinds = bound.blocks(torch.tensor([0, 5, 8, 16]), torch.tensor([0, 2, 7, 12, 16]))[0, 0]
    assert kinds.tolist() == [
        [PARTIAL, PARTIAL, EMPTY, EMPTY],
        [EMPTY, PARTIAL, PARTIAL, EMPTY],  # rows 5 to 7 see keys 4 to 7: in the second and the third range
        [EMPTY, EMPTY, PARTIAL, PARTIAL],
    ]
    assert bound.blocks(torch.tensor([4, 6]), torch.tensor([8, 12])).item() == EMPTY
    late = bound.blocks(torch.tensor([12, 16]), torch.tensor([4, 10]))  # key 8 and 9 of the second are too early
    assert late.item() == EMPTY


@pytest.mark.parametrize(
    ("hidden", "rows", "columns"),
    [
        (masks.Window(left=99, right=3), [4, 10], [8, 12]),  # rows 8 and 9 are left, at 0 and 1 of their document
        (masks.Window(left=3, right=99), [6, 12], [4, 8]),
        (masks.Window(left=99, right=1), [6, 8], [4, 12]),
        (masks.Window(left=1, right=99), [8, 10], [4, 12]),
    ],
)
def test_every_side_of_a_tile_is_cut(hidden, rows, columns):
    bound = masks.Document.from_lengths(torch.tensor([8, 8]), within=~hidden).bind(16, 16)
    assert not bound.dense()[0, 0, slice(*rows), slice(*columns)].any()
    assert bound.blocks(torch.tensor(rows), torch.tensor(columns)).item() == EMPTY


def test_keys_of_a_document_without_queries_are_left_out():
    lengths, query_lengths = torch.tensor([2, 3, 2]), torch.tensor([2, 0, 2])
    bound = masks.Document.from_lengths(lengths, query_lengths, within=masks.Causal()).bind(4, 7)
    assert bound.blocks(torch.tensor([0, 4]), torch.tensor([2, 5])).item() == EMPTY


def test_equal_lengths_are_causal_and_document():
    lengths = torch.tensor(LENGTHS)
    within = masks.Document.from_lengths(lengths, within=masks.Causal()).bind(50, 50).dense()
    assert torch.equal(within, (masks.Causal() & masks.Document.from_lengths(lengths)).bind(50, 50).dense())


@pytest.mark.parametrize("within", [None, masks.Causal()])
def test_without_lengths_of_their_own_the_queries_are_the_last_positions(within):
    mask = masks.Document.from_lengths(torch.tensor(LENGTHS), within=within)
    assert torch.equal(mask.bind(7, 50).dense()[0, 0], mask.bind(50, 50).dense()[0, 0, -7:])
    assert torch.equal(mask.bind(7, 50, q_offset=2).dense()[0, 0], mask.bind(50, 50).dense()[0, 0, 2:9])
    beyond = mask.bind(52, 50).dense()[0, 0]
    assert not beyond[:2].any()
    assert torch.equal(beyond[2:], mask.bind(50, 50).dense()[0, 0])
    assert mask.bind(52, 50).blocks(torch.tensor([0, 2, 4]), torch.tensor([0, 4]))[0, 0].tolist() == [
        [EMPTY],
        [FULL if within is None else PARTIAL],
    ]


def test_edges_are_lengths_added_up():
    cu, cu_seqlens_q = (torch.tensor([0, *np.cumsum(some)], dtype=torch.int32) for some in (LENGTHS, QUERY_LENGTHS))
    one = masks.Document.from_cu_seqlens(cu, cu_seqlens_q, within=masks.Causal()).bind(43, 50)
    other = masks.Document.from_lengths(torch.tensor(LENGTHS), torch.tensor(QUERY_LENGTHS), within=masks.Causal())
    assert torch.equal(one.dense(), other.bind(43, 50).dense())


@pytest.mark.parametrize("size", [1, 2, 7, 16])
@pytest.mark.parametrize(
    "ids",
    [
        [0] * 9 + [1] * 20 + [2] + [3] * 30,
        [9] * 9 + [-1] * 4 + [4] * 20 + [7] * 20 + [-3] * 11,
        [-1] * 60,
        [5] * 10 + [-1] * 3 + [5] * 10,  # padding inside a document
    ],
)
def test_blocks_of_contiguous_documents_are_exact(ids, size):
    kinds, truth = _kinds(masks.Document(torch.tensor(ids)).bind(len(ids), len(ids)), size)
    np.testing.assert_array_equal(kinds, truth)


@pytest.mark.parametrize("size", [1, 2, 7])
def test_blocks_of_documents_that_come_again_promise_nothing_wrong(size):
    ids = torch.randint(-1, 6, (60,), generator=torch.Generator().manual_seed(0))
    kinds, truth = _kinds(masks.Document(ids, query_ids=ids.flip(0)[:40]).bind(40, 60), size)
    assert (truth[kinds == EMPTY] == EMPTY).all()
    assert (truth[kinds == FULL] == FULL).all()


def test_a_batch_of_queries_shares_one_row_of_keys():
    mask = masks.Document(torch.tensor([0, 0, 1]), query_ids=torch.tensor([[0], [1]]))
    assert mask.leading == (2, 1)
    assert mask.bind(1, 3).dense(batch=2)[:, 0, 0].int().tolist() == [[1, 1, 0], [0, 0, 1]]
    assert mask.bind(1, 3).blocks(torch.tensor([0, 1]), torch.tensor([0, 2, 3]))[:, 0, 0].tolist() == [
        [FULL, EMPTY],
        [EMPTY, FULL],
    ]


def test_a_mask_that_depends_on_lengths_fits_documents_of_one_length_alone():
    within = masks.LocalMonotonic(1)
    same = masks.Document.from_lengths(torch.tensor([3, 3]), within=within).bind(6, 6).dense()[0, 0]
    assert same.int().tolist() == np.kron(np.eye(2, dtype=int), [[1, 1, 0], [1, 1, 1], [0, 1, 1]]).tolist()
    with pytest.raises(InputError, match=r"`within` must be the same in documents of every length, .* got LocalMono"):
        masks.Document.from_lengths(torch.tensor([3, 2]), within=within).bind(5, 5)


ANYWHERE = [  # a mask, and whether query i sees key j in a document of n positions
    (masks.Global([0]), lambda i, j: i == 0 or j == 0),
    (masks.Window(3) | masks.Global([0]), lambda i, j: i - 3 < j <= i or i == 0 or j == 0),
    (masks.Causal() & ~masks.Global([1]), lambda i, j: j <= i and i != 1 and j != 1),
    (masks.longformer(2, [0, 4]), lambda i, j: abs(i - j) <= 1 or i in (0, 4) or j in (0, 4)),  # 4: not in all of them
    (masks.Global([2**27]) | masks.Sinks(1), lambda i, j: j == 0),  # a flag for each position would be 128 MB
    (masks.MaskMod(lambda batch, head, i, j: (i + j) % 3 == 0), lambda i, j: (i + j) % 3 == 0),
]
EMPTY_SOMEWHERE = [  # lengths of keys and of queries
    ([5, 0, 6], [5, 0, 6]),
    ([0, 5, 0, 0, 3], [0, 5, 0, 0, 3]),
    ([4, 7], [0, 2]),
    ([0, 7], [3, 2]),
    ([5, 0, 6], [0, 4, 2]),
    ([5, 0, 6], [0, 4, 0]),  # no document has both
    ([0, 3], [2, 0]),
]


@pytest.mark.parametrize(("within", "rule"), ANYWHERE)
def test_an_empty_document_sees_nothing_and_is_seen_by_nothing(within, rule):
    for lengths, query_lengths in EMPTY_SOMEWHERE:
        kv_len, q_len, case = sum(lengths), sum(query_lengths), f"{lengths} keys, {query_lengths} queries"
        right = _diagonal(lengths, query_lengths, rule)
        made = {
            "lengths": masks.Document.from_lengths(torch.tensor(lengths), torch.tensor(query_lengths), within=within),
            "edges": masks.Document.from_cu_seqlens(_edges(lengths), _edges(query_lengths), within=within),
        }
        for name, mask in made.items():
            bound = mask.bind(q_len, kv_len)
            np.testing.assert_array_equal(bound.dense()[0, 0].numpy(), right, err_msg=f"{name}: {case}")
            rows, columns = edges(q_len, 2), edges(kv_len, 2)
            kinds, truth = bound.blocks(rows, columns)[0, 0].numpy(), _truth(right, rows.tolist(), columns.tolist())
            assert ((kinds == truth) | (kinds == PARTIAL)).all(), f"{name}: {case}"


def _edges(lengths):
    return torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)


@pytest.mark.parametrize(("within", "rule"), ANYWHERE)
def test_attention_in_packed_documents_is_that_of_each_that_is_not_empty(within, rule):
    generator = torch.Generator().manual_seed(0)
    for lengths, query_lengths in EMPTY_SOMEWHERE:
        q, k, v = (torch.randn(1, 2, n, 4, generator=generator) for n in (sum(query_lengths), *[sum(lengths)] * 2))
        visible = torch.from_numpy(_diagonal(lengths, query_lengths, rule))
        scores = (q @ k.mT / 2).masked_fill(~visible, -torch.inf)
        right = scores.softmax(-1).nan_to_num() @ v  # a query that sees nothing: 0
        mask = masks.Document.from_lengths(torch.tensor(lengths), torch.tensor(query_lengths), within=within)
        for backend in ("reference", "strips", "auto"):
            output = regard.attention(q, k, v, mask=mask, backend=backend)
            assert torch.allclose(output, right, atol=1e-6), f"{backend}: {lengths} keys, {query_lengths} queries"
        jagged = regard.attention(_jagged(q, query_lengths), _jagged(k, lengths), _jagged(v, lengths), mask=within)
        output = jagged.transpose(1, 2).values().transpose(0, 1)[None]
        assert torch.allclose(output, right, atol=1e-6), f"jagged: {lengths} keys, {query_lengths} queries"


def _jagged(packed, lengths):
    parts = packed[0].transpose(0, 1).split(lengths)
    return torch.nested.nested_tensor(list(parts), layout=torch.jagged).transpose(1, 2)


@pytest.mark.parametrize("lengths", [[], [0], [0, 0]])
@pytest.mark.parametrize("within", [None, masks.Causal(), masks.Global([0]), masks.RandomBlocks(1), masks.bigbird()])
def test_where_there_are_no_keys_there_is_nothing_to_see(lengths, within):
    mask = masks.Document.from_lengths(torch.tensor(lengths, dtype=torch.long), within=within)
    assert mask.bind(2, 0).dense().shape == (1, 1, 2, 0)
    assert mask.bind(2, 0).blocks(torch.tensor([0, 2]), torch.tensor([0])).shape == (1, 1, 1, 0)


@pytest.mark.parametrize("within", [masks.Dense(torch.ones(3, 3).bool().tril()), masks.RandomBlocks(1, block=1)])
def test_a_mask_for_one_length_fits_where_all_other_documents_are_empty(within):
    packed = masks.Document.from_lengths(torch.tensor([3, 0, 3, 0]), within=within).bind(6, 6).dense()[0, 0]
    alone = within.bind(3, 3).dense()[0, 0]
    assert torch.equal(packed, torch.block_diag(alone, alone).bool())


def test_a_global_token_beyond_a_text_is_saved_with_its_queries_and_keys(tmp_path):
    class Model(torch.nn.Module):
        def forward(self, x):
            return regard.attention(x, x, x, mask=masks.longformer(2, [0, 400]))

    x = torch.randn(1, 2, 24, 8)
    with regard.watch(model := Model(), keep="qk") as seen:
        model(x)
    seen.save(tmp_path / "it.atlas")
    found = regard.load_atlas(tmp_path / "it.atlas").weights(layer=0, head=1)
    i, j = np.arange(24)[:, None], np.arange(24)
    scores = (x[0, 1].double() @ x[0, 1].double().T / 8**0.5).numpy()
    expected = np.where((abs(i - j) <= 1) | (i == 0) | (j == 0), np.exp(scores), 0.0)
    np.testing.assert_allclose(found[0], expected / expected.sum(-1, keepdims=True), atol=1e-6)


def test_a_sequence_of_padding_alone_sees_nothing_through_a_global_token():
    mask = masks.Padding.from_lengths(torch.tensor([2, 0]), kv_len=3) & (masks.Window(2) | masks.Global([0]))
    assert mask.bind(3, 3).dense(batch=2)[:, 0].int().tolist() == [[[1, 1, 0], [1, 1, 0], [1, 1, 0]], [[0] * 3] * 3]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: masks.Document(torch.ones(3)), r"`ids` must be an integer tensor, .* got torch.float32 of shape \(3,"),
        (lambda: masks.Document(torch.ones(1, 2, 3, dtype=torch.long)), r"of shape \(1, 2, 3\)"),
        (lambda: masks.Document(torch.zeros(3).long(), torch.zeros(2).bool()), "`query_ids` must be an integer"),
        (
            lambda: masks.Document(torch.zeros(2, 3).long(), torch.zeros(3, 3).long()),
            r"same batch as `ids` \(2\), got 3",
        ),
        (lambda: masks.Document(torch.zeros(3).long()).bind(3, 4), "one id for each of 4 keys, got 3"),
        (
            lambda: masks.Document(torch.zeros(3).long(), torch.zeros(2).long()).bind(3, 3),
            "one id for each of 3 queries, got 2",
        ),
        (lambda: masks.Document.from_lengths(torch.tensor([2, -1])), r"0 or more, got torch.int64 .* \[2, -1\]"),
        (lambda: masks.Document.from_lengths(torch.tensor([2]), torch.tensor([2, 1])), "each of 1 documents, got 2"),
        (
            lambda: masks.Document.from_cu_seqlens(torch.tensor([1, 2])),
            r"`cu_seqlens_k` must rise from 0 .* got \[1, 2\]",
        ),
        (lambda: masks.Document.from_cu_seqlens(torch.tensor([0, 3, 2])), r"got \[0, 3, 2\]"),
        (
            lambda: masks.Document.from_cu_seqlens(torch.tensor([0, 3]), torch.tensor([2, 3])),
            "`cu_seqlens_q` must rise from 0",
        ),
    ],
)
def test_wrong_documents_say_what_is_right(make, words):
    with pytest.raises(InputError, match=words):
        make()
