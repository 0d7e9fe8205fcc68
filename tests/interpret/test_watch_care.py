"""Watching leaves nothing behind, and what it cannot see it names."""

import contextlib
import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules import module as module_hooks
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import regard
from regard.errors import InputError, ObservationError
from regard.observe.statistics import Rollout
from sweeps import sweep

D = 8


class Attention(nn.Module):
    def __init__(self, attend=functional.scaled_dot_product_attention) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(D, D) for _ in range(3))
        self.attend = attend

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (one(x).unflatten(-1, (2, -1)).transpose(-3, -2) for one in (self.q, self.k, self.v))
        return x + self.attend(q, k, v).transpose(-3, -2).flatten(-2)


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.dropout(torch.softmax(q @ k.mT, -1), 0.3) @ v


def with_dropout(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v, dropout_p=0.3, is_causal=True)


class Checkpointed(nn.Module):
    def __init__(self, make, *, reentrant: bool) -> None:
        super().__init__()
        self.layers, self.reentrant = nn.ModuleList(make() for _ in range(2)), reentrant

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=self.reentrant)
        return x


def encoder() -> nn.TransformerEncoder:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(D, 2, 16, batch_first=True), 2).eval()


def left_behind(model: nn.Module) -> list[str]:
    found = [f"forward of {type(one).__name__}" for one in model.modules() if "forward" in vars(one)]
    found += ["a hook" for one in model.modules() if one._forward_pre_hooks or one._forward_hooks]
    found += ["a global hook"] * bool(module_hooks._global_forward_hooks or module_hooks._global_forward_pre_hooks)
    return found + ["a mode"] * len(_get_current_function_mode_stack())


def test_checkpointed_training_is_seen_once_and_its_gradients_stay() -> None:
    makes = {
        "dropout": lambda: Attention(with_dropout),
        "by hand": lambda: Attention(by_hand),
        "encoder layer": lambda: nn.TransformerEncoderLayer(D, 2, 16, batch_first=True),
    }
    for case in sweep(itertools.product(makes, [Tensor.backward, torch.autograd.backward], [True, False])):
        with case as (make, backward, reentrant):
            torch.manual_seed(0)
            model = Checkpointed(makes[make], reentrant=reentrant)
            grads = []
            for watching in (False, True):
                model.zero_grad()
                torch.manual_seed(4)
                x = torch.randn(2, 6, D, requires_grad=True)
                if watching:
                    with regard.watch(model) as seen:
                        backward(model(x).square().sum())
                    assert [len(one) for one in seen.records] == [2]
                else:
                    backward(model(x).square().sum())
                grads.append([x.grad] + [one.grad.clone() for one in model.parameters()])
            assert all(torch.equal(one, other) for one, other in zip(*grads, strict=True))


def test_an_exception_passes_unchanged_and_nothing_is_left() -> None:
    def check(make, raised: BaseException) -> None:
        model = make()

        def interrupted() -> None:
            with torch.no_grad(), regard.watch(model):
                model(torch.randn(2, 3, D))
                raise raised

        with pytest.raises(type(raised), match="mine") as caught:
            interrupted()
        assert caught.value is raised
        assert left_behind(model) == []

    raised = [ValueError("mine"), KeyboardInterrupt("mine"), RuntimeError("mine")]
    for case in sweep(itertools.product([encoder, Attention], raised)):
        with case as values:
            check(*values)


def test_an_interrupted_pass_does_not_spoil_the_next_one() -> None:
    class Interrupted(nn.Module):
        stop = True

        def forward(self, x: Tensor) -> Tensor:
            if self.stop:
                raise KeyboardInterrupt
            return x

    model = nn.Sequential(Attention(), Interrupted())
    x = torch.randn(1, 3, D)
    with regard.watch(model) as seen:
        with pytest.raises(KeyboardInterrupt):
            model(x)
        model[1].stop = False
        model(x)
    assert [[layer.name for layer in one] for one in seen.records] == [["0"], ["0"]]


def test_two_models_watched_at_once_are_seen_apart() -> None:
    one, other = nn.Sequential(Attention()), nn.Sequential(Attention(), Attention())
    x = torch.randn(1, 3, D)
    with regard.watch(one) as first, regard.watch(other) as second:
        other(one(x))
    assert [layer.name for layer in first.record] == ["0"]
    assert [layer.name for layer in second.record] == ["0", "1"]


