"""Compiled code takes the native kernels for the calls for which eager code takes them; exported programs do not."""

import pytest
import torch

import regard
from measured_kernels import take_rules_of
from regard import masks
from regard.backends.native import choice
from regard.positions import ALiBi, T5Bias

pytestmark = [
    pytest.mark.slow,  # 3 s each
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),  # torch.compile's own
]
N = 512
FUSED, KERNELS = "scaled_dot_product_attention", "regard.native"


@pytest.fixture(autouse=True)
def ready(monkeypatch):
    """The rules of the library for which most was measured."""
    take_rules_of(monkeypatch)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def drawn(n=N, dtype=torch.float32, learns=True):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 2, n, 16, generator=generator).to(dtype).requires_grad_(learns) for _ in range(3)]


def compiled(*, dynamic=None, **options):
    """A compiled call, and for each of its graphs what attends in it."""
    graphs = []

    def keep(graph, _):
        names = [str(node.target) for node in graph.graph.nodes]
        graphs.append([which for which in (FUSED, KERNELS) for name in names if which in name])
        return graph

    call = lambda *x: regard.attention(*x, **options)  # noqa: E731
    return torch.compile(call, fullgraph=True, dynamic=dynamic, backend=keep), graphs


def formula(q, k, v, *, visible=True, bias=0.0):
    """Output and gradients of Σ output² in float64."""
    leaves = [one.detach().double().requires_grad_() for one in (q, k, v)]
    scores = leaves[0] @ leaves[1].mT / 4 + bias
    output = torch.where(torch.as_tensor(visible), scores, -torch.inf).softmax(-1) @ leaves[2]
    return output, *torch.autograd.grad(output.square().sum(), leaves)


PLACES = torch.arange(N)
CAUSAL = PLACES[:, None] >= PLACES
CASES = {
    "causal": ({"mask": masks.Causal()}, {"visible": CAUSAL}),
    "window": ({"mask": masks.Causal() & masks.Window(99)}, {"visible": CAUSAL & (PLACES[:, None] - PLACES < 99)}),
    "padding": ({"mask": masks.Padding((PLACES < 300)[None])}, {"visible": PLACES < 300}),
    "ALiBi": (
        {"bias": ALiBi(2), "mask": masks.Causal()},
        {
            "bias": (PLACES - PLACES[:, None]) * torch.tensor([2.0**-4, 2.0**-8]).double()[:, None, None],
            "visible": CAUSAL,
        },
    ),
}


@pytest.mark.parametrize("dynamic", [None, True], ids=["sizes", "symbols"])
@pytest.mark.parametrize("case", CASES)
def test_compiled_training_takes_the_loops(case, dynamic):
    options, meant = CASES[case]
    call, graphs = compiled(dynamic=dynamic, **options)
    given = drawn()
    output = call(*given)
    found = output, *torch.autograd.grad(output.square().sum(), given)
    for ours, exact in zip(found, formula(*given, **meant), strict=True):
        torch.testing.assert_close(ours.double(), exact, rtol=1e-4, atol=1e-4)
    assert graphs == [[KERNELS]]


@pytest.mark.parametrize(
    ("options", "dtype", "learns", "found"),
    [
        ({"mask": masks.Causal()}, torch.float32, False, KERNELS),
        ({"mask": masks.Causal()}, torch.bfloat16, False, KERNELS),
        ({"mask": masks.Causal()}, torch.bfloat16, True, FUSED),  # not measured in training
        ({}, torch.float32, False, KERNELS),
        ({}, torch.float32, True, FUSED),  # from 1,024 on
        ({"dropout": 0.1}, torch.bfloat16, True, KERNELS),
    ],
    ids=str,
)
def test_a_kind_of_calls_is_taken_as_in_eager_code(options, dtype, learns, found):
    call, graphs = compiled(**options)
    call(*drawn(dtype=dtype, learns=learns))
    assert graphs == [[found]]
    explained = str(regard.explain(*drawn(dtype=dtype, learns=learns), **options)).splitlines()[0]
    assert (explained == "native runs it") == (found == KERNELS)


def test_shorter_texts_and_processes_without_loops_stay_with_pytorch(monkeypatch):
    call, graphs = compiled(mask=masks.Causal())
    call(*drawn(N - 1))
    monkeypatch.setattr(choice, "_loaded", lambda: "")
    torch._dynamo.reset()
    call(*drawn())
    assert graphs == [[FUSED], [FUSED]]


def test_a_table_that_learns_gets_its_gradient_in_the_loops():
    table = torch.randn(32, 2, generator=torch.Generator().manual_seed(1)).requires_grad_()
    graphs = []

    def keep(graph, _):
        graphs.append([str(node.target) for node in graph.graph.nodes if KERNELS in str(node.target)])
        return graph

    def call(q, k, v, table):
        return regard.attention(q, k, v, bias=T5Bias(table, bidirectional=True)).square().sum()

    given = drawn()
    (found,) = torch.autograd.grad(torch.compile(call, fullgraph=True, backend=keep)(*given, table), table)
    assert [len(one) for one in graphs] == [1]
    wide = table.detach().double().requires_grad_()
    q, k, v = (one.detach().double() for one in given)
    bias = T5Bias(wide, bidirectional=True).tile(slice(0, 1), slice(0, 2), PLACES, PLACES)
    output = ((q @ k.mT / 4 + bias).softmax(-1) @ v).square().sum()
    torch.testing.assert_close(found.double(), *torch.autograd.grad(output, wide), rtol=1e-4, atol=1e-3)


def test_an_exported_program_needs_no_loops():
    class Attends(torch.nn.Module):
        def forward(self, q, k, v):
            return regard.attention(q, k, v, mask=masks.Causal())

    given = drawn(learns=False)
    assert str(regard.explain(*given, mask=masks.Causal())).startswith("native runs it")
    for strict in (False, True):
        program = torch.export.export(Attends(), tuple(given), strict=strict)
        assert not any(KERNELS in str(node.target) for node in program.graph.nodes)
        torch.testing.assert_close(
            program.module()(*given).double(), formula(*given, visible=CAUSAL)[0], rtol=1e-4, atol=1e-4
        )
