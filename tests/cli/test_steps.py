"""The command `regard steps`: the example, one's own files, a head of a model, and sentences for what does not fit."""

import json
import re

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from regard.cli.steps import steps
from regard.errors import InputError
from regard.lessons.steps import CapturedHead
from regard.record.tokens import Token
from sweeps import sweep

app = typer.Typer()
app.command()(steps)


def run(*arguments, width=80):
    found = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": str(width), "NO_COLOR": "1"})
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    assert found.exit_code == 0, found.output
    return found.output


def written(path, matrix):
    if path.suffix == ".npy":
        np.save(path, np.array(matrix))
    elif path.suffix == ".csv":
        path.write_text("\n".join(",".join(map(str, row)) for row in matrix) + "\n")
    else:
        path.write_text(json.dumps(matrix))
    return path


def test_without_arguments_it_works_out_three_tokens():
    text = run()
    assert "我  q₁·k₁ = 2·2 + 0·0 = 4" in text
    assert "爱  w₁₂ = 1 / 34.8    = 0.0287" in text


def test_token_and_language_of_the_example():
    assert "先看一个词元，逐个数计算：“你”（第 3 个）" in run("--token", "你", "--lang", "zh")
    assert "One token in scalars: “爱” (number 2)" in run("--token", "2")


def test_own_numbers_from_files(tmp_path):
    for case in sweep([".json", ".csv", ".npy"]):
        with case as ending:
            x = written(tmp_path / f"x{ending}", [[1, 0], [0.5, -2]])
            w = written(tmp_path / f"w{ending}", [[1, 0, 1], [0, 1, 1]])
            text = run("--x", x, "--w", w, "--tokens", "Thinking Machines")
            assert "Machines  q₁·k₂ = 1·0.5 + 0·(-2) + 1·(-1.5) = -1" in text  # k₂ = [0.5 -2 -1.5]
            assert "w₁₂" in text
            assert "√3" in text


def test_three_matrices_from_one_file(tmp_path):
    x = written(tmp_path / "x.json", [[1, 2]])
    w = written(tmp_path / "w.json", {"query": [[1], [0]], "key": [[0], [1]], "value": [[3, 0], [0, 4]]})
    text = run("--x", x, "--w", w)
    assert "q₁ = x₁ W_Q = 1" in text.replace("[", "").replace("]", "")
    assert "x1  q₁·k₁ = 1·2 = 2" in text
    assert "z₁ = [3 8]" in text


def test_a_query_that_is_no_key_with_three_matrices(tmp_path):
    x = written(tmp_path / "x.json", {"query": [[1, 2]], "key": [[3], [5]], "value": [[1], [7]]})
    w = written(tmp_path / "w.json", {"query": [[1], [1]], "key": [[2]], "value": [[1, 10]]})
    text = run("--x", x, "--w", w)
    assert "“query 1” (number 1)" in text
    assert "q₁ = x₁ W_Q = [3]" in text
    assert "x2  q₁·k₂ = 3·10 = 30" in text  # k = 2 · 5
    assert "z₁ = [7.00 70.0]" in text  # of the first value e^−12 is left
    assert "K = X_K W_K (2 × 1)" in text


def test_query_key_and_value_in_one_file_need_no_matrices(tmp_path):
    x = written(
        tmp_path / "x.json",
        {"query": [[0]], "query_tokens": ["why?"], "key": [[1], [9]], "tokens": ["a", "b c"], "value": [[2], [4]]},
    )
    text = run("--x", x)
    assert "“why?” (number 1)" in text
    assert "b c  q₁·k₂ = 0·9 = 0" in text
    assert "z₁ = [3]" in text
    assert "W_Q" not in text
    with pytest.raises(InputError, match='"query" and "key" of `--x` must have as many columns'):
        run("--x", written(tmp_path / "wide.json", {"query": [[0, 1]], "key": [[1]], "value": [[2]]}))


