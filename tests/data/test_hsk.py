"""`regard data hsk`: one known wheel, unpacked and not run, as a table that says where it comes from."""

import hashlib
import json
import zipfile
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from documents import ROOT
from regard import InputError
from regard.cli.downloads import data as app
from regard.data import FetchError, chinese, fetch_hsk, read_corpus
from sweeps import sweep

MEMBER = "hsk_sentences_audio/data/sentences.json"


def sentence(number, english, chinese, traditional):
    return {"id": f"hsk1-{number}", "chinese": chinese, "traditional": traditional, "translation": {"en": english}}


SENTENCES = [
    sentence(1, "I love you.", "我爱你。", "我愛你。"),
    sentence(2, "placeholder", "树", "樹"),
    sentence(3, "placeholder-p3", "树", "樹"),
    sentence(4, "PH", "树", "樹"),
    sentence(5, "A placeholder holds a place.", "占位符。", "佔位符。"),
]


@pytest.fixture
def served(monkeypatch):
    """What the package index answers with: a wheel with this JSON in it."""

    def serve(content):
        def download(wheel, folder):
            assert wheel is chinese.HSK
            path = folder / "hsk.whl"
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr(MEMBER if content is not None else "other", content or "")
            return path

        monkeypatch.setattr(chinese, "download", download)

    return serve


def test_sentences_without_english_are_left_out_and_counted(served, tmp_path):
    served(json.dumps(SENTENCES))
    said = []
    path = fetch_hsk(tmp_path / "new", progress=said.append)
    assert path == tmp_path / "new" / "hsk.tsv"
    assert path.read_text("utf-8").splitlines()[0].split("\t")[2].startswith("CC BY-SA 4.0")
    corpus = read_corpus(path)
    assert corpus["source"] == ("I love you.", "A placeholder holds a place.")
    assert corpus["target"] == ("我爱你。", "占位符。")
    assert said[-1].endswith("hsk.tsv: 2 sentences, 3 left out whose English is missing; CC BY-SA 4.0")
    notice = (tmp_path / "new" / "hsk-LICENCE.txt").read_text("utf-8")
    assert "https://creativecommons.org/licenses/by-sa/4.0/" in notice
    assert "hsk-sentences-audio contributors" in notice


def test_command_writes_traditional_characters_where_asked(served, tmp_path):
    served(json.dumps(SENTENCES))
    done = CliRunner().invoke(app, ["hsk", "--output-dir", str(tmp_path), "--script", "hant"])
    assert done.exit_code == 0, done.output
    assert read_corpus(tmp_path / "hsk.tsv")["target"] == ("我愛你。", "佔位符。")
    assert "2 sentences, 3 left out" in done.output


def test_a_wheel_with_something_else_in_it_leaves_the_files_as_they_were(served, tmp_path_factory):
    for case in sweep([None, "{torn", '[{"id": 1}]', '{"id": {}}']):
        with case as content:
            tmp_path = tmp_path_factory.mktemp("case")
            served(content)
            (tmp_path / "hsk.tsv").write_text("old", "utf-8")
            with pytest.raises(FetchError, match=r"must hold sentences in hsk_sentences_audio/data/sentences\.json"):
                fetch_hsk(tmp_path)
            assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("hsk.tsv", "old")]


def test_command_says_what_went_wrong_in_one_line(monkeypatch, tmp_path):
    def offline(wheel, folder):
        raise FetchError("the package index cannot be reached")

    monkeypatch.setattr(chinese, "download", offline)
    done = CliRunner().invoke(app, ["hsk", "--output-dir", str(tmp_path)])
    assert done.exit_code == 2
    assert done.output.strip().splitlines()[-1] == "regard: the package index cannot be reached"


def test_scripts_and_folders_that_cannot_be_are_refused(tmp_path):
    with pytest.raises(InputError, match=r'`script` must be "hans"'):
        fetch_hsk(tmp_path, script="zh")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot make the folder"):
        fetch_hsk(tmp_path / "file" / "folder")


def test_what_pip_says_is_turned_into_a_way_out():
    cases = [
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES from", "another SHA-256 than regard knows"),
        ("WARNING: Retrying ... NewConnectionError(", "cannot be reached: check the network"),
        ("ERROR: No matching distribution found for x", "has no such package"),
        ("ERROR: Could not install: [Errno 28] No space left on device", "the disk is full"),
        ("noise\nERROR: something new\n", "pip: something new"),
        ("", "pip: nothing"),
    ]
    for case in sweep(cases):
        with case as (output, words):
            assert words in chinese.reason(output)


@pytest.fixture(scope="session")
def real(tmp_path_factory):
    """The sentences from the package index; skipped where it cannot be reached."""
    try:
        return fetch_hsk(tmp_path_factory.mktemp("hsk"))
    except FetchError as error:
        if "cannot be reached" in str(error) or "no such package" in str(error):
            pytest.skip(str(error))
        raise


@pytest.mark.slow
def test_the_real_package_has_4272_sentences(real):
    corpus = read_corpus(real)
    assert str(corpus) == "hsk.tsv: 4,272 lines"
    assert not any(text.casefold().startswith(("placeholder", "ph")) and " " not in text for text in corpus["source"])
    assert ("Hello, teacher!", "老师，您好！") in set(zip(corpus["source"], corpus["target"], strict=True))


@pytest.mark.slow
def test_no_recombination_is_among_the_real_sentences(real):
    everyday, asked = read_corpus(real), read_corpus(ROOT / "examples/data/recombinations.tsv")
    assert not set(map(str.casefold, everyday["source"])) & set(map(str.casefold, asked["source"]))
    assert not set(everyday["target"]) & set(asked["target"])


@pytest.mark.slow
def test_a_wheel_with_another_hash_is_not_taken(tmp_path, real):
    other = replace(chinese.HSK, sha256=hashlib.sha256(b"").hexdigest())
    with pytest.raises(FetchError, match="another SHA-256 than regard knows"):
        chinese.download(other, tmp_path)
