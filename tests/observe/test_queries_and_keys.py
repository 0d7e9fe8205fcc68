"""keep="qk": any rectangle computed later, also from a saved atlas, holds the dense weights of float64 numpy."""

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

import regard
from oracles import causal, dense, f64, pooled, window
from regard import masks, positions, scores
from regard.errors import InputError, ObservationError
from regard.masks import Causal, Dense, MaskMod, Padding, Window
from regard.normalizers import Sigmoid, Softmax
from regard.record.kept_qk import Kept
from regard.record.tiles import Matrix
from sweeps import sweep

N, DIM = 40, 8
LEFT = np.arange(N) >= np.array([[0], [11]])
SINK = torch.tensor([0.5, -1.0, 2.0, 0.0])


def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def alibi(heads, queries, keys):
    """−slope · (i − j), the slopes of Press et al. for 4 heads by hand."""
    slopes = np.array([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8])[:heads]
    distance = np.arange(queries)[:, None] + keys - queries - np.arange(keys)
    return -slopes[:, None, None] * distance


def t5(table, queries, keys):
    """The buckets of T5's decoder for 8 rows and 20 positions: 4 of one distance each, 4 logarithmic ones."""
    found = np.zeros((queries, keys), int)
    for i in range(queries):
        for j in range(keys):
            far = max(0, i - j)
            found[i, j] = far if far < 4 else min(7, 4 + int(np.log(far / 4) / np.log(20 / 4) * 4))
    return f64(table)[found].transpose(2, 0, 1)


@dataclass(frozen=True)
class Ramp(positions.Bias):
    """A bias that regard does not know."""

    def __call__(self, batch, head, i, j):
        return 0.1 * (i - j).double()


TABLE = randn(8, 4, seed=9)
HAND = causal(N, N) & (np.arange(N)[:, None] % 3 != np.arange(N) % 3) | np.eye(N, dtype=bool)
HEADS = torch.tensor(HAND) | torch.eye(N, dtype=torch.bool)[torch.arange(4)[None, :, None] * 7, :][:, :, 0, None, :]
CASES = {
    "plain": ({}, {}),
    "causal": ({"mask": Causal()}, {"visible": causal(N, N)}),
    "padded": ({"mask": Causal() & Padding(torch.tensor(LEFT))}, {"visible": causal(N, N) & LEFT[:, None, None]}),
    "windowed": ({"mask": Causal() & Window(7)}, {"visible": window(N, N, 6, 0)}),
    "dense mask": ({"mask": torch.tensor(HAND)}, {"visible": HAND}),
    "a mask of four dimensions": ({"mask": torch.tensor(HAND)[None, None]}, {"visible": HAND}),
    "padding of four dimensions": (
        {"mask": torch.tensor(LEFT)[:, None, None].expand(2, 1, N, N)},
        {"visible": LEFT[:, None, None]},
    ),
    "a mask a head": ({"mask": HEADS}, {"visible": HEADS.numpy()}),
    "a rule of one's own": (
        {"mask": MaskMod(lambda b, h, i, j: (j <= i) & ((i % 3 != j % 3) | (i == j)))}, {"visible": HAND},
    ),
    "sink": ({"mask": Causal(), "normalizer": Softmax(SINK)}, {"visible": causal(N, N), "sink": SINK}),
    "softcap": (
        {"mask": Causal(), "score": scores.ScaledDot(softcap=1.5)}, {"visible": causal(N, N), "softcap": 1.5},
    ),
    "scale": ({"scale": 0.7}, {"scale": 0.7}),
    "alibi": ({"bias": positions.ALiBi(4), "mask": Causal()}, {"visible": causal(N, N), "bias": alibi(4, N, N)}),
    "t5": (
        {"bias": positions.T5Bias(TABLE, bidirectional=False, max_distance=20), "scale": 1.0},
        {"bias": t5(TABLE, N, N), "scale": 1.0},
    ),
    "a bias of one's own": (
        {"bias": Ramp()}, {"bias": 0.1 * (np.arange(N)[:, None] - np.arange(N))[None]},
    ),
    "hidden by a bias": (
        {"bias": torch.where(torch.tensor(causal(N, N) & LEFT[:, None, None]), 0.5, -torch.inf).double()},
        {"visible": causal(N, N) & LEFT[:, None, None]},
    ),
    "a dense bias": ({"bias": randn(1, 4, N, N, seed=4)}, {"bias": f64(randn(1, 4, N, N, seed=4))}),
}  # fmt: skip


