"""`regard score`: the numbers of the command sacrebleu, and files that do not fit."""

import io
import json
import os
import subprocess
import sys

import pytest

from sweeps import sweep

REFERENCES = [
    "图书馆在哪里？", "我爱深度学习。", "猫坐在垫子上。", "他昨天没有来。", "你今天想吃什么？", "这本书是我的。",
    "我们明天去北京。", "请把门关上。", "她唱歌唱得很好。", "外面正在下雨。",
]  # fmt: skip
HYPOTHESES = [
    "图书馆在哪儿？", "我爱深度学习。", "猫坐在火旁边。", "他昨天没来。", "你今天想吃点什么？", "这是我的书。",
    "我们明天去。", "请关门。", "她唱得很好。", "外面下雨了。",
]  # fmt: skip
ENGLISH = ["The cat sat on the mat.", "It's a dog, isn't it?", "Where is Tom ?", "Nobody came Yesterday"]
SAID = ["the cat sits on the mat.", "It is a dog, isn't it?", "Where's Tom?", "nobody came yesterday."]
PLUS_PLUS = ("--chrf-word-order", "2")


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, lines in {"zh.ref": REFERENCES, "zh.hyp": HYPOTHESES, "en.ref": ENGLISH, "en.hyp": SAID}.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), "utf-8")
    (tmp_path / "en.ref2").write_text("\n".join(reversed(ENGLISH)), "utf-8")
    return tmp_path


def sacrebleu(hypotheses, *references, options=()):
    """What the command of sacreBLEU prints."""
    command = [
        sys.executable,
        "-m",
        "sacrebleu",
        *references,
        "-i",
        hypotheses,
        "-m",
        "bleu",
        "chrf",
        "-w",
        "6",
        *options,
    ]
    done = subprocess.run(command, capture_output=True, check=True, env=os.environ | {"PYTHONUTF8": "1"})
    return json.loads(done.stdout)


def test_scores_and_signatures_are_those_of_sacrebleu(run):
    cases = [
        (("zh.hyp", "zh.ref"), ("--language", "zh"), ("-tok", "zh")),
        (("zh.hyp", "zh.ref"), ("--language", "zho_Hans"), ("-tok", "zh")),
        (("zh.hyp", "zh.ref"), ("--tokenize", "char"), ("-tok", "char")),
        (("en.hyp", "en.ref"), ("--language", "en"), ("-tok", "13a")),
        (("en.hyp", "en.ref", "en.ref2"), ("--language", "eng", "--lowercase"), ("-lc", "--chrf-lowercase")),
        (("en.hyp", "en.ref"), ("--tokenize", "intl", *PLUS_PLUS), ("-tok", "intl", *PLUS_PLUS)),
    ]  # fmt: skip
    for case in sweep(cases):
        with case as (names, options, theirs):
            status, out, err = run("score", *names, *options, "--json")
            assert status == 0, err
            found, (bleu, chrf) = json.loads(out), sacrebleu(*names, options=theirs)
            assert (found["bleu_signature"], found["chrf_signature"]) == (bleu["signature"], chrf["signature"])
            assert (round(found["bleu"], 6), round(found["chrf"], 6)) == (bleu["score"], chrf["score"])
            assert 20 < found["bleu"] < 90
            status, out, _ = run("score", *names, *options)
            name = "chrF++" if "--chrf-word-order" in options else "chrF"
            assert out.split() == ["BLEU", f"{bleu['score']:.1f}", bleu["signature"],
                                   name, f"{chrf['score']:.1f}", chrf["signature"]]  # fmt: skip


def test_line_ends_marks_and_empty_last_lines_shift_nothing(run, files):
    expected = run("score", "zh.hyp", "zh.ref", "--language", "zh")[1]
    text = "\n".join(HYPOTHESES)
    for case in sweep(
        [text, text + "\n\n\n", text.replace("\n", "\r\n") + "\r\n", "\ufeff" + text, text.replace("\n", " \n")]
    ):
        with case as content:
            (files / "other.hyp").write_bytes(content.encode())
            assert run("score", "other.hyp", "zh.ref", "--language", "zh")[1] == expected
    (files / "empty.hyp").write_text("\n".join([*HYPOTHESES[:-1], ""]) + "\n", "utf-8")  # an empty translation is one
    assert json.loads(run("score", "empty.hyp", "zh.ref", "--language", "zh", "--json")[1])["lines"] == 10


def test_standard_input_is_a_file_too(run, monkeypatch):
    expected = run("score", "zh.hyp", "zh.ref", "--language", "zh")[1]
    for names, content in ((("-", "zh.ref"), HYPOTHESES), (("zh.hyp", "-"), REFERENCES)):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(content).encode())))
        assert run("score", *names, "--language", "zh")[1] == expected


