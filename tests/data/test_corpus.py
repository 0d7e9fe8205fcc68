"""Reading: every line is either a row or counted with its reason."""

import gzip
import hashlib
import json
import pickle
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from documents import ROOT
from regard import InputError
from regard.data import Corpus, read_corpus
from sweeps import sweep

TATOEBA = ROOT.parent / "shared" / "data" / "tatoeba-eng-cmn.tsv"


def written(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_attribution_of_tatoeba_is_ignored_and_the_hash_is_that_of_the_file(tmp_path):
    content = "Hi.\t嗨。\tCC-BY 2.0 (France) Attribution: tatoeba.org #538123 (CM)\nRun.\t跑！\tCC-BY\n".encode()
    corpus = read_corpus(written(tmp_path, "cmn.txt", content))
    assert dict(corpus.columns) == {"source": ("Hi.", "Run."), "target": ("嗨。", "跑！")}
    assert corpus.sha256 == hashlib.sha256(content).hexdigest()
    assert str(corpus) == "cmn.txt: 2 lines"


def test_bad_lines_of_pairs_are_counted_by_reason_with_the_first_lines_number(tmp_path):
    content = b"\xef\xbb\xbfHi.\t\xe5\x97\xa8\r\nalone\n\nbad \xff\tx\nno target\t \nalone too\n\n  \nBye.\tx"
    corpus = read_corpus(written(tmp_path, "bad.tsv", content))
    assert corpus["source"] == ("Hi.", "Bye.")
    assert corpus["target"] == ("嗨", "x")
    assert dict(corpus.skipped) == {
        "with fewer than 2 columns, first line 2": 2,
        "empty, first line 3": 3,
        "not UTF-8, first line 4": 1,
        "with an empty column, first line 5": 1,
    }


def test_lines_end_as_on_linux_windows_and_the_old_macintosh(tmp_path_factory):
    for case in sweep(product(["\n", "\r\n", "\r"], ["", "end"])):
        with case as (end, last):
            tmp_path = tmp_path_factory.mktemp("case")
            content = end.join(["one\t1", "two\t2", "", "three\t3"]) + (end if last else "")
            corpus = read_corpus(written(tmp_path, "pairs.tsv", content))
            assert (corpus["source"], corpus["target"]) == (("one", "two", "three"), ("1", "2", "3"))
            assert dict(corpus.skipped) == {"empty, first line 3": 1}


def test_a_line_with_a_carriage_return_inside_is_counted(tmp_path):
    content = "a\t1\r\r\none\t1\rtwo\t2\nb\t2\n"
    corpus = read_corpus(written(tmp_path, "mixed.tsv", content))
    assert corpus["source"] == ("a", "b")
    assert dict(corpus.skipped) == {"with a carriage return inside, first line 2": 1}
    assert read_corpus(written(tmp_path, "mixed.txt", content), columns="text")["text"] == ("a\t1", "b\t2")


def test_plain_text_keeps_tabs_and_unusual_line_separators_within_lines(tmp_path):
    corpus = read_corpus(written(tmp_path, "text.txt", "a\tb\n\n c\u2028d \n"), columns=("text",))
    assert corpus["text"] == ("a\tb", " c\u2028d ")
    assert dict(corpus.skipped) == {"empty, first line 2": 1}


def test_json_lines_take_text_and_whole_numbers_and_count_the_rest(tmp_path):
    lines = [
        json.dumps({"text": "good", "label": 3, "more": None}),
        '{"text": "torn',
        '["text", "label"]',
        json.dumps({"text": "no label"}),
        json.dumps({"text": "x", "label": True}),
        json.dumps({"text": "x", "label": 0.5}),
        json.dumps({"text": " ", "label": "1"}),
        '{"text": "\\ud800", "label": "1"}',
        "[" * 100_000,
        '{"text": "one", "label": 1, "text": "two"}',
        json.dumps({"text": "文", "label": "neg"}, ensure_ascii=False),
    ]
    corpus = read_corpus(written(tmp_path, "labels.jsonl", "\n".join(lines)), columns=("text", "label"))
    assert corpus["text"] == ("good", "文")
    assert corpus["label"] == ("3", "neg")
    assert dict(corpus.skipped) == {
        "not JSON, first line 2": 2,
        "not a JSON object, first line 3": 1,
        "without `label`, first line 4": 1,
        "whose `label` is neither text nor a whole number, first line 5": 2,
        "with an empty column, first line 7": 1,
        "whose `text` is not Unicode, first line 8": 1,
        "with the key `text` twice, first line 10": 1,
    }


def test_gzip_is_told_by_content_and_its_hash_is_that_of_the_packed_file(tmp_path_factory):
    for case in sweep(["pairs.tsv.gz", "pairs.tsv", "pairs.jsonl.gz"]):
        with case as name:
            tmp_path = tmp_path_factory.mktemp("case")
            plain = '{"source": "a", "target": "b"}\n' if "jsonl" in name else "a\tb\n"
            content = gzip.compress(plain.encode())
            corpus = read_corpus(written(tmp_path, name, content))
            assert corpus["target"] == ("b",)
            assert corpus.sha256 == hashlib.sha256(content).hexdigest()


def test_a_file_without_a_usable_line_is_refused_with_the_reason(tmp_path_factory):
    cases = [
        ("empty.tsv", b"", "got none: it is empty"),
        ("bad.tsv", b"one\ntwo\n", "got none: 2 with fewer than 2 columns, first line 1"),
        ("torn.tsv.gz", gzip.compress(b"a\tb\n" * 99, mtime=0)[:-9], "cannot unpack .*Copy or fetch it again"),
        ("wide.tsv", "a\tb\n".encode("utf-16"), "must be UTF-8, got UTF-16: `iconv"),
    ]
    for case in sweep(cases):
        with case as (name, content, words):
            tmp_path = tmp_path_factory.mktemp("case")
            with pytest.raises(InputError, match=words):
                read_corpus(written(tmp_path, name, content))


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"cannot read .*none.tsv: No such file"):
        read_corpus(tmp_path / "none.tsv")
    with pytest.raises(InputError, match=r"cannot read .*: Is a directory"):
        read_corpus(tmp_path)
    with pytest.raises(InputError, match="`columns` must be one or more different names"):
        read_corpus(tmp_path, columns=("text", "text"))


