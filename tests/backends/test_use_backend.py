"""`regard.use_backend`: a backend for all calls of a block of code."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import regard
from regard import masks
from regard.errors import InputError


def drawn(n=70):
    return torch.randn(1, 2, n, 16, generator=torch.Generator().manual_seed(n))


def ran(x, **asked):
    return str(regard.explain(x, x, x, **asked)).split(" ", 1)[0]


def test_calls_inside_take_it_and_others_do_not():
    x = drawn()
    plain, named = regard.attention(x, x, x), regard.attention(x, x, x, backend="reference")
    assert not torch.equal(plain, named), "both give the same bits here, so that nothing is told apart"
    for _ in range(2):  # the second time the call is known
        with regard.use_backend("reference"):
            assert ran(x) == "reference"
            assert torch.equal(regard.attention(x, x, x), named)
            assert torch.equal(regard.attention(x, x, x, backend="sdpa"), plain)
            with regard.use_backend("auto"):
                assert torch.equal(regard.attention(x, x, x), plain)
        assert torch.equal(regard.attention(x, x, x), plain)


def test_what_it_refuses_goes_as_ever():
    x = drawn()
    with regard.use_backend("native"):
        assert ran(x, return_weights=True) == "reference"
        assert ran(x.double()) == "sdpa"
        assert ran(x, mask=masks.Window(3)) == "native"


def test_a_model_takes_it_in_all_its_layers():
    torch.manual_seed(0)
    layers, x = nn.ModuleList([regard.nn.MultiHeadAttention(16, 2) for _ in range(3)]), torch.randn(1, 70, 16)

    def run(**options):
        output = x
        for layer in layers:
            output = layer(output, mask=masks.Window(5), **options)
        return output

    with regard.use_backend("reference"):
        found = run()
    assert torch.equal(found, run(backend="reference"))
    assert not torch.equal(found, run()), "both give the same bits here, so that nothing is told apart"


def test_it_ends_with_the_block_and_is_that_of_one_thread():
    x, found = drawn(), []
    with pytest.raises(KeyError), regard.use_backend("reference"):
        raise KeyError
    assert ran(x) == "sdpa"
    with regard.use_backend("reference"):
        other = threading.Thread(target=lambda: found.append(ran(x)))
        other.start()
        other.join()
    assert found == ["sdpa"]


def test_an_unknown_name_is_told_those_that_there_are():
    with (
        pytest.raises(InputError, match='must be "auto" or one of native, sdpa, strips, reference, '),
        regard.use_backend("nobody"),
    ):
        pass


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("triton", "the Triton kernels were removed"),
        ("blockwise", 'its calls are computed by backend="strips"'),
        ("split", '"native" or by "sdpa"'),
        ("numba", 'the compiled loops are backend="native" now'),
    ],
)
def test_a_removed_backend_is_named_as_such_with_what_takes_its_place(name, words):
    with pytest.raises(InputError, match=f"got '{name}': .*{words}"), regard.use_backend(name):
        pass


def compiled_call(**options):
    """A compiled call, and what attends in each of its graphs."""
    graphs = []

    def keep(graph, _):
        names = " ".join(str(node.target) for node in graph.graph.nodes)
        known = {"regard.native": "native", "regard.strips": "strips", "scaled_dot_product": "sdpa"}
        graphs.append(next((name for part, name in known.items() if part in names), "reference"))
        return graph

    torch._dynamo.reset()
    call = torch.compile(lambda x: regard.attention(x, x, x, **options), backend=keep, fullgraph=True)
    return call, graphs


def is_that_of(output, x, backend, **options):
    """Whether it has the bits of a backend and not those of others; `strips` has those of the formula here."""
    return torch.equal(output, regard.attention(x, x, x, backend=backend, **options))


def test_compiled_code_sees_it_in_every_order_and_is_compiled_once_for_each():
    options = {"mask": masks.Window(5)}
    x, (call, graphs) = drawn(), compiled_call(**options)
    assert not is_that_of(regard.attention(x, x, x, backend="sdpa", **options), x, "reference", **options)
    for _ in range(2):  # the second time all are compiled
        assert is_that_of(call(x), x, "sdpa", **options)
        with regard.use_backend("reference"):
            assert is_that_of(call(x), x, "reference", **options)
            with regard.use_backend("strips"):
                assert is_that_of(call(x), x, "strips", **options)
            with regard.use_backend("auto"):
                assert is_that_of(call(x), x, "sdpa", **options)
            with ThreadPoolExecutor(1) as other:
                assert is_that_of(other.submit(call, x).result(), x, "sdpa", **options)
            assert is_that_of(call(x), x, "reference", **options)
    assert is_that_of(call(x), x, "sdpa", **options)
    assert graphs == ["sdpa", "reference", "strips"]


def test_compiled_code_sees_that_of_its_own_task_of_asyncio():
    x, (call, graphs) = drawn(), compiled_call()
    named = {name: regard.attention(x, x, x, backend=name) for name in ("reference", "sdpa")}
    entered, left = asyncio.Event(), asyncio.Event()

    async def inside():
        with regard.use_backend("reference"):
            entered.set()
            await left.wait()
            return call(x)

    async def beside():
        await entered.wait()
        output = call(x)
        left.set()
        return output

    async def both():
        return await asyncio.gather(inside(), beside())

    first, second = asyncio.run(both())
    assert torch.equal(first, named["reference"])
    assert torch.equal(second, named["sdpa"])
    assert graphs == ["sdpa", "reference"]


def test_compiled_code_that_opens_it_itself_takes_it_for_that_block_alone():
    def call(x):
        before = regard.attention(x, x, x)
        with regard.use_backend("reference"):
            within = regard.attention(x, x, x)
        return before, within, regard.attention(x, x, x)

    x = drawn()
    torch._dynamo.reset()
    compiled = torch.compile(call, backend="eager")
    for _ in range(2):
        before, within, after = compiled(x)
        assert is_that_of(before, x, "sdpa")
        assert is_that_of(within, x, "reference")
        assert is_that_of(after, x, "sdpa")


def test_compiled_code_leaves_what_it_refuses_to_others():
    x, (call, graphs) = drawn().double(), compiled_call()
    with regard.use_backend("native"):
        assert is_that_of(call(x), x, "sdpa")
    assert graphs == ["sdpa"]
