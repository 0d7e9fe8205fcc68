"""Every statistic is the one of the dense float64 weights: each kind of attention, any blocks, whole or step by step.

A new statistic needs an entry in EXAMPLES, its formula over dense weights in numpy; everything below then holds for it.
"""

import doctest
import inspect
import itertools
import pickle
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import nn

import regard
from oracles import causal, dense, entropy, f64, pooled, window
from regard.masks import Causal, Padding, Window
from regard.normalizers import Softmax
from regard.observe import statistics, weight_rows
from regard.observe.requested_statistics import NAMED
from regard.observe.statistics import GradientTimesAttention, HeadImportance
from regard.scores import ScaledDot
from sweeps import sweep
from tiers import slow_but

N, DIM, LAYERS = 300, 8, 2
DTYPES = {torch.float64: 1e-9, torch.float32: 1e-5}


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Matrices are small here, and threads would wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@dataclass
class Case:
    """One kind of attention: what the model is given and what its dense weights are."""

    heads: int = 4
    kv_heads: int = 2
    queries: int = N
    keys: int = N
    options: dict = field(default_factory=dict)  # of regard.attention
    formula: dict = field(default_factory=dict)  # of the oracle
    cross: bool = False
    dtype: torch.dtype = torch.float64

    def __post_init__(self):
        def drawn(heads, length, width, seed):
            x = torch.stack([randn(2, heads, length, width, seed=seed + layer) for layer in range(LAYERS)])
            return x.to(self.dtype)

        self.q = drawn(self.heads, self.queries, DIM, 10)
        self.k, self.v = drawn(self.kv_heads, self.keys, DIM, 20), drawn(self.kv_heads, self.keys, 6, 30)
        self.up = drawn(self.heads, self.queries, 6, 40)
        self.projection = randn(LAYERS, 12, self.heads * 6, seed=50).to(self.dtype)
        draw = np.random.default_rng(0)
        self.key_ids = draw.integers(0, 20, (2, self.keys))  # each token comes about 15 times
        self.query_ids = draw.integers(0, 20, (2, self.queries)) if self.cross else self.key_ids
        self.visible = np.broadcast_to(
            self.formula.get("visible", True), (2, self.heads, self.queries, self.keys)
        )  # fmt: skip
        self.layers = [
            dense(self.q[n], self.k[n], self.v[n], **self.formula | {"visible": self.visible}) for n in range(LAYERS)
        ]


LEFT = np.arange(N) >= np.array([[0], [41]])
RIGHT = np.arange(N) < np.array([[N], [200]])
SINK = randn(4, seed=3)
CASES = {
    "all": lambda dtype: Case(heads=3, kv_heads=3, dtype=dtype),
    "causal": lambda dtype: Case(
        heads=3, kv_heads=3, options={"mask": Causal()}, formula={"visible": causal(N, N)}, dtype=dtype
    ),
    "padded": lambda dtype: Case(
        options={"mask": Padding(torch.tensor(RIGHT))}, formula={"visible": RIGHT[:, None, None]}, dtype=dtype
    ),
    "causal, padded on the left": lambda dtype: Case(
        options={"mask": Causal() & Padding(torch.tensor(LEFT))},
        formula={"visible": causal(N, N) & LEFT[:, None, None]},
        dtype=dtype,
    ),
    "windowed": lambda dtype: Case(
        options={"mask": Causal() & Window(20)}, formula={"visible": window(N, N, 19, 0)}, dtype=dtype
    ),
    "hidden by a bias": lambda dtype: Case(
        options={"bias": torch.where(torch.tensor(causal(N, N) & LEFT[:, None, None]), 0.5, -torch.inf).to(dtype)},
        formula={"visible": causal(N, N) & LEFT[:, None, None]},
        dtype=dtype,
    ),
    "by hand": lambda dtype: Case(
        heads=3,
        kv_heads=3,
        options={"by hand": torch.tensor(causal(N, N))},
        formula={"visible": causal(N, N)},
        dtype=dtype,
    ),
    "grouped": lambda dtype: Case(
        kv_heads=1, options={"mask": Causal()}, formula={"visible": causal(N, N)}, dtype=dtype
    ),
    "cross": lambda dtype: Case(queries=120, cross=True, dtype=dtype),
    "sink": lambda dtype: Case(
        options={"mask": Causal(), "normalizer": Softmax(SINK.to(dtype))},
        formula={"visible": causal(N, N), "sink": SINK.to(dtype)},
        dtype=dtype,
    ),
    "softcap": lambda dtype: Case(
        options={"mask": Causal(), "score": ScaledDot(softcap=2.0)},
        formula={"visible": causal(N, N), "softcap": 2.0},
        dtype=dtype,
    ),
}


