"""`regard.use_backend`: a backend for all calls of a block of code."""

import threading

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


def test_compiled_code_does_not_see_it():
    x = drawn()
    compiled = torch.compile(lambda one: regard.attention(one, one, one), fullgraph=True, backend="eager")
    with regard.use_backend("reference"):
        torch.testing.assert_close(compiled(x), regard.attention(x, x, x))