def test_a_mode_of_the_caller_sees_what_it_sees_unwatched() -> None:
    def check(attend, outside: bool) -> None:
        class Names(TorchFunctionMode):
            def __torch_function__(self, func, types, args=(), kwargs=None):
                self.seen.append(str(func))
                return func(*args, **(kwargs or {}))

        model, x, names = Attention(attend), torch.randn(1, 3, D), []
        for watching in (False, True):
            mode = Names()
            mode.seen = []
            with contextlib.ExitStack() as stack:
                modes = [mode, regard.watch(model)] if watching else [mode]
                for one in modes if outside else reversed(modes):
                    stack.enter_context(one)
                model(x)
                names.append(list(mode.seen))
        assert names[0] == names[1]

    for case in sweep(itertools.product([functional.scaled_dot_product_attention, by_hand], [True, False])):
        with case as values:
            check(*values)


def test_a_part_called_by_itself_is_seen_under_its_name() -> None:
    model = nn.Sequential(Attention(), Attention())
    with regard.watch(model) as seen:
        model[1](torch.randn(1, 3, D))
    assert [layer.name for layer in seen.record] == ["1"]


def test_several_passes_are_several_records() -> None:
    model = Attention()
    with regard.watch(model) as seen:
        for length in (3, 5, 5):
            model(torch.randn(1, length, D))
    assert [one.layer(0).queries for one in seen.records] == [3, 5, 5]


def test_models_with_compiled_parts_are_refused_before_they_run_with_a_way_out() -> None:
    changed = Attention().requires_grad_(False)
    changed.compile(backend="eager")
    x = torch.randn(1, 3, D)
    for model in (nn.Sequential(changed), nn.Sequential(torch.compile(Attention(), backend="eager"))):
        refused = pytest.raises(ObservationError, match=r"module '0' is compiled, and compiled code shows.*force_eager")
        with refused, regard.watch(model):
            raise AssertionError("not reached")
        with torch.compiler.set_stance("force_eager"), torch.no_grad(), regard.watch(model) as seen:
            model(x)
        assert len(seen.record) == 1


def test_compiled_flex_attention_is_not_sent_where_it_is_refused_again() -> None:
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    model = Attention(torch.compile(flex.flex_attention, backend="eager")).requires_grad_(False)
    with pytest.raises(ObservationError, match=r"let the model call F\.scaled_dot") as refused, regard.watch(model):
        model(torch.randn(1, 128, D))
    assert "force_eager" not in str(refused.value)


def test_a_compiled_function_inside_is_named_with_the_way_out() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v)

    model = Attention(torch.compile(attend, backend="eager")).requires_grad_(False)
    x = torch.randn(1, 3, D)
    model(x)
    with (
        pytest.raises(ObservationError, match=r"a compiled function, called at .*test_watch_care\.py.*force_eager"),
        regard.watch(model),
    ):
        model(x)
    with torch.compiler.set_stance("force_eager"), regard.watch(model) as seen:
        model(x)
    assert len(seen.record) == 1
    assert left_behind(model) == []


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_flex_attention_is_named() -> None:
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    model = Attention(flex.flex_attention)
    with pytest.raises(ObservationError, match="flex_attention"), torch.no_grad(), regard.watch(model):
        model(torch.randn(1, 128, D))


@torch.library.custom_op("regard_test::flash_attn_forward", mutates_args=())
def flash(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v)


@pytest.mark.parametrize("beside", [False, True])
def test_a_kernel_called_directly_is_named_also_beside_attention_that_is_seen(beside: bool) -> None:
    direct = Attention(lambda q, k, v: torch.ops.regard_test.flash_attn_forward(q, k, v))
    model = nn.Sequential(Attention(), direct) if beside else direct
    with (
        pytest.raises(ObservationError, match=r"Attention calls the kernel regard_test\.flash_attn_forward directly"),
        torch.no_grad(),
        regard.watch(model),
    ):
        model(torch.randn(1, 3, D))


def test_pytorchs_kernel_called_as_an_operator_is_seen(watched) -> None:
    model = Attention(lambda q, k, v: torch.ops.aten.scaled_dot_product_attention(q, k, v))
    x = torch.randn(2, 3, D)
    assert watched(model, lambda: model(x)).layer(0).weights.shape == (2, 2, 3, 3)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize(
    "attend", [functional.scaled_dot_product_attention, lambda q, k, v: (q @ k.mT).softmax(-1) @ v]
)
def test_attention_under_vmap_is_named(attend) -> None:
    model = Attention(attend)
    with pytest.raises(ObservationError, match=r"Attention computes attention under torch\.func"), regard.watch(model):
        torch.func.vmap(model)(torch.randn(2, 1, 3, D))


def test_nothing_seen_and_wrong_arguments_say_what_to_do() -> None:
    with pytest.raises(ObservationError, match="call the model there"), regard.watch(Attention()):
        pass
    with pytest.raises(InputError, match=r"`model` must be an nn\.Module, got str"), regard.watch("model"):
        pass
    with (
        pytest.raises(InputError, match='`keep` must be "maps", "qk", "qkv" or "weights"'),
        regard.watch(Attention(), keep="all"),
    ):
        pass