class Attention(nn.Module):
    """One call of regard.attention and the projection behind it."""

    def __init__(self, projection, options):
        super().__init__()
        self.out_proj = nn.Linear(projection.shape[1], projection.shape[0], dtype=projection.dtype)
        self.out_proj.weight.data = projection
        self.options = options

    def forward(self, q, k, v):
        if "by hand" not in self.options:
            return regard.attention(q, k, v, **self.options)
        scores = (q @ k.transpose(-2, -1) / DIM**0.5).masked_fill(~self.options["by hand"][: q.shape[2]], -torch.inf)
        return scores.softmax(-1) @ v


class Model(nn.Module):
    """As many calls as there are layers, with given queries, keys and values; a forward pass takes some of them."""

    def __init__(self, case):
        super().__init__()
        layers = [nn.ModuleDict({"attn": Attention(one, case.options)}) for one in case.projection]
        self.decoder = nn.ModuleList(layers)
        self.case = case
        self.register_buffer("one", torch.ones(()))
        self.register_buffer("table", torch.zeros(1000, 1))

    def forward(self, input_ids=None, decoder_input_ids=None, rows=slice(None), keys=slice(None)):
        case = self.case
        for ids in (input_ids, decoder_input_ids):
            if ids is not None:
                nn.functional.embedding(ids, self.table)
        # Queries that the model makes itself, of which the keys are not made, look at another text.
        q = case.q * self.one if case.cross else case.q
        return [
            layer["attn"](q[n, :, :, rows], case.k[n, :, :, keys], case.v[n, :, :, keys])
            for n, layer in enumerate(self.decoder)
        ]


# --- the formulas


def each(one):
    """The same formula for each layer: of its number, its weights and the case."""
    return lambda case: [one(n, case.layers[n].weights, case) for n in range(LAYERS)]


def offsets(case):
    """j − i of all pairs; texts of cross-attention begin together."""
    return np.arange(case.keys) - np.arange(case.queries)[:, None]


def over(name, chosen):
    """The mass of pairs that `chosen` finds in (batch, queries, keys)."""
    return {name: each(lambda n, w, case: (w * np.broadcast_to(chosen(case), w[:, 0].shape)[:, None]).sum(-1))}


def tokens(case):
    """Which positions of a text count, (batch, keys): not those that nobody sees."""
    return np.broadcast_to(case.cross | case.visible.any((1, 2)), (len(case.key_ids), case.keys))


def counted(w, case):
    """Weights of the rows that count, 0 in the others: sums over queries have no padding."""
    return w if case.cross else w * tokens(case)[:, None, -w.shape[2] :, None]


def same(case, behind):
    """Which keys, or the ones before them, are the query's token; earlier ones, within one text."""
    keys = np.full_like(case.key_ids, -1)
    keys[:, behind:] = np.where(tokens(case), case.key_ids, -1)[:, : case.keys - behind]
    return (case.query_ids[:, :, None] == keys[:, None]) & (case.cross | (offsets(case) < behind))


def first(case):
    """The first key of each sequence that anyone sees."""
    at = case.visible.any((1, 2)).argmax(-1)
    return np.arange(case.keys) == at[:, None, None]


def distance(n, w, case):
    mass = w.sum(-1)
    return (w * np.abs(offsets(case))).sum(-1) / np.where(mass > 0, mass, 1)


def sink(n, w, case):
    if case.cross:
        return w.mean(-2)
    found = np.zeros((*w.shape[:2], case.keys))
    for k in range(case.keys):
        rows = tokens(case)[:, k:].sum(-1)
        found[..., k] = counted(w, case)[:, :, k:, k].sum(-1) / np.maximum(rows, 1)[:, None]
    return found


def norms(n, case):
    group = case.heads // case.kv_heads
    parts = f64(case.projection[n]).reshape(12, case.heads, 6)
    return np.linalg.norm(np.einsum("bhjd,ohd->bhjo", np.repeat(f64(case.v[n]), group, 1), parts), axis=-1)


def moved(n, w, case):
    return w * norms(n, case)[:, :, None]


def slopes(n, w, case):
    group = case.heads // case.kv_heads
    return w * np.einsum("bhid,bhjd->bhij", f64(case.up[n]), np.repeat(f64(case.v[n]), group, 1))


