"""Who listens hears PyTorch's kernel in its own thread; nobody else's operators take another way."""

import threading
from collections import deque
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import regard
from regard.errors import ObservationError
from regard.observe import listening

Q = torch.randn(1, 2, 4, 8, generator=torch.Generator().manual_seed(0))


class Listener:
    def __init__(self) -> None:
        self.calls: list[tuple[Any, Any]] = []

    def hear(self, operator: Any, args: Any, kwargs: Any, result: Any) -> None:
        self.calls.append((operator, args, kwargs, result))


@pytest.fixture
def listener() -> Any:
    one, before = Listener(), str(torch._C._dispatch_tls_local_include_set())
    listening.listen(one)
    assert str(torch._C._dispatch_tls_local_include_set()) != before
    yield one
    listening.unlisten(one)
    assert str(torch._C._dispatch_tls_local_include_set()) == before


def test_the_kernel_is_heard_with_its_own_tensors_and_gives_the_same_bits_and_gradients(listener: Listener) -> None:
    found = []
    for _ in range(2):
        q = Q.clone().requires_grad_()
        out = functional.scaled_dot_product_attention(q, q, q[:, :1], is_causal=True, scale=0.3, enable_gqa=True)
        out.square().sum().backward()
        found.append((out, q.grad, q))
        listening.unlisten(listener)
    ((operator, args, kwargs, result),) = listener.calls
    assert operator is torch.ops.aten.scaled_dot_product_attention.default
    assert args[0] is found[0][2]
    assert result is found[0][0]
    assert kwargs == {"scale": 0.3, "enable_gqa": True}
    assert all(map(torch.equal, *found))


def test_other_operators_other_threads_and_a_reader_s_own_computations_are_not_heard(listener: Listener) -> None:
    def attend() -> None:
        functional.scaled_dot_product_attention(Q, Q, Q)

    def listen_and_attend() -> None:
        listening.listen(other := Listener())
        attend()
        assert len(other.calls) == 1
        done.append(True)

    done: list[bool] = []
    (Q @ Q.mT).exp().sum()
    worker = threading.Thread(target=listen_and_attend)
    worker.start()
    worker.join()
    with torch._C.DisableTorchFunction():
        attend()
    assert (listener.calls, done) == ([], [True])
    attend()
    assert len(listener.calls) == 1


def test_two_listeners_hear_until_each_ends(listener: Listener) -> None:
    other = Listener()
    listening.listen(other)
    listening.unlisten(listener)
    functional.scaled_dot_product_attention(Q, Q, Q)
    listening.unlisten(other)
    functional.scaled_dot_product_attention(Q, Q, Q)
    assert (len(listener.calls), len(other.calls), listening.is_heard()) == (0, 1, False)


class Attends(torch.nn.Module):
    """Self-attention by the kernel, so many times a call, and what it runs in is noted."""

    def __init__(self, **settings: object) -> None:
        super().__init__()
        self.times: Any = 1
        self.modes, self.heard = deque(), deque()  # no settings of a layer, unlike lists
        vars(self).update(settings)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.modes.append(len(_get_current_dispatch_mode_stack()))
        for _ in range(self.times if isinstance(self.times, int) else next(self.times)):
            x = functional.scaled_dot_product_attention(x, x, x)
        self.heard.append(listening.is_heard())
        return x


def test_the_second_call_of_a_tapped_layer_runs_without_a_mode() -> None:
    model = torch.nn.Sequential(Attends(), Attends())
    with regard.tap(model, heads=["1.0"], queries="new") as tap:
        for _ in range(3):
            model(Q)
    assert list(model[1].modes) == [1, 0, 0]
    assert list(model[0].modes) == [0, 0, 0]
    assert [list(one.heard) for one in model] == [[False] * 3, [True] * 3]
    x = functional.scaled_dot_product_attention(Q, Q, Q)
    want = (x[:, 0] @ x[:, 0].mT * 8**-0.5).softmax(-1)
    assert len(tap.rows) == 12
    for row in tap.rows:
        there = row.weights[0, 0]
        assert (there - want[0, row.position, : len(there)]).abs().max() < 1e-6


@pytest.mark.parametrize("times", [0, 2])
def test_a_layer_that_attends_less_or_more_often_than_in_its_first_call_is_refused(times: int) -> None:
    model = torch.nn.Sequential(Attends(), Attends())
    with regard.tap(model, heads=["1.0"]):
        model(Q)
        model[1].times = times
        with pytest.raises(ObservationError, match="no longer computes its attention"):
            model(Q)
    assert not listening.is_heard()


def test_layers_of_one_kind_are_read_once_and_those_with_other_settings_each() -> None:
    settings = [{"layer_idx": at, "window": (2, None)} for at in range(3)] + [{"layer_idx": 3, "window": (4, None)}]
    model = torch.nn.Sequential(*(Attends(**one) for one in settings))
    with regard.tap(model, heads=[f"{at}.1" for at in range(4)], queries="new") as tap:
        model(Q)
    assert [list(one.modes) for one in model] == [[1], [0], [0], [1]]
    x = Q
    for layer in range(4):
        want = (x[:, 1] @ x[:, 1].mT * 8**-0.5).softmax(-1)[0]
        rows = torch.stack([torch.nn.functional.pad(row.weights[0, layer], (0, 4))[:4] for row in tap.rows])
        assert all((rows[at, : at + 1] - want[at, : at + 1]).abs().max() < 1e-6 for at in range(4))
        x = functional.scaled_dot_product_attention(x, x, x)


def test_attention_modules_without_a_number_of_their_own_are_looked_at_in_every_step() -> None:
    model = torch.nn.Sequential(*(torch.nn.Sequential(Attends()) for _ in range(3)))
    with regard.tap(model, heads=["0.0", "2.1"]) as tap:
        for _ in range(3):
            model(Q)
    assert [list(one[0].heard) for one in model] == [[True] * 3, [False] * 3, [True] * 3]
    assert [list(one[0].modes) for one in model] == [[1, 0, 0], [0] * 3, [0] * 3]
    assert len(tap.rows) == 3


def test_a_layer_that_attends_otherwise_than_the_first_of_its_kind_is_refused() -> None:
    model = torch.nn.Sequential(Attends(times=iter([1])), Attends(times=iter([2])))
    with regard.tap(model, heads=["0.0", "1.0"]):
        with pytest.raises(ObservationError, match="or of a layer of its kind"):
            model(Q)
        model[0].times = model[1].times = 1
        model(Q)


class AttendsToNothingToo(Attends):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        functional.scaled_dot_product_attention(x[:0], x[:0], x[:0])
        return super().forward(x)


def test_a_layer_with_calls_that_have_no_weights_is_read_in_full_each_time() -> None:
    model = torch.nn.Sequential(AttendsToNothingToo())
    with regard.tap(model, heads=["0.0"], queries="new") as tap:
        model(Q)
        model(Q)
    assert list(model[0].modes) == [1, 1]
    assert len(tap.rows) == 8


def test_a_pytorch_without_the_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "_KEY", None)
    with pytest.raises(ObservationError, match="no dispatcher key"), regard.watch(torch.nn.Sequential(Attends())):
        pass
