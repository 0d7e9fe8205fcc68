"""Tables open in a spreadsheet as they are: read back by csv and numpy, with nothing in them that runs."""

import csv
import io

import numpy as np
import pytest

from regard.errors import InputError
from regard.render.csv_and_npz_files import Table, harmless, matrix_table, npy, npz, table_csv
from sweeps import sweep

RUNS = ("=1+1", "+1", "-1+cmd|' /C calc'!A0", "@SUM(A1)", " =1", "\t=1", "＝1+1", "＠x")


def read(table: bytes) -> list[list[str]]:
    return list(csv.reader(io.StringIO(table.decode("utf-8-sig"), newline="")))


def test_no_token_is_a_formula() -> None:
    for case in sweep(RUNS):
        with case as token:
            cells = read(table_csv(matrix_table(token, [token], [token], np.ones((1, 1)))))
            for cell in (cells[0][0], cells[0][1], cells[1][0]):
                assert cell.lstrip(" \t")[0] == "'"
                assert cell.replace("'", "", 1) == token


def test_nor_behind_what_another_country_separates_by() -> None:
    for case in sweep([";", "\t", "|", ","]):
        with case as separator:
            lines = (
                table_csv(matrix_table("q", [f"a{separator}=1+1"], ["b"], np.ones((1, 1))))
                .decode("utf-8-sig")
                .splitlines()
            )
            cells = [cell.strip(' "') for line in lines for cell in line.split(separator)]
            assert not any(cell.startswith(("=", "+", "-", "@")) for cell in cells)


def test_everything_else_comes_back_as_it_was() -> None:
    words = ["貓", 'say "no"', "a,b", "a;b", "two\nlines", "", "'quoted", "café", "x=1", "🦀"]
    values = np.arange(100, dtype=np.float32).reshape(10, 10) / 7
    cells = read(table_csv(matrix_table("query", words, words, values)))
    assert cells[0] == ["query", *words]
    assert [line[0] for line in cells[1:]] == words
    np.testing.assert_array_equal(np.array([line[1:] for line in cells[1:]], dtype=np.float32), values)


def test_numbers_keep_all_their_digits_and_are_no_texts() -> None:
    values = np.array([[1 / 3, 1e-30, 0.0]], dtype=np.float64)
    written = table_csv(matrix_table("q", ["x"], ["a", "b", "c"], values)).decode("utf-8-sig")
    assert written == '"q","a","b","c"\r\n"x",0.3333333333333333,1e-30,0.0\r\n'


def test_what_no_spreadsheet_opens_is_refused() -> None:
    for header, count in ((["x"] * 16_385, 1), (["x"], 1_048_576), (["x"] * 10_000, 10_000)):
        with pytest.raises(InputError, match=r"a CSV file holds up to .*: write \.npy or \.npz"):
            table_csv(Table(header, count, ()))


def test_harmless_leaves_words_alone() -> None:
    assert [harmless(word) for word in ("cat", "a-b", "x=y", "貓", "")] == ["cat", "a-b", "x=y", "貓", ""]


def test_arrays_are_read_without_pickles_and_are_the_same_bytes_again() -> None:
    arrays = {"weights": np.arange(6.0).reshape(2, 3), "queries": np.array(["貓", "=1"])}
    read_back = np.load(io.BytesIO(npz(arrays)), allow_pickle=False)
    assert sorted(read_back) == ["queries", "weights"]
    np.testing.assert_array_equal(read_back["weights"], arrays["weights"])
    assert read_back["queries"].tolist() == ["貓", "=1"]
    assert npz(arrays) == npz(dict(arrays))
    np.testing.assert_array_equal(
        np.load(io.BytesIO(npy(arrays["weights"].T)), allow_pickle=False), arrays["weights"].T
    )
    with pytest.raises(ValueError, match="allow_pickle"):
        npy(np.array([{}], dtype=object))