def rolled(case):
    """R_l ⋯ R_1 after each layer, and R_L ⋯ R_l before each."""
    layers = [0.5 * np.eye(case.keys) + 0.5 * one.weights.mean(1) for one in case.layers]
    up = list(itertools.accumulate(layers, lambda done, one: one @ done))
    down = list(itertools.accumulate(reversed(layers), lambda done, one: done @ one))[::-1]
    return up, down


def top(n, w, case):
    return -np.sort(-w, -1)[..., :8]


# For every exported statistic: values of it, each with the arrays that it must give for each layer.
EXAMPLES = {
    "Columns": [(statistics.Columns([0, 7, 299]), {"columns": each(lambda n, w, case: w[..., [0, 7, 299]])})],
    "KeySpanSums": [
        (
            statistics.KeySpanSums({"front": (0, 40), "rest": (40, None), "some": [7, 299]}),
            {
                "key_spans": each(
                    lambda n, w, case: np.stack(
                        [w[..., :40].sum(-1), w[..., 40:].sum(-1), w[..., [7, 299]].sum(-1)], -1
                    )
                )
            },
        )
    ],
    "Confidence": [(statistics.Confidence(), {"confidence": each(lambda n, w, case: w.max(-1))})],
    "Distance": [(statistics.Distance(), {"distance": each(distance)})],
    "Entropy": [(statistics.Entropy(), {"entropy": each(lambda n, w, case: entropy(w))})],
    "GradientTimesAttention": [
        (
            statistics.GradientTimesAttention(),
            {
                "gradient_x_attention": each(lambda n, w, case: slopes(n, w, case).sum(-1)),
                "gradient_x_attention.keys": each(lambda n, w, case: counted(slopes(n, w, case), case).sum(-2)),
                "gradient_x_attention.mean": each(slopes),
            },
        )
    ],
    "HeadImportance": [
        (
            statistics.HeadImportance(),
            {
                "importance": each(
                    lambda n, w, case: np.abs(counted(case.layers[n].output * f64(case.up[n]), case).sum((-2, -1)))
                )
            },
        )
    ],
    "HeatMap": [(statistics.HeatMap(), {name: each(lambda n, w, case: w) for name in ("mean", "max")})],
    "Mass": [
        (statistics.Mass("self"), over("self", lambda case: offsets(case) == 0)),
        (statistics.Mass("previous"), over("previous", lambda case: offsets(case) == -1)),
        (statistics.Mass("next"), over("next", lambda case: offsets(case) == 1)),
        (statistics.Mass("first"), over("first", first)),
        (statistics.Mass("duplicate_token"), over("duplicate_token", lambda case: same(case, 0))),
        (statistics.Mass("induction"), over("induction", lambda case: same(case, 1))),
        (statistics.Mass(keys=[3, 5, 298], name="three"), over("three", lambda c: np.isin(range(c.keys), [3, 5, 298]))),
        (statistics.Mass(token_ids=[2, 11]), over("tokens", lambda case: np.isin(case.key_ids, [2, 11])[:, None])),
    ],
    "Received": [(statistics.Received(), {"received": each(lambda n, w, case: counted(w, case).sum(-2))})],
    "Rectangle": [
        (
            statistics.Rectangle(slice(90, 119), range(60, 150)),
            {"rectangle": each(lambda n, w, case: w[..., 90:119, 60:150])},
        )
    ],
    "Rollout": [
        (statistics.Rollout(key=50), {"rollout": lambda case: [one[:, None, :, 50] for one in rolled(case)[0]]}),
        (
            statistics.Rollout(query=-3, name="back"),
            {"back": lambda case: [one[:, None, -3] for one in rolled(case)[1]]},
        ),
    ],
    "Rows": [(statistics.Rows([0, 100, 17]), {"rows": each(lambda n, w, case: w[..., [0, 100, 17], :])})],
    "Sink": [(statistics.Sink(), {"sink": each(sink)})],
    "Top": [(statistics.Top(), {"top_weights": each(top)})],
    "ValueNorm": [
        (
            statistics.ValueNorm(),
            {
                "value_norm": each(lambda n, w, case: counted(moved(n, w, case), case).sum(-2)),
                "value_norm.keys": each(lambda n, w, case: norms(n, case)),
                "value_norm.mean": each(moved),
                "value_norm.max": each(moved),
            },
        )
    ],
    "Weights": [(None, {"weights": each(lambda n, w, case: w)})],  # with keep="weights"
}
ALL = [one for many in EXAMPLES.values() for one in many]


