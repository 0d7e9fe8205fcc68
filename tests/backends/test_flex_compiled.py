"""When the backend `flex` compiles and plans, and what it shares: kernels by kinds of calls, tables by masks.

Kernels are counted with TorchDynamo as it is and a backend that counts instead of Inductor; one test compiles.
"""

import gc
import shutil
import weakref

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import regard
from oracles import dense
from regard import masks, positions, scores
from regard.backends import flex
from regard.backends.flex import block_masks, compiled
from regard.problem import Problem
from sweeps import sweep


def _randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture
def graphs(monkeypatch):
    """The graphs that are compiled, run by PyTorch's operations."""
    found, compile_ = [], torch.compile

    def counting(graph, _):
        found.append(graph)
        return graph.forward

    monkeypatch.setattr(compiled, "_known", {})
    monkeypatch.setattr(compiled, "_lengths", {})
    monkeypatch.setattr(torch, "compile", lambda function, **how: compile_(function, backend=counting, **how))
    yield found
    torch._dynamo.reset()


def _compare(queries, keys, **asked):
    q, k, v = (_randn(1, 2, n, 16, seed=seed).float() for seed, n in enumerate((queries, keys, keys)))
    ours, theirs = (regard.attention(q, k, v, backend=name, **asked) for name in ("flex", "reference"))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_growing_keys_are_compiled_twice(graphs):
    table = positions.RelativePositionBias(_randn(7, 2).float())
    for keys in range(60, 72):
        _compare(1, keys, mask=masks.Causal() & masks.Window(20), bias=table)
    assert len(graphs) == 2


@pytest.mark.slow
def test_each_length_has_a_kernel_of_its_own_until_there_are_many(graphs):
    lengths = range(130, 230, 10)
    for n in lengths:
        _compare(n, n, mask=masks.Causal())
    fixed = [
        graph for graph in graphs if not any("Sym" in str(node.meta.get("example_value")) for node in graph.graph.nodes)
    ]
    assert len(graphs) == compiled._LENGTHS + 2
    assert len(fixed) >= compiled._LENGTHS


@pytest.mark.slow
def test_no_mask_is_pushed_out_by_others(graphs):
    sizes = range(5, 9)
    with torch._dynamo.config.patch(recompile_limit=2):  # of one function; its default is 8
        for size in (*sizes, *sizes):
            _compare(130, 130, mask=masks.Window(size))
    assert len(graphs) == len(sizes)


