"""When the backend `flex` compiles and plans, and what it shares: code by kinds of calls, tables by masks.

Compilations are counted with TorchDynamo as it is and a backend that counts instead of Inductor; some tests compile.
"""

import gc
import shutil
import threading
import weakref
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import regard
from oracles import causal, dense
from regard import masks, positions, scores
from regard.backends import call_cache
from regard.backends.flex import block_masks, compiled
from regard.problem import Problem
from sweeps import sweep

COMPILES = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler: apt-get install g++"),
    # Inductor's own
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning"),
]


def compiling(test):
    for mark in COMPILES:
        test = mark(test)
    return test


def _randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture
def graphs(monkeypatch):
    """The graphs that are compiled, run by PyTorch's operations, as in a process of its own."""
    found, compile_ = [], torch.compile

    def counted(function, **how):
        def counting(graph, _):
            found.append(graph)
            return graph.forward

        return compile_(function, backend=counting, **how)

    monkeypatch.setattr(compiled, "_shapes", set())
    monkeypatch.setattr(call_cache, "_KEPT", {})
    monkeypatch.setattr(torch, "compile", counted)
    compiled._compiled.cache_clear()
    torch._dynamo.reset()
    yield found
    compiled._compiled.cache_clear()
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


def _has_symbols(graph):
    values = [node.meta.get("example_value") for node in graph.graph.nodes]
    sizes = [size for value in values if isinstance(value, torch.Tensor) for size in value.shape]
    return any(isinstance(size, torch.SymInt) for size in (*values, *sizes))


@pytest.mark.slow
def test_the_first_lengths_have_code_of_their_own_and_further_ones_share_some(graphs):
    lengths = range(130, 230, 10)
    for n in (*lengths, *lengths):
        _compare(n, n, mask=masks.Causal())
    assert [_has_symbols(graph) for graph in graphs] == [False] * 4 + [True]