def watch(case, asked, steps=None):
    """The record of a pass through the model, or of one after the other; with a backward pass at the end of the first.

    `steps` are slices of queries, each with its slice of keys.
    """
    model = Model(case)
    case.q.requires_grad_(True)
    keep = "weights" if any(one is None for one in asked) else "maps"
    ids = {"input_ids": torch.tensor(case.key_ids)}
    if case.cross:
        ids["decoder_input_ids"] = torch.tensor(case.query_ids)
    with regard.watch(model, keep=keep, statistics=[one for one in asked if one is not None]) as seen:
        if steps is None:
            outputs = model(**ids)
            sum((output * up).sum() for output, up in zip(outputs, case.up, strict=True)).backward()
        for rows, keys in steps or ():
            with torch.no_grad():
                model(ids["input_ids"][:, rows], rows=rows, keys=keys)
    return seen.record


def near(ours, theirs, tolerance, *, signed=False):
    """Relative to a number or a hundredth of the largest; where signs cancel, to a third of the largest."""
    assert ours.shape == theirs.shape
    largest = np.abs(theirs).max()
    np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance * largest * (0.3 if signed else 0.01))


SIGNED = ("gradient_x_attention", "gradient_x_attention.keys", "gradient_x_attention.mean", "importance")


def found(record, name, layer):
    seen = record.layer(layer)
    return seen.statistics[name] if name in seen.statistics else getattr(seen, name)


def fits(example, case):
    """Rollout follows one text; it refuses two (see below)."""
    return not (case.cross and isinstance(example[0], statistics.Rollout))


def check(record, case, examples, tolerance):
    for _, arrays in examples:
        for name, formula in arrays.items():
            for layer, expected in enumerate(formula(case)):
                ours = found(record, name, layer)
                assert ours.dtype == (np.float64 if case.dtype == torch.float64 else np.float32)
                near(ours, expected, tolerance, signed=name in SIGNED)


def _check_all(kind, dtype):
    case = CASES[kind](dtype)
    examples = [example for example in ALL if fits(example, case)]
    check(watch(case, [example[0] for example in examples]), case, examples, DTYPES[dtype])


IN_FLOAT32 = ("all", "grouped")  # the other cases are watched in float32 by `make test-all` only


@pytest.mark.parametrize("kind", CASES)
def test_every_statistic_is_that_of_the_dense_weights(kind):
    _check_all(kind, torch.float64)


@pytest.mark.parametrize("kind", IN_FLOAT32)
def test_every_statistic_in_float32_is_that_of_the_dense_weights(kind):
    _check_all(kind, torch.float32)


@pytest.mark.slow
def test_every_statistic_of_other_cases_in_float32_is_that_of_the_dense_weights():
    for case in sweep(kind for kind in CASES if kind not in IN_FLOAT32):
        with case as kind:
            _check_all(kind, torch.float32)


@pytest.mark.parametrize("kind", ["causal", "cross"])
def test_the_autocast_of_a_model_takes_no_digits(kind):
    case = CASES[kind](torch.float32)
    examples = [one for one in ALL if fits(one, case)]
    # The output is the model's, in bfloat16, and so is its gradient.
    examples = [one for one in examples if not isinstance(one[0], (GradientTimesAttention, HeadImportance))]
    with torch.autocast("cpu", torch.bfloat16):
        record = watch(case, [one[0] for one in examples])
    check(record, case, examples, DTYPES[torch.float32])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["causal, padded on the left", "windowed", "cross"])
def test_blocks_of_any_height_give_the_same(kind, monkeypatch):
    runs = []
    for height in (1, 7, 4096):
        monkeypatch.setattr(weight_rows, "_ROWS", height)
        monkeypatch.setattr(weight_rows, "_TALLEST", height)
        case = CASES[kind](torch.float32)
        examples = [one for one in ALL if fits(one, case)]
        record = watch(case, [*(one[0] for one in examples), Heights()])
        assert record.layer(0).statistics["heights"].max() == min(height, case.queries)
        runs.append((record, examples))
    for (record, examples), (other, _) in itertools.combinations(runs, 2):
        for name in (name for _, arrays in examples for name in arrays):
            for layer in range(LAYERS):
                near(found(record, name, layer), found(other, name, layer), 1e-6, signed=name in (*SIGNED, "entropy"))


class Heights(statistics.PerQuery):
    """How many rows came together."""

    name = "heights"

    def of(self, rows):
        return torch.full(rows.weights.shape[:2], float(rows.weights.shape[1]))


