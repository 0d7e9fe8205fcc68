"""Whatever ends a watch, in whatever order: functions, hooks, modes and the compiler's stance are as they were."""

import contextlib
import copy
import gc
import io
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo import eval_frame
from torch.nn.modules import module as module_hooks
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import regard
from regard.errors import InputError, ObservationError
from sweeps import sweep
from tiers import slow_but

D = 8
SCRIPTS = torch.jit.ScriptFunction, torch._C.ScriptMethod
CLASSES = (nn.Module, nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder, nn.Sequential, *SCRIPTS)


class Raising(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.raised: BaseException | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.raised is not None:
            raise self.raised
        return x


def made() -> nn.Sequential:
    layer = nn.TransformerEncoderLayer(D, 2, 16, batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 1), Raising()).eval()


def state(model: nn.Module) -> dict[str, Any]:
    """Everything that a watch could have touched; dictionaries as they are now."""
    found: dict[str, Any] = {kind.__name__: dict(vars(kind)) for kind in CLASSES}
    for name, part in model.named_modules():
        found[f"module {name}"] = {key: dict(one) if isinstance(one, dict) else one for key, one in vars(part).items()}
    for name in dir(module_hooks):
        if name.startswith("_global_"):
            one = getattr(module_hooks, name)
            found[name] = dict(one) if isinstance(one, dict) else one
    for name in ("torch", "torch.overrides", "torch.nn.functional", "torch._C._nn"):
        part = eval(name, {"torch": torch})
        found[name] = {key: one for key, one in vars(part).items() if callable(one)}
    found["compiler"] = eval_frame._stance, eval_frame._callback_from_stance
    found["modes"] = _get_current_function_mode_stack(), _get_current_dispatch_mode_stack()
    found["numbers"] = torch.get_num_threads(), torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    return found


@pytest.fixture
def model() -> Iterator[nn.Sequential]:
    """A model that must be, with all of PyTorch, as it was."""
    made_now = made()
    before = state(made_now)
    yield made_now
    made_now[1].raised = None
    after = state(made_now)
    assert [key for key in before if before[key] != after.get(key)] == []


X = torch.randn(1, 3, D)


def test_what_the_model_raises_passes(model: nn.Sequential) -> None:
    for case in sweep([ValueError(), KeyboardInterrupt(), SystemExit(), GeneratorExit(), RuntimeError()], repr):
        with case as raised:
            model[1].raised = raised
            with pytest.raises(type(raised)) as caught, regard.watch(model):
                model(X)
            assert caught.value is raised


def test_a_watch_that_refuses_itself(model: nn.Sequential) -> None:
    with pytest.raises(ObservationError, match="no attention call"), regard.watch(model):
        pass
    with pytest.raises(InputError, match="knows the names"), regard.watch(model, statistics=["nothing"]):
        pass
    with pytest.raises(ObservationError, match="of the limit"), regard.watch(model, keep="weights", max_bytes=1):
        model(X)


def test_nested_watches_and_exceptions_between_them(model: nn.Sequential) -> None:
    with regard.watch(model) as outer:
        with contextlib.suppress(KeyError), regard.watch(model):
            model(X)
            raise KeyError
        with regard.watch(model) as inner:
            model(X)
        model(X)
    assert (len(outer.records), len(inner.records)) == (3, 1)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_generators_that_watch_may_end_in_any_order(model: nn.Sequential, order: tuple[int, ...]) -> None:
    def generator() -> Iterator[Tensor]:
        with regard.watch(model) as seen:
            yield model(X)
            yield model(X)
        assert len(seen.records) >= 2

    running = [generator() for _ in range(3)]
    for one in running:
        next(one)
    for number, at in enumerate(order):
        if number == 1:
            running[at].close()
        else:
            list(running[at])


def test_threads_that_watch_may_end_in_any_order(model: nn.Sequential) -> None:
    """One begins while the other watches, and watches longer."""
    begun, ended, found = threading.Event(), threading.Event(), []

    def longer() -> None:
        with regard.watch(model) as seen:
            model(X)
            begun.set()
            assert ended.wait(60)
            model(X)
        found.append(seen)

    with regard.watch(model) as seen:
        model(X)
        thread = threading.Thread(target=longer)
        thread.start()
        assert begun.wait(60)
    ended.set()
    thread.join()
    assert (len(seen.records), len(found[0].records)) == (1, 2)


