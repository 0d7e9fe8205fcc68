"""Records of the kernels' invocations in calls that reach every branch of native/, for driver.cpp to run again.

A record is what a kernel was called with: the bytes of a struct of native/call.h, native/statistics.h or native/peak.h,
and each buffer that it addresses, exactly as large as the kernel may use it, with its contents before and after. Sizes
follow from the numbers in the struct, not from the tensors that Python has made.
"""

import ctypes
import itertools
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch

import regard
from regard import masks, positions, scores
from regard.backends.native import library, threads
from regard.backends.native.record import CALL, ROWS
from regard.backends.native.sizes import BLOCK, LANES, STRIPS
from regard.normalizers import Sigmoid, Softmax
from regard.observe import native_pass
from regard.observe.call_kinds import CallFromQK
from regard.observe.statistics import Extent, Top
from regard.problem import Problem
from regard_bench import machine_peak
from regard_bench.shares import Resource

__all__ = ["Record", "record_calls", "save"]

PEAK = np.dtype([(name, np.int64) for name in ("next_thread", "times", "factors", "sums")])
VECTOR = LANES * 4  # bytes
RAW, FLOAT, BFLOAT, DOUBLE = range(4)  # how driver.cpp compares the elements of a buffer
_ADDRESSES = """
    workspace q k v grad_output output peaks totals packed_keys packed_values
    tile_runs run_starts run_lengths run_masks visible strip_ranges last_block bias diagonal_sums
    finished_parts part_peaks part_totals part_sums delta dq dk dv
""".split()  # of a call
_HEADER, _BUFFER = struct.Struct("96s32s3q"), struct.Struct("24s7q")


class Buffer(NamedTuple):
    """Memory that a record addresses.

    Args:
        name: The field of the record with the address.
        start: The address of the first byte, which differs from that in the field where strides are negative.
        size: In bytes.
        kind: RAW, FLOAT, BFLOAT or DOUBLE.
        is_read: Whether the kernel reads it before it writes it, so that its contents before the call count.
        is_compared: Whether its contents after the call count.
    """

    name: str
    start: int
    size: int
    kind: int = FLOAT
    is_read: bool = True
    is_compared: bool = True

    @property
    def contents(self) -> bytes:
        """The bytes in memory now."""
        return ctypes.string_at(self.start, self.size)


@dataclass(frozen=True)
class Record:
    """An invocation of a kernel.

    Args:
        label: Of the call that invoked it.
        kernel: Its name.
        threads: How many called it.
        layout: The fields of the record.
        content: The record's bytes before the invocation.
        buffers: What it addresses.
        before: The contents of each buffer before the invocation; None where they do not count.
        after: The contents of each buffer after it; None where they do not count.
    """

    label: str
    kernel: str
    threads: int
    layout: np.dtype
    content: bytes
    buffers: tuple[Buffer, ...]
    before: tuple[bytes | None, ...]
    after: tuple[bytes | None, ...]

    @property
    def has_pairs(self) -> bool:
        """Whether it multiplies pairs of bfloat16."""
        if self.layout is CALL:
            return bool(np.frombuffer(self.content, CALL)[0]["bf16"])
        return self.kernel == "add_products_of_pairs"


class _Recorder:
    """Runs kernels in place of `Kernel.call` and of regions of threads, and keeps what they were called with."""

    def __init__(self, kernels: dict[str, library.Kernel]) -> None:
        self.label = ""
        self.records: list[Record] = []
        self._kernels = kernels

    def kernels(self) -> dict[str, library.Kernel]:
        """The kernels, recorded."""
        return {
            name: library.Kernel(kernel.address, lambda record, name=name: self.invoke(name, record, 1))
            for name, kernel in self._kernels.items()
        }

    def run_on_threads(self, kernel: library.Kernel, record: int, threads: int, buffers: object = ()) -> None:
        """Take the place of the function of that name: one call after the other, so that each thread claims its own."""
        (name,) = (name for name, known in self._kernels.items() if known.address == kernel.address)
        self.invoke(name, record, threads)

    def invoke(self, kernel: str, record: int, threads: int) -> None:
        """Call a kernel as often as there are threads, and keep the record."""
        layout = {"summarize_rows": ROWS, "add_products": PEAK, "add_products_of_pairs": PEAK}.get(kernel, CALL)
        content = ctypes.string_at(record, layout.itemsize)
        numbers = dict(zip(layout.names, np.frombuffer(content, layout)[0].tolist(), strict=True))
        buffers = tuple(_buffers_of(kernel, numbers, threads))
        before = tuple(buffer.contents if buffer.is_read else None for buffer in buffers)
        for _ in range(threads):
            self._kernels[kernel].call(record)
        after = tuple(buffer.contents if buffer.is_compared else None for buffer in buffers)
        self.records.append(Record(self.label, kernel, threads, layout, content, buffers, before, after))


