"""Every backend in compiled and exported graphs: what eager calls compute, without a break, for all masks and scores.

Oracle is the same call in eager mode, which the other contracts compare with the formula.
"""

import itertools
import subprocess
import sys

import pytest
import torch

import regard
from families import BIASES, FACTORS, MASKS, NORMALIZERS, SCORES, WIDTH, Leaves, Shape
from regard import masks, normalizers, positions
from regard.backends.call_form import read, unwritable, write
from regard.backends.native.backend import OPERATOR as NATIVE
from regard.backends.selection import named
from regard.backends.strips import OPERATOR as STRIPS
from regard.errors import InputError
from regard.normalizers.softmax import Sums
from regard.problem import Problem
from sweeps import sweep

pytestmark = pytest.mark.filterwarnings(  # of torch.compile's own
    "ignore:The .grad attribute of a Tensor that is not a leaf"
)
LENGTHS = (40, 41, 48, 57, 64, 70, 75, 90)
OF_PYTHON = ("rule of heads", "of one's own", "relative of one's own", "relative")


def _shape(n):
    return Shape(2, 4, 2, n - 3, n, 6)


def _inputs(s, leaves):
    q = leaves("q", s.batch, s.heads, s.queries, WIDTH)
    k = leaves("k", s.batch, s.kv_heads, s.keys, WIDTH)
    return q, k, leaves("v", s.batch, s.kv_heads, s.keys, s.value_width)


def _agrees_at_all_lengths(
    backend, *, mask=None, score="scaled dot", bias="none", factor="none", normalizer="softmax", **options
):
    """Output and gradients of compiled code, then of eager code, which must not have warmed anything up before."""
    from torch._dynamo.testing import CompileCounterWithBackend

    def call(q, k, v, parts):
        return regard.attention(q, k, v, backend=backend, **parts, **options)

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend=counter)
    for n in LENGTHS:
        s, leaves, found = _shape(n), Leaves(torch.float32, torch.float32, True), []
        for function in (compiled, call):
            parts = {"mask": None if mask is None else MASKS[mask](s), "score": SCORES[score](s, leaves, None)}
            parts |= {"bias": BIASES[bias](s, leaves), "weight_factor": FACTORS[factor](s, leaves)}
            parts["normalizer"] = NORMALIZERS[normalizer](s, leaves)
            torch.manual_seed(3)
            output = function(*_inputs(s, leaves), parts)
            wanted = [one for one in leaves.values() if one.requires_grad]
            found.append((output, *torch.autograd.grad(output.square().sum(), wanted, allow_unused=True)))
        torch.testing.assert_close(*found, rtol=0, atol=1e-6)
    assert counter.frame_count <= 2


# Each mask with a bias in turn, so that every one of both is compiled.
COMPILED = [[one for one in every if one not in OF_PYTHON] for every in (MASKS, BIASES)]


@pytest.mark.slow
@pytest.mark.parametrize(("mask", "bias"), [*zip(COMPILED[0], itertools.cycle(COMPILED[1]), strict=False)])
def test_every_mask_and_bias_is_compiled_whole_and_at_most_twice(mask, bias):
    for case in sweep(["strips", "native"]):
        with case as backend:
            _agrees_at_all_lengths(backend, mask=mask, bias=bias)


@pytest.mark.slow  # 5 to 10 s each
@pytest.mark.parametrize("score", [one for one in SCORES if one not in OF_PYTHON])
def test_every_score_is_compiled_whole_and_at_most_twice(score):
    _agrees_at_all_lengths("strips", score=score, mask="window")


@pytest.mark.slow  # 5 to 10 s each
@pytest.mark.parametrize(
    "options",
    [{"factor": "gaussian"}, {"factor": "matrix"}, {"dropout": 0.3}, {"scale": 0.2}]
    + [{"normalizer": one} for one in NORMALIZERS],
    ids=str,
)
def test_every_other_part_is_compiled_whole_and_at_most_twice(options):
    _agrees_at_all_lengths("strips", mask="causal", **options)