def test_a_watch_that_another_thread_leaves_is_refused(model: nn.Sequential) -> None:
    watching, caught = contextlib.ExitStack(), []

    def enter_and_wait() -> None:
        watching.enter_context(regard.watch(model))
        model(X)

    thread = threading.Thread(target=enter_and_wait)
    thread.start()
    thread.join()
    try:
        watching.close()
    except ObservationError as error:
        caught.append(error)
    assert "enter and leave it in one thread" in str(caught[0])


@pytest.mark.parametrize("how", ["copy", "save"])
def test_what_is_copied_or_saved_inside_takes_nothing_along(model: nn.Sequential, how: str) -> None:
    with regard.watch(model):
        model(X)
        if how == "copy":
            other = copy.deepcopy(model)
        else:
            torch.save(model, file := io.BytesIO())
    if how == "save":
        file.seek(0)
        other = torch.load(file, weights_only=False)
    assert {key for one in other.modules() for key in vars(one)} == {
        key for one in made().modules() for key in vars(one)
    }
    assert torch.equal(other(X), model(X))


def test_what_somebody_else_has_put_in_place_meanwhile_stays(model: nn.Sequential) -> None:
    own = nn.MultiheadAttention.forward

    def patched(self: Any, *args: Any, **given: Any) -> Any:
        return inside(self, *args, **given)

    with regard.watch(model):
        model(X)
        inside = nn.MultiheadAttention.forward
        nn.MultiheadAttention.forward = patched
    assert nn.MultiheadAttention.forward is patched
    model(X)
    nn.MultiheadAttention.forward = own


WELL, BY_AN_ERROR = "well", "by an error"
KEEPING = [{"keep": "weights"}, {"keep": "qk"}, {"statistics": ["value_norm"]}]


@pytest.mark.parametrize(
    ("options", "ends"),
    slow_but(
        [({"keep": "weights"}, BY_AN_ERROR), ({"keep": "qk"}, WELL)],
        [(options, ends) for options in KEEPING for ends in (WELL, BY_AN_ERROR)],
    ),
    ids=str,
)
def test_what_a_watch_stored_is_freed_with_its_record_not_by_the_garbage_collector(options, ends):
    model, x = made(), torch.randn(1, 300, D)

    def tensors():
        return [one for one in gc.get_objects() if issubclass(type(one), Tensor)]

    def watch():
        with contextlib.suppress(KeyError), torch.no_grad(), regard.watch(model, **options):
            model(x)
            if ends == BY_AN_ERROR:
                raise KeyError

    watch()
    gc.collect()
    gc.disable()
    try:
        before = tensors()  # other tests leave tensors of every kind behind: only what the watch brings is measured
        known = {id(one) for one in before}
        watch()
        assert sum(one.nbytes for one in tensors() if id(one) not in known) < 10_000
    finally:
        gc.enable()


class Reads(nn.Module):
    """A kind of call that is known after its first: it begins with an embedding, and attends by PyTorch's kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 8)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.table(input_ids)[:, None]
        return nn.functional.scaled_dot_product_attention(x, x, x)


def test_contexts_that_restore_the_dispatcher_end_inside_a_watch() -> None:
    """An inference mode and a transform bring back at their end what operators reached at their beginning."""
    model, ids = Reads().eval(), torch.tensor([[1, 2, 3]])
    plain = model(ids).detach()
    with regard.watch(model, strict=False) as seen:
        for _ in range(3):
            with torch.inference_mode():
                assert torch.equal(model(ids), plain)
            assert torch.arange(3).tolist() == [0, 1, 2]
        torch.func.grad(lambda scale: model(ids).sum() * scale)(torch.tensor(1.0))
        assert torch.arange(3).tolist() == [0, 1, 2]
        model(ids)
    assert torch.arange(3).tolist() == [0, 1, 2]
    assert [len(record) for record in seen.records][:3] == [1, 1, 1]
    with torch.inference_mode(), regard.watch(model) as again:
        model(ids)
    assert torch.arange(3).tolist() == [0, 1, 2]
    assert len(again.record) == 1
