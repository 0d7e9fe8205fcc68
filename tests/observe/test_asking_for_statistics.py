"""Statistics by name, by value and of one's own: what they are refused with, where they are kept, what they cost."""

import dataclasses
import gc
import json
import struct
import weakref
import zlib

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import regard
from regard.observe import statistics
from regard.observe.call_kinds import CallFromQK
from regard.observe.statistics import Mass, Rollout, Rows, ValueNorm, of_weights
from regard.record.atlas import read_atlas, save_atlas
from regard.record.records import Record
from sweeps import sweep


def randn(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


class Model(nn.Module):
    """Self-attention over (batch, 2 heads, positions, 4)."""

    def __init__(self, causal=True):
        super().__init__()
        self.causal = causal

    def forward(self, x, input_ids=None):
        return functional.scaled_dot_product_attention(x, x, x, is_causal=self.causal)


def watched(model, *inputs, **asked):
    with regard.watch(model, **asked) as seen:
        model(*inputs)
    return seen


def dense(x, causal=True):
    q = x.double().numpy()
    scores = q @ np.swapaxes(q, -1, -2) / 2
    scores = np.where(np.tri(x.shape[2]) if causal else True, scores, -np.inf)
    exp = np.exp(scores - scores.max(-1, keepdims=True))
    return exp / exp.sum(-1, keepdims=True)


X = randn(2, 2, 9, 4)


class Evenness(statistics.PerQuery):
    """A statistic of a user's own: Σ_j p², of each row."""

    name = "evenness"

    def of(self, rows):
        return rows.weights.square().sum(-1)


class Brightest:
    """One written from nothing: the largest weight of all, a number a head."""

    name = "brightest"

    def start(self, extent):
        self.found = np.zeros((extent.batch, extent.heads))

    def fold(self, rows):
        here = self.found[rows.batch_index, rows.heads]
        np.maximum(here, rows.weights.amax((1, 2)).numpy(), out=here)

    def finish(self, extent):
        return {"brightest": self.found, "brightest.at": self.found[..., None] > 0.5}


def test_names_values_and_ones_own_are_folded_in_one_sweep(monkeypatch):
    sweeps = []
    portions = CallFromQK.portions
    monkeypatch.setattr(CallFromQK, "portions", lambda self, *args: (sweeps.append(self), portions(self, *args))[1])
    seen = watched(Model(), X, statistics=["distance", Mass("previous"), Rows([3]), Evenness(), Brightest()])
    assert len(sweeps) == 1
    weights = dense(X)
    np.testing.assert_allclose(seen.statistic("evenness", layer=0), (weights**2).sum(-1), rtol=1e-5)
    np.testing.assert_allclose(seen.statistic("brightest", layer=0, head=1), weights.max((-1, -2))[:, 1], rtol=1e-5)
    np.testing.assert_allclose(seen.statistic("rows", layer=0, head=0), weights[:, 0, [3]], atol=1e-6)
    assert seen.statistic("brightest.at", layer=0).dtype == bool
    assert set(seen.layer(0).statistics) == {"distance", "previous", "rows", "evenness", "brightest", "brightest.at"}


def test_what_maps_keep_can_be_asked_for_too():
    seen = watched(Model(), X, statistics=["entropy", "received", statistics.Top(3)])
    assert seen.statistic("entropy", layer=0, head=1) is not None
    np.testing.assert_array_equal(seen.statistic("received", layer=0, head=1), seen.received(layer=0, head=1))
    assert seen.layer(0).top_keys.shape[-1] == 3
    assert seen.layer(0).statistics == {}


class Share(statistics.Entropy):
    """The entropy as a share of what it can be at most."""

    name = "share"

    def of(self, rows):
        return super().of(rows) / np.log(self.extent.keys)


def test_what_maps_keep_can_be_made_into_ones_own():
    seen = watched(Model(), X, statistics=[Share()])
    entropy = seen.entropy(layer=0, head=1)
    np.testing.assert_allclose(seen.statistic("share", layer=0, head=1), entropy / np.log(9), rtol=1e-6)


def test_calls_in_inference_mode_and_outside_are_one_record():
    x = randn(1, 2, 24, 4)

    class Steps(nn.Module):
        def forward(self, first, last):
            return regard.attention(x[:, :, first:last], x[:, :, :last], x[:, :, :last], mask=regard.masks.Causal())

    asked = ["distance", "first", statistics.Rows([0, 23]), statistics.Rollout(key=1)]
    with torch.no_grad(), regard.watch(model := Steps(), keep="qk", statistics=asked) as expected:
        model(0, 24)
    with torch.no_grad(), regard.watch(model, keep="qk", statistics=asked) as seen:
        with torch.inference_mode():
            model(0, 20)
            model(20, 21)  # makes room for five
        model(21, 22)
        with torch.inference_mode():
            model(22, 24)
    for name in ("received", "distance", "first", "rows", "rollout"):
        np.testing.assert_allclose(seen.statistic(name, layer=0), expected.statistic(name, layer=0), rtol=1e-5)


def test_each_pass_and_each_layer_has_its_own():
    model = nn.Sequential(Model(), Model())
    with regard.watch(model, statistics=["self", Rollout(key=1)]) as seen:
        model(X)
        model(2 * X)
    first, second = seen.records
    for record, x in ((first, X), (second, 2 * X)):
        expected = np.diagonal(dense(x), axis1=-2, axis2=-1)
        np.testing.assert_allclose(record.statistic("self", layer=0), expected, rtol=1e-5)
    assert not np.allclose(first.statistic("rollout", layer=1), second.statistic("rollout", layer=1))


def test_output_and_random_numbers_are_the_same_to_the_bit_with_all_of_them():
    model = nn.Sequential(Model(), nn.Dropout(0.5), Model())
    torch.manual_seed(3)
    plain, state = model(X), torch.get_rng_state()
    torch.manual_seed(3)
    with regard.watch(model, statistics=["distance", "sink", "first", "confidence", Rollout(query=2)]):
        output = model(X)
    assert torch.equal(plain, output)
    assert torch.equal(torch.get_rng_state(), state)


def test_nothing_of_a_call_outlives_it():
    def calls():
        gc.collect()
        return {id(one) for one in gc.get_objects() if type(one) is CallFromQK}

    model, before = Model(), calls()  # other tests may hold some for themselves
    with regard.watch(model, statistics=["distance", "first", Mass("duplicate_token", input_ids=range(9)), "sink"]):
        model(randn(1, 2, 9, 4))
        assert calls() <= before


@pytest.mark.parametrize("asked", ["gradient_x_attention", "importance", "value_norm"])
def test_no_model_outlives_its_watch(asked):
    class Projected(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.out_proj = nn.Linear(4, 4), nn.Linear(8, 3)

        def forward(self, x):
            return functional.scaled_dot_product_attention(self.q(x), x, x)

    model = Projected()
    alive = weakref.ref(model)
    with regard.watch(model, statistics=[asked]):
        model(X).sum().backward()
    del model
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16])
def test_values_are_projected_in_the_types_of_a_model_under_autocast(narrow):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.attention = nn.Linear(8, 8), nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x):
            x = self.first(x)  # bfloat16 under autocast, and the weights of the next module are not
            return self.attention(x, x, x)

    later = []

    class Late(Evenness):
        def start(self, extent):
            super().start(extent)
            later.append(extent.around.values)

    torch.manual_seed(0)
    model, x = Two().eval(), randn(1, 6, 8)
    with torch.no_grad():
        exact = watched(model, x, statistics=["value_norm"]).statistic("value_norm", layer=0)
        with torch.autocast("cpu", narrow):
            cast = watched(model, x, statistics=["value_norm"]).statistic("value_norm", layer=0)
            watched(model, x, statistics=[Late()])
        assert later[0]("late").dtype == narrow  # a backward asks when the model has left autocast
    np.testing.assert_allclose(cast, exact, rtol=0.05 if narrow == torch.bfloat16 else 0.006)