def test_several_heads_and_w_output(tmp_path):
    """Both heads give every key the weight 1/2, as their queries are 0; values [1], [3] and [2], [6]."""
    x = written(tmp_path / "x.json", [[1, 0], [0, 1]])
    nothing = [[[0], [0]], [[0], [0]]]
    w = {"query": nothing, "key": nothing, "value": [[[1], [3]], [[2], [6]]], "output": [[10, 0], [1, 1]]}
    text = run("--x", x, "--w", written(tmp_path / "w.json", w), "--head", 1, "--token", 2)
    assert text.startswith("Attention step by step: head 1 of 2, counted from 0\n")
    assert "z₂[1] = 0.5·2 + 0.5·6 = 4" in text
    end = text.partition("All heads together")[2]
    assert "   x1 [2]         x1 [4]\n" in end
    assert "   Z = [Z_0 Z_1] (2 × 2)\n   x1 [2  4]\n" in end
    assert "   [10  0]        x1 [24  4]\n   [ 1  1]        x2 [24  4]\n" in end
    alone = {name: matrices[0] for name, matrices in w.items()} | {"output": [[7]]}
    text = run("--x", x, "--w", written(tmp_path / "alone.json", alone), "--lang", "zh")
    assert "乘以 W_O\n   W_O (1 × 1)    Z W_O (2 × 1)\n   [7]            x1 [14]\n" in text
    assert "所有头" not in text


X, W = [[1, 0], [0, 1]], [[1, 0], [0, 1]]


REFUSALS = [
    (
        [[1, 0, 3]],
        W,
        r'"query" of `--w` must have as many rows as `--x` has columns \(3\), got `--x` of shape \(1, 3\)',
    ),
    ([[1, "a"]], W, "`--x` must be a matrix of numbers"),
    ([[1, 2], [True, 3]], W, "`--x` must be a matrix of numbers, got true in row 2, column 1 of"),
    ([[1, 0]], [[1, 0.5], [1, False]], "`--w` must be a matrix of numbers, got false in row 2, column 2 of"),
    ([[1, 2], [3]], W, "`--x` must have rows of one length"),
    ([[1, float("nan")]], W, "`--x` must hold finite numbers up to 1e.70, got nan in row 1, column 2"),
    (
        [[1, 2], [1e308, 0]],
        W,
        r"`--x` must hold finite numbers up to 1e.70, got 1e.308 in row 2, column 1 of .*down",
    ),
    (X, [[1, 0], [0, -1e99]], r"`--w` must hold finite numbers up to 1e.70, got -1e.99 in row 2, column 2"),
    ([1, 2], W, r"`--x` must be a matrix of numbers .* got shape \(2,\)"),
    ([[True, False]], W, "`--x` must be a matrix of numbers"),
    ({"a": 1}, W, '`--x` must be one matrix or an object with "query", "key" and "value"'),
    ({"query": X, "key": X, "value": [[1]]}, W, '"key" and "value" .* as many rows as each other, got 2 and 1'),
    ({"query": X, "key": X, "value": X, "tokens": ["a"]}, W, '"tokens" of `--x` must be a list of 2 names'),
    ({"query": [[1, 2]], "key": [[1, 2]] * 2049, "value": [[1]] * 2049}, W, "at most 2048 rows, got 2049"),
    (
        {"query": X, "key": [[1]], "value": X[:1]},
        W,
        r'"key" of `--w` .* "key" of `--x` of shape \(1, 1\) and a matrix of shape \(2, 2\)',
    ),
    ([[1, 2]] * 2049, W, "`--x` must have at most 2048 rows, got 2049"),
    (X, {"query": W, "key": W}, '`--w` must be one matrix or an object with "query", "key" and "value"'),
    (X, {"query": W, "key": [[1], [2]], "value": W}, r"columns as each other for q·k, got \(2, 2\) and \(2, 1\)"),
    (X, {"query": W, "key": W, "value": W, "values": W}, 'and if you like "output", got .*w.json with .*values'),
    (X, {"query": [W, W], "key": W, "value": W}, '"query", "key" and "value" of `--w` .* each head, got 2, 1 and 1'),
    (
        X,
        {"query": [W, [[1], [2]]], "key": [W, W], "value": [W, W]},
        r"one shape for all heads, got \(2, 2\) and \(2, 1\)",
    ),
    (X, {"query": [W, [["a"]]], "key": [W, W], "value": [W, W]}, "`--w query, head 1` must be a matrix of numbers"),
    (X, {"query": W, "key": W, "value": W, "output": [[1]]}, r'"output" of `--w` .*\(1 × 2 = 2\), got \(1, 1\)'),
    (X, {"query": W, "key": W, "value": W, "output": [[1, float("nan")]] * 2}, "`--w output` must hold finite numbers"),
    (
        X,
        {"query": W, "key": W, "value": [[1]]},
        r'"value" of `--w` must have as many rows .* a matrix of shape \(1, 1\)',
    ),
]