class Attention(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.options = options

    def forward(self, q, k, v):
        return regard.attention(q, k, v, **self.options)


def seen_of(options, dtype=torch.float64, *, kv_heads=2, queries=N, keys=N, cross=False, **asked):
    model = nn.ModuleDict({"attn": Attention(options)})
    model.register_buffer("one", torch.ones(()))
    q, k = randn(2, 4, queries, DIM, seed=1, dtype=dtype) * 2, randn(2, kv_heads, keys, DIM, seed=2, dtype=dtype)
    # Queries that the model makes itself, of which the keys are not made, look at another text.
    model.forward = lambda: model["attn"](q * model.one if cross else q, k, k)
    with torch.no_grad(), regard.watch(model, **{"keep": "qk", **asked}) as seen:
        model()
    return seen, q, k


def both(seen, tmp_path):
    """What was kept, and what comes back from a file."""
    seen.save(tmp_path / "it.atlas")
    return seen.layers[0].qk, regard.load_atlas(tmp_path / "it.atlas").layers[0].qk


def near(kept, expected, tolerance):
    """The whole matrix, and rectangles of it."""
    for batch_index in range(2):
        for head in range(4):
            wanted = expected[batch_index, head]
            queries, keys = wanted.shape
            for rows, columns in [
                (slice(0, queries), slice(0, keys)), (slice(3, 4), slice(5, 6)), (slice(17, 31), slice(2, 19)),
                (slice(queries - 1, queries), slice(0, keys)), (slice(0, queries), slice(keys - 1, keys)),
            ]:  # fmt: skip
                tile = kept.tile(batch_index, head, rows, columns)
                np.testing.assert_allclose(tile, wanted[rows, columns], rtol=tolerance, atol=tolerance)


def test_a_tile_is_that_of_the_dense_weights(tmp_path):
    for case in sweep(itertools.product([torch.float64, torch.float32], CASES)):
        with case as (dtype, name):
            options, formula = CASES[name]
            seen, q, k = seen_of(options, dtype)
            expected = dense(q, k, k, **formula).weights
            for kept in both(seen, tmp_path):
                assert kept.arrays["q"].dtype == (np.float64 if dtype == torch.float64 else np.float32)
                near(kept, expected, 1e-12 if dtype == torch.float64 else 1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_q_and_k_are_kept_in_the_models_own_type(tmp_path, dtype):
    seen, q, k = seen_of({"mask": Causal()}, dtype)
    for kept in both(seen, tmp_path):
        assert kept.arrays["q"].itemsize == 2
        assert kept.nbytes == 2 * (q.numel() + k.numel()) + 8 * 2 * 4 * N
        near(kept, dense(q, k, k, visible=causal(N, N)).weights, 1e-5)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_grouped_heads_are_kept_once_also_where_they_were_repeated(tmp_path, kv_heads):
    seen, q, k = seen_of({}, kv_heads=kv_heads)
    assert seen.layers[0].qk.arrays["k"].shape[1] == kv_heads

    class Repeating(nn.Module):
        def forward(self):
            wide = k.repeat_interleave(4 // kv_heads, 1)
            return nn.functional.scaled_dot_product_attention(q, wide, wide)

    with regard.watch(model := Repeating(), keep="qk") as again:
        model()
    for kept in both(again, tmp_path):
        assert kept.arrays["k"].shape[1] == kv_heads
        near(kept, dense(q, k, k).weights, 1e-12)


def test_cross_attention_counts_both_texts_from_their_own_beginning(tmp_path):
    seen, q, k = seen_of({}, queries=23, keys=61, cross=True)
    assert seen.layers[0].kind == "cross"
    for kept in both(seen, tmp_path):
        expected = dense(q, k, k).weights
        assert kept.tile(0, 1, slice(0, 23), slice(0, 61)).shape == (23, 61)
        np.testing.assert_allclose(kept.tile(1, 2, slice(0, 23), slice(0, 61)), expected[1, 2], rtol=1e-12)


def test_queries_that_are_the_last_positions_keep_their_place(tmp_path):
    """A bias and a mask are of positions, and the first query stands at 38."""
    asked = {"bias": positions.ALiBi(4), "mask": Causal() & Window(20)}
    seen, q, k = seen_of(asked, queries=23, keys=61)
    visible = causal(61, 61) & window(61, 61, 19, 0)
    expected = dense(q, k, k, visible=visible[38:], bias=alibi(4, 23, 61)).weights
    for kept in both(seen, tmp_path):
        for head in range(4):
            np.testing.assert_allclose(
                kept.tile(1, head, slice(0, 23), slice(0, 61)), expected[1, head], rtol=1e-10, atol=1e-12
            )


def test_a_factor_multiplies_the_softmax(tmp_path):
    center = torch.full((2, N), 20.0, dtype=torch.float64)
    seen, q, k = seen_of({"mask": Causal(), "weight_factor": positions.Gaussian(center, radius=8)})
    bell = np.exp(-((np.arange(N) - 20) ** 2) / (2 * 4**2))
    for kept in both(seen, tmp_path):
        near(kept, dense(q, k, k, visible=causal(N, N)).weights * bell, 1e-12)


def test_a_normalizer_without_a_log_sum_exp_needs_none(tmp_path):
    seen, q, k = seen_of({"mask": Causal(), "normalizer": Sigmoid()})
    logits = np.einsum("bhid,bhjd->bhij", f64(q), np.repeat(f64(k), 2, 1)) / DIM**0.5 - np.log(N)
    for kept in both(seen, tmp_path):
        near(kept, causal(N, N) / (1 + np.exp(-logits)), 1e-12)


SCORES = {
    "additive": scores.Additive(randn(6, DIM, seed=5), randn(6, DIM, seed=6), randn(4, 6, seed=7)),
    "bilinear": scores.Bilinear(randn(DIM, DIM, seed=5)),
    "concat": scores.Concat(randn(6, 2 * DIM, seed=5), randn(6, seed=7)),
    "cosine": scores.Cosine(),
    "cosine, a temperature a head": scores.Cosine(torch.tensor([0.1, 0.2, 0.3, 0.4])),
    "deberta": scores.DeBERTa(randn(4, 16, DIM, seed=5), randn(4, 16, DIM, seed=6), 8, 30),
    "deberta, one term": scores.DeBERTa(None, randn(4, 16, DIM, seed=6)),
    "relative key query": scores.RelativeKeyQuery(randn(7, DIM, seed=5)),
    "shaw": scores.Shaw(randn(7, DIM, seed=5)),
    "shaw, unlike sides": scores.Shaw(randn(6, DIM, seed=5), left=2, right=3),
    "transformer-xl": scores.TransformerXL(randn(4, DIM, seed=5), randn(4, DIM, seed=6), randn(4, DIM, 6, seed=7)),
}


def test_every_score_comes_back(tmp_path):
    """The oracle is the first pass over the same call, which other tests compare with formulas."""
    for case in sweep(SCORES):
        with case as name:
            seen, *_ = seen_of({"mask": Causal(), "score": SCORES[name]})
            for kept in both(seen, tmp_path):
                near(kept, seen.layers[0].mean, 1e-12)


# --- texts that are read in steps


class Stepping(nn.Module):
    """Queries over the keys up to them; a sliding cache has those alone that a window of `last` lets see."""

    def __init__(self, q, k, last=None, mask=True):
        super().__init__()
        self.q, self.k, self.last, self.mask = q, k, last, mask

    def forward(self, start, end):
        first = 0 if self.last is None else max(0, start - self.last + 1)
        k = self.k[:, :, first:end]
        mask = Causal() & Window(self.last) if self.last else Causal()
        return regard.attention(self.q[:, :, start:end], k, k, mask=mask if self.mask or end - start > 1 else None)


def stepped(edges, **options):
    q, k = randn(2, 4, N, DIM, seed=1), randn(2, 2, N, DIM, seed=2)
    model = Stepping(q, k, **options)
    with torch.no_grad(), regard.watch(model, keep="qk") as seen:
        for start, end in itertools.pairwise(edges):
            model(start, end)
    assert len(seen.records) == 1
    return seen, q, k


def test_decoding_appends_and_keeps_each_key_once(tmp_path):
    for case in sweep(
        itertools.product([[0, 30, *range(31, N + 1)], [0, 1, 2, 3, 20, N], [0, 25, 26, 27, N]], [True, False])
    ):
        with case as (edges, mask):
            seen, q, k = stepped(edges, mask=mask)
            for kept in both(seen, tmp_path):
                assert kept.arrays["k"].shape == (2, 2, N, DIM)
                assert len(kept.segments) == 1  # all steps are causal, so they are one
                near(kept, dense(q, k, k, visible=causal(N, N)).weights, 1e-12)


def test_steps_whose_scale_grows_with_the_text_keep_their_own(tmp_path):
    q, k = randn(2, 4, N, DIM, seed=1), randn(2, 2, N, DIM, seed=2)

    class Growing(nn.Module):
        def forward(self, start, end):
            keys = k[:, :, :end]
            return regard.attention(q[:, :, start:end], keys, keys, mask=Causal(), scale=0.01 * end)

    with regard.watch(model := Growing(), keep="qk") as seen:
        for start, end in itertools.pairwise([0, 20, 21, N]):
            model(start, end)
    scale = np.repeat([0.2, 0.21, 0.4], [20, 1, N - 20 - 1])[:, None]
    expected = dense(q * torch.tensor(scale), k, k, visible=causal(N, N), scale=1.0).weights
    for kept in both(seen, tmp_path):
        assert len(kept.segments) == 3
        near(kept, expected, 1e-12)


def test_a_cache_that_drops_keys_keeps_them_here(tmp_path):
    seen, q, k = stepped([0, 25, 26, 27, 33, N], last=9)
    for kept in both(seen, tmp_path):
        near(kept, dense(q, k, k, visible=window(N, N, 8, 0)).weights, 1e-12)


def test_a_static_cache_has_room_behind_its_newest_key(tmp_path):
    q, k = randn(1, 2, 12, DIM, seed=1), randn(1, 2, 12, DIM, seed=2)

    keys = torch.zeros(1, 2, 20, DIM, dtype=torch.float64)

    class Static(nn.Module):
        def forward(self, start, end):
            keys[:, :, start:end] = k[:, :, start:end]  # in place, as such a cache is written
            mask = torch.arange(20) <= torch.arange(start, end)[:, None]
            return nn.functional.scaled_dot_product_attention(q[:, :, start:end], keys, keys, attn_mask=mask)

    with regard.watch(model := Static(), keep="qk") as seen:
        for start, end in [(0, 9), (9, 10), (10, 11), (11, 12)]:
            model(start, end)
    keys.zero_()  # for another text
    expected = dense(q, k, k, visible=causal(12, 12)).weights
    for kept in both(seen, tmp_path):
        for head in range(2):
            np.testing.assert_allclose(
                kept.tile(0, head, slice(0, 12), slice(0, 12)), expected[0, head], rtol=1e-12, atol=1e-15
            )


def test_what_a_model_writes_over_afterwards_was_copied():
    q, k = randn(1, 2, 12, DIM, seed=1), randn(1, 2, 12, DIM, seed=2)
    expected = dense(q, k, k).weights

    class Overwriting(nn.Module):
        def forward(self):
            nn.functional.scaled_dot_product_attention(q, k, k)
            q.zero_()
            k.zero_()

    with regard.watch(model := Overwriting(), keep="qk") as seen:
        model()
    np.testing.assert_allclose(seen.layers[0].qk.tile(0, 1, slice(0, 12), slice(0, 12)), expected[0, 1], rtol=1e-12)


# --- a matrix of a long text


LONG = 1100


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    seen, q, k = seen_of({"mask": Causal()}, torch.float32, queries=LONG, keys=LONG)
    path = tmp_path_factory.mktemp("long") / "it.atlas"
    seen.save(path)
    weights = dense(q[1:, :1], k[1:, :1], k[1:, :1], visible=causal(LONG, LONG)).weights[0, 0]
    return seen.layers[0], regard.load_atlas(path).layers[0], weights


@pytest.mark.parametrize("which", [0, 1])
def test_a_matrix_is_exact_at_every_step(long, which):
    layer, weights = long[which], long[2]
    matrix = Matrix(layer, 0, 1)
    assert layer.query_bin == 8
    assert matrix.finest == 1
    assert abs(matrix.weight(777, 3) - weights[777, 3]) < 1e-6
    np.testing.assert_allclose(matrix.row(1099), weights[1099], atol=1e-6)
    np.testing.assert_allclose(matrix.column(5), weights[:, 5], atol=1e-6)
    for step in (1, 2, 4, 8, 16):
        for pool, how in (("mean", np.mean), ("max", np.max)):
            tile = matrix.tile(slice(256, LONG), slice(0, 700), step=step, pool=pool)
            expected = pooled(weights[256:, :700], step, step, how)
            full = slice(0, 700 // step)  # a stored bin is over all of its keys, also behind the rectangle
            np.testing.assert_allclose(tile[:, full], expected[:, full], rtol=1e-3 if which else 1e-4, atol=1e-6)
            assert tile.dtype == np.float32


def test_a_rectangle_that_is_no_plain_range_is_refused(long):
    for case in sweep([slice(0, 64, 2), slice(None), slice(8), slice(0.0, 8.0)]):
        with case as rows:
            for place in ((rows, slice(0, 8)), (slice(0, 8), rows)):
                with pytest.raises(InputError, match="must be a slice with a start and an end, such as"):
                    Matrix(long[0], 0).tile(*place)


def test_weights_of_a_long_text_are_computed_from_them(long):
    for layer in long[:2]:
        found = regard.record.records.Record((layer,)).weights(layer=0, head=0)
        np.testing.assert_allclose(found[1], long[2], atol=1e-5)


def test_a_tile_that_is_computed_has_a_limit(long, monkeypatch):
    monkeypatch.setattr("regard.record.tiles._CELLS", 100)
    with pytest.raises(InputError, match=r"at most 100 cells, got 121: ask for a part of it, or for a larger `step`"):
        Matrix(long[0], 0).tile(slice(0, 22), slice(0, 22), step=2)


def test_float64_stays_float64():
    seen, q, k = seen_of({}, queries=600, keys=600)
    weights = dense(q, k, k).weights[0, 3]
    matrix = Matrix(seen.layers[0], 3)
    np.testing.assert_allclose(matrix.tile(slice(0, 600), slice(0, 600), step=2), pooled(weights, 2, 2, np.mean), 1e-12)
    np.testing.assert_allclose(matrix.tile(slice(0, 600), slice(0, 600), step=4), pooled(weights, 4, 4, np.mean), 1e-12)
    assert matrix.row(0).dtype == np.float64


# --- what is refused, and budgets


def test_weights_that_a_model_computes_itself_have_no_queries_and_keys():
    class Eager(nn.Module):
        def forward(self, x):
            return (x @ x.transpose(-1, -2)).softmax(-1) @ x

    with (
        pytest.raises(ObservationError, match=r'keep="qk" needs the queries and keys.*attn_implementation="sdpa".*'),
        regard.watch(model := Eager(), keep="qk"),
    ):
        model(randn(1, 5, 4))


def test_the_budget_is_a_number_of_bytes_and_the_way_out_is_named():
    needed = 8 * (2 * 4 * N * DIM + 2 * 2 * N * DIM + 2 * 4 * N)
    seen_of({"mask": Causal()}, max_bytes=needed)
    words = r'keep="qk" needs 32\.5 KiB more for q and k of attn, and .* are left: raise `max_bytes`.*`layers=\[3, 4\]`'
    with pytest.raises(ObservationError, match=words):
        seen_of({"mask": Causal()}, max_bytes=needed - 1)
    with pytest.raises(ObservationError, match=r"needs 1\.6 KiB more for the mask, which is not one of regard's own,"):
        seen_of({"mask": CASES["a rule of one's own"][0]["mask"]}, max_bytes=needed + 100)


def test_a_score_of_ones_own_is_refused():
    @dataclass(frozen=True)
    class Twice(scores.ScaledDot):
        def tile(self, q, k, i, j):
            return 2 * super().tile(q, k, i, j)

    with pytest.raises(ObservationError, match=r'cannot store the score Twice of attn.*keep="weights"'):
        seen_of({"score": Twice()})


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Attention({"mask": torch.tensor(HAND)}) for _ in range(3)])

    def forward(self):
        for n, block in enumerate(self.blocks):
            block(randn(1, 2, N, DIM, seed=n), randn(1, 2, N, DIM, seed=9), randn(1, 2, N, DIM))


def test_layers_are_chosen_by_number_or_name():
    for case in sweep(itertools.product([[1], ["blocks.1"], [1, "blocks.1"]], ["maps", "qk", "weights"])):
        with case as (chosen, keep):
            with regard.watch(model := Stack(), keep=keep, layers=chosen) as seen:
                model()
            with regard.watch(model, keep=keep) as everything:
                model()
            assert [one.name for one in seen.layers] == ["blocks.1"]
            assert np.array_equal(seen.weights(layer=1), everything.weights(layer=1))
            with pytest.raises(InputError, match="got 0"):
                seen.weights(layer=0)


def test_a_mask_that_layers_share_is_kept_once(tmp_path):
    with regard.watch(model := Stack(), keep="qk") as seen:
        model()
    seen.save(tmp_path / "it.atlas")
    for one in (seen, regard.load_atlas(tmp_path / "it.atlas")):
        held = [layer.qk.arrays["held0"] for layer in one.layers]
        assert held[0].nbytes == N * N / 8
    assert seen.layers[0].qk.arrays["held0"] is seen.layers[2].qk.arrays["held0"]
    assert (tmp_path / "it.atlas").read_bytes().count(held[0].tobytes()) == 1


NO_LAYERS = [
    ({"layers": []}, "must be a list of numbers or names"),
    ({"layers": "blocks.1"}, "must be a list of numbers or names"),
    ({"layers": [-1]}, "numbers from 0 on and names"),
    ({"layers": [True]}, "numbers from 0 on and names"),
    ({"layers": [1, 7]}, "from 0 to 2 or one of blocks.0, blocks.1, blocks.2, got 7"),
]


def test_layers_that_are_none_are_named():
    for case in sweep(NO_LAYERS):
        with (
            case as (asked, words),
            pytest.raises(InputError, match=words),
            regard.watch(model := Stack(), **({"keep": "qk"} | asked)),
        ):
            model()


def test_a_padded_batch_is_kept_as_flags_and_not_as_pairs():
    q = randn(2, 2, N, DIM)
    mask = torch.tensor(causal(N, N) & LEFT[:, None, None])

    class Padded(nn.Module):
        def forward(self):
            return nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask)

    with regard.watch(model := Padded(), keep="qk") as seen:
        model()
    kept = seen.layers[0].qk
    assert isinstance(kept, Kept)
    assert sum(array.nbytes for name, array in kept.arrays.items() if name.startswith("held")) == 2 * N / 8
    near_all = dense(q, q, q, visible=f64(mask) > 0).weights
    for batch_index in range(2):
        for head in range(2):
            np.testing.assert_allclose(
                kept.tile(batch_index, head, slice(0, N), slice(0, N)), near_all[batch_index, head], atol=1e-12
            )


def test_every_part_of_the_equation_has_a_serial_form():
    from regard import normalizers
    from regard.serialization import KINDS

    for role in (masks, positions, scores, normalizers):
        bases = (masks.Mask, positions.Bias, scores.Score, normalizers.Normalizer)
        kinds = [getattr(role, name) for name in role.__all__]
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, bases) and kind not in (*bases, MaskMod, positions.Relative):
                assert KINDS[kind.__name__] is kind