NO_STATISTICS = [
    ("distance", r"must be a list of names and statistics, got 'distance'"),
    (["far"], r"knows the names heatmap, top, .*distance.*, got 'far'"),
    ([statistics.Distance], r"takes names and values with start, fold and finish.*got <class"),
    ([3], "takes names and values with start, fold and finish"),
    ([statistics.Weights()], 'pass keep="weights"'),
    (["distance", "distance"], "must differ in name, got 'distance' twice"),
    ([Mass("self"), Mass(keys=[1], name="self")], "must differ in name, got 'self' twice"),
    ([statistics.Top(3), statistics.Top(20)], "must differ in name, got 'top' twice"),
    ([Mass(keys=[1], name="received")], "cannot be 'received', which the record uses itself"),
    ([Mass(keys=[1], name="mean")], "cannot be 'mean', which the record uses itself"),
]


def test_what_is_no_statistic_is_refused_before_anything_runs():
    for case in sweep(NO_STATISTICS):
        with (
            case as (asked, words),
            pytest.raises(regard.InputError, match=words),
            regard.watch(Model(), statistics=asked),
        ):
            raise AssertionError("the block ran")


def test_one_without_a_name_is_refused():
    nameless = Brightest()
    nameless.name = ""
    with pytest.raises(regard.InputError, match="must have a `name`"), regard.watch(Model(), statistics=[nameless]):
        pass