@pytest.mark.slow  # 30 s: FlexAttention compiles C++
@pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning")  # PyTorch's own, at its first import
def test_flex_is_compiled_inside_compiled_code_whose_lengths_are_symbols():
    mask = masks.Causal() & masks.Document(torch.arange(140) // 50)
    call = lambda q, k: regard.attention(q + 1, k, k, mask=mask, bias=positions.ALiBi(2), backend="flex")  # noqa: E731
    q, k = torch.randn(1, 2, 140, 16), torch.randn(1, 1, 140, 16)
    torch._dynamo.reset()
    ours = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")(q, k)
    expected = regard.attention(q + 1, k, k, mask=mask, bias=positions.ALiBi(2), backend="reference")
    torch.testing.assert_close(ours, expected)


@pytest.mark.slow  # 5 s
@pytest.mark.parametrize("sizes", [(1, 2), (2, 2)], ids=["one sequence", "as many sequences as heads"])
def test_the_sizes_of_masks_and_biases_are_compared_with_symbols(sizes):
    batch, heads = sizes
    q, mask = torch.randn(batch, heads, 20, 8), masks.Padding(torch.arange(20).expand(batch, 20) < 15)
    dense = torch.randn(batch, heads, 20, 20)

    def call(q):
        biased = regard.attention(q, q, q, mask=mask, bias=positions.ALiBi(heads))
        return biased + regard.attention(q, q, q, mask=dense > 0, bias=dense)

    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(call, fullgraph=True, dynamic=True, backend="eager")(q), call(q))