@pytest.mark.slow
def test_decoding_compiles_twice_for_each_kind_of_mask_also_where_its_own_numbers_grow(graphs):
    for keys in range(60, 66):
        _compare(1, keys, mask=masks.Prefix(keys - 1) | masks.Causal(align="start"))
        _compare(1, keys, mask=masks.Causal() & masks.Window(20))
        _compare(1, keys, mask=masks.Causal() & masks.Document(torch.arange(keys) // 30))
    assert len(graphs) == 6


@pytest.mark.slow
def test_numbers_of_a_call_are_never_those_of_another(graphs):
    for queries in (1, 130):
        for scale, softcap in ((0.1, 2.0), (0.3, 2.0), (0.3, 3.0), (0.1, 2.0)):
            _compare(queries, 130, scale=scale, score=scores.ScaledDot(softcap))
            _compare(queries, 130, scale=scale)
    assert len(graphs) == 10


@pytest.mark.slow
@pytest.mark.usefixtures("graphs")
def test_a_rule_is_read_at_each_call():
    far = [3]
    rule = masks.MaskMod(lambda batch, head, i, j: i - j < far[0])
    for far[0] in (3, 90, 4):
        _compare(130, 130, mask=rule)


@pytest.mark.slow
@pytest.mark.usefixtures("graphs")
def test_a_known_call_is_that_of_its_mask_and_sizes():
    """New tensors lie where those of a mask that is gone lay."""
    for length in (*range(20, 32), *range(20, 24)):
        _compare(1, 64, mask=masks.Document(torch.arange(64) // length))
        _compare(1, 64, mask=masks.Window(length))
        _compare(1, 64, mask=masks.Causal().bind(1, 64, q_offset=length), bias=positions.ALiBi(2))


@pytest.mark.slow
def test_kernels_of_groups_with_many_rows_are_not_those_for_decoding(graphs):
    def is_left(queries, heads):
        q, k = torch.zeros(1, heads, queries, 16), torch.zeros(1, 1, 200, 16)
        regard.attention(q, k, k, backend="flex")
        return "'FORCE_USE_FLEX_ATTENTION': True" in graphs.pop().code

    assert [is_left(1, 8), is_left(16, 8), is_left(17, 8), is_left(128, 8)] == [False, False, True, False]


@pytest.mark.slow
def test_no_mask_is_pushed_out_by_others(graphs):
    sizes = range(5, 15)
    with torch._dynamo.config.patch(recompile_limit=2):  # of one function; its default is 8
        for size in (*sizes, *sizes):
            _compare(130, 130, mask=masks.Window(size))
        assert torch._dynamo.config.recompile_limit == 2  # for all other functions
    assert len(graphs) == len(sizes)


@pytest.mark.slow
def test_other_documents_of_the_same_length_need_no_other_kernel(graphs):
    for length in range(3, 9):
        _compare(130, 130, mask=masks.Document(torch.arange(130) // length))
        lengths = torch.tensor([length, 130 - length])
        _compare(130, 130, mask=masks.Document.from_lengths(lengths, within=masks.Causal()))
    assert len(graphs) == 2


@compiling
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


@compiling
def test_decoding_compiled_on_cpu_gives_the_formula():
    """Of documents PyTorch cannot write C++ for lengths that are symbols."""
    for keys in (150, 151, 152):
        _compare(1, keys, mask=masks.Causal() & masks.Window(70))
        _compare(1, keys, mask=masks.Causal() & masks.Document(torch.arange(keys) // 50))


@compiling
def test_a_call_means_the_same_whatever_is_around_it():
    """Code that was compiled in inference mode serves later calls, and threads; autocast, default dtypes and numbers of
    threads change nothing but the type of the output.
    """
    q, k = _randn(1, 2, 140, 16).float(), _randn(1, 2, 140, 16, seed=1).float()
    mask = masks.Causal() & masks.Document(torch.arange(140) // 50)
    seen = causal(140, 140) & np.equal.outer(np.arange(140) // 50, np.arange(140) // 50)
    expected = torch.as_tensor(dense(q, k, k, visible=seen).output)
    threads, outputs = torch.get_num_threads(), {}

    def call(name="a thread"):
        outputs[name] = regard.attention(q, k, k, mask=mask, backend="flex")

    try:
        with torch.inference_mode():
            call("inference mode")
        call("eager")
        with torch.autocast("cpu", torch.bfloat16):
            call("autocast")
        torch.set_default_dtype(torch.float64)
        call("default dtype")
        torch.set_default_dtype(torch.float32)
        torch.set_num_threads(3 - min(threads, 2))
        call("number of threads")
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_num_threads(threads)
    runs = [threading.Thread(target=call, args=(f"thread {number}",)) for number in range(4)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert len(outputs) == 9
    for name, output in outputs.items():
        assert output.dtype == (torch.bfloat16 if name == "autocast" else torch.float32)
        torch.testing.assert_close(output.double(), expected, rtol=0, atol=1e-2 if name == "autocast" else 2e-6)


# Tables of blocks.


def _of(mask, n=300):
    x = torch.zeros(1, 1, n, 4)
    return Problem.of(x, x, x, mask=mask)


@dataclass(frozen=True)
class Counted(masks.Mask):
    """A window that counts how often it is asked about blocks."""

    size: int
    asked: ClassVar[list[int]] = []

    def __call__(self, batch, head, i, j):
        return i - j < self.size

    def blocks(self, rectangles, /):
        self.asked.append(1)
        return super().blocks(rectangles)


@pytest.mark.usefixtures("graphs")
def test_a_mask_is_planned_once_for_all_layers():
    planned = []
    for mask, n in ((Counted(40), 140), (Counted(40), 140), (Counted(41), 140), (Counted(41), 150)):
        Counted.asked.clear()
        _compare(n, n, mask=mask)
        planned.append(bool(Counted.asked))
    assert planned == [True, False, True, True]


@compiling
def test_without_a_mask_it_runs_within_compiled_code():
    """FlexAttention makes a block mask of its own where it is given none, which fails in an operator at run time."""
    q, k = _randn(1, 2, 140, 16).float(), _randn(1, 2, 140, 16, seed=1).float()
    call = lambda q, k: regard.attention(q, k, k, score=scores.ScaledDot(1.5), backend="flex")  # noqa: E731
    ours = torch.compile(call, fullgraph=True, backend="aot_eager")(q, k)
    torch.testing.assert_close(ours, (1.5 * torch.tanh(q @ k.mT / 4 / 1.5)).softmax(-1) @ k, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("graphs")
def test_what_is_planned_for_a_mask_goes_with_its_tensors():
    def planned(mask):
        x = torch.zeros(1, 1, 600, 4)
        regard.attention(x, x, x, mask=mask, backend="flex")
        return weakref.ref(block_masks.blocks_for(_of(mask, 600)).block_mask)

    mask = masks.Dense(torch.ones(600, 600, dtype=torch.bool))
    known = planned(mask)
    assert planned(mask)() is known() is not None
    del mask
    gc.collect()
    planned(masks.Document(torch.arange(600) // 50))
    gc.collect()
    assert known() is None


def test_each_device_has_tables_of_its_own():
    mask = masks.Causal() & masks.Document(torch.arange(300) // 70)
    for device in ("cpu", "meta", "cpu"):
        x = torch.zeros(1, 1, 300, 4, device=device)
        assert block_masks.blocks_for(Problem.of(x, x, x, mask=mask)).block_mask.kv_indices.device.type == device


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
            planned = block_masks._planned(problem, problem.mask, torch.device(device)).block_mask
            assert (planned.BLOCK_SIZE[0], planned.kv_indices.shape[-1]) == (block, width)


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