CUTS = {"one by one": [290, *range(291, N)], "in chunks": [40, 41, 128, 129, 250], "from one": [1, 2, 3, 200]}


def steps(cuts, dropped=0):
    """Queries and keys of each call of a decoding; of the keys, a sliding cache keeps the newest."""
    edges = [0, *cuts, N]
    return [(slice(a, b), slice(max(0, a - dropped + 1) if dropped else 0, b)) for a, b in itertools.pairwise(edges)]


def decoding(case):
    """Statistics of several calls: a gradient needs one."""
    return [
        one for one in ALL if not isinstance(one[0], (statistics.GradientTimesAttention, statistics.HeadImportance))
    ]


GROWN = [*itertools.product(["causal", "windowed", "sink"], CUTS)]


@pytest.mark.parametrize(("kind", "cuts"), slow_but([*zip(["causal", "windowed", "sink"], CUTS, strict=True)], GROWN))
def test_every_statistic_grows_with_the_text(kind, cuts):
    case = CASES[kind](torch.float64)
    examples = decoding(case)
    check(watch(case, [one[0] for one in examples], steps(CUTS[cuts])), case, examples, 1e-9)


def test_every_statistic_goes_through_a_cache_that_drops_keys():
    case = CASES["windowed"](torch.float64)
    examples = decoding(case)
    check(watch(case, [one[0] for one in examples], steps(CUTS["in chunks"], dropped=20)), case, examples, 1e-9)


def test_positions_count_from_the_first_key_where_the_beginning_was_not_watched():
    late, start = CASES["causal"](torch.float64), 180
    asked = [
        "self",
        "previous",
        "distance",
        "sink",
        statistics.Mass("duplicate_token", input_ids=late.key_ids),
        "first",
    ]
    with torch.no_grad(), regard.watch(model := Model(late), statistics=asked) as seen:
        model(rows=slice(start, 250), keys=slice(0, 250))
        model(rows=slice(250, N))
    for layer in range(LAYERS):
        weights = late.layers[layer].weights[:, :, start:]
        far = np.abs(offsets(late))[start:]
        at = np.arange(start, N)
        expected = {
            "self": weights[:, :, at - start, at],
            "previous": weights[:, :, at - start, at - 1],
            "distance": (weights * far).sum(-1),
            "duplicate_token": (weights * same(late, 0)[:, None, start:]).sum(-1),
            "first": weights[..., 0],
            "sink": weights.sum(-2) / np.minimum(N - start, N - np.arange(N)),
        }
        for name, values in expected.items():
            near(found(seen, name, layer), values, 1e-9)


def test_maps_of_long_texts_are_pooled():
    n = 700
    case = Case(queries=n, keys=n, options={"mask": Causal()}, formula={"visible": causal(n, n)})
    record = watch(case, ["value_norm", "gradient_x_attention"])
    for layer in range(LAYERS):
        weights = case.layers[layer].weights
        for name, full, how in [
            ("value_norm.mean", moved(layer, weights, case), np.mean),
            ("value_norm.max", moved(layer, weights, case), np.max),
            ("gradient_x_attention.mean", slopes(layer, weights, case), np.mean),
        ]:
            near(found(record, name, layer), pooled(full, 4, 4, how), 1e-9)


def _members():
    kinds = {name: getattr(statistics, name) for name in statistics.__all__}
    bases = (statistics.Extent, statistics.PerKey, statistics.PerQuery, statistics.Statistic)
    return {name: kind for name, kind in kinds.items() if inspect.isclass(kind) and kind not in bases}


def test_every_exported_statistic_is_here():
    assert set(EXAMPLES) == set(_members())


def test_every_statistic_shows_itself():
    for case in sweep([*_members(), "of_weights"]):
        with case as name:
            kind = getattr(statistics, name)
            needs_a_model = {"GradientTimesAttention", "HeadImportance", "Rollout", "ValueNorm"}
            tests = doctest.DocTestFinder(recurse=False).find(kind, name)
            assert name in needs_a_model or any(test.examples for test in tests)
            assert inspect.getdoc(kind)


def test_every_name_is_that_of_its_statistic():
    assert all(make().name == name for name, make in NAMED.items())


def test_what_was_asked_for_stays_as_it_was():
    case = CASES["causal"](torch.float64)
    asked = [one[0] for one in decoding(case)]
    before = pickle.dumps(asked)
    watch(case, asked)
    assert pickle.dumps(asked) == before
