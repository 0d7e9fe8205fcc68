"""An atlas gives back what was saved, and says of any other file what is wrong with it."""

import dataclasses
import itertools
import json
import os
import resource
import signal
import struct
import tempfile
import zlib

import numpy as np
import pytest
import safetensors.numpy
import torch

import regard
from oracles import entropy, pooled
from regard.errors import AtlasError, InputError
from regard.record import atlas
from regard.record.atlas import read_atlas, save_atlas
from regard.record.missing_attention import Missing
from regard.record.records import Layer, Record
from regard.record.tokens import Token
from regard.web.record_store import Shelf
from sweeps import sweep

HOSTILE = (
    "</script><script>alert(1)</script>",
    "\x00\x1b[31m\r\n\t\\\"'",
    "貓¹",
    "\ud83d",  # half a surrogate pair, as byte pieces may leave it
    "👨‍👩‍👧\u202e",
    "",
    "__metadata__",
)


def layer(name="0.attention", *, queries=5, keys=5, size=1, kept=False, kind="self", seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.ones(keys), (2, 3, queries)).astype(dtype)
    top = np.argsort(-weights, -1)[..., :4].astype(np.int32)
    mean = pooled(weights, size, size, np.mean).astype(dtype)
    return Layer(
        name=name,
        kind=kind,
        query_tokens="target" if kind == "cross" else "text",
        key_tokens="source" if kind == "cross" else "text",
        query_bin=size,
        key_bin=size,
        mean=mean,
        max=mean if size == 1 else pooled(weights, size, size, np.max).astype(dtype),
        top_keys=top,
        top_weights=np.take_along_axis(weights, top, -1),
        entropy=entropy(weights).astype(dtype),
        received=weights.sum(-2),
        weights=weights if kept else None,
    )


def tokens(*texts):
    return tuple(Token(text, special=i == 0, word=i or None, space=i > 1) for i, text in enumerate(texts))


RECORDS = (
    Record(
        (layer(kept=True), layer("1.attention", size=4, seed=1, dtype=np.float64)),
        {"text": (tokens("[CLS]", *HOSTILE[:4]), tokens("a", *HOSTILE[4:], "b"))},
        "a model/with a name",
        {"backend": "sdpa", "nested": {"n": 1, "list": [1.5, None, "貓"]}},
    ),
    Record(
        (layer("decoder.cross", queries=3, keys=6, kind="cross"),),
        {"source": (tokens(*"abcdef"), tokens(*"ghijkl")), "target": (tokens("x", "y", "z"),) * 2},
    ),
    Record((), model="nothing seen"),
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "it.atlas"


def same(ours, theirs):
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert (one.model, one.notes) == (other.model, other.notes)
        assert dict(one.tokens) == dict(other.tokens)
        for a, b in zip(one.layers, other.layers, strict=True):
            for field in dataclasses.fields(Layer):
                x, y = getattr(a, field.name), getattr(b, field.name)
                if isinstance(y, np.ndarray):
                    assert x.dtype == y.dtype
                    np.testing.assert_array_equal(x, y)
                else:
                    assert x == y


def test_what_is_loaded_is_what_was_saved(path):
    save_atlas(RECORDS, path)
    same(read_atlas(path), RECORDS)


def test_tokens_come_back_whatever_their_text(path):
    for case in sweep(HOSTILE):
        with case as text:
            record = Record(
                (layer(),), {"text": (tokens(text, f"{text}{text}", "c", "d", "e"),) * 2}, text, {text: text}
            )
            save_atlas((record,), path)
            same(read_atlas(path), (record,))


def test_a_loaded_record_can_be_saved_again_even_over_itself(path):
    save_atlas(RECORDS, path)
    first = path.read_bytes()
    save_atlas(read_atlas(path), path)
    assert path.read_bytes() == first


def test_an_atlas_is_a_safetensors_file_with_its_text_in_the_header(path):
    save_atlas(RECORDS, path)
    with safetensors.safe_open(path, "np") as file:
        about = json.loads(file.metadata()["regard"])
        np.testing.assert_array_equal(file.get_tensor("0.0.weights"), RECORDS[0].layers[0].weights)
    assert about["records"][0]["tokens"]["text"][0][3]["text"] == "貓¹"
    assert "貓".encode() in path.read_bytes()  # as it is, not as an escape, for those who look into the file


def test_a_file_has_the_oldest_version_whose_readers_know_what_is_in_it(path):
    one = RECORDS[0]
    padding = np.zeros((one.layers[0].batch, one.layers[0].keys), np.bool_)
    padding[0, -1] = True
    padded = dataclasses.replace(one.layers[0], key_padding=padding)
    spanned = [[dataclasses.replace(token, span=(0, 1)) for token in sequence] for sequence in one.tokens["text"]]
    cases = [
        (5, one),
        (6, dataclasses.replace(one, layers=(padded, *one.layers[1:]))),
        (6, dataclasses.replace(one, tokens={"text": tuple(map(tuple, spanned))})),
    ]
    for version, record in cases:
        save_atlas((record,), path)
        with safetensors.safe_open(path, "np") as file:
            assert json.loads(file.metadata()["regard"])["version"] == version
        same(read_atlas(path), (record,))


def test_a_map_that_is_its_own_maximum_is_stored_once(path):
    save_atlas(RECORDS, path)
    with safetensors.safe_open(path, "np") as file:
        names = set(file.keys())
    assert "0.0.max" not in names
    assert "0.1.max" in names


def test_arrays_stay_in_the_file_until_they_are_looked_at(path):
    save_atlas(RECORDS, path)
    for record in read_atlas(path):
        for one in record.layers:
            for name in ("mean", "max", "top_keys", "entropy", "received"):
                assert name not in vars(one)
                array = getattr(one, name)
                assert isinstance(array, np.memmap) or one.query_bin > 1  # those of long texts are deflated
                assert not array.flags.writeable


def test_the_file_may_be_read_by_others_as_umask_says(path):
    old = os.umask(0o027)
    try:
        save_atlas(RECORDS, path)
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o640


# --- saving that fails


def _alone(path, content=b"old"):
    assert path.read_bytes() == content
    assert list(path.parent.iterdir()) == [path], "no temporary file is left"


def test_a_failed_save_leaves_the_old_file(path, monkeypatch):
    path.write_bytes(b"old")

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"cannot write .*it\.atlas: No space left on device"):
        save_atlas(RECORDS, path)
    _alone(path)