def of_bilinear(q, k, weight, _):
    return q @ f64(weight) @ k.swapaxes(-1, -2)


def of_additive(q, k, weight, vector):
    return np.tanh((q @ f64(weight).T)[..., :, None, :] + (k @ f64(weight).T)[..., None, :, :]) @ f64(vector)


def of_cosine(q, k, _, vector):
    q, k = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
    return q @ k.swapaxes(-1, -2) / f64(vector)[:2, None, None]


PROJECTING = {
    "bilinear": (lambda weight, _: scores.Bilinear(weight), of_bilinear),
    "additive": (lambda weight, vector: scores.Additive(weight, weight, vector), of_additive),
    "concat": (lambda weight, vector: scores.Concat(torch.cat([weight, weight], 1), vector), of_additive),
    "cosine": (lambda _, vector: scores.Cosine(vector[:2]), of_cosine),
}


class Projects(nn.Module):
    """One call with a score."""

    def __init__(self, score):
        super().__init__()
        self.score = score

    def forward(self, q, k):
        return regard.attention(q, k, k, score=self.score)


def test_scores_that_project_queries_are_recorded_in_float32_where_the_model_is_narrow():
    for case in sweep(itertools.product(["maps", "qk"], PROJECTING)):
        with case as (keep, kind):
            q, k = randn(1, 2, 20, DIM, dtype=torch.bfloat16), randn(1, 2, 20, DIM, seed=1, dtype=torch.bfloat16)
            make, formula = PROJECTING[kind]
            held = randn(DIM, DIM, seed=2, dtype=torch.float32), randn(DIM, seed=3, dtype=torch.float32).abs() + 0.5

            with regard.watch(model := Projects(make(*held)), keep=keep) as seen:
                model(q, k)
            found = formula(f64(q), f64(k), *held)
            expected = np.exp(found - found.max(-1, keepdims=True))
            np.testing.assert_allclose(seen.weights(layer=0), expected / expected.sum(-1, keepdims=True), atol=1e-5)


