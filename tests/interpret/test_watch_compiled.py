"""A watch of a compiled model: the record of the eager one, the compiled run's bits, and its own code afterwards."""

import copy
import functools as tools
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.export.pt2_archive._package import AOTICompiledModel
from torch.nn import functional
from torch.overrides import _get_current_function_mode_stack
from torch.utils.checkpoint import checkpoint

import regard
from regard import masks
from regard.errors import ObservationError
from regard.observe.intercept import compiled_graphs, exchanged_functions

WIDTH = 8
STATISTICS = ["distance", "sink", "value_norm"]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.compiler.reset()
    torch.manual_seed(0)
    yield
    torch.compiler.reset()


def by_kernel(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def by_regard(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return regard.attention(q, k, v, mask=masks.Causal() & masks.Window(3), backend="strips")


def with_blind_rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    padding = torch.arange(k.shape[2])[None] >= torch.tensor([[2], [0]])  # on the left
    return regard.attention(q, k, v, mask=masks.Causal() & masks.Padding(padding), backend="sdpa")


class Layer(nn.Module):
    def __init__(self, attend: Callable[..., Tensor] = by_kernel) -> None:
        super().__init__()
        self.qkv, self.out_proj, self.attend = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), attend

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        return x + self.out_proj(self.attend(q, k, v).transpose(1, 2).flatten(2))


class Model(nn.Module):
    def __init__(self, *attends: Callable[..., Tensor]) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, WIDTH)
        self.layers = nn.ModuleList(map(Layer, attends or (by_kernel, by_kernel)))

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x)
        return x


IDS = torch.tensor([[3, 5, 2, 6, 1, 3], [1, 1, 4, 0, 2, 8]])


def compiled(model: Any, way: str, backend: Any = "eager", **options: Any) -> Any:
    if way == "forward":
        model.forward = torch.compile(model.forward, backend=backend, **options)
    elif way == "module":
        return torch.compile(model, backend=backend, **options)
    else:
        model.compile(backend=backend, **options)
    return model


def furthest(seen: Any, other: Any) -> float:
    """The largest difference of two records, whose layers must have the same names and kinds."""
    found = []
    assert [len(one.record) for one in seen] == [len(one.record) for one in other]
    for one, two in zip(seen, other, strict=True):
        for mine, theirs in zip(one.record, two.record, strict=True):
            assert (mine.name, mine.kind, mine.query_tokens) == (theirs.name, theirs.kind, theirs.query_tokens)
            pairs = [
                (getattr(mine, name), getattr(theirs, name)) for name in ("weights", "mean", "entropy", "received")
            ]
            pairs += [(mine.statistics[name], theirs.statistics[name]) for name in STATISTICS]
            found += [float(np.abs(np.asarray(x) - np.asarray(y)).max()) for x, y in pairs]
    assert found
    return max(found)


def watched(run: Any, *inputs: Any, **asked: Any) -> tuple[list[Any], Any]:
    """Outputs of a model in a watch, and the record."""
    with regard.watch(run, keep="weights", statistics=STATISTICS, **asked) as seen:
        outputs = [run(one) for one in inputs]
    return outputs, seen


def test_the_record_is_the_eager_one_and_the_compiled_code_outside_is_left_as_it_is() -> None:
    model = Model().eval().requires_grad_(False)
    texts = [IDS[:, :length] for length in (4, 5, 6)]
    _, eager = watched(copy.deepcopy(model), *texts)
    run = compiled(model, "module", fullgraph=True)
    plain = [run(text) for text in texts]
    state = dict(vars(model)), dict(exchanged_functions._patches), _get_current_function_mode_stack()
    counters.clear()
    outputs, seen = watched(run, *texts)
    assert counters["stats"]["unique_graphs"] == 2  # as outside: the first length, and all others
    assert (dict(vars(model)), exchanged_functions._patches, _get_current_function_mode_stack()) == state
    assert all(map(torch.equal, plain, outputs))
    assert furthest(seen, eager) < 1e-6
    with torch.compiler.set_stance("fail_on_recompile"):
        assert all(torch.equal(run(text), one) for text, one in zip(texts, plain, strict=True))
        with regard.watch(run, heads=["1.0"], queries="last") as again:
            run(IDS)
    assert np.allclose(again.weights(layer=1)[:, 0, -1], seen[2].weights(layer=1)[:, 0, -1], atol=1e-6)


def by_math(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v, dropout_p=0.5)