def test_a_pipe_of_the_shell_is_a_file_too(run):
    expected = run("score", "zh.hyp", "zh.ref", "--language", "zh")[1]
    command = f"{sys.executable} -m regard score zh.hyp <(cat zh.ref) --language zh"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout == expected


def test_labels_have_accuracy_and_f1(run, files):
    """By hand: of a, 2 of 3 are right and 1 of 3 predictions is wrong: F1 2·2/(3+3); b: 2·1/(2+1); c: 0."""
    (files / "true").write_text("a\na\na\nb\nc\n")
    (files / "predicted").write_text("a\na\nb\nb\na\r\n")
    status, out, err = run("score", "predicted", "true", "--labels", "--json")
    assert status == 0, err
    found = json.loads(out)
    assert found.pop("lines") == 5
    assert found == pytest.approx({"accuracy": 3 / 5, "f1_micro": 3 / 5, "f1_macro": (2 / 3 + 2 / 3 + 0) / 3})
    assert run("score", "predicted", "true", "--labels")[1].split() == [
        *("accuracy", "0.6000", "f1_macro", "0.4444", "f1_micro", "0.6000")
    ]


def test_a_lost_line_is_named(refused, files):
    for case in sweep([0, 3, 8]):
        with case as lost:
            for name, lines, other in (("short", HYPOTHESES, "zh.ref"), ("short", REFERENCES, "zh.hyp")):
                (files / name).write_text("\n".join([*lines[:lost], *lines[lost + 1 :]]) + "\n", "utf-8")
                names = (name, other) if lines is HYPOTHESES else (other, name)
                sentence = refused("score", *names, "--language", "zh")
                assert "short has 9" in sentence
                assert "has 10" in sentence
                assert f"from line {lost + 1} on they seem to be shifted" in sentence


def test_what_cannot_be_scored_is_one_sentence(refused, files):
    (files / "n-best").write_text("0 ||| a ||| -0.5\n0 ||| b ||| -0.7\n1 ||| c ||| -0.1\n2 ||| d ||| -1\n")
    (files / "labels").write_text("a\n" * 9)
    (files / "none").write_text("")
    for name in ("pairs", "pairs.tsv"):
        (files / name).write_text("".join(f"a\t{line}\n" for line in REFERENCES), "utf-8")
    (files / "objects").write_text('{"text": "a", "label": "b"}\n' * 10)
    (files / "latin-1").write_bytes("Grüße\n".encode("latin-1") * 4)
    (files / "wide").write_bytes("图书馆\n".encode("utf-16"))
    cases = [
        (("zh.hyp", "zh.ref"), "--language zh, or sacreBLEU's tokenizer with --tokenize"),
        (("zh.hyp", "zh.ref", "--language", "chinese"), 'did you mean "zh" (Chinese)?'),
        (("zh.hyp", "zh.ref", "--tokenize", "chinese"), "must be a tokenizer of sacreBLEU, 13a, char"),
        (("zh.hyp", "zh.ref", "--language", "zh", "--tokenize", "zh"), "leave one out"),
        (("zh.hyp", "zh.ref", "--labels", "--language", "zh"), "`--language` is for translations"),
        (("zh.hyp", "zh.ref", "zh.ref", "--labels"), "labels have one file of references, got 2"),
        (("-", "-", "--language", "zh"), "can be one of the files only"),
        (("n-best", "en.ref", "--language", "en"), "is a list of several translations of each line"),
        (("labels", "zh.ref", "--labels"), "labels has 9 lines and zh.ref has 10: each line needs its reference"),
        (("none", "none", "--labels"), "none has no line"),
        (("gone", "zh.ref", "--labels"), "cannot read gone"),
        (("latin-1", "en.ref", "--language", "en"), "line 1 of latin-1 is no UTF-8 text (byte 3 of the line)"),
        (("zh.hyp", "pairs.tsv", "--language", "zh"), "pairs.tsv is a table (tab-separated), and each line here is"),
        (("pairs", "zh.ref", "--language", "zh"), "such as cut -f1 pairs or cut -f2 pairs"),
        (("objects", "zh.ref", "--labels"), "objects is a table (JSON Lines)"),
        (("wide", "en.ref", "--language", "en"), "wide is UTF-16 or UTF-32"),
        (("zh.hyp", "zh.ref", "--language", "zh", "--chrf-word-order", "-1"), "must be from 0 to 9, got -1"),
    ]
    for case in sweep(cases):
        with case as (arguments, words):
            assert words in refused("score", *arguments)


def test_a_score_needs_no_pytorch():
    code = (
        "import sys; from regard.cli import main\n"
        "sys.argv = ['regard', 'score', 'zh.hyp', 'zh.ref', '--language', 'zh']\n"
        "try: main()\nexcept SystemExit as end: print(end.code, {'torch', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] in ("0 set()", "None set()")
