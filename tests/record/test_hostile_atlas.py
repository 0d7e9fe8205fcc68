"""An atlas whose header was edited, with checksums that hold again: it is refused when it is loaded, or works."""

import contextlib
import dataclasses
import json
import random
import re
import resource
import struct
import zlib
from pathlib import Path

import pytest
import torch

import regard
from record.test_atlas import RECORDS, long_layer, tokens
from regard import masks, positions, scores
from regard.errors import AtlasError, InputError, ObservationError
from regard.record.atlas import read_atlas, save_atlas
from regard.record.highlight import choose_focus
from regard.record.records import Record
from regard.record.tiles import Matrix
from regard.render.page import page
from regard.render.terminal import picture
from regard.web.endpoints import ANSWERS, answer, books
from regard.web.record_store import Shelf
from sweeps import sweep
from tiers import slow_but

VALUES = (None, True, -1, 0, 1, 7, 10**10, 2**63, -(2**65), 1.5, float("nan"), float("inf"), "", "x", "\ud800")
VALUES += ([], [1], {}, {"a": 1}, [[]], "held0", "q", [0, 0], [10**10], [2, 3])
CALLS = (
    {"mask": masks.Causal() & masks.Window(3), "bias": positions.ALiBi(2)},
    {
        "mask": masks.Global((0, 2)) | ~masks.Padding(torch.ones(2, 6, dtype=torch.bool)),
        "bias": positions.DenseBias(torch.zeros(1, 2, 6, 6)),
    },
    {"mask": masks.Dense(torch.eye(6, dtype=torch.bool)), "score": scores.Shaw(torch.zeros(5, 4))},
    {
        "mask": masks.Document.from_lengths(torch.tensor([2, 4]), within=masks.Causal()),
        "bias": positions.T5Bias(torch.zeros(8, 2), bidirectional=True),
    },
    {"mask": masks.RandomBlocks(1, block=2, heads=2), "bias": positions.RelativePositionBias(torch.zeros(5, 2))},
    {"mask": masks.Neighborhood((2, 3), 1), "bias": positions.RelativePositionBiasND(torch.zeros(15, 2), (2, 3))},
    {"score": scores.Bilinear(torch.zeros(2, 4, 4)), "normalizer": regard.normalizers.Sigmoid()},
)


def watched(options):
    q = torch.randn(2, 2, 6, 4, generator=torch.Generator().manual_seed(0))
    with regard.watch(torch.nn.Identity(), keep="qk", statistics=["distance"]) as seen:
        regard.attention(q, q, q, **options)
    return dataclasses.replace(seen.record, tokens={"text": (tokens(*"abcdef"),) * 2})


def saved(path, which):
    kept = isinstance(which, int)
    long = Record((long_layer(),), {"text": (tokens(*map(str, range(700))),) * 2})
    record = watched(CALLS[which]) if kept else {"short": RECORDS[0], "long": long}[which]
    save_atlas((record,), path)
    whole = path.read_bytes()
    length = 8 + struct.unpack("<Q", whole[:8])[0]
    header = json.loads(whole[8:length])
    return header, json.loads(header["__metadata__"]["regard"]), whole[length:]


def put(path, header, about, data):
    """The file again, with a checksum that holds."""
    text = json.dumps(about)
    header = header | {"__metadata__": {"regard": text, "crc": str(zlib.crc32(text.encode()))}}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def places(value, at=()):
    """The path to everything in a value of JSON."""
    yield at
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from places(value[key], (*at, key))


def edited(value, at, new):
    """A copy with another value there, or, of `...`, without it."""
    if not at:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    if len(at) == 1 and new is ...:
        del copy[at[0]]
    else:
        copy[at[0]] = edited(value[at[0]], at[1:], new)
    return copy