UNFIT_RESULTS = [
    ({"other": np.zeros((2, 2))}, "must give its results under that name or 'brightest.…', got 'other'"),
    ({"brightest": np.zeros((2, 5))}, r"must give \(batch, heads, ...\), here \(2, 2, ...\).*got shape \(2, 5\)"),
    ({"brightest": np.zeros(())}, r"got shape \(\)"),
    ({"entropy": np.zeros((2, 2, 5))}, "must give its results under that name or 'brightest.…', got 'entropy'"),
]


def test_results_of_ones_own_that_do_not_fit_are_refused(monkeypatch):
    for case in sweep(UNFIT_RESULTS):
        with case as (given, words):
            monkeypatch.setattr(Brightest, "finish", lambda self, extent: given)
            with pytest.raises(regard.ObservationError, match=words):
                watched(Model(), X, statistics=[Brightest()])


def test_what_was_not_asked_for_is_named():
    seen = watched(Model(), X, statistics=["sink"])
    with pytest.raises(regard.ObservationError, match=r"'distance' was not kept of layer 0, which has entropy, .*sink"):
        seen.statistic("distance", layer=0, head=0)
    with pytest.raises(regard.InputError, match="`head` must be from 0 to 1"):
        seen.statistic("sink", layer=0, head=2)


IMPOSSIBLE = [
    (lambda: Mass(), "needs one set of keys"),
    (lambda: Mass("self", keys=[1]), "needs one set of keys"),
    (
        lambda: Mass("selv"),
        "must be one of 'self', 'previous', 'next', 'first', 'special_tokens', 'separators', 'duplicate_token', 'induc",
    ),
    (lambda: Mass(keys=[-1]), "must be numbers from 0 on"),
    (lambda: Mass(token_ids=[1.5]), "must be numbers from 0 on"),
    (lambda: Mass("duplicate_token", input_ids=[0.5]), "`input_ids` must be whole numbers"),
    (lambda: Rows([]), "at least one"),
    (lambda: Rows([-1]), "`queries` must be indices from 0 on"),
    (lambda: statistics.Columns([True]), "`keys` must be indices from 0 on"),
    (lambda: statistics.Rectangle(slice(3, 3), slice(0, 1)), "`rows` must be a slice with an end behind its start"),
    (lambda: statistics.Rectangle(slice(0, 3), slice(2, None)), "`columns` must be a slice with an end"),
    (lambda: statistics.Rectangle(slice(0, 3, 2), slice(2)), "`rows` must be a slice"),
    (lambda: Rollout(), "follows one token"),
    (lambda: Rollout(query=1, key=1), "follows one token"),
    (lambda: Rollout(key=-1), "`key` must be a position from 0 on"),
    (lambda: ValueNorm(torch.zeros(3)), "`projection` must be an nn.Linear"),
    (lambda: ValueNorm(nn.ReLU()), "`projection` must be an nn.Linear"),
]


def test_impossible_wishes_are_refused_in_words():
    for case in sweep(IMPOSSIBLE, name=lambda refusal: refusal[1]):
        with case as (make, words), pytest.raises(regard.InputError, match=words):
            make()


def test_places_that_never_came_are_no_numbers():
    weights = np.eye(3)
    found = of_weights(Rows([1, 7]), weights)["rows"]
    assert (found[0] == weights[1]).all()
    assert np.isnan(found[1]).all()
    found = of_weights(statistics.Columns([1, 7]), weights)["columns"]
    assert (found[:, 0] == weights[:, 1]).all()
    assert np.isnan(found[:, 1]).all()
    found = of_weights(statistics.Rectangle(slice(1, 5), slice(2, 4)), weights)["rectangle"]
    np.testing.assert_array_equal(found, [[0, np.nan], [1, np.nan], [np.nan, np.nan], [np.nan, np.nan]])
    assert np.isnan(of_weights(statistics.Rectangle(slice(4, 6), slice(0, 2)), weights)["rectangle"]).all()
    for beyond in (Rollout(key=12), Rollout(query=12), Rollout(query=-10)):
        assert np.isnan(watched(Model(), X, statistics=[beyond]).statistic("rollout", layer=0)).all()


