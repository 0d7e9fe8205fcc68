"""Modules with a fast path take it beside every watch, and calls without queries or keys run as ever."""

import threading

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules import module as module_hooks
from torch.overrides import _get_current_function_mode_stack

import regard
from regard.errors import ObservationError
from sweeps import sweep

D = 8

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")

FORWARDS = {one: one.forward for one in (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)}


class Attention(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(x, x, x)


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT, -1) @ v


def encoder() -> nn.TransformerEncoder:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(D, 2, 16, batch_first=True), 2).eval()


def left_behind(model: nn.Module) -> list[str]:
    found = [f"forward of {type(one).__name__}" for one in model.modules() if "forward" in vars(one)]
    found += [f"forward of the class {one.__name__}" for one, forward in FORWARDS.items() if one.forward is not forward]
    found += ["a global hook"] * bool(module_hooks._global_forward_hooks or module_hooks._global_forward_pre_hooks)
    return found + ["a mode"] * len(_get_current_function_mode_stack())


def padded_encoder() -> tuple[nn.TransformerEncoder, Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2).eval()
    return model, torch.randn(3, 6, 32), torch.arange(6) >= torch.tensor([6, 4, 2])[:, None]


def test_one_model_watched_twice_is_seen_twice() -> None:
    model, x, padding = padded_encoder()
    with torch.no_grad():
        plain = model(x, src_key_padding_mask=padding)
        with regard.watch(model) as first, regard.watch(model) as second:
            output = model(x, src_key_padding_mask=padding)
    assert torch.equal(plain, output)
    assert len(first.record) == len(second.record) == 2
    assert left_behind(model) == []


@pytest.mark.parametrize("name", ["layers.1", "layers.0.self_attn"])
def test_watching_a_part_leaves_the_fast_path_of_the_whole_on(name: str) -> None:
    model, x, padding = padded_encoder()
    with torch.no_grad():
        plain = model(x, src_key_padding_mask=padding)
        with regard.watch(model, keep="weights") as whole:
            model(x, src_key_padding_mask=padding)
        with regard.watch(model.get_submodule(name), keep="weights") as part:
            output = model(x, src_key_padding_mask=padding)
    assert torch.equal(plain, output)
    [layer] = part.record
    [same] = [one for one in whole.record if one.name.startswith(name)]
    assert layer.weights.shape == (3, 4, 6, 6)
    assert (layer.weights == same.weights).all()
    assert left_behind(model) == []


def test_watching_one_model_leaves_the_fast_path_of_another_on() -> None:
    for case in sweep([Attention, encoder, nn.Identity]):
        with case as other:
            (model, x, padding), watched = padded_encoder(), other()
            with torch.no_grad():
                plain = model(x, src_key_padding_mask=padding)
                if isinstance(watched, nn.Identity):
                    with pytest.raises(ObservationError, match="no attention call"), regard.watch(watched):
                        output = model(x, src_key_padding_mask=padding)
                else:
                    with regard.watch(watched) as seen:
                        watched(torch.randn(1, 3, D))
                        output = model(x, src_key_padding_mask=padding)
                    assert len(seen.records) == 1
            assert torch.equal(plain, output)
            assert left_behind(model) == []


def test_a_thread_beside_a_watch_runs_as_ever_and_is_not_seen() -> None:
    model, x, padding = padded_encoder()
    found = []

    def run() -> None:
        with torch.no_grad():
            found.append(model(x, src_key_padding_mask=padding))

    run()
    with regard.watch(watched := Attention()) as seen:
        watched(torch.randn(1, 3, D))
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    assert torch.equal(*found)
    assert len(seen.records) == 1


@pytest.mark.parametrize("raised", [ValueError, KeyboardInterrupt])
def test_an_error_inside_gives_modes_and_classes_back(raised: type[BaseException]) -> None:
    class Raises(nn.ReLU):
        def forward(self, x: Tensor) -> Tensor:
            raise raised("mine")

    model, x, padding = padded_encoder()
    plain = model(x, src_key_padding_mask=padding)
    norm, model.norm = model.norm, Raises()
    with pytest.raises(raised, match="mine"), regard.watch(model), regard.watch(model.layers[1]):
        model(x, src_key_padding_mask=padding)
    assert left_behind(model) == []
    model.norm = norm
    with regard.watch(model) as seen:
        with regard.watch(model):
            model(x, src_key_padding_mask=padding)
        assert torch.equal(plain, model(x, src_key_padding_mask=padding))
    assert [len(one) for one in seen.records] == [2, 2]
    assert left_behind(model) == []


def in_heads(attend):
    return lambda self, q, k: attend(q[:, None], k[:, None], k[:, None])[:, 0]


def test_no_queries_or_no_keys_are_nothing_to_see() -> None:
    def check(attend, queries: int, keys: int) -> None:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.module = nn.MultiheadAttention(D, 2, batch_first=True)
                self.layer = nn.TransformerEncoderLayer(D, 2, 16, batch_first=True)

            def forward(self, q: Tensor, k: Tensor) -> Tensor:
                return attend(self, q, k)

        model, full = Model().eval(), torch.randn(2, 5, D)
        q, k = torch.randn(2, queries, D), torch.randn(2, keys, D)
        for grad in (True, False):
            with torch.set_grad_enabled(grad), regard.watch(model) as seen:
                assert model(q, k).shape == q.shape
                model(full, full)
            assert [layer.queries for layer in seen.records[-1]] == [5]

    ways = {
        "sdpa": in_heads(functional.scaled_dot_product_attention),
        "by hand": in_heads(by_hand),
        "module": lambda self, q, k: self.module(q, k, k)[0],
        "layer": lambda self, q, k: self.layer(q),
    }
    for case in sweep([(way, *count) for way in ways for count in [(0, 3), (3, 0), (0, 0)]]):
        with case as (way, queries, keys):
            check(ways[way], queries, keys)
