"""The file of me5, on a tiny one written here: what is read is what was written, and no bytes do harm."""

import contextlib
import random
import struct

import numpy as np
import pytest

from regard.hub import BundledModelError, me5
from sweeps import sweep

WIDTH, HEADS, WIDE, VOCABULARY, POSITIONS = 32, 2, 64, 40, 16
PIECES = ["<s>", "<pad>", "</s>", "<unk>", "▁", "▁a", "a", "b", "貓", "追", "▁貓", "<mask>"]
SCORES = [0.0] * 4 + [-3.0, -2.0, -4.0, -4.0, -5.0, -5.0, -5.0, 0.0]
HEAD = 8 + 36  # bytes before the numbers of the vocabulary


def q4(numbers: list[float]) -> bytes:
    """Blocks of 32 weights as they are described: one scale, then low nibbles first half, high nibbles second."""
    blocks = b""
    for start in range(0, len(numbers), 32):
        block = numbers[start : start + 32]
        nibbles = [round(number / 0.5) + 8 for number in block]
        packed = bytes(nibbles[i] | nibbles[i + 16] << 4 for i in range(16))
        blocks += struct.pack("<e", 0.5) + packed
    return blocks


def tensors() -> dict[str, tuple[int, list[float]]]:
    """Kind and numbers of each tensor, by name; halves from −4 to 3.5 survive four bits unchanged."""
    dice = random.Random(7)

    def draw(count: int) -> list[float]:
        return [dice.randint(-8, 7) * 0.5 for _ in range(count)]

    found = {"emb.word": (1, draw(VOCABULARY * WIDTH)), "emb.pos": (0, draw(POSITIONS * WIDTH))}
    found |= {"emb.type": (0, draw(2 * WIDTH)), "emb.ln.w": (0, draw(WIDTH)), "emb.ln.b": (0, draw(WIDTH))}
    for part, rows, columns in [
        ("q", 32, 32),
        ("k", 32, 32),
        ("v", 32, 32),
        ("ao", 32, 32),
        ("fi", 64, 32),
        ("fo", 32, 64),
    ]:
        found |= {f"l0.{part}.w": (1, draw(rows * columns)), f"l0.{part}.b": (0, draw(rows))}
    for part in ("aln", "oln"):
        found |= {f"l0.{part}.w": (0, draw(WIDTH)), f"l0.{part}.b": (0, draw(WIDTH))}
    return found


def tiny() -> bytes:
    spelled = [piece.encode() for piece in PIECES]
    ends = [sum(map(len, spelled[:count])) for count in range(len(spelled) + 1)]
    data = b"E5S1" + struct.pack("<I7ifi", 1, WIDTH, 1, HEADS, WIDE, VOCABULARY, POSITIONS, 2, 1e-12, 32)
    data += struct.pack("<5iQ", len(PIECES), 0, 2, 1, 3, ends[-1]) + struct.pack(f"<{len(ends)}I", *ends)
    data += struct.pack(f"<{len(SCORES)}f", *SCORES) + b"".join(spelled) + struct.pack("<iI", 1, 5) + b"xxxxx"
    stored = {
        name: q4(numbers) if kind else struct.pack(f"<{len(numbers)}f", *numbers)
        for name, (kind, numbers) in tensors().items()
    }
    at = len(data) + 4 + sum(2 + len(name) + 21 for name in stored)
    data += struct.pack("<i", len(stored))
    for name, (kind, numbers) in tensors().items():
        entry = struct.pack("<BIQQ", kind, len(numbers), at, len(stored[name]))
        data += struct.pack("<H", len(name)) + name.encode() + entry
        at += len(stored[name])
    return data + b"".join(stored.values())


TINY = tiny()


def test_what_was_written_is_read() -> None:
    file = me5.read(TINY)
    assert [piece for piece, _ in file.pieces] == PIECES
    assert [score for _, score in file.pieces] == SCORES
    assert file.special == {"bos": 0, "eos": 2, "pad": 1, "unk": 3}
    assert (file.sizes.hidden, file.sizes.layers, file.sizes.heads, file.sizes.positions) == (32, 1, 2, 16)
    for name, (_, numbers) in tensors().items():
        np.testing.assert_array_equal(file.tensors[name].ravel(), np.float32(numbers), err_msg=name)


def test_a_matrix_has_outputs_as_rows() -> None:
    assert me5.read(TINY).tensors["l0.fi.w"].shape == (WIDE, WIDTH)