def test_statistics_of_a_matrix_with_more_queries_than_keys_count_both_from_the_first() -> None:
    weights = np.random.default_rng(0).dirichlet(np.ones(2), size=5)
    far = np.abs(np.arange(5)[:, None] - np.arange(2))
    np.testing.assert_allclose(of_weights(statistics.Distance(), weights)["distance"], (weights * far).sum(-1))
    np.testing.assert_allclose(of_weights(statistics.Sink(), weights)["sink"], weights.mean(0))


# --- rollout


def test_rollout_of_two_layers_is_their_product():
    model = nn.Sequential(Model(), Model(causal=False))
    asked = [Rollout(key=3), Rollout(query=-2, name="back")]
    seen = watched(model, X, keep="weights", statistics=asked)
    one, two = (0.5 * np.eye(9) + 0.5 * f.astype(float).mean(1) for f in (seen.layer(0).weights, seen.layer(1).weights))
    np.testing.assert_allclose(seen.statistic("rollout", layer=0, head=1), one[..., 3], rtol=1e-5)
    np.testing.assert_allclose(seen.statistic("rollout", layer=-1, head=0), (two @ one)[..., 3], rtol=1e-5)
    np.testing.assert_allclose(seen.statistic("back", layer=-1, head=0), two[:, -2], rtol=1e-5)
    np.testing.assert_allclose(seen.statistic("back", layer=0, head=0), (two @ one)[:, -2], rtol=1e-5)
    np.testing.assert_allclose(seen.statistic("back", layer=0).sum(-1), 1, rtol=1e-5)


def test_rollout_goes_through_layers_that_are_not_watched():
    model, x = nn.Sequential(Model(), Model(), Model()), randn(1, 2, 9, 4)
    for rollout in (Rollout(key=1), Rollout(query=7)):
        whole = watched(model, x, statistics=[rollout]).layers
        some = watched(model, x, statistics=[rollout], layers=["2"]).layers
        assert [one.name for one in some] == ["2"]
        np.testing.assert_array_equal(some[0].statistics["rollout"], whole[2].statistics["rollout"])


def test_rollout_minds_max_bytes():
    with pytest.raises(regard.ObservationError, match=r"324 B more at this call are beyond its limit of 100 B"):
        watched(Model(), randn(1, 2, 9, 4), statistics=[Rollout(query=1, max_bytes=100)])


def test_rollout_of_two_texts_or_of_half_a_text_is_refused():
    class Crossed(nn.Module):
        def __init__(self):
            super().__init__()
            self.cross_attn = nn.MultiheadAttention(4, 2, batch_first=True)

        def forward(self, x, y):
            return self.cross_attn(x, y, y)[0]

    x = randn(1, 9, 4)
    with pytest.raises(
        regard.ObservationError, match=r"'rollout' follows one text .*cross_attn attends to another text"
    ):
        watched(Crossed(), x, x[:, :5], statistics=[Rollout(key=1)])

    class Late(nn.Module):
        def forward(self, x):
            return functional.scaled_dot_product_attention(x[:, :, 4:], x, x)

    with pytest.raises(regard.ObservationError, match="the first 4 positions were not watched"):
        watched(Late(), X, statistics=[Rollout(key=1)])