def test_queries_stand_where_their_mask_is_bound_whatever_later_keys_they_see():
    """A chunk of a stream that looks ahead: queries 4 to 7 of 16 positions, with two keys before and three after."""
    q, k = torch.randn(1, 1, 4, 8), torch.randn(1, 1, 16, 8)

    class Chunk(nn.Module):
        def forward(self):
            return regard.attention(q, k, k, mask=Window(left=2, right=3).bind(4, 16, q_offset=4))

    with regard.watch(model := Chunk(), statistics=["distance", "previous", "self", "sink"]) as seen:
        model()
    i, j = np.arange(4, 8)[:, None], np.arange(16)
    weights = dense(q, k, k, visible=(i - j <= 2) & (j - i <= 3)).weights[0, 0]
    after = i >= j
    expected = {
        "distance": (weights * abs(i - j)).sum(-1),
        "previous": weights[np.arange(4), np.arange(3, 7)],
        "self": weights[np.arange(4), np.arange(4, 8)],
        "sink": (weights * after).sum(0) / np.maximum(after.sum(0), 1),
    }
    for name, numbers in expected.items():
        np.testing.assert_allclose(seen.statistic(name, layer=0)[0, 0], numbers, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("queries", [1, 4])
def test_queries_of_a_bound_mask_stand_there_though_the_last_keys_are_padding(queries):
    """Without `bind` these keys are taken for the unused positions of a static cache."""
    q, k = torch.randn(1, 1, queries, 8), torch.randn(1, 1, 16, 8)
    mask = Causal() & Padding.from_lengths(torch.tensor([11]), kv_len=16)

    class Padded(nn.Module):
        def forward(self, mask):
            return regard.attention(q, k, k, mask=mask)

    i, j = np.arange(16 - queries, 16)[:, None], np.arange(16)
    weights = dense(q, k, k, visible=(j <= i) & (j < 11)).weights[0, 0]
    for bound in (mask.bind(queries, 16), mask.bind(queries, 16, q_offset=16 - queries)):
        with regard.watch(model := Padded(), statistics=["distance"]) as seen:
            model(bound)
        assert seen.weights(layer=0).shape == (1, 1, queries, 16)
        np.testing.assert_allclose(seen.weights(layer=0)[0, 0], weights, atol=1e-6)
        np.testing.assert_allclose(seen.statistic("distance", layer=0)[0, 0], (weights * abs(i - j)).sum(-1), rtol=1e-5)


def by_number(batch, head, i, j):
    """Each sequence, or head, hides other keys."""
    return (j <= i) & ((j + head + 2 * batch) % 3 > 0) | (i == j)


OWN = {
    "heads": lambda batch, head, i, j: by_number(0, head, i, j),
    "sequences": lambda batch, head, i, j: by_number(batch, 0, i, j),
    "both": by_number,
    "neither": lambda batch, head, i, j: by_number(0, 0, i, j),
}


def test_a_function_that_reads_the_sequence_or_the_head_is_kept_for_each(tmp_path):
    """A function does not declare for how many of them it has values."""
    for case in sweep(itertools.product([False, True], OWN)):
        with case as (combined, name):
            mask = ~(~MaskMod(OWN[name]) | Window(5)) if combined else MaskMod(OWN[name])
            seen, q, k = seen_of({"mask": mask})
            batch, head = np.arange(2)[:, None, None, None], np.arange(4)[:, None, None]
            i, j = np.arange(N)[:, None], np.arange(N)
            visible = OWN[name](batch, head, i, j) & ((i - j >= 5) if combined else True)
            for kept in both(seen, tmp_path):
                near(kept, dense(q, k, k, visible=visible).weights, 1e-12)


def test_heads_are_not_chosen_where_a_function_reads_their_number():
    with pytest.raises(ObservationError, match="needs masks, biases, scores and sinks that all heads share"):
        seen_of({"mask": MaskMod(OWN["heads"])}, heads=["0.1"])
    seen, q, k = seen_of({"mask": MaskMod(OWN["sequences"])}, heads=["0.1"])
    dense_mask = torch.ones(2, 1, N, N, dtype=torch.bool).tril()
    for shared in (dense_mask, dense_mask[0, 0]):
        of_dense, *_ = seen_of({"mask": Dense(shared)}, heads=["0.1"])
        expected = dense(q, k, k, visible=dense_mask.numpy()).weights
        np.testing.assert_allclose(of_dense.weights(layer=0, head=1), expected[:, 1], atol=1e-6)
    expected = dense(q, k, k, visible=OWN["sequences"](np.arange(2)[:, None, None, None], 0, *np.ogrid[:N, :N])).weights
    np.testing.assert_allclose(seen.weights(layer=0, head=1), expected[:, 1], atol=1e-6)


@pytest.mark.parametrize("normalizer", [Softmax(), Sigmoid()])
def test_rows_that_were_not_chosen_have_no_weight(tmp_path, normalizer):
    q, k = randn(2, 4, N, DIM, seed=1), randn(2, 2, N, DIM, seed=2)
    model = Attention({"mask": Causal(), "normalizer": normalizer})
    with torch.no_grad(), regard.watch(model, keep="qk", queries=[3, 17]) as seen:
        model(q, k, k)
    options = {"mask": Causal(), "normalizer": normalizer, "return_weights": True, "backend": "reference"}
    expected = np.zeros((2, 4, N, N))
    expected[:, :, [3, 17]] = regard.attention(q, k, k, **options)[1].numpy()[:, :, [3, 17]]
    for kept in both(seen, tmp_path):
        near(kept, expected, 1e-12)