def _buffers_of(kernel: str, numbers: dict[str, Any], threads: int) -> Iterator[Buffer]:
    if kernel == "summarize_rows":
        return _buffers_of_rows(numbers)
    if kernel.startswith("add_products"):
        return _buffers_of_peak(numbers, threads, kind=RAW if kernel.endswith("pairs") else FLOAT)
    if kernel == "add_parts":
        return _buffers_of_sums(numbers, are_read=True)
    return itertools.chain(_buffers_of_call(kernel, numbers, threads), _buffers_of_kernel(kernel, numbers))


def _buffers_of_call(kernel: str, numbers: dict[str, Any], threads: int) -> Iterator[Buffer]:
    """What all kernels of attention have: q, k, v, the mask, the bias, and a workspace."""
    batch, heads, queries = (numbers[name] for name in ("batch", "heads", "queries"))
    keys, kind = numbers["keys"], BFLOAT if numbers["bf16"] else FLOAT
    key_row, value_row = numbers["depth"] * 4, numbers["value_vectors"] * (VECTOR // 2 if numbers["bf16"] else VECTOR)
    yield _strided(numbers, "q", (batch, heads, queries), key_row, kind)
    yield _strided(numbers, "k", (batch, numbers["kv_heads"], keys), key_row, kind)
    yield _strided(numbers, "v", (batch, numbers["kv_heads"], keys), value_row, kind)
    if numbers["bias"]:
        yield _strided(numbers, "bias", (batch, heads, queries), keys * 4, FLOAT)

    table = numbers["mask_batch"] * numbers["mask_heads"] * -(-queries // BLOCK) + 1
    runs = int(np.frombuffer(ctypes.string_at(numbers["tile_runs"] + (table - 1) * 8, 8), np.int64)[0])
    run_masks = np.frombuffer(ctypes.string_at(numbers["run_masks"], runs * 8), np.int64)
    partial = int(run_masks.max(initial=-1)) + 1
    sizes = {"tile_runs": table * 8, "run_starts": runs * 8, "run_lengths": runs * 8, "run_masks": runs * 8}
    sizes |= {"visible": partial * BLOCK**2, "strip_ranges": partial * 2 * STRIPS * 2 * 8, "last_block": BLOCK}
    for name, size in sizes.items():
        yield Buffer(name, numbers[name], size, RAW)
    workspace = threads * numbers["workspace_bytes"]
    yield Buffer("workspace", numbers["workspace"], workspace, is_read=False, is_compared=False)


def _buffers_of_kernel(kernel: str, numbers: dict[str, Any]) -> Iterator[Buffer]:
    """What one of the kernels of attention has, where it has it."""
    rows, sides = (numbers["batch"] * numbers[name] for name in ("heads", "kv_heads"))
    rows *= numbers["queries"]
    scratch: dict[str, Any] = {"is_read": False, "is_compared": False}
    packed_keys, sum_row = numbers["packs"] * BLOCK * numbers["depth"] * 4, numbers["value_vectors"] * VECTOR
    if kernel == "differentiate":
        shape = numbers["batch"], numbers["heads"], numbers["queries"]
        yield _strided(numbers, "grad_output", shape, sum_row, FLOAT)
        yield Buffer("peaks", numbers["peaks"], rows * 4)
        yield Buffer("delta", numbers["delta"], rows * 4)
        yield Buffer("packed_keys", numbers["packed_keys"], packed_keys, **scratch)
        yield Buffer("packed_values", numbers["packed_values"], numbers["packs"] * BLOCK * sum_row, **scratch)
        yield Buffer("dq", numbers["dq"], rows * numbers["depth"] * 4, is_read=False)
        yield from _buffers_of_sums(numbers, are_read=False)
        if numbers["diagonal_sums"]:
            parts = numbers["batch"] * numbers["heads"] * numbers["parts"]
            yield Buffer("diagonal_sums", numbers["diagonal_sums"], parts * numbers["diagonal_sums_bytes"])
        return
    output, kind = rows * sum_row // (2 if numbers["bf16"] else 1), BFLOAT if numbers["bf16"] else FLOAT
    yield Buffer("output", numbers["output"], output, kind, is_read=False)
    if numbers["peaks"]:
        yield Buffer("peaks", numbers["peaks"], rows * 4, is_read=False)
        yield Buffer("totals", numbers["totals"], rows * 4, is_read=False)
    if kernel == "attend":
        yield Buffer("packed_keys", numbers["packed_keys"], packed_keys, **scratch)
        if numbers["bf16"]:
            values = numbers["packs"] * BLOCK // 2 * sum_row
            yield Buffer("packed_values", numbers["packed_values"], values, **scratch)
    else:
        part_rows = rows * numbers["parts"]
        yield Buffer("finished_parts", numbers["finished_parts"], sides * 8, RAW)
        yield Buffer("part_peaks", numbers["part_peaks"], part_rows * 4, **scratch)
        yield Buffer("part_totals", numbers["part_totals"], part_rows * 4, **scratch)
        yield Buffer("part_sums", numbers["part_sums"], part_rows * sum_row, **scratch)


def _buffers_of_sums(numbers: dict[str, Any], *, are_read: bool) -> Iterator[Buffer]:
    """The sums of each key–value head's dk and dv: the first part's in the results, the others' beside each other."""
    sides, blocks = numbers["batch"] * numbers["kv_heads"], -(-numbers["keys"] // BLOCK)
    keys, values = (sides * blocks * BLOCK * size for size in (numbers["depth"] * 4, numbers["value_vectors"] * VECTOR))
    yield Buffer("dk", numbers["dk"], keys, is_read=are_read)
    yield Buffer("dv", numbers["dv"], values, is_read=are_read)
    if numbers["parts"] > 1:
        yield Buffer("part_sums", numbers["part_sums"], (numbers["parts"] - 1) * (keys + values), is_read=are_read)


def _buffers_of_rows(numbers: dict[str, Any]) -> Iterator[Buffer]:
    """The buffers of native/statistics.h."""
    rows, columns, depth, count = (numbers[name] for name in ("rows", "columns", "depth", "count"))
    bins = ((numbers["row_shift"] + rows - 1) // numbers["height"] + 1) * numbers["bin_columns"]
    sizes = {"q": (rows + 3) * depth * 4, "packed": columns * depth * 4}
    sizes |= {"strongest": rows * count * 4, "row_sums": rows * 16, "sums": bins * 4, "maxima": bins * 4}
    for name, size in sizes.items():
        yield Buffer(name, numbers[name], size)
    yield Buffer("strongest_keys", numbers["strongest_keys"], rows * count * 8, RAW)
    yield Buffer("received", numbers["received"], columns * 8, DOUBLE)
    scratch = {"weights": numbers["group"] * numbers["weights_row"], "workspace": (2 * columns + BLOCK) * 4}
    for name, size in scratch.items():
        yield Buffer(name, numbers[name], size, is_read=False, is_compared=False)


def _buffers_of_peak(numbers: dict[str, Any], threads: int, *, kind: int) -> Iterator[Buffer]:
    """The buffers of native/peak.h."""
    yield Buffer("factors", numbers["factors"], 2 * VECTOR, kind)
    yield Buffer("sums", numbers["sums"], threads * library.library().accumulators * VECTOR)


def _strided(numbers: dict[str, Any], name: str, shape: tuple[int, ...], row_bytes: int, kind: int) -> Buffer:
    """The memory from the first byte to the last of a tensor whose strides are numbers of the record."""
    strides = (numbers[f"{name}_{axis}"] for axis in ("batch", "head", "row"))
    ends = [(size - 1) * stride for size, stride in zip(shape, strides, strict=True)]
    first, last = sum(min(end, 0) for end in ends), sum(max(end, 0) for end in ends)
    return Buffer(name, numbers[name] + first, last - first + row_bytes, kind)


def save(records: list[Record], path: Path) -> None:
    """Write records in the format of driver.cpp, numbers in this machine's order."""
    with path.open("wb") as file:
        file.write(struct.pack("q", len(records)))
        for record in records:
            label, kernel = record.label.encode()[:95], record.kernel.encode()
            file.write(_HEADER.pack(label, kernel, record.threads, len(record.content), len(record.buffers)))
            numbers = np.frombuffer(record.content, record.layout)[0]
            file.write(_without_addresses(record))
            for buffer, before, after in zip(record.buffers, record.before, record.after, strict=True):
                after = None if after == before else after
                offset, inside = record.layout.fields[buffer.name][1], int(numbers[buffer.name]) - buffer.start
                flags = before is not None, after is not None, buffer.is_compared
                file.write(_BUFFER.pack(buffer.name.encode(), offset, inside, buffer.size, buffer.kind, *flags))
                file.write((before or b"") + (after or b""))


def _without_addresses(record: Record) -> bytes:
    """Return the bytes of a record in which 0 stands for every address, so that none is followed that has no buffer."""
    numbers = np.frombuffer(record.content, record.layout).copy()
    for name in _ADDRESSES if record.layout is CALL else (buffer.name for buffer in record.buffers):
        numbers[name] = 0
    return numbers.tobytes()


@contextmanager
def _recorded() -> Iterator[_Recorder]:
    """Record every kernel that is invoked in the block."""
    loaded = library.library()
    recorder = _Recorder(dict(loaded.kernels))
    outcome = library._Loaded(replace(loaded, kernels=recorder.kernels()), None)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with ExitStack() as stack:
            stack.enter_context(patch.object(library, "_loaded", lambda: outcome))
            stack.enter_context(patch.object(threads, "run_on_threads", recorder.run_on_threads))
            stack.enter_context(patch.object(machine_peak, "run_on_threads", recorder.run_on_threads))
            stack.enter_context(patch.object(machine_peak, "_TIMES", 5))
            stack.enter_context(patch.object(native_pass, "_PAIRS", 20_000))  # several blocks of rows in small calls
            yield recorder
    finally:
        torch.set_num_threads(before)


def record_calls() -> list[Record]:
    """Make all calls, and return the records of the kernels that they invoked."""
    with _recorded() as recorder:
        for label, call in itertools.chain(_calls_of_attention(), _calls_of_statistics(), _calls_of_peaks()):
            recorder.label = label
            call()
        return recorder.records


class Shape(NamedTuple):
    """Sizes of a call of attention."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    width: int
    value_width: int


Options = Callable[[Shape], dict[str, Any]]

MANY = {  # queries that are computed in tiles
    "odd": Shape(2, 2, 1, 65, 131, 17, 17),
    "grouped": Shape(1, 2, 1, 67, 517, 64, 64),
    "narrow": Shape(1, 2, 2, 64, 63, 16, 16),
    "wider": Shape(1, 1, 1, 66, 64, 112, 144),
    "widest": Shape(1, 1, 1, 17, 65, 256, 256),
    "many blocks": Shape(1, 1, 1, 131, 1100, 16, 48),
    "one key": Shape(1, 2, 2, 63, 1, 16, 16),
    "more queries": Shape(1, 2, 1, 131, 67, 80, 112),
    "one query of many heads": Shape(1, 17, 1, 1, 131, 32, 16),
    "one query, odd width": Shape(1, 2, 2, 1, 65, 17, 24),
}
FEW = {  # queries for which keys are read where they are
    "one query": Shape(2, 3, 1, 1, 517, 64, 64),
    "three queries": Shape(1, 4, 4, 3, 131, 32, 48),
    "sixteen rows": Shape(1, 16, 1, 1, 1100, 16, 24),
    "seven rows": Shape(1, 7, 1, 1, 64, 128, 112),
    "five rows": Shape(2, 1, 1, 5, 63, 256, 256),
    "ten rows": Shape(1, 4, 2, 5, 65, 80, 80),
    "one key, decoding": Shape(1, 2, 1, 1, 1, 32, 16),
}


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _some(shape: Shape, share: float, *leading: int) -> torch.Tensor:
    return torch.rand(*leading, shape.queries, shape.keys, generator=_generator(4)) < share


def _documents(shape: Shape) -> masks.Mask:
    at = torch.arange(shape.keys)
    queries = (torch.arange(shape.queries) + shape.keys - shape.queries).clamp(min=0)
    return masks.Causal() & masks.Document(at // 50, queries // 50)


def _padding(shape: Shape) -> masks.Mask:
    lengths = torch.tensor([shape.keys, shape.keys // 2])[: shape.batch, None]  # the second may be 0: rows see nothing
    return masks.Padding(torch.arange(shape.keys) < lengths)


MASKS: dict[str, Options] = {
    "causal": lambda shape: {"mask": masks.Causal()},
    "window": lambda shape: {"mask": masks.Causal() & masks.Window(40)},
    "both sides": lambda shape: {"mask": masks.Window(left=20, right=70)},
    "documents": lambda shape: {"mask": _documents(shape)},
    "padding": lambda shape: {"mask": _padding(shape)},
    "longformer": lambda shape: {"mask": masks.longformer(32, global_positions=[0, shape.keys // 2])},
    "bigbird": lambda shape: {"mask": masks.bigbird(block=16)},
    "few pairs": lambda shape: {"mask": _some(shape, 0.01)},  # and rows that see nothing
    "strips apart": lambda shape: {"mask": _checkers(shape)},
    "of heads": lambda shape: {"mask": _some(shape, 0.5, 1, shape.heads)},
    "of sequences": lambda shape: {"mask": _some(shape, 0.5, shape.batch, 1)},
    "nothing": lambda shape: {"mask": torch.zeros(shape.queries, shape.keys, dtype=torch.bool)},
}
OTHERS: dict[str, Options] = {
    "plain": lambda shape: {},
    "dense bias": lambda shape: {"bias": torch.randn(shape.queries, shape.keys, generator=_generator(3))},
    "bias of heads, causal": lambda shape: {
        "bias": torch.randn(shape.batch, shape.heads, shape.queries, shape.keys, generator=_generator(3)),
        "mask": masks.Causal(),
    },
    "ALiBi, causal": lambda shape: {"bias": positions.ALiBi(shape.heads), "mask": masks.Causal()},
    "T5": lambda shape: {"bias": positions.T5Bias(_table(shape), bidirectional=True), "score": scores.Dot()},
    "T5, window, softcap, dropout": lambda shape: {
        "bias": positions.T5Bias(_table(shape), bidirectional=True), "mask": masks.Window(left=20, right=9),
        "score": scores.ScaledDot(5.0), "dropout": 0.25, "generator": _generator(5),
    },
    "softcap": lambda shape: {"score": scores.ScaledDot(2.0)},
    "softcap, causal, lse": lambda shape: {"score": scores.ScaledDot(2.0), "mask": masks.Causal(), "return_lse": True},
    "sink, window": lambda shape: {
        "normalizer": Softmax(torch.randn(shape.heads, generator=_generator(6))), "mask": masks.Window(left=9, right=9),
    },
    "dropout": lambda shape: {"dropout": 0.3, "generator": _generator(5)},
    "dropout, causal": lambda shape: {"dropout": 0.3, "generator": _generator(5), "mask": masks.Causal()},
    "sigmoid": lambda shape: {"normalizer": Sigmoid()},
    "sigmoid, few pairs, dropout": lambda shape: {
        "normalizer": Sigmoid(), "mask": _some(shape, 0.01), "dropout": 0.3, "generator": _generator(5),
    },
    "negative scale, causal": lambda shape: {"scale": -0.3, "mask": masks.Causal(), "return_lse": True},
    "no scale": lambda shape: {"scale": 0.0},
    "huge scale": lambda shape: {"scale": 1e8},
    "log-sum-exp": lambda shape: {"return_lse": True},
}  # fmt: skip
OPTIONS = MASKS | OTHERS
# Of keys in float32 and in bfloat16, and of values: the numbers of vectors that have loops of their own.
WIDTHS = (32, 64, 16), (64, 128, 32), (128, 256, 48), (80, 96, 64)
ALL_OPTIONS = ("odd", "three queries")  # shapes that are called with each; the others with some in turn
EACH = 7


def _checkers(shape: Shape) -> torch.Tensor:
    rows, columns = torch.arange(shape.queries) // 16, torch.arange(shape.keys) // 16
    return (rows[:, None] + columns) % 2 == 0


def _table(shape: Shape) -> torch.Tensor:
    return torch.randn(32, shape.heads, generator=_generator(7)).requires_grad_()


def _chosen() -> Iterator[tuple[str, Shape, str]]:
    """Yield the shapes with the options that each is called with."""
    options = itertools.cycle(OPTIONS)
    for name, shape in (MANY | FEW).items():
        yield name, shape, "plain"
        yield from (
            (name, shape, option)
            for option in (OPTIONS if name in ALL_OPTIONS else itertools.islice(options, EACH))
            if option != "plain"
        )


def _calls_of_attention() -> Iterator[tuple[str, Callable[[], object]]]:
    for name, shape, option in _chosen():
        for dtype in (torch.float32, torch.bfloat16):
            label = f"{str(dtype).removeprefix('torch.')}, {name}, {option}"
            yield label, lambda shape=shape, option=option, dtype=dtype: _attend(shape, dtype, OPTIONS[option](shape))
        label = f"training, {name}, {option}"
        yield label, lambda shape=shape, option=option: _train(shape, OPTIONS[option](shape))
    for group, sizes in itertools.product((5, 6, 7), WIDTHS):  # rows of a product: four and one, two or three
        for dtype, width in zip((torch.float32, torch.bfloat16), sizes[:2], strict=True):
            shape = Shape(1, group, 1, 1, 33, width, sizes[2])
            label = f"{str(dtype).removeprefix('torch.')}, {group} rows, widths {width} and {sizes[2]}"
            yield label, lambda shape=shape, dtype=dtype: _attend(shape, dtype, {})
    yield "heads that are adjacent in memory", lambda: _train(MANY["odd"], {"mask": masks.Causal()}, adjacent=True)
    for number, dtype in itertools.product((float("nan"), float("inf")), (torch.float32, torch.bfloat16)):
        for shape in (MANY["odd"], FEW["three queries"]):
            label = f"{str(dtype).removeprefix('torch.')}, {shape.queries} queries, {number} in q, k and v"
            yield label, lambda shape=shape, dtype=dtype, number=number: _attend(shape, dtype, {}, number=number)


def _drawn(shape: Shape, dtype: torch.dtype, *, adjacent: bool = False) -> list[torch.Tensor]:
    batch, heads, kv_heads, queries, keys, width, value_width = shape
    sizes = (batch, heads, queries, width), (batch, kv_heads, keys, width), (batch, kv_heads, keys, value_width)
    generator = _generator(0)
    tensors = [torch.randn(*size, generator=generator).to(dtype) for size in sizes]
    return [x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2) for x in tensors] if adjacent else tensors


def _attend(shape: Shape, dtype: torch.dtype, options: dict[str, Any], *, number: float | None = None) -> None:
    q, k, v = _drawn(shape, dtype)
    if number is not None:
        q[0, 0, -1], k[-1, -1, 7, 3], v[0, 0, -1, 0] = number, number, number
    with torch.no_grad():
        regard.attention(q, k, v, backend="native", **options)


def _train(shape: Shape, options: dict[str, Any], *, adjacent: bool = False) -> None:
    leaves = [x.requires_grad_() for x in _drawn(shape, torch.float32, adjacent=adjacent)]
    results = regard.attention(*leaves, backend="native", **options)
    output = results if isinstance(results, torch.Tensor) else results[0]
    output.backward(torch.randn(output.shape, generator=_generator(1)))


ROWS_OF_HEADS = {  # queries, keys, width, mask, strongest keys
    "all": (65, 65, 16, None, 8),
    "causal": (131, 131, 17, masks.Causal(), 8),
    "window": (517, 517, 16, masks.Causal() & masks.Window(100), 1),
    "narrow window": (200, 260, 64, masks.Window(left=3, right=2), 8),
    "bins of four": (63, 1100, 16, masks.Causal(), 8),
    "bins of keys and rows": (700, 700, 16, masks.Window(left=20, right=3), 3),
    "rows that see nothing": (200, 70, 16, masks.Causal(), 8),
    "three queries": (3, 517, 80, masks.Causal(), 8),
    "one query": (1, 1, 16, None, 8),
    "more strongest keys than parts": (70, 131, 16, masks.Causal(), 100),
}


def _calls_of_statistics() -> Iterator[tuple[str, Callable[[], object]]]:
    for name, (queries, keys, width, mask, count) in ROWS_OF_HEADS.items():
        for start in (0, 5):
            label = f"statistics, {name}, {start} rows before"
            sizes = queries, keys, width
            yield label, lambda sizes=sizes, mask=mask, count=count, start=start: _summarize(*sizes, mask, count, start)


def _summarize(queries: int, keys: int, width: int, mask: masks.Mask | None, count: int, start: int) -> None:
    """Read the rows of a head, of which `start` were read before."""
    generator = _generator(2)
    q, k = (torch.randn(1, 1, length, width, generator=generator) for length in (queries, keys))
    call = CallFromQK(Problem.of(q, 2 * k, k, mask=mask))
    sizes = 1, 1, start + queries, keys
    extent = Extent(*sizes, torch.float32, torch.device("cpu"), keys - start - queries, around=call)
    for portion in native_pass.portions(call, (Top(count),), extent, start):
        for _rows in portion():
            pass


def _calls_of_peaks() -> Iterator[tuple[str, Callable[[], object]]]:
    for resource in (Resource.FLOAT32, Resource.BFLOAT16):
        if machine_peak.refuses_peak(resource) is None:
            yield f"peak, {resource}", lambda resource=resource: machine_peak.PeakLoop(resource)()
