"""A watch sees the thread that opened it; other threads run as ever, eager or compiled, and leave no trace in it."""

import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import regard
from regard.errors import ObservationError

D = 8


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(D, D) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return x + functional.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x))


class ByHand(Attention):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.softmax(self.q(x) @ self.k(x).mT, -1) @ self.v(x)


def encoder() -> nn.TransformerEncoder:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(D, 2, 16, batch_first=True), 2).eval()


PADDED = torch.arange(6) >= torch.tensor([6, 4, 2])[:, None]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The PyTorch API of nested tensors")
        yield


def in_thread(call: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def side_by_side(*calls: Callable[[threading.Barrier], Any]) -> list[Any]:
    """Run each in a thread of its own; they wait for one another at the barrier."""
    barrier = threading.Barrier(len(calls), timeout=60)
    with ThreadPoolExecutor(len(calls)) as pool:
        return [one.result() for one in [pool.submit(call, barrier) for call in calls]]


@pytest.mark.parametrize("make", [lambda: nn.Sequential(Attention(), ByHand()), encoder])
def test_calls_of_the_model_from_another_thread_run_as_ever_unseen_and_are_counted(make) -> None:
    model, x = make(), torch.randn(3, 6, D)
    given = {"src_key_padding_mask": PADDED} if isinstance(model, nn.TransformerEncoder) else {}

    def run() -> Tensor:
        with torch.no_grad():
            return model(x, **given)

    plain = run()
    with regard.watch(model) as seen:
        first = run()
        elsewhere = [in_thread(run) for _ in range(3)]
        second = run()
    assert all(torch.equal(plain, one) for one in (first, second, *elsewhere))
    assert [[layer.name for layer in one] for one in seen.records] == [[layer.name for layer in seen[0].record]] * 2
    assert len(seen[0].record) == 2
    assert seen.calls_elsewhere == 3
    assert "3 calls from other threads not seen" in repr(seen)


def test_a_model_that_only_other_threads_call_is_named() -> None:
    model = Attention()
    with pytest.raises(ObservationError, match=r"called in other threads only \(1 times\)"), regard.watch(model):
        in_thread(lambda: model(torch.randn(1, 3, D)))


def test_a_pass_that_another_thread_interrupts_stays_whole() -> None:
    """Step by step with a thread that calls the same model, and another one, between its layers."""
    turn, model, other = threading.Barrier(2, timeout=60), None, nn.Sequential(ByHand(), Attention())

    class Waiting(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            turn.wait()
            turn.wait()
            return x

    model = nn.Sequential(Attention(), Waiting(), ByHand(), Waiting(), Attention())

    def beside(x: Tensor) -> None:
        for _ in range(2):
            turn.wait()
            model[0](x)
            other(x)
            turn.wait()

    with regard.watch(model) as seen, ThreadPoolExecutor(1) as pool:
        running = pool.submit(beside, torch.randn(1, 5, D))
        model(torch.randn(1, 3, D))
        running.result()
    assert [(layer.name, layer.queries) for layer in seen.record] == [("0", 3), ("2", 3), ("4", 3)]


@pytest.mark.parametrize("same", [True, False])
def test_two_threads_watch_at_once_each_its_own_calls(same: bool) -> None:
    one = nn.Sequential(Attention(), ByHand())
    models = (one, one if same else nn.Sequential(encoder(), Attention()))

    def watching(model: nn.Module, length: int) -> Callable[[threading.Barrier], Any]:
        def run(barrier: threading.Barrier) -> Any:
            with torch.no_grad(), regard.watch(model) as seen:
                for _ in range(20):
                    barrier.wait()
                    model(torch.randn(1, length, D))
            return seen

        return run

    found = side_by_side(watching(models[0], 3), watching(models[1], 5))
    for seen, model, length in zip(found, models, (3, 5), strict=True):
        with torch.no_grad(), regard.watch(model) as alone:
            model(torch.randn(1, length, D))
        names = [layer.name for layer in alone.record]
        assert [[layer.name for layer in passed] for passed in seen.records] == [names] * 20
        assert {layer.queries for passed in seen.records for layer in passed} == {length}


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_backward_pass_in_another_thread_is_neither_seen_nor_counted(reentrant: bool) -> None:
    layers = nn.ModuleList([Attention(), ByHand()])

    class Checkpointed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=reentrant)
            return x

    model = Checkpointed()
    model.layers = layers
    x = torch.randn(1, 3, D, requires_grad=True)
    grads = []
    for watching in (False, True):
        model.zero_grad()
        if not watching:
            model(x).square().sum().backward()
        else:
            with regard.watch(model) as seen:
                in_thread(model(x).square().sum().backward)
                checkpointed = checkpoint(model, x, use_reentrant=False).sum()
                in_thread(checkpointed.backward)
        grads.append([one.grad.clone() for one in model.parameters()])
        if watching:
            assert [[layer.name for layer in passed] for passed in seen.records] == [["layers.0", "layers.1"]] * 2
            assert seen.calls_elsewhere == 0


def test_generation_elsewhere_lets_rows_that_have_ended_go() -> None:
    """Only a watched model keeps them, for its record has the same rows from first to last."""
    from regard.models import Transformer, TransformerConfig, output_heads

    sizes = {
        "vocab_size": 12,
        "hidden_size": 8,
        "num_attention_heads": 2,
        "intermediate_size": 8,
        "decoder_layers": 1,
        "dropout": 0.0,
    }
    model = Transformer(TransformerConfig(**sizes, output_head=output_heads.LanguageModel())).eval()
    text, *_ = model.continuation([[1, 2]])
    with regard.watch(model):
        model(torch.tensor([[1, 2]]))
        assert text.together
        assert not in_thread(lambda: text.together)
    with regard.watch(other := Attention()):
        other(torch.randn(1, 3, D))
        assert not text.together


@pytest.mark.slow
def test_compiled_code_of_other_threads_is_left_as_it_is() -> None:
    """Compiled before the watch or during it: it runs, is not compiled again, and sees no watching in it."""
    x, graphs = torch.randn(2, 3, D), []
    models = nn.Sequential(Attention(), encoder().layers[0]), nn.Sequential(encoder().layers[0], Attention())
    for one in (*models[0].parameters(), *models[1].parameters()):
        one.requires_grad_(False)

    def backend(graph: Any, _: Any) -> Any:
        graphs.append([str(node.target) for node in graph.graph.nodes])
        return graph.forward

    def compiled(model: nn.Module) -> list[Any]:
        functions = model, lambda y: model(y) * 2
        return [torch.compile(one, backend=backend, fullgraph=True) for one in functions]

    torch._dynamo.reset()
    plain = [[one(x) for one in compiled(model)] for model in models]
    known = graphs.copy()
    torch._dynamo.reset()
    before, during = map(compiled, models)
    for one in before:
        one(x)
    with regard.watch(watched := Attention()) as seen:
        watched(x)
        found = [in_thread(lambda: [one(x) for one in before])]
        assert len(graphs) == len(known) * 3 // 2
        found.append(in_thread(lambda: [one(x) for one in during]))
        watched(x)
    assert graphs[len(known) :] == known
    assert len(seen.records) == 2
    with torch.compiler.set_stance("fail_on_recompile"):
        found += [[one(x) for one in before], [one(x) for one in during]]
    for one, other in zip(plain * 2, found, strict=True):
        assert all(map(torch.equal, one, other))


def test_the_watched_model_itself_may_run_compiled_in_another_thread() -> None:
    torch._dynamo.reset()
    model, x = nn.Sequential(Attention(), ByHand()).requires_grad_(False), torch.randn(2, 3, D)
    compiled = torch.compile(model, backend="eager")
    plain = compiled(x)
    with regard.watch(model) as seen, torch.compiler.set_stance("default"):
        model(x)
        with ThreadPoolExecutor(1) as pool:
            assert torch.equal(plain, pool.submit(compiled, x).result())
    assert [layer.name for layer in seen.record] == ["0", "1"]


def test_calls_are_seen_while_another_thread_compiles() -> None:
    torch._dynamo.reset()
    begun, done = threading.Event(), threading.Event()

    def slow(graph: Any, _: Any) -> Any:
        begun.set()
        assert done.wait(60)
        return graph.forward

    other, model, x = nn.Linear(D, D).requires_grad_(False), nn.Sequential(Attention(), ByHand()), torch.randn(1, 3, D)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(torch.compile(other, backend=slow), x)
        assert begun.wait(60)
        with regard.watch(model) as seen:
            model(x)
        done.set()
        running.result()
    assert [layer.name for layer in seen.record] == ["0", "1"]