def test_a_file_that_cannot_grow_leaves_the_old_file(path):
    path.write_bytes(b"old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
        with pytest.raises(InputError, match=r"cannot write .*it\.atlas: .*[Ff]ile too large"):
            save_atlas((Record((layer(queries=40, keys=40),)),), path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    _alone(path)


def test_an_interrupted_save_leaves_the_old_file(path, monkeypatch):
    path.write_bytes(b"old")

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_atlas(RECORDS, path)
    _alone(path)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(InputError, match=r"cannot write .*/no/it\.atlas: No such file or directory"):
        save_atlas(RECORDS, tmp_path / "no" / "it.atlas")


def test_a_folder_is_no_file(tmp_path):
    target = tmp_path / "folder"
    target.mkdir()
    with pytest.raises(InputError, match=r"cannot write .*folder: Is a directory"):
        save_atlas(RECORDS, target)
    assert list(tmp_path.iterdir()) == [target]


def test_a_folder_that_cannot_be_written_to_is_named(path, monkeypatch):
    path.write_bytes(b"old")

    def denied(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "mkstemp", denied)  # root may write everywhere, so no folder would refuse it
    with pytest.raises(InputError, match=r"cannot write .*it\.atlas: Permission denied"):
        save_atlas(RECORDS, path)
    _alone(path)


# --- files that are no atlas


def refused(path, words):
    with pytest.raises(AtlasError, match=words):
        read_atlas(path)


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    refused(tmp_path / "no.atlas", r"cannot read .*no\.atlas: No such file or directory")
    refused(tmp_path, "cannot read .*: Is a directory")


def test_what_is_not_safetensors_is_no_atlas(path):
    for case in sweep([b"", b"x", b"1234567", b"\x00" * 8, b"\x00" * 100, b"PK\x03\x04" * 30, b"{}" * 40]):
        with case as content:
            path.write_bytes(content)
            refused(path, r"it\.atlas is not an atlas")


def test_a_cut_off_file_is_refused_wherever_it_was_cut(path):
    save_atlas(RECORDS[:1], path)
    whole = path.read_bytes()
    for length in {0, 1, 7, 8, 9, 100, *range(200, len(whole), 97), len(whole) - 1}:
        path.write_bytes(whole[:length])
        refused(path, "cut off|not an atlas")
    path.write_bytes(whole + b"\x00")
    refused(path, "cut off or added to")


def test_a_file_that_is_cut_off_while_it_is_open_is_refused_before_what_is_gone_is_touched(path):
    save_atlas(RECORDS[:1], path)
    (record,) = read_atlas(path)
    assert record.layers[0].mean.size
    shelf = Shelf((record,))
    shelf.head_tiles(0, 0, 0, 0)
    whole = path.read_bytes()
    os.truncate(path, len(whole) - 1)  # of a page less, the process would end
    for touch in (
        lambda: record.layers[0].entropy,
        lambda: shelf.layer(0, 0),
        lambda: shelf.head_tiles(0, 0, 0, 0),
    ):
        with pytest.raises(AtlasError, match=r"it\.atlas was cut off while it was open, from [\d,]+ to"):
            touch()
    path.unlink()
    path.write_bytes(b"another file under its name")
    with pytest.raises(AtlasError, match="was cut off while"):
        shelf.layer(0, 0)


def test_a_file_that_replaces_an_open_one_changes_nothing(path):
    save_atlas(RECORDS[:1], path)
    (record,) = read_atlas(path)
    save_atlas(RECORDS[-1:], path)
    same((record,), RECORDS[:1])


def test_a_file_that_is_replaced_while_it_is_opened_is_read_as_it_was(path, monkeypatch):
    save_atlas(RECORDS[:1], path)
    read_header = atlas._read_header

    def replaced_after(*given):
        header = read_header(*given)
        save_atlas(RECORDS[-1:], path)
        return header

    monkeypatch.setattr(atlas, "_read_header", replaced_after)
    same(read_atlas(path), RECORDS[:1])


def test_a_header_of_impossible_length_is_not_read(path):
    for case in sweep([0, 1, 2**31, 2**63, 2**64 - 1, 100_000_001]):
        with case as length:
            path.write_bytes(struct.pack("<Q", length) + b"{}" + b" " * 1000)
            refused(path, "not an atlas")


def write(path, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


HEADERS = [
    (b"[]", "its header is not an object"),
    (b"3 ", "its header is not an object"),
    (b"{]", "its header is not JSON"),
    (b'{"\xff": 1}', "its header is not JSON"),
    (b"[" * 100_000, "its header is not JSON"),
    ({}, "not an atlas of regard"),
    ({"__metadata__": []}, "not an atlas of regard"),
    ({"__metadata__": {"format": "pt"}}, "not an atlas of regard"),
    ({"__metadata__": {"regard": "{"}}, "not an atlas of regard"),
    ({"__metadata__": {"regard": "[]"}}, "not an atlas of regard"),
    ({"__metadata__": {"regard": "[" * 100_000}}, "not an atlas of regard"),
    ({"__metadata__": {"regard": '{"version": 5}'}}, "is damaged"),
    ({"__metadata__": {"regard": '{"version": 5, "records": 7}'}}, "is damaged"),
    ({"__metadata__": {"regard": '{"version": 5, "records": [{}]}'}}, "is damaged"),
    ({"x": 5}, "is damaged"),
    ({"x": {"data_offsets": 5}}, "is damaged"),
    ({"x": {"data_offsets": []}}, "is damaged"),
    ({"x": {"data_offsets": ["a", "b"]}}, "tells of another size"),
]


def test_a_hostile_header_is_answered_in_words(path):
    for case in sweep(HEADERS, name=lambda refusal: refusal[1]):
        with case as (header, words):
            write(path, header)
            refused(path, words)


def test_other_safetensors_are_not_ours(path):
    safetensors.numpy.save_file({"weight": np.zeros((2, 2), np.float32)}, path, metadata={"format": "pt"})
    refused(path, r"it\.atlas is a safetensors file, but not an atlas of regard")


def test_another_version_is_named(path):
    for case in sweep([0, 4, 8, 5.0, 6.0, "5", None, True]):
        with case as version:
            write(path, {"__metadata__": {"regard": json.dumps({"version": version, "records": []})}})
            refused(path, f"is an atlas of version {version}, .*: make it anew with `regard look --out`")


def _header(path):
    whole = path.read_bytes()
    length = struct.unpack("<Q", whole[:8])[0]
    return json.loads(whole[8 : 8 + length]), whole[8 + length :]


UNFIT = [
    ("0.0.entropy", {"shape": [2, 3]}),
    ("0.0.received", {"shape": [30]}),
    ("0.0.top_keys", {"shape": []}),
    ("0.0.mean", {"shape": [2, 3, -5, -5]}),
    ("0.0.mean", {"shape": [0, 2**70], "data_offsets": [0, 0]}),
    ("0.0.mean", {"shape": [1.5]}),
    ("0.0.mean", {"dtype": "BF16"}),
    ("0.0.mean", {"dtype": []}),
    ("0.0.mean", {"dtype": "I32"}),
    ("0.0.top_keys", {"dtype": "F32"}),
    ("0.0.mean", {"data_offsets": [-600, 0]}),
    ("0.0.mean", {"data_offsets": [0, 4]}),
    ("0.0.mean", {"data_offsets": [0.0, 600.0]}),
    ("0.0.mean", {"data_offsets": None}),
]


def test_arrays_that_do_not_fit_are_refused(path):
    for case in sweep(UNFIT):
        with case as (name, entry):
            save_atlas(RECORDS[:1], path)
            header, data = _header(path)
            header[name] |= entry
            write(path, header, data)
            refused(path, "is damaged|tells of another size")


WRONG = [
    ("dtype", None, r"is damaged: its header lacks 'dtype'$"),
    ("data_offsets", None, r"is damaged: its header lacks 'data_offsets'$"),
    ("shape", 3, r"is damaged: an entry of its header is not of the kind that it must be$"),
    ("data_offsets", [], r"is damaged: an entry of its header is not of the kind that it must be$"),
]


def test_what_is_wrong_with_a_header_is_said_in_our_words_not_in_those_of_python(path):
    for case in sweep(WRONG):
        with case as (key, value, words):
            save_atlas(RECORDS[:1], path)
            header, data = _header(path)
            header["0.0.mean"] = {name: one for name, one in header["0.0.mean"].items() if name != key}
            header["0.0.mean"] |= {} if value is None else {key: value}
            write(path, header, data)
            refused(path, words)


def test_layers_that_do_not_fit_are_refused(path):
    for case in sweep([{"query_bin": 0}, {"query_bin": 1.0}, {"query_bin": "1"}, {"key_bin": -1}, {"more": 1}]):
        with case as change:
            save_atlas(RECORDS[:1], path)
            header, data = _header(path)
            about = json.loads(header["__metadata__"]["regard"])
            about["records"][0]["layers"][0] |= change
            text = json.dumps(about)
            header["__metadata__"] = {"regard": text, "crc": str(zlib.crc32(text.encode()))}
            write(path, header, data)
            refused(path, "is damaged")


def test_no_flipped_bit_of_the_header_changes_what_is_read_without_a_word(path):
    records = (Record((layer(size=2, kept=True),), {"text": (tokens(*"abcde"), tokens(*"fghij"))}),)
    save_atlas(records, path)
    whole = bytearray(path.read_bytes())
    length = 8 + struct.unpack("<Q", whole[:8])[0]
    caught = 0
    rng = np.random.default_rng(0)
    for at in range(length):
        bit = 1 << int(rng.integers(8))
        whole[at] ^= bit
        path.write_bytes(whole)
        whole[at] ^= bit
        try:
            found = read_atlas(path)
            touched(path)
        except AtlasError:
            caught += 1
        else:
            same(found, records)
    assert caught > length * 0.9


def test_a_flipped_bit_of_an_array_s_name_is_no_array_less(path):
    """A map of maxima that is not there would be the map of means, and weights would never have been kept."""
    save_atlas((Record((layer(size=2, kept=True), layer(size=2, kept=True))),), path)
    whole = path.read_bytes()
    for name in (b'"0.0.max"', b'"0.0.weights"', b'"0.0.mean"'):
        for at, bit in itertools.product(range(1, len(name) - 1), range(8)):
            flipped = bytearray(whole)
            flipped[whole.index(name) + at] ^= 1 << bit
            path.write_bytes(flipped)
            refused(path, "is damaged|is not an atlas")


# --- long texts, versions, and bits that have changed


def long_layer(dtype=np.float32):
    return layer("long", queries=700, keys=700, size=4, dtype=dtype, seed=3)


def test_weights_of_a_long_text_are_halved_and_the_rest_is_exact(path):
    one = long_layer()
    save_atlas((Record((one,)),), path)
    (again,) = read_atlas(path)[0].layers
    for name in ("mean", "max", "top_weights"):
        kept, stored = getattr(one, name), getattr(again, name)
        assert stored.dtype == np.float32
        assert 0 < np.abs(stored - kept).max() <= 2**-11 * kept.max()
        np.testing.assert_allclose(stored, kept, rtol=2**-11)
    for name in ("top_keys", "entropy", "received"):
        np.testing.assert_array_equal(getattr(again, name), getattr(one, name))


def test_small_weights_keep_their_digits(path):
    """The mean over a text of a million is 1e-6, which 16 bits alone would round to 17 steps of 6e-8."""
    small = np.geomspace(1e-8, 1.0, 2 * 3 * 175 * 175, dtype=np.float32).reshape(2, 3, 175, 175)
    save_atlas((Record((dataclasses.replace(long_layer(), mean=small, max=small.copy()),)),), path)
    np.testing.assert_allclose(read_atlas(path)[0].layers[0].mean, small, rtol=2**-11)


def test_float64_and_short_texts_stay_exact(path):
    records = (Record((long_layer(np.float64), layer(queries=300, keys=300))),)
    save_atlas(records, path)
    same(read_atlas(path), records)


def test_saving_again_what_was_loaded_loses_nothing_more(path):
    save_atlas((Record((long_layer(),)),), path)
    first = path.read_bytes()
    save_atlas(read_atlas(path), path)
    assert path.read_bytes() == first


def touched(path):
    """Look at everything."""
    for record in read_atlas(path):
        for one in record.layers:
            for field in dataclasses.fields(Layer):
                getattr(one, field.name)
            if one.qk is not None:
                one.qk.tile(0, 0, slice(0, one.queries), slice(0, one.keys))


def test_every_flipped_bit_of_the_numbers_is_noticed(path):
    save_atlas((Record((long_layer(), layer(kept=True))),), path)
    whole = bytearray(path.read_bytes())
    start = 8 + struct.unpack("<Q", whole[:8])[0]
    rng = np.random.default_rng(0)
    for at in [start, len(whole) - 1, *rng.integers(start, len(whole), 40)]:
        bit = 1 << int(rng.integers(8))
        whole[at] ^= bit
        path.write_bytes(whole)
        whole[at] ^= bit
        with pytest.raises(AtlasError, match=r"it\.atlas is damaged: the checksum of 0\.[01]\.\w+ does not hold"):
            touched(path)


def test_a_flipped_letter_of_a_token_is_noticed(path):
    save_atlas(RECORDS[:1], path)
    whole = path.read_bytes().replace("貓".encode(), "猫".encode(), 1)
    path.write_bytes(whole)
    refused(path, "is damaged: the checksum of its header does not hold")


def test_what_inflates_to_another_size_is_refused(path):
    save_atlas((Record((long_layer(),)),), path)
    header, data = _header(path)
    about = json.loads(header["__metadata__"]["regard"])
    for shape in ([2, 3, 700], [10**6, 10**6, 700], [2, 3, -700], [2, 3, 1.5]):
        about["arrays"]["0.0.entropy"]["packed"]["shape"] = shape
        text = json.dumps(about)
        header["__metadata__"] = {"regard": text, "crc": str(zlib.crc32(text.encode()))}
        write(path, header, data)
        if shape == [2, 3, 700]:
            touched(path)
        else:
            refused(path, "is damaged")


def _changed(path, change):
    """The atlas with another text in its header, and the checksum of that."""
    header, data = _header(path)
    about = json.loads(header["__metadata__"]["regard"])
    change(about)
    text = json.dumps(about)
    header["__metadata__"] = {"regard": text, "crc": str(zlib.crc32(text.encode()))}
    write(path, header, data)


def test_what_is_missing_is_kept(path):
    missing = Missing("層.1 [bold]", 'Band cuts its weights; "so" it is', 3), Missing("", "Model <b>", 1)
    save_atlas((Record((layer(),), missing=missing), Record((layer(),))), path)
    assert [record.missing for record in read_atlas(path)] == [missing, ()]
    assert regard.load_atlas(path).missing == missing
    assert regard.load_atlas(path)[1].missing == ()


MISSING = [
    {"module": 5, "reason": "r", "calls": 1},
    {"module": "m", "reason": None, "calls": 1},
    {"module": "m", "reason": "r", "calls": "1"},
    {"module": "m", "reason": "r", "calls": True},
    {"module": "m", "reason": "r", "calls": 1.5},
    {"module": "m", "reason": "r", "calls": 0},
    {"module": "m", "reason": "r", "calls": 1, "more": 1},
    {"module": "m", "reason": "r"},
    "m",
    None,
]


def test_what_is_missing_in_the_wrong_shape_is_refused(path):
    for case in sweep(MISSING):
        with case as one:
            save_atlas(RECORDS[:1], path)
            _changed(path, lambda about: about["records"][0].update(missing=[one]))
            refused(path, "is damaged")


def test_a_list_of_what_is_missing_that_is_none_is_refused(path):
    for case in sweep([5, None, {}, ""]):
        with case as whole:
            save_atlas(RECORDS[:1], path)
            _changed(path, lambda about: about["records"][0].update(missing=whole))
            refused(path, "is damaged")


def test_tokens_that_are_no_texts_or_of_no_word_are_refused(path):
    for case in sweep([{"text": 5}, {"text": None}, {"word": "first"}, {"word": -1}, {"word": 10**30}]):
        with case as token:
            save_atlas(RECORDS[:1], path)
            _changed(path, lambda about: about["records"][0]["tokens"]["text"][0][1].update(token))
            refused(path, "is damaged: a token is not as it should be")


NAMES = [
    (lambda tokens: tokens[0].pop(0), "2 sequences of 5 positions, and tokens for 2 of 4, 5"),
    (lambda tokens: tokens[1].append(tokens[1][0]), "and tokens for 2 of 5, 6"),
    (lambda tokens: tokens.pop(), "and tokens for 1 of 5"),
]


def test_names_that_are_not_one_for_each_position_are_refused(path):
    """Each would be the name of a neighbour."""
    for case in sweep(NAMES, name=lambda refusal: refusal[1]):
        with case as (change, words):
            save_atlas(RECORDS[:1], path)
            _changed(path, lambda about: change(about["records"][0]["tokens"]["text"]))
            refused(path, f"is damaged: the stream 'text' has .*{words}")


def test_names_that_are_not_one_for_each_position_are_not_written(path):
    record = Record((layer(),), {"text": (tokens(*"abcd"),) * 2})
    with pytest.raises(InputError, match=r"it\.atlas was not written: the stream 'text' has 2 .* tokens for 2 of 4"):
        save_atlas((record,), path)
    assert not path.exists()


def test_a_kept_call_with_something_else_in_a_role_is_refused(path):
    for case in sweep(["bias", "mask", "score", "normalizer", "weight_factor"]):
        with case as part:
            q = torch.randn(1, 1, 520, 4)  # longer than what a map holds exactly
            with regard.watch(torch.nn.Identity(), keep="qk") as seen:
                regard.attention(q, q, q)
            save_atlas(seen.records, path)

            def change(about):
                about["records"][0]["layers"][0]["qk"]["segments"][0]["form"][part] = 1

            _changed(path, change)
            with pytest.raises(AtlasError, match="a kept call is damaged: a int stands where a"):
                read_atlas(path)[0].weights(layer=0, head=0)


def test_printed_layers_and_records_have_their_sizes_and_load_no_array(path):
    """They printed every array, and read all of those of an atlas for it."""
    model = torch.nn.TransformerDecoderLayer(8, 2, 16, batch_first=True)
    with torch.no_grad(), regard.watch(model) as seen:
        model(torch.randn(1, 5, 8), torch.randn(1, 300, 8))
    seen.save(path)
    for one in (seen, regard.load_atlas(path)):
        assert repr(one.record) == "<attention of TransformerDecoderLayer in 2 layers, 0 missing>"
        assert [repr(layer) for layer in one.record] == [
            "<layer self_attn: self-attention of target, 2 heads, 5 × 5>",
            "<layer multihead_attn: cross-attention of target → source, 2 heads, 5 × 300>",
        ]
    assert not {"mean", "entropy", "received"} & set(vars(one.record.layers[1]))