def test_matrices_that_do_not_fit_are_refused_in_a_sentence(tmp_path):
    for case in sweep(REFUSALS, name=lambda refusal: refusal[2]):
        with case as (x, w, words), pytest.raises(InputError, match=words):
            run("--x", written(tmp_path / "x.json", x), "--w", written(tmp_path / "w.json", w))


def test_files_that_are_not_matrices_are_refused_in_a_sentence(tmp_path):
    w = written(tmp_path / "w.json", W)
    cases = {
        "none.json": (None, "there is none at"),
        "x.txt": (b"1 2", "must be a file .json, .csv or .npy"),
        "x.json": (b"{[", "must be JSON"),
        "twice.json": (b'{"query": [[1]], "key": [[1]], "query": [[2]]}', "`--x` must name 'query' once, .*twice.json"),
        "x.csv": (b"a,b\n1,2\n", "without a header, got 'a,b' in line 1"),
        "semicolons.csv": (b"1;2\n3;4\n", "got '1;2' in line 1 of .*: separate the numbers by commas"),
        "blanks.csv": (b"1 2\n", "separate the numbers by commas"),
        "bytes.csv": (b"\xff\xfe\x00", "must be a CSV file in UTF-8"),
        "ragged.csv": (b"1,2\n3\n", "rows of one length"),
        "empty.csv": (b"", "must be a matrix of numbers"),
        "x.npy": (b"not numpy", "must be a .npy file without pickled objects"),
    }
    for case in sweep(cases):
        with case as name:
            content, words = cases[name]
            if content is not None:
                (tmp_path / name).write_bytes(content)
            with pytest.raises(InputError, match=words):
                run("--x", tmp_path / name, "--w", w)


def test_pickles_and_archives_are_refused(tmp_path):
    w = written(tmp_path / "w.json", W)
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="without pickled objects"):
        run("--x", tmp_path / "x.npy", "--w", w)
    np.savez(tmp_path / "many.npz", a=np.eye(2))
    (tmp_path / "many.npz").rename(tmp_path / "many.npy")
    with pytest.raises(InputError, match=r"many\.npy is not: the magic string is not correct"):
        run("--x", tmp_path / "many.npy", "--w", w)


def test_options_that_exclude_one_another(tmp_path):
    x, w = written(tmp_path / "x.json", X), written(tmp_path / "w.json", W)
    with pytest.raises(InputError, match="need both `--x FILE` and `--w FILE`, got `--x` alone"):
        run("--x", x)
    with pytest.raises(InputError, match="leave out TEXT"):
        run("--x", x, "--w", w, "--model", "me5")
    with pytest.raises(InputError, match="`--head` must be from 0 to 0 for these matrices, got 1"):
        run("--x", x, "--w", w, "--head", 1)
    with pytest.raises(InputError, match="a head needs a TEXT"):
        run("--model", "me5")
    with pytest.raises(InputError, match="`--tokens` must name the 2 rows of `--x`, got 3 names: a b c"):
        run("--x", x, "--w", w, "--tokens", "a b c")
    with pytest.raises(InputError, match=r"`token` must be a word of the text \(我 爱 你\) or a number from 1 to 3"):
        run("--token", "cat")


def page_state(path):
    (state,) = re.findall('<script type="application/json" id="start">(.*?)</script>', path.read_text("utf-8"))
    return json.loads(state)


def test_a_lesson_of_the_example(tmp_path):
    out = tmp_path / "lesson.html"
    shown = run("--out", out, "--lang", "zh", "--token", "你")
    assert shown == f"我 爱 你 → {out}\n用浏览器打开它，动一动上面的数：它由什么得来，改了会怎样，都看得到\n"
    state = page_state(out)
    assert (state["tokens"], state["language"], state["row"]) == (["我", "爱", "你"], "zh", 2)