@given(st.binary(max_size=300).map(lambda content: content.replace(b'"', b"")))  # which would join lines
def test_every_line_is_a_row_or_counted(tmp_path_factory, content):
    mostly_utf8 = "ä\tö\n".encode() * 300
    path = written(tmp_path_factory.getbasetemp(), "any.tsv", content := mostly_utf8 + content)
    corpus = read_corpus(path)
    lines = content.count(b"\n") + (not content.endswith(b"\n"))
    assert len(corpus) + sum(corpus.skipped.values()) == lines


def test_select_keeps_the_order_asked_for_and_what_is_known_of_the_file():
    corpus = Corpus({"text": ("a", "b", "c")}, "x.txt", "77", {"empty": 2})
    chosen = corpus.select([2, 0, 0])
    assert chosen["text"] == ("c", "a", "a")
    assert (chosen.name, chosen.sha256, dict(chosen.skipped)) == ("x.txt", "77", {"empty": 2})
    assert str(chosen) == "x.txt: 3 lines, 2 skipped (2 empty)"
    for wrong in (3, -1):
        with pytest.raises(InputError, match=f"`indices` must be from 0 to 2.*got {wrong}"):
            corpus.select([wrong])


def test_map_changes_one_column_and_no_other():
    corpus = Corpus({"source": ("a",), "target": ("b",)}).map("target", str.upper)
    assert dict(corpus.columns) == {"source": ("a",), "target": ("B",)}
    with pytest.raises(InputError, match="`column` must be one of source, target in corpus, got 'text'"):
        corpus.map("text", str)


def test_columns_are_equally_long_and_cannot_be_changed():
    with pytest.raises(InputError, match=r"equal length, got {'a': 1, 'b': 2}"):
        Corpus({"a": ("x",), "b": ("y", "z")})
    with pytest.raises(TypeError):
        Corpus({"a": ("x",)}).columns["a"] = ()


def test_a_corpus_goes_to_another_process_and_is_the_same_there():
    corpus = Corpus({"a": ("x",)}, "f", "0", {"empty": 1})
    assert pickle.loads(pickle.dumps(corpus)) == corpus


@pytest.mark.slow
def test_the_sample_of_tatoeba_is_read_whole():
    if not TATOEBA.exists():
        pytest.skip("the Tatoeba sample (../shared/data) is not here")
    corpus = read_corpus(TATOEBA)
    assert str(corpus) == "tatoeba-eng-cmn.tsv: 25,352 lines"
    assert (corpus["source"][0], corpus["target"][0]) == ("Hi.", "嗨。")