@contextlib.contextmanager
def little_memory(most=400 * 2**20):
    """No more memory than so many bytes beyond what this process has."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def used(path):
    """Ask everything of everything."""
    for record in read_atlas(path):
        shelf = Shelf((record,))
        books(shelf, None)
        for index, one in enumerate(record.layers):
            for head, batch_index in {(0, 0), (one.heads - 1, one.batch - 1)}:
                at = {"layer": index, "head": head}
                if one.exact is not None or one.qk is not None:
                    record.weights(**at)
                if one.qk is not None:
                    one.qk.tile(batch_index, head, slice(0, one.queries), slice(0, one.keys))
                record.top(**at, query=-1, batch_index=batch_index)
                record.heatmap(**at, pool="max"), record.entropy(**at), record.received(**at)
                step = Matrix(one, head, batch_index).finest
                asked = {
                    "record": 0,
                    "batch_index": batch_index,
                    "step": step,
                    "row": 0,
                    "column": 0,
                    "query": 0,
                    "key": 0,
                }
                for name in ANSWERS:
                    answer(name, shelf, {key: str(value) for key, value in (at | asked | {"at": 0}).items()})
            for name in one.statistics:
                record.statistic(name, layer=index)
        with contextlib.suppress(InputError):  # no word to look from, or no layer
            focus = choose_focus(record)
            page(record, focus)
            picture(record, focus, width=80)
        save_atlas((record,), path)


@pytest.mark.parametrize("which", slow_but(["short", "long", 0, 1], ["short", "long", *range(len(CALLS))]))
def test_an_edited_header_is_refused_when_it_is_loaded_or_works(tmp_path, which):
    """25 edits of each; of an array whose own checksum or size does not hold, and of a kept call that does not fit, one
    is told when it is first looked at.
    """
    path, rng = tmp_path / "it.atlas", random.Random(str(which))
    header, about, data = saved(path, which)
    used(path)
    kinds = [(0, at) for at in places(header) if at and at[0] != "__metadata__"] + [(1, at) for at in places(about)]
    forms = [(1, at) for at in places(about) if "form" in at]
    refused = 0
    with little_memory():
        for number in range(25):
            kind, at = rng.choice(forms if forms and number % 2 else kinds)
            new = rng.choice((*VALUES, ...) if at else VALUES)
            changed = (edited(header, at, new), about) if kind == 0 else (header, edited(about, at, new))
            put(path, *changed, data)
            try:
                read_atlas(path)
            except AtlasError as problem:
                refused += "\n" not in str(problem)
                continue
            try:
                used(path)
            except InputError as problem:  # a layer of another number
                assert "`layer` must be" in str(problem)  # noqa: PT017
            except ObservationError as problem:  # a stream without tokens
                assert "tokens of this record" in str(problem)  # noqa: PT017
            except AtlasError as problem:
                known = r"the checksum of|cannot be read \(it has|a kept call is damaged"
                assert re.search(known, str(problem))  # noqa: PT017
                refused += "a kept call is damaged" in str(problem)
    assert refused > 10


AXES = [
    None, [], {"rows": None}, {"rows": [["keys", None]]},
    {"rows": [["queries", [2, 4]], ["keys", None], ["keys", None]]},
    {"rows": [["queries", [2]], ["keys", None]]}, {"rows": [["queries", [2, -1]], ["keys", None]]},
    {"rows": [["queries", [2, True]], ["keys", None]]}, {"rows": [["queries", ["a", "b"]], ["keys", None]]},
    {"rows": [["names", None], ["keys", None]]}, {"rows": [["names", ["a", "\ud800"]], ["keys", None]]},
    {"rows": [["others", [2, 4]], ["keys", None]]}, {"rows": [[["queries"], [2, 4]], ["keys", None]]},
    {"rows": ["queries", "keys"]}, {"columns": [["queries", None], ["keys", None]]},
]  # fmt: skip


def test_axes_that_are_none_of_the_statistic_are_refused(tmp_path):
    for case in sweep(AXES, name=lambda axes: str(axes)[:80]):
        with case as axes:
            path = tmp_path / "it.atlas"
            q = torch.randn(1, 2, 6, 4, generator=torch.Generator().manual_seed(0))
            with regard.watch(torch.nn.Identity(), statistics=[regard.statistics.Rows([2, 4])]) as seen:
                regard.attention(q, q, q)
            seen.save(path)
            whole = path.read_bytes()
            length = 8 + struct.unpack("<Q", whole[:8])[0]
            header = json.loads(whole[8:length])
            about = json.loads(header["__metadata__"]["regard"])
            (layer,) = about["records"][0]["layers"]
            assert layer["axes"] == {"rows": [["queries", [2, 4]], ["keys", None]]}
            put(path, header, about, whole[length:])
            assert read_atlas(path)[0].layers[0].axes == {"rows": (("queries", (2, 4)), ("keys", None))}
            layer["axes"] = axes
            put(path, header, about, whole[length:])
            with pytest.raises(AtlasError):
                read_atlas(path)


BILLION = 10**10
BOMBS = {
    "bits": (2, lambda form: form["mask"]["fields"]["visible"].update(shape=[100_000, 100_000])),
    "bits that wrap": (2, lambda form: form["mask"]["fields"]["visible"].update(shape=[2**32, 2**32 + 1])),
    "global tokens": (0, lambda form: form.update(mask={"kind": "Global", "fields": {"tokens": [BILLION]}})),
    "nested global tokens": (1, lambda form: form["mask"]["fields"]["left"]["fields"].update(tokens=[BILLION])),
    "heads of ALiBi": (0, lambda form: form["bias"]["fields"].update(heads=10**9)),
    "heads of Random": (4, lambda form: form["mask"]["fields"].update(heads=10**9)),
    "a grid": (5, lambda form: form["mask"]["fields"].update(shape=[BILLION, BILLION])),
    "depth": (0, lambda form: form.update(mask=_nested(300))),
    "scale": (0, lambda form: form.update(scale=float("nan"))),
}


def _nested(depth):
    mask = {"kind": "Causal", "fields": {"align": "end", "shift": 0}}
    for _ in range(depth):
        mask = {"kind": "Not", "fields": {"hidden": mask}}
    return mask


def test_a_form_that_would_take_gigabytes_is_refused_or_takes_none(tmp_path):
    for case in sweep(BOMBS):
        with case as name:
            which, change = BOMBS[name]
            path = tmp_path / "it.atlas"
            header, about, data = saved(path, which)
            change(about["records"][0]["layers"][0]["qk"]["segments"][0]["form"])
            put(path, header, about, data)
            with little_memory(200 * 2**20):
                if name in ("depth", "a grid"):
                    used(path)
                else:
                    with pytest.raises(AtlasError, match="is damaged: "):
                        read_atlas(path)[0].layers[0].qk.tile(0, 0, slice(0, 1), slice(0, 1))


def test_names_that_cannot_be_written_are_refused(tmp_path):
    """A page of it ended in a UnicodeEncodeError."""
    for case in sweep(["name", "query_tokens", "key_tokens"]):
        with case as field:
            path = tmp_path / "it.atlas"
            header, about, data = saved(path, "short")
            about["records"][0]["layers"][0][field] = "\ud800x"
            put(path, header, about, data)
            with pytest.raises(AtlasError, match=r"name and streams must be texts without half"):
                read_atlas(path)


def test_a_layer_of_a_huge_number_takes_no_memory(tmp_path):
    """Its neighbours were listed to say that they are not there."""
    path = tmp_path / "it.atlas"
    header, about, data = saved(path, "short")
    about["records"][0]["layers"][0]["number"] = 10**9
    put(path, header, about, data)
    (record,) = read_atlas(path)
    with little_memory(), pytest.raises(InputError, match=r"`layer` must be "):
        record.weights(layer=7)


def test_documents_that_are_longer_than_their_call_are_refused(tmp_path):
    record = watched(CALLS[3])
    kept = record.layers[0].qk
    name = next(name for name, one in kept.arrays.items() if one.tolist() == [2, 4])
    kept.arrays[name][:] = BILLION
    save_atlas((record,), tmp_path / "it.atlas")
    with little_memory(), pytest.raises(AtlasError, match="the documents of a call have 20000000000 keys"):
        read_atlas(tmp_path / "it.atlas")[0].layers[0].qk.tile(0, 0, slice(0, 1), slice(0, 1))


def test_many_calls_that_are_alike_are_read_and_a_damaged_one_among_them_is_refused(tmp_path):
    """Steps of decoding each have their own call."""
    path = tmp_path / "it.atlas"
    header, about, data = saved(path, 0)
    (whole,) = about["records"][0]["layers"][0]["qk"]["segments"]
    steps = [whole | {"first": row, "rows": 1, "form": whole["form"] | {"start": row}} for row in range(6)]
    about["records"][0]["layers"][0]["qk"]["segments"] = steps
    expected = read_atlas(path)[0].weights(layer=0, head=1).copy()
    put(path, header, about, data)
    (record,) = read_atlas(path)
    assert (record.weights(layer=0, head=1) == expected).all()
    steps[5]["form"] = steps[5]["form"] | {"start": 10**30}
    put(path, header, about, data)
    with pytest.raises(AtlasError, match="a kept call is damaged"):
        read_atlas(path)[0].layers[0].qk.tile(0, 0, slice(5, 6), slice(0, 1))