def test_a_lesson_of_own_numbers_replaces_a_file(tmp_path, monkeypatch):
    numbers = {"query": [[1, 2]], "key": [[3], [5]], "value": [[1], [7]], "tokens": ["a", "b"]}
    x = written(tmp_path / "x.json", numbers)
    matrices = {"query": [[[1], [1]]] * 2, "key": [[[2]]] * 2, "value": [[[1, 10]]] * 2, "output": [[1]] * 4}
    w = written(tmp_path / "w.json", matrices)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "lesson.html").write_text("old")
    run("--x", x, "--w", w, "--head", 1, "--out", "~/lesson.html")
    state = page_state(tmp_path / "lesson.html")
    assert (state["x"], state["keyX"], state["valueX"]) == (numbers["query"], numbers["key"], numbers["value"])
    assert (state["tokens"], state["keyTokens"]) == (["query 1"], ["a", "b"])
    assert state["heads"] == [{"query": [[1], [1]], "key": [[2]], "value": [[1, 10]]}] * 2
    assert (state["output"], state["head"]) == ([[1]] * 4, 1)


def test_pages_that_cannot_be(tmp_path):
    x, w = written(tmp_path / "x.json", [[1, 0]] * 33), written(tmp_path / "w.json", W)
    (tmp_path / "folder.html").mkdir()
    cases = {
        ("--out", tmp_path / "page.pdf"): "`--out` must end in .html, got",
        ("--out", tmp_path / "none" / "page.html"): "there is no folder .*none",
        ("--out", tmp_path / "folder.html"): "folder.html is a folder",
        ("--x", x, "--w", w, "--out", tmp_path / "page.html"): "at most 32 tokens, got 33: .* `regard steps` without",
    }
    for case in sweep(cases):
        with case as arguments, pytest.raises(InputError, match=cases[arguments]):
            run(*arguments)
    assert not (tmp_path / "page.html").exists()


@pytest.fixture
def capture(monkeypatch):
    """A capture in the place of a model: one head whose keys and values say which token they are of."""
    asked = []

    def choose(model, text, *, layer, head, token):
        asked.append((model, text, layer, head, token))
        return 3 if layer is None else layer, 5 if head is None else head, token

    def capture_head(model, text, layer, head):
        tokens = (Token("token", word=0), Token("izer", word=0), Token("works", word=1))
        return CapturedHead(tokens, np.eye(3), 2 * np.eye(3), 3 * np.eye(3), scale=1.0)

    monkeypatch.setattr("regard.interpret.head_vectors.choose", choose)
    monkeypatch.setattr("regard.interpret.head_vectors.capture_head", capture_head)
    return asked


def test_a_head_of_a_model_for_a_word_of_several_pieces(capture):
    text = run("--model", "minilm", "--layer", 2, "--token", "tokenizer", "tokenizer works")
    assert capture == [("minilm", "tokenizer works", 2, None, "tokenizer")]
    assert text.startswith("Attention step by step: minilm, layer 2, head 5\n")
    assert "One token in scalars: “token” (number 1)\n“tokenizer” is 2 pieces to the model; this is the first." in text
    assert "token  q₁·k₁ = 1·2 + 0·0 + 0·0 = 2" in text
    assert "W_Q" not in text


def test_a_text_alone_takes_the_model_that_regard_look_takes(capture):
    run("works")
    run("作品")
    assert [model for model, *_ in capture] == ["minilm", "me5"]
    text = run("作品", "--lang", "zh")
    assert text.startswith("注意力分步计算：me5，层 3，头 5\n")
    assert "“works”（第 3 个）" in text


def test_a_translator_needs_a_text_and_a_page_and_nothing_else():
    for case in sweep(
        [
            ((), "`--translator` needs a TEXT"),
            (("I sleep.",), "give --out page.html"),
            (("I sleep.", "--out", "page.html", "--head", "1"), "`--head` belongs to other lessons: leave it out"),
            (("I sleep.", "--out", "page.html", "--x", "x.json"), "`--x` belongs to other lessons: leave it out"),
            (("I sleep.", "--out", "page.html"), "no-such-run"),
        ]
    ):
        with case as (arguments, sentence), pytest.raises(InputError, match=re.escape(sentence)):
            run("--translator", "no-such-run", *arguments)
