"""Dropout of activations: the right share, nowhere the same, and the gradient of what was kept."""

import math
from functools import partial
from itertools import product

import pytest
import torch

from regard.nn.feed_forward import FUNCTIONS, FeedForward, dropped
from sweeps import sweep


def test_the_share_is_p_in_the_whole_in_rows_and_in_columns():
    for case in sweep(product([0.1, 0.3, 0.5, 0.9], [(40, 1000), (4, 50, 200), (64, 1024)])):
        with case as (p, shape):
            torch.manual_seed(0)
            gone = (dropped(torch.ones(shape), p) == 0).flatten(0, -2).double()
            for found, count in ((gone.mean(), gone.numel()), (gone.mean(0), len(gone)), (gone.mean(1), gone.shape[1])):
                far = 5.5 * math.sqrt(
                    p * (1 - p) / count
                )  # one in twenty-six million, of thousands of rows and columns
                assert float((found - p).abs().max()) < far


def test_neighbours_and_lines_know_nothing_of_each_other():
    torch.manual_seed(1)
    gone = (dropped(torch.ones(300, 300), 0.5) == 0).double() - 0.5
    for one, other in ((gone[1:], gone[:-1]), (gone[:, 1:], gone[:, :-1]), (gone[1:, 1:], gone[:-1, :-1])):
        assert abs(float((one * other).mean()) * 4) < 5 / math.sqrt(one.numel())
    between = (gone @ gone.T / 300 * 4).fill_diagonal_(0)
    assert float(between.abs().max()) < 6 / math.sqrt(300)


def test_what_is_kept_is_divided_by_what_is_left():
    for case in sweep([torch.float64, torch.float32, torch.bfloat16, torch.float16]):
        with case as dtype:
            torch.manual_seed(2)
            x = torch.randn(200, 100, dtype=dtype)
            found = dropped(x, 0.25)
            assert found.dtype == dtype
            kept = found != 0
            torch.testing.assert_close(
                found[kept], (x.double() / 0.75).to(dtype)[kept], rtol=2 * torch.finfo(dtype).eps, atol=0
            )


def test_the_gradient_is_that_of_what_was_kept():
    torch.manual_seed(3)
    x = torch.randn(100, 200, requires_grad=True)
    found = dropped(x, 0.4)
    found.sum().backward()
    expected = torch.where(found == 0, 0.0, 1 / 0.6)
    torch.testing.assert_close(x.grad, expected)


def test_pytorchs_seed_repeats_it_and_each_call_is_another():
    x = torch.ones(200, 100)
    torch.manual_seed(4)
    one, other = dropped(x, 0.5), dropped(x, 0.5)
    torch.manual_seed(4)
    assert torch.equal(dropped(x, 0.5), one)
    assert not torch.equal(one, other)


def test_nothing_is_dropped_where_nothing_shall_be():
    x = torch.randn(200, 100)
    assert dropped(x, 0.5, training=False) is x
    assert dropped(x, 0.0) is x
    assert not dropped(x, 1.0).any()


def compiled(call, *given):
    torch._dynamo.reset()
    return torch.compile(call, fullgraph=True, backend="aot_eager")(*given)


@pytest.mark.slow  # 3 s
def test_compiled_code_drops_what_eager_code_drops():
    found = []
    for call in (dropped, lambda *given: compiled(dropped, *given)):
        torch.manual_seed(6)
        x = torch.ones(3, 100, 200, requires_grad=True)
        output = call(x, 0.3)
        found.append((output, *torch.autograd.grad(output.square().sum(), x)))
    gone = found[1][0] == 0
    assert abs(float(gone.double().mean()) - 0.3) < 5.5 * math.sqrt(0.21 / gone.numel())
    torch.testing.assert_close(found[1][1], torch.where(gone, 0.0, 2 / 0.7**2))
    assert torch.equal(found[0][0], found[1][0])


@pytest.mark.slow  # 3 s
def test_members_of_a_compiled_vmap_drop_different_numbers():
    call = torch.vmap(lambda x: dropped(x, 0.5), randomness="different")
    found = compiled(call, torch.ones(2, 200, 200)) == 0
    assert abs(float((found[0] == found[1]).double().mean()) - 0.5) < 5.5 * math.sqrt(0.25 / 200**2)


@pytest.mark.slow  # 3 s each
@pytest.mark.parametrize("p", [0.0, 0.4])
@pytest.mark.parametrize("activation", ["relu", "gelu", "swiglu"])
def test_a_compiled_feed_forward_layer_has_the_gradients_of_the_formula(activation, p):
    torch.manual_seed(7)
    layer = FeedForward(64, 256, activation=activation, dropout=p)
    x = torch.randn(2, 50, 64, requires_grad=True)
    wanted = [x, *layer.parameters()]
    torch.manual_seed(8)
    output = compiled(layer, x)
    found = torch.autograd.grad(output.square().sum(), wanted)
    torch.manual_seed(8)
    factor = dropped(torch.ones(2, 50, 256), p)
    hidden = FUNCTIONS[activation]((layer.gate_proj or layer.up_proj)(x))
    hidden = hidden * layer.up_proj(x) if layer.gate_proj is not None else hidden
    expected = layer.down_proj(hidden * factor)
    torch.testing.assert_close((output, *found), (expected, *torch.autograd.grad(expected.square().sum(), wanted)))


@pytest.mark.slow  # 3 s each
@pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning")  # PyTorch's own, at its first import
@pytest.mark.parametrize("p", [0.0, 0.4])
def test_a_compiled_step_keeps_no_byte_for_each_number(p):
    """Inductor stores these so slowly that ReLU and dropout took a quarter of a training step."""
    from functorch.compile import make_boxed_func
    from torch._inductor.compile_fx import compile_fx

    kept = []

    def without_code(graph, _, **options):
        if not options.get("is_backward"):
            (output,) = (node for node in graph.graph.nodes if node.op == "output")
            kept.extend((one.meta["val"].dtype, one.meta["val"].numel()) for one in output.args[0])
        return make_boxed_func(graph)

    layer = FeedForward(64, 256, dropout=p)
    torch._dynamo.reset()
    backend = partial(compile_fx, inner_compile=without_code)
    torch.compile(lambda x: dropped(layer(x), p), backend=backend)(torch.randn(2, 50, 64)).sum().backward()
    assert kept
    assert all(dtype != torch.bool for dtype, _ in kept)
    large = [numbers for _, numbers in kept if numbers > 2 * 50 * 64]
    assert sorted(large) == [64 * 256, 2 * 50 * 256]  # a projection, and what goes into it


def test_short_ones_and_vmap_go_through_pytorchs_own():
    torch.manual_seed(5)
    short = dropped(torch.ones(8, 8), 0.5)
    torch.manual_seed(5)
    assert torch.equal(short, torch.nn.functional.dropout(torch.ones(8, 8), 0.5))
    found = torch.vmap(lambda x: dropped(x, 0.5), randomness="different")(torch.ones(3, 200, 200))
    assert not torch.equal(found[0], found[1])