def _case(**options):
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, heads, 70, 8, generator=draw).requires_grad_() for heads in (4, 2, 2))
    sink, table = torch.randn(4, generator=draw).requires_grad_(), torch.randn(16, 4, generator=draw).requires_grad_()
    parts = {"mask": masks.Causal() & masks.Document(torch.arange(70) // 30), "normalizer": normalizers.Softmax(sink)}
    parts["bias"] = positions.T5Bias(table, bidirectional=True)
    return Problem.of(q, k, v, **parts | options), [q, k, v, table, sink]


@pytest.mark.parametrize("operator", [STRIPS, NATIVE], ids=lambda one: one.name)
@pytest.mark.parametrize("wants_lse", [False, True], ids=["output", "log-sum-exp too"])
def test_an_operator_computes_what_its_backend_does(operator, wants_lse):
    problem, leaves = _case(return_lse=wants_lse)
    form = write(problem)
    output, *sums = operator.op(problem.q, problem.k, problem.v, form.held, form.text, form.ints, form.floats)
    answer = named()[operator.name](problem)
    up = torch.randn(output.shape, generator=torch.Generator().manual_seed(1))
    ours, expected = [output], [answer.output]
    if wants_lse:
        ours, expected = [output, Sums(*sums).logarithm], [answer.output, answer.lse]
    torch.testing.assert_close(ours, expected, rtol=0, atol=0)
    ours, expected = (
        torch.autograd.grad((one[0] * up).sum() + sum(lse.sum() for lse in one[1:]), leaves) for one in (ours, expected)
    )
    torch.testing.assert_close(ours, expected, rtol=0, atol=0)


@pytest.mark.slow  # 3 s each
@pytest.mark.parametrize("operator", [STRIPS, NATIVE], ids=lambda one: one.name)
@pytest.mark.parametrize("permuted", [False, True], ids=["dense", "permuted"])
def test_an_operator_is_what_pytorch_expects_of_one(operator, permuted):
    problem, _ = _case(return_lse=permuted)
    form = write(problem)
    given = [one.detach() for one in (problem.q, problem.k, problem.v)]
    given = [one.transpose(1, 2).contiguous().transpose(1, 2) for one in given] if permuted else given
    given = [one.requires_grad_() for one in given]
    torch.library.opcheck(operator.op, (*given, form.held, form.text, form.ints, form.floats))


def test_a_problem_is_read_as_it_was_written():
    problem, _ = _case(dropout=0.25, scale=0.3)
    form = write(problem)
    again = read(problem.q, problem.k, problem.v, form.held, form.text, form.ints, form.floats)
    assert (again.scale, again.q_offset, again.dropout.p) == (0.3, 0, 0.25)
    assert torch.equal(again.visible(), problem.visible())
    assert torch.equal(*(one.everything.numbers(one.bias, one.q.device) for one in (again, problem)))
    assert again.sink is problem.sink
    assert again.bias.table is problem.bias.table


def test_a_mask_read_again_with_other_numbers_is_another_mask():
    seen = []
    for size in (30, 20, 30):
        problem, _ = _case(mask=masks.Document(torch.arange(70) // size))
        form = write(problem)
        again = read(problem.q, problem.k, problem.v, form.held, form.text, form.ints, form.floats)
        assert torch.equal(again.visible(), problem.visible())
        seen.append(again.mask.given)
    assert seen[0] is seen[2]


def test_what_is_written_in_python_has_no_form():
    rule = masks.Causal() & masks.MaskMod(lambda batch, head, i, j: i > j)
    assert unwritable(_case(mask=rule)[0]) == "MaskMod"
    assert unwritable(_case()[0]) is None


@pytest.mark.slow  # 3 s
def test_a_rule_written_in_python_breaks_the_graph_once_and_says_why():
    rule, x = masks.MaskMod(lambda batch, head, i, j: i >= j), torch.randn(1, 2, 40, 8)
    call = lambda x: regard.attention(x + 1, x, x, mask=rule, backend="strips").sin()  # noqa: E731
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="written in Python"):
        torch.compile(call, fullgraph=True, backend="eager")(x)
    torch._dynamo.reset()
    found = torch._dynamo.explain(call)(x)
    assert found.graph_break_count == 1
    assert "written in Python" in found.break_reasons[0].reason
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(call, backend="eager")(x), call(x))


@pytest.mark.slow  # 3 s
def test_a_rule_written_in_python_is_not_exported_on_a_backend_with_an_operator():
    class Attends(torch.nn.Module):
        def forward(self, x):
            rule = masks.MaskMod(lambda batch, head, i, j: i >= j)
            return regard.attention(x, x, x, mask=rule, backend="strips")

    with pytest.raises(InputError, match="MaskMod, which is written in Python"):
        torch.export.export(Attends(), (torch.randn(1, 2, 40, 8),), strict=False)


@pytest.mark.slow  # 3 s each
@pytest.mark.parametrize("strict", [False, True], ids=["traced", "by the compiler"])
@pytest.mark.parametrize("mask", [None, masks.Causal(), masks.Causal() & masks.Window(16)], ids=str)
def test_auto_exports_any_length(mask, strict):
    """A choice by size would be a guard, and the program would refuse longer texts than the one it was made with."""

    class Attends(torch.nn.Module):
        def forward(self, q, k, v):
            return regard.attention(q, k, v, mask=mask)

    n = torch.export.Dim("n", min=2)
    given = tuple(torch.randn(3, 1, 2, 40, 8))
    program = torch.export.export(Attends(), given, dynamic_shapes=({2: n},) * 3, strict=strict).module()
    for length in (2, 57, 3000):  # 3,000² pairs twice are more than auto computes whole
        q, k, v = torch.randn(3, 1, 2, length, 8)
        i = torch.arange(length)
        visible = torch.ones(length, length, dtype=torch.bool) if mask is None else i[:, None] >= i
        if mask is not None and mask != masks.Causal():
            visible &= i[:, None] - i < 16
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, visible)
        torch.testing.assert_close(program(q, k, v), expected, rtol=0, atol=1e-5)


_LOADS = """
import sys, torch, regard.backends
program, given, expected = sys.argv[1:]
loaded = torch.export.load(program).module()
torch.testing.assert_close(loaded(*torch.load(given)), torch.load(expected), rtol=0, atol=1e-6)
assert any("regard." in str(node.target) for node in loaded.graph.nodes)
"""


class Attends(torch.nn.Module):
    def __init__(self, backend):
        super().__init__()
        self.backend, self.table = backend, torch.nn.Parameter(torch.randn(16, 4))

    def forward(self, q, k, v, ids):
        mask, bias = masks.Causal() & masks.Document(ids), positions.T5Bias(self.table, bidirectional=False)
        return regard.attention(torch.tanh(q), k, v, mask=mask, bias=bias, backend=self.backend) + 1


@pytest.mark.slow  # 20 s each: another process imports PyTorch and regard
@pytest.mark.parametrize("backend", ["strips", "native"])
@pytest.mark.parametrize("strict", [False, True], ids=["traced", "by the compiler"])
def test_an_exported_program_computes_the_same_in_another_process(tmp_path, backend, strict):
    model = Attends(backend)
    draw = lambda n: (*(torch.randn(2, heads, n, 8) for heads in (4, 2, 2)), torch.arange(n) // 20)  # noqa: E731
    n = torch.export.Dim("n", min=8, max=4096)
    shapes = ({2: n}, {2: n}, {2: n}, {0: n})
    program = torch.export.export(model, draw(40), dynamic_shapes=shapes, strict=strict)
    given = draw(57)
    paths = [str(tmp_path / name) for name in ("program.pt2", "given.pt", "expected.pt")]
    torch.export.save(program, paths[0])
    torch.save(given, paths[1])
    torch.save(model(*given).detach(), paths[2])
    subprocess.run([sys.executable, "-c", _LOADS, *paths], check=True)


@pytest.mark.slow  # 10 s
def test_masks_of_equal_structure_share_one_compilation():
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("eager")
    x = torch.randn(1, 2, 60, 8)
    call = lambda x, mask: regard.attention(x, x, x, mask=mask, backend="strips")  # noqa: E731
    compiled = torch.compile(call, fullgraph=True, backend=counter)
    for size in (7, 20, 33, 60):
        mask = masks.Causal() & masks.Document(torch.arange(60) // size)
        torch.testing.assert_close(compiled(x, mask), call(x, mask))
    assert counter.frame_count == 1