def in_a_checkpoint(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return checkpoint(by_kernel, q, k, v, use_reentrant=False)


def in_a_condition(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.cond(q.sum() > 0, by_kernel, lambda q, k, v: 2 * by_kernel(k, q, v), (q.clone(), k.clone(), v.clone()))


def twice(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Two calls of which none needs the other's output."""
    return by_kernel(q, k, v) * by_kernel(k, q, v)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch's compiler
def test_kernels_in_an_order_that_the_graph_does_not_show_are_named_as_missing(backend: str) -> None:
    run = compiled(Model(by_kernel, twice, by_kernel).requires_grad_(False), "module", backend)
    plain = run(IDS)
    with regard.watch(run, strict=False) as seen:
        assert torch.equal(plain, run(IDS))
    assert [layer.name for layer in seen.record] == ["layers.0", "layers.2"]
    assert [(one.module, one.calls) for one in seen.record.missing] == [("layers.1", 2)]
    run = compiled(Model(by_kernel, in_a_condition).requires_grad_(False), "module", backend)
    run(IDS)
    with pytest.raises(ObservationError, match=r"inside torch.ops.higher_order.cond, or beside it.*force_eager"):
        watched(run, IDS)


@pytest.mark.slow
def test_kernels_that_the_graph_does_not_have_are_no_others() -> None:
    def backend(graph: Any, _: Any) -> Any:
        def run(*args: Any) -> Any:
            for _ in range(more):
                by_kernel(*torch.zeros(3, 2, 2, 6, 4))
            return graph(*args) if more >= 0 else (torch.zeros(2, 6, WIDTH),)

        return run

    run = compiled(Model().eval().requires_grad_(False), "module", backend)
    more = 0
    assert len(watched(run, IDS)[1].record) == 2
    for more, count in ((1, "more"), (-1, "fewer")):  # noqa: B007  # of the backend
        with pytest.raises(ObservationError, match=f"did not report its attention .*{count} calls.*force_eager"):
            watched(run, IDS)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_attention_in_a_checkpoint_and_a_kernel_that_is_left_whole(backend: str) -> None:
    model = Model(by_kernel, in_a_checkpoint)
    _, eager = watched(copy.deepcopy(model), IDS)
    run = compiled(model, "module", backend)
    plain = run(IDS)
    (output,), seen = watched(run, IDS)
    output.sum().backward()  # which computes it again
    assert torch.equal(plain, output)
    assert furthest(seen, eager) < 1e-6
    if backend == "eager":  # which takes nothing apart
        (output,), seen = watched(compiled(Model(by_math).requires_grad_(False), "module"), IDS)
        assert len(seen.record) == 1


def test_code_that_calls_its_kernels_from_elsewhere_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model().eval().requires_grad_(False)
    run = torch.compile(model, options={"cpp_wrapper": True})
    for block in (regard.watch(run), regard.tap(run, heads=["0.0"])):
        with pytest.raises(ObservationError, match=r"`cpp_wrapper`.*force_eager"), block:
            run(IDS)
    run = compiled(model, "module")
    monkeypatch.setattr(compiled_graphs, "can_listen", lambda: False)
    for block in (regard.watch(run), regard.tap(run, heads=["0.0"])):
        with pytest.raises(ObservationError, match=r"no dispatcher key.*force_eager"), block:
            run(IDS)

    package = AOTICompiledModel.__new__(AOTICompiledModel)
    model.package = package
    for observe in (regard.watch, tools.partial(regard.tap, heads=["0.0"])):
        for given in (model, package):
            with (
                pytest.raises(ObservationError, match=r"a package of AOTInductor.*that it was made of"),
                observe(given),
            ):
                pass


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"backend": "inductor"}, {"mode": "reduce-overhead"}, {"dynamic": True}])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch's compiler
def test_inductor_compiles_nothing_again_and_its_code_has_the_same_bits(options: dict[str, Any]) -> None:
    scale = random.SystemRandom().random()  # no earlier run has compiled this

    def scaled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, scale=scale)

    model, texts = Model(scaled).eval().requires_grad_(False), [IDS, IDS[:, :4]]
    _, eager = watched(copy.deepcopy(model), *texts[::-1])
    run = torch.compile(model, fullgraph=True, **options)
    counters.clear()
    plain = [run(text) for text in texts]
    compiles = counters["inductor"]["fxgraph_cache_miss"]
    assert compiles
    counters.clear()
    outputs, seen = watched(run, *texts[::-1])  # whose lengths are symbols where they are outside
    assert counters["inductor"]["fxgraph_cache_hit"] == compiles
    assert not counters["inductor"]["fxgraph_cache_miss"]
    with torch.compiler.set_stance("fail_on_recompile"):
        again, _ = watched(run, *texts)
    for one in (outputs[::-1], again):
        assert all(map(torch.equal, plain, one))
    assert furthest(seen, eager) < 1e-6