@pytest.mark.slow
def test_other_documents_of_the_same_length_need_no_other_kernel(graphs):
    for length in range(3, 9):
        _compare(130, 130, mask=masks.Document(torch.arange(130) // length))
        lengths = torch.tensor([length, 130 - length])
        _compare(130, 130, mask=masks.Document.from_lengths(lengths, within=masks.Causal()))
    assert len(graphs) == 2


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler: apt-get install g++")
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")  # Inductor's own
def test_compiled_on_cpu_it_gives_the_formula():
    q, k, v = _randn(2, 4, 150, 8).float(), _randn(2, 2, 300, 8, seed=1).float(), _randn(2, 2, 300, 5, seed=2).float()
    mask = (masks.Window(left=20, right=20) | masks.Global((200,))) & masks.Padding.from_lengths(
        torch.tensor([300, 170]), kv_len=300
    )
    bias = positions.ALiBi(4, bidirectional=True)
    i, j = np.arange(150, 300)[:, None], np.arange(300)
    seen = (abs(i - j) <= 20) | (i == 200) | (j == 200)
    seen = seen & (j < np.array([300, 170])[:, None, None, None])
    slopes = 2.0 ** (-2 * np.arange(1, 5))[:, None, None]
    expected = dense(q, k, v, visible=seen, bias=-slopes * abs(i - j), softcap=1.5).output
    with torch.no_grad():
        output = regard.attention(q, k, v, mask=mask, bias=bias, score=scores.ScaledDot(1.5), backend="flex")
    np.testing.assert_allclose(output, expected, atol=2e-6)
    assert not seen[1, 0, -1].any()
    assert (output[1, :, -1] == 0).all()


# Tables of blocks.


def _of(mask, n=300):
    x = torch.zeros(1, 1, n, 4)
    return Problem.of(x, x, x, mask=mask)


def test_layers_share_the_tables_of_a_mask():
    one, other = (block_masks.block_mask_for(_of(masks.Causal() & masks.Window(40))) for _ in "ab")
    assert one is other
    assert block_masks.block_mask_for(_of(masks.Causal() & masks.Window(41))).kv_indices is not one.kv_indices
    assert block_masks.block_mask_for(_of(masks.Causal() & masks.Window(40), 301)).kv_indices is not one.kv_indices


@pytest.mark.slow  # 10 s
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler: apt-get install g++")
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")  # Inductor's own
def test_without_a_mask_it_runs_within_compiled_code():
    """FlexAttention makes a block mask of its own where it is given none, which fails in an operator at run time."""
    q, k = _randn(1, 2, 140, 16).float(), _randn(1, 2, 140, 16, seed=1).float()
    call = lambda q, k: regard.attention(q, k, k, score=scores.ScaledDot(1.5), backend="flex")  # noqa: E731
    ours = torch.compile(call, fullgraph=True, backend="aot_eager")(q, k)
    torch.testing.assert_close(ours, (1.5 * torch.tanh(q @ k.mT / 4 / 1.5)).softmax(-1) @ k, rtol=1e-5, atol=1e-5)


def test_a_shared_mask_has_one_block_mask():
    shared = masks.Document(torch.arange(300) // 100).bind(300, 300)
    assert block_masks.block_mask_for(_of(shared)) is block_masks.block_mask_for(_of(shared))


def test_tables_keep_no_tensor_of_a_mask_alive():
    ids = torch.zeros(300, dtype=torch.long)
    seen = weakref.ref(ids)
    block_masks.block_mask_for(_of(masks.Document(ids)))
    del ids
    gc.collect()
    assert seen() is None


# Largest number of tables and of bytes, and the device: rows of a block, and columns of its table.
TABLES = [
    (2**20, 2**20, "cpu", 128, 8),
    (0, 2**20, "cpu", 128, 8),  # the compiled CPU kernel wants all columns
    (0, 2**20, "meta", 128, 2),
    (2**20, 2**20, "meta", 128, 8),
    (0, 200, "meta", 256, 2),
    (0, 500, "cpu", 256, 4),
    (0, 0, "cpu", 1024, 1),
]


def test_tables_are_narrow_and_blocks_large_only_where_they_must(monkeypatch):
    for case in sweep(TABLES):
        with case as (small, most, device, block, width):
            monkeypatch.setattr(block_masks, "_SMALL", small)
            monkeypatch.setattr(block_masks, "_MOST", most)
            problem = _of(masks.Causal() & masks.Window(100), 1000)
            plan = block_masks._plan(problem, problem.mask, torch.device(device))
            assert (plan.block, plan.tables.kv_indices.shape[-1]) == (block, width)


class _Moves(TorchDispatchMode):
    """Whether anything went from one device to another."""

    seen = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.seen |= func is torch.ops.aten._to_copy.default and args[0].device != result.device
        return result


def test_nothing_of_a_mask_is_moved_inside_a_kernel():
    inside = masks.Document.from_lengths(torch.tensor([100, 200]), within=masks.Causal())
    problem = _of((masks.longformer(8, (0, 50)) | masks.bigbird(block=8)) & inside)
    at = [torch.zeros(3, dtype=torch.int32, device="meta")] * 4
    with _Moves() as by_itself:
        problem.mask.mask(*at)
    assert by_itself.seen
    mask_mod = block_masks.mask_mod_of(problem.mask, torch.device("meta"))
    with _Moves() as placed:
        assert mask_mod(*at).device.type == "meta"
    assert not placed.seen


def test_many_rows_of_a_group_leave_the_decoding_kernel():
    def options(queries, heads):
        q, k = torch.zeros(1, heads, queries, 4), torch.zeros(1, 1, 200, 4)
        return flex.backend._options(Problem.of(q, k, k))

    assert options(1, 8) is None
    assert options(16, 8) is None
    assert options(17, 8) == {"FORCE_USE_FLEX_ATTENTION": True}
    assert options(128, 8) is None  # these are no decoding