LIMITED = {
    "watch, weights": lambda limit: regard.watch(Attention(), keep="weights", max_bytes=limit),
    "watch": lambda limit: regard.watch(Attention(), max_bytes=limit),
    "tap": lambda limit: regard.tap(Attention(), heads=["0.0"], max_bytes=limit),
    "rollout": lambda limit: contextlib.nullcontext(Rollout(query=0, max_bytes=limit)),
}


def test_a_limit_that_is_no_number_of_bytes_is_refused() -> None:
    refused = r"`max_bytes` is a number of bytes, got"
    for case in sweep(itertools.product(LIMITED, [math.nan, "2GB", None, -1, True])):
        with case as (door, limit), pytest.raises(InputError, match=refused), LIMITED[door](limit):
            pass


def test_any_number_is_a_limit_of_bytes() -> None:
    for case in sweep([10**6, 1e6, np.int64(10**6)]):
        with case as limit:
            model, x = Attention(), torch.randn(1, 3, D)
            with regard.watch(model, keep="weights", max_bytes=limit) as seen:
                model(x)
            assert len(seen) == 1
            q = x[:, None]
            assert torch.equal(regard.attention(q, q, q, max_bytes=limit), regard.attention(q, q, q))


def test_weights_are_kept_within_the_budget_and_refused_beyond_it() -> None:
    model, x = nn.Sequential(Attention(), Attention()), torch.randn(1, 600, D)
    needed = 2 * 2 * 600 * 600 * 4
    with torch.no_grad(), regard.watch(model, keep="weights", max_bytes=needed) as seen:
        model(x)
    assert seen.weights(layer=1, head=1).shape == (1, 600, 600)
    with (
        pytest.raises(ObservationError, match=r'keep="weights" needs .* of the limit .* raise `max_bytes`'),
        torch.no_grad(),
        regard.watch(model, keep="weights", max_bytes=needed - 1),
    ):
        model(x)
    with torch.no_grad(), regard.watch(model) as seen:
        model(x)
    with pytest.raises(ObservationError, match=r'watch with keep="weights"'):
        seen.weights(layer=0, head=0)


def test_tokens_given_by_hand_are_the_words(tmp_path) -> None:
    torch.manual_seed(0)
    model = Attention()
    with regard.watch(model, tokens=["the", "cat", "sleeps"]) as seen:
        model(torch.randn(1, 3, D))
    ranked = seen.rank_heads("sleeps", "cat")
    assert [one.weight for one in ranked] == sorted(seen.layer(0).exact[0, head, 2, 1] for head in (0, 1))[::-1]
    seen.save(tmp_path / "a.atlas")
    assert regard.load_atlas(tmp_path / "a.atlas").rank_heads("sleeps", "cat") == ranked


class Sizes(TorchDispatchMode):
    """The largest tensor that any operator hands out."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for one in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(one, Tensor) and 0 not in one.stride():  # an expanded view takes no memory
                self.largest = max(self.largest, one.numel())
        return result


@pytest.mark.parametrize("batch", [1, 2])
def test_no_matrix_of_the_whole_sequence_is_made(batch: int) -> None:
    model, length = Attention(), 2048
    with torch.no_grad(), Sizes() as sizes, regard.watch(model) as seen:
        model(torch.randn(batch, length, D))
    assert sizes.largest < length * length / 2
    assert seen.layer(0).queries == length


class OwnTexts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(D, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x)[0]


class Traced(nn.Module):
    """A model that traces a part of itself at its first call."""

    def __init__(self) -> None:
        super().__init__()
        self.part, self.rest = OwnTexts(), OwnTexts()
        self.traced: list[torch.jit.ScriptModule] = []

    def forward(self, x: Tensor) -> Tensor:
        if not self.traced:
            self.traced.append(torch.jit.trace(self.part, x, check_trace=False))
        return self.rest(self.traced[0](x))


@pytest.mark.filterwarnings("ignore:`torch.jit.trace", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("grad", [False, True])  # without gradients a kernel computes all of nn.MultiheadAttention
def test_a_part_that_is_traced_inside_the_block_is_seen(grad: bool) -> None:
    """Tracing ended in an error of PyTorch's, and the kernel of the fast path was taken for no attention."""
    x, models = torch.randn(2, 3, D), [Traced().eval() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    with torch.set_grad_enabled(grad):
        plain = models[0](x)
        with regard.watch(models[1], strict=False) as seen:
            output = models[1](x)
    assert torch.equal(plain, output)
    assert [one.name for one in seen.record.layers] == ["", "rest.attention"]
    assert seen.missing == ()
    with torch.set_grad_enabled(grad), regard.watch(models[1].part) as part:
        models[1].part(x)
    assert np.abs(seen.weights(layer=0) - part.weights(layer=0)).max() < 1e-6