def test_rollout_of_layers_of_several_lengths_is_refused():
    class Halving(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = Model(), Model()

        def forward(self, x):
            return self.two(self.one(x)[:, :, ::2])

    for follow in (Rollout(key=0), Rollout(query=0)):
        with pytest.raises(regard.ObservationError, match="needs layers of one length"):
            watched(Halving(), X, statistics=[follow])


# --- gradients


class Headed(nn.Module):
    """Two heads whose shares of the output can be dropped, to see what they were worth."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inside, self.out_proj = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x, gate=None):
        q, k, v = (one.unflatten(-1, (2, 4)).transpose(1, 2) for one in self.inside(x).chunk(3, -1))
        heads = functional.scaled_dot_product_attention(q, k, v)
        heads = heads if gate is None else heads * gate[:, :, None, None]
        return self.out_proj(heads.transpose(1, 2).flatten(-2))


def test_importance_is_the_slope_of_the_loss_when_a_head_fades():
    model, x = Headed(), randn(3, 7, 8)
    with regard.watch(model, statistics=["importance", "gradient_x_attention"]) as seen:
        model(x).square().sum().backward()
    gate = torch.ones(3, 2, requires_grad=True)
    (slope,) = torch.autograd.grad(model(x, gate).square().sum(), gate)
    np.testing.assert_allclose(seen.statistic("importance", layer=0), slope.abs().numpy(), rtol=1e-4)
    np.testing.assert_allclose(seen.statistic("gradient_x_attention", layer=0).sum(-1), slope.numpy(), rtol=1e-4)


def test_gradient_times_attention_is_that_of_weights_written_out():
    model, x = Headed(), randn(2, 7, 8)
    with regard.watch(model, statistics=["gradient_x_attention"]) as seen:
        model(x).square().sum().backward()
    q, k, v = (one.unflatten(-1, (2, 4)).transpose(1, 2) for one in model.inside(x).chunk(3, -1))
    weights = torch.softmax(q @ k.mT / 2, -1)
    loss = model.out_proj((weights @ v).transpose(1, 2).flatten(-2)).square().sum()
    (gradient,) = torch.autograd.grad(loss, weights)
    np.testing.assert_allclose(
        seen.statistic("gradient_x_attention.mean", layer=0),
        (weights * gradient).detach().numpy(),
        rtol=1e-3,
        atol=1e-5,
    )


def test_gradients_of_the_model_are_the_same_to_the_bit():
    model, x = Headed(), randn(2, 7, 8)
    model(x).square().sum().backward()
    plain = [one.grad.clone() for one in model.parameters()]
    model.zero_grad()
    with regard.watch(model, statistics=["importance", "gradient_x_attention"]):
        model(x).square().sum().backward()
    assert all(torch.equal(one.grad, other) for one, other in zip(model.parameters(), plain, strict=True))


@pytest.mark.parametrize("name", ["importance", "gradient_x_attention"])
def test_without_gradients_the_way_out_is_named(name):
    model, x = Headed(), randn(2, 7, 8)
    with pytest.raises(regard.ObservationError, match=rf"{name}.*needs gradients, and this call ran without"):  # noqa: SIM117
        with torch.no_grad(), regard.watch(model, statistics=[name]):
            model(x)
    with pytest.raises(regard.ObservationError, match=rf"{name}.*none reached this call: call backward\(\)"):
        watched(model, x, statistics=[name])
    with pytest.raises(regard.ObservationError, match="does not show it as"):
        watched(nn.MultiheadAttention(8, 2, batch_first=True), x, x, x, statistics=[name])


@pytest.mark.parametrize("name", ["importance", "gradient_x_attention"])
def test_gradients_through_a_cache_are_refused(name):
    class Steps(nn.Module):
        def forward(self, x, rows):
            keys = x[:, :, : rows.stop]
            return functional.scaled_dot_product_attention(x[:, :, rows], keys, keys, is_causal=rows.start == 0)

    model, x = Steps(), randn(1, 2, 6, 4).requires_grad_()
    with pytest.raises(regard.ObservationError, match=f"'{name}' of this call cannot go on through a cache"):  # noqa: SIM117, PT012
        with regard.watch(model, statistics=[name]):
            model(x, slice(0, 5))
            model(x, slice(5, 6))


def test_gradients_of_attention_by_hand():
    class ByHand(Headed):
        def forward(self, x):
            q, k, v = (one.unflatten(-1, (2, 4)).transpose(1, 2) for one in self.inside(x).chunk(3, -1))
            return self.out_proj((torch.softmax(q @ k.mT / 2, -1) @ v).transpose(1, 2).flatten(-2))

    x, found = randn(2, 7, 8), []
    for model in (Headed(), ByHand()):
        with regard.watch(model, statistics=["importance", "gradient_x_attention", "value_norm"]) as seen:
            model(x).square().sum().backward()
        found.append(seen.layer(0).statistics)
    for name, array in found[0].items():
        np.testing.assert_allclose(array, found[1][name], rtol=1e-3, atol=1e-4)


# --- in a file


def test_statistics_come_back_from_a_file(tmp_path):
    seen = watched(Model(), X, statistics=["distance", Mass(keys=[1], name="a.b/c 貓"), Brightest(), Rollout(key=2)])
    seen.save(tmp_path / "it.atlas")
    again = regard.load_atlas(tmp_path / "it.atlas")
    assert list(again.layer(0).statistics) == list(seen.layer(0).statistics)
    for name, array in seen.layer(0).statistics.items():
        assert again.layer(0).statistics[name].dtype == array.dtype
        np.testing.assert_array_equal(again.statistic(name, layer=0), array)
    assert isinstance(again.statistic("distance", layer=0), np.memmap)


def test_types_that_no_file_holds_are_refused(tmp_path):
    seen = watched(Model(), X)
    layer = dataclasses.replace(seen.layer(0), statistics={"odd": np.zeros((2, 2), complex)})
    with pytest.raises(regard.InputError, match="'odd' is of type complex128, which an atlas cannot hold"):
        save_atlas((Record((layer,)),), tmp_path / "it.atlas")


def _rewritten(path, change):
    whole = path.read_bytes()
    length = struct.unpack("<Q", whole[:8])[0]
    header = json.loads(whole[8 : 8 + length])
    about = json.loads(header["__metadata__"]["regard"])
    change(about, header)
    said = json.dumps(about)
    header["__metadata__"] = {"regard": said, "crc": str(zlib.crc32(said.encode()))}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + whole[8 + length :])


def test_statistics_that_a_file_only_claims_to_have_are_damage(tmp_path):
    for case in sweep([["distance", "other"], "distance", 7, [["x"]], [None], {"distance": 1, "x": 2}]):
        with case as names:
            path = tmp_path / "it.atlas"
            watched(Model(), X, statistics=["distance"]).save(path)
            _rewritten(path, lambda about, _: about["records"][0]["layers"][0].update(statistics=names))
            with pytest.raises(regard.AtlasError, match="is damaged"):
                read_atlas(path)


def test_statistics_of_other_heads_are_damage(tmp_path):
    for case in sweep([[2, 2, 3, 3], [36], [3, 2, 6], [1, 36], [2, 18]]):
        with case as shape:
            path = tmp_path / "it.atlas"
            watched(Model(), X, statistics=["distance"]).save(path)
            _rewritten(path, lambda _, header: header["0.0.statistics.distance"].update(shape=shape))
            if shape[:2] == [2, 2]:
                (record,) = read_atlas(path)  # which could be, so that only the checksum tells
                with pytest.raises(
                    regard.AtlasError, match=r"the checksum of 0\.0\.statistics\.distance does not hold"
                ):
                    record.layer(0).statistics  # noqa: B018
            else:
                with pytest.raises(regard.AtlasError, match="is damaged"):
                    read_atlas(path)


def test_statistics_make_no_graph_though_the_model_learns():
    found = []

    class Learns(Evenness):
        name = "learns"

        def start(self, extent):
            super().start(extent)
            found.append(torch.is_grad_enabled())

        def fold(self, rows):
            super().fold(rows)
            found.append(torch.is_grad_enabled() or rows.weights.requires_grad)

    x = X.clone().requires_grad_()
    for mode in (torch.enable_grad, torch.inference_mode):
        with mode(), regard.watch(model := Model(), statistics=[Learns()]):
            model(x)
    assert found
    assert not any(found)


def test_weights_that_are_no_numbers_in_rows_are_refused() -> None:
    for case in sweep([None, [[1.0], [0.5, 0.5]], "one", np.ones((2, 2), dtype=object)]):
        with case as weights, pytest.raises(regard.InputError, match="`weights` must be numbers in rows of one length"):
            of_weights(statistics.Distance(), weights)


def test_weights_without_real_numbers_are_refused() -> None:
    for case in sweep([torch.Tensor.cfloat, torch.Tensor.to_sparse, lambda x: x.to("meta")]):
        with case as convert, pytest.raises(regard.InputError, match="`weights` must be real numbers, got torch"):
            of_weights(statistics.Distance(), convert(torch.ones(2, 2)))


def test_weights_of_another_shape_are_refused() -> None:
    for case in sweep([(3,), (0, 0), (1, 2, 3), (1, 1, 1, 2, 3)]):
        with (
            case as shape,
            pytest.raises(regard.InputError, match=r"`weights` must be \(queries, keys\) or .*, got \("),
        ):
            of_weights(statistics.Distance(), torch.ones(shape))