def test_a_truncated_file_is_refused_in_one_sentence() -> None:
    unreadable = r"weights file of `me5` is not readable: .*; install it again"
    for case in sweep([0, 3, 7, 20, 60, 100, 200, 400, 900, len(TINY) // 2, len(TINY) - 1]):
        with case as length, pytest.raises(BundledModelError, match=unreadable):
            me5.read(TINY[:length])


HOSTILE = [
    (0, b"GGUF", "begin with E5S1"),
    (4, struct.pack("<I", 2), "version 2"),
    (8, struct.pack("<i", -32), "must be positive"),
    (8, struct.pack("<i", 33), "must divide its widths"),
    (12, struct.pack("<i", 2**24), "do not fit"),
    (16, struct.pack("<i", 5), "must divide its widths"),
    (24, struct.pack("<i", 2**31 - 1), "must be positive"),
    (36, struct.pack("<f", float("nan")), "epsilon between 0 and 1"),
    (40, struct.pack("<i", 64), "block 64"),
    (HEAD, struct.pack("<i", 2**30), "must have 1 to 40 pieces"),
    (HEAD, struct.pack("<i", -1), "must have 1 to 40 pieces"),
    (HEAD + 4, struct.pack("<i", 12), "must be below 12"),
    (HEAD + 8, struct.pack("<i", 0), "four special ones"),
    (HEAD + 20, struct.pack("<Q", 2**63), "the text of the pieces needs"),
    (HEAD + 28 + 4, struct.pack("<I", 2**31), "offsets of its pieces must rise"),
    (HEAD + 28 + 13 * 4, struct.pack("<f", float("inf")), "scores of its pieces must be finite"),
    (HEAD + 28 + 25 * 4, b"\xff", "must be UTF-8"),
    (TINY.index("ab貓".encode()) + 1, b"a", "must differ from each other"),
    (TINY.index(b"emb.word"), b"emb.werd", "'emb.werd' is missing or too many"),
    (TINY.index(b"emb.word") + 8, b"\x07", "of kind 0 or 1, got 7"),
    (TINY.index(b"emb.word") + 9, struct.pack("<I", 7), "must have 1280 numbers"),
    (TINY.index(b"emb.word") + 13, struct.pack("<Q", len(TINY)), "ends at byte"),
    (len(TINY) - 4, struct.pack("<f", float("nan")), "must hold finite numbers"),
]


def test_a_hostile_file_is_refused_with_the_rule_it_breaks() -> None:
    for case in sweep(HOSTILE):
        with case as (at, value, words), pytest.raises(BundledModelError, match=words):
            me5.read(TINY[:at] + value + TINY[at + len(value) :])


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_random_damage_never_ends_in_another_error() -> None:
    dice = random.Random(3)
    for _ in range(400):
        damaged = bytearray(TINY)
        for _ in range(dice.randint(1, 4)):
            damaged[dice.randrange(700)] = dice.randrange(256)
        with contextlib.suppress(BundledModelError):
            me5.read(bytes(damaged))


def test_the_folder_loads_without_a_missing_key(tmp_path) -> None:
    transformers = pytest.importorskip("transformers")
    source, folder = tmp_path / "tiny.bin", tmp_path / "folder"
    source.write_bytes(TINY)
    folder.mkdir()
    me5.convert(source, folder)
    model, found = transformers.AutoModel.from_pretrained(folder, add_pooling_layer=False, output_loading_info=True)
    assert not found["missing_keys"]
    assert not found["unexpected_keys"]
    numbers = tensors()["l0.ao.w"][1]
    written = np.float32(numbers).reshape(32, 32)
    np.testing.assert_array_equal(model.encoder.layer[0].attention.output.dense.weight.detach().numpy(), written)


NORMALIZED = [
    ("a 貓追", ["▁a", "▁貓", "追"]),
    ("  a \t\n b  ", ["▁a", "▁", "b"]),
    ("ａ", ["▁a"]),  # NFKC
    ("a\u200bb\x01b", ["▁a", "▁", "b", "b"]),  # a zero-width space is a space, a control character is nothing
    ("～", ["▁", "～"]),  # SentencePiece keeps it, NFKC alone would make it ~
    ("", []),
]


def test_the_tokenizer_normalizes_as_sentencepiece_does() -> None:
    for case in sweep(NORMALIZED):
        with case as (text, pieces):
            pytest.importorskip("tokenizers")
            encoded = me5.unigram(me5.read(TINY)).encode(text)
            assert encoded.tokens == ["<s>", *pieces, "</s>"]