@pytest.mark.slow
def test_what_compiled_code_does_not_show_is_refused_by_name_with_a_way_out() -> None:
    def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v

    def by_exponentials(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = (q @ k.mT).exp()
        return weights @ v / weights.sum(-1, keepdim=True)

    def by_dropout(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return regard.attention(q, k, v, dropout=0.5)

    unseen = {by_hand: "its softmax itself", by_exponentials: "by exp and a sum", by_math: "without a fused kernel"}
    unseen[by_dropout] = "is a short call of regard.attention with dropout, .* put `with torch"
    for attend, reason in unseen.items():
        run = compiled(Model(by_kernel, attend).requires_grad_(False), "module", "aot_eager")
        plain = None if attend in (by_math, by_dropout) else run(IDS)
        with pytest.raises(ObservationError, match=rf"layers\.1 \(1 call\): Layer .*{reason}.*") as refused:
            watched(run, IDS)
        assert "force_eager" in str(refused.value)
        with regard.watch(run, strict=False) as seen:
            output = run(IDS)
        assert plain is None or torch.equal(plain, output)
        assert [layer.name for layer in seen.record] == ["layers.0"]
        assert [one.module for one in seen.record.missing] == ["layers.1"]
    with torch.compiler.set_stance("force_eager"), regard.watch(run) as seen:
        run(IDS)
    assert len(seen.record) == 2

    def breaks(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return by_hand(q, k, v)

    for attend in (breaks, torch.compiler.disable(by_hand)):
        run = compiled(Model(by_kernel, attend).requires_grad_(False), "module")
        run(IDS)
        with pytest.raises(ObservationError, match=r"its graph breaks.*fullgraph=True"):
            watched(run, IDS)
    run = compiled(Model().requires_grad_(False), "module")
    with (
        pytest.raises(ObservationError, match=r"gradient_x_attention.*force_eager"),
        regard.watch(run, statistics=["gradient_x_attention"]),
    ):
        run(IDS)
    with pytest.raises(ObservationError, match="no compiled code ran"), torch.compiler.set_stance("eager_on_recompile"):
        watched(run, IDS)
    assert not _get_current_function_mode_stack()


@pytest.mark.slow
def test_calls_of_regard_in_a_graph() -> None:
    model = Model(by_regard, with_blind_rows).eval().requires_grad_(False)
    _, eager = watched(copy.deepcopy(model), IDS)
    run = compiled(model, "in place", fullgraph=True)
    plain = run(IDS)
    (output,), seen = watched(run, IDS)
    assert torch.equal(plain, output)
    assert furthest(seen, eager) < 1e-6


@pytest.mark.slow
def test_two_watches_and_a_tap_of_one_model_and_code_that_is_not_compiled() -> None:
    model = Model().eval().requires_grad_(False)
    run = compiled(model, "module")
    plain = run(IDS)
    with regard.watch(model) as outer, regard.watch(run) as inner, regard.tap(run, heads=["1.1"]) as tap:
        assert torch.equal(plain, run(IDS))
        model(IDS)
        assert torch.equal(plain, run(IDS))
    assert [len(one.records) for one in (outer, inner)] == [3, 3]
    for one in inner.records:
        assert np.allclose(one.layers[1].mean, inner.records[0].layers[1].mean, atol=1e-6)
    assert len(tap.rows) == 3


@pytest.mark.slow
def test_training_has_the_same_gradients_to_the_bit() -> None:
    model = Model(by_kernel)
    run = compiled(model, "forward", "aot_eager")
    found = []
    for watching in (False, True, False):
        model.zero_grad()
        if watching:
            (output,), seen = watched(run, IDS)
        else:
            output = run(IDS)
        output.square().sum().backward()
        found.append([output.detach(), *(one.grad.clone() for one in model.parameters())])
    assert all(torch.equal(*pair) for other in found[1:] for pair in zip(found[0], other, strict=True))
    assert [layer.name for layer in seen.record] == ["layers.0"]


SIZES = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}


def llama() -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(vocab_size=99, num_key_value_heads=2, attn_implementation="sdpa", **SIZES)
    return transformers.LlamaModel(config)


def bert() -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.BertModel(transformers.BertConfig(vocab_size=99, attn_implementation="sdpa", **SIZES))


@pytest.mark.slow
@pytest.mark.parametrize(("make", "padded"), [(llama, slice(0, 3)), (bert, slice(4, 6))])
def test_models_of_transformers(make: Callable[[], Any], padded: slice) -> None:
    model, mask = make().eval().requires_grad_(False), torch.ones_like(IDS)
    mask[1, padded] = 0

    def call(run: Any) -> Tensor:
        return run(input_ids=IDS, attention_mask=mask)[0]

    with regard.watch(twin := copy.deepcopy(model), keep="weights", statistics=STATISTICS) as eager:
        call(twin)
    run = compiled(model, "module", fullgraph=True)
    with regard.watch(run, keep="weights", statistics=STATISTICS) as seen:
        output = call(run)  # before the model's own code is compiled
    assert torch.equal(call(run), output)
    assert furthest(seen, eager) < 1e-5


class OwnInput(nn.Module):
    def forward(self, q: Tensor) -> Tensor:
        return regard.attention(q, q, q, mask=regard.masks.Causal())


@pytest.mark.slow
def test_a_width_that_the_compiler_takes_for_any_is_watched() -> None:
    """The scale is then a number of the graph."""
    torch._dynamo.reset()
    q = torch.randn(1, 2, 12, 16)
    run = torch.compile(OwnInput(), backend="aot_eager", dynamic=True)
    plain = run(q)
    with regard.watch(run) as seen:
        assert torch.equal(run(q), plain)
    scores = (q.double() @ q.double().mT / 4).masked_fill(~torch.ones(12, 12, dtype=torch.bool).tril(), -torch.inf)
    torch.testing.assert_close(torch.as_tensor(seen.weights(layer=0)).double(), scores.softmax(-1), rtol=0, atol=1e-6)
