"""`regard open`: what it says, what it refuses, and how it ends."""

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from regard.record.atlas import save_atlas
from regard.record.records import Layer, Record
from tiers import slow_but

pytest.importorskip("starlette", reason="starlette is not installed (the extra `web`)")


@pytest.fixture
def atlas(tmp_path: Path) -> Path:
    weights = np.tril(np.ones((1, 1, 4, 4), dtype=np.float32)) / np.arange(1, 5, dtype=np.float32)[:, None]
    layer = Layer(
        "layer", "self", "text", "text", 1, 1, weights, weights, np.zeros((1, 1, 4, 1), np.int32),
        weights[..., :1].copy(), np.zeros((1, 1, 4), np.float32), weights.sum(2),
    )  # fmt: skip
    path = tmp_path / "it.atlas"
    save_atlas((Record((layer,)),), path)
    return path


def sentence(err: str) -> str:
    """The one line that an error is."""
    lines = [line for line in err.splitlines() if line.strip()]
    assert len(lines) == 1, err
    assert lines[0].startswith("regard: ")
    return lines[0]


def test_the_help_fits_eighty_columns_and_names_every_option(run) -> None:
    code, out, _ = run("open", "--help")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    for word in ("--model", "--port", "--no-browser", "127.0.0.1", "Ctrl-C", "regard look --out book.atlas"):
        assert word in " ".join(out.replace("│", " ").split())


def test_neither_an_atlas_nor_a_model_is_one_sentence(run) -> None:
    code, _, err = run("open", "--no-browser")
    assert code == 2
    assert "regard open book.atlas, or regard open --model minilm" in sentence(err)


def test_a_file_that_is_missing_or_no_atlas_is_one_sentence(run, tmp_path: Path, atlas: Path) -> None:
    assert run("open", str(tmp_path / "none.atlas"), "--no-browser")[0] == 2
    (tmp_path / "text.atlas").write_text("no atlas at all, but a text that is long enough")
    code, _, err = run("open", str(tmp_path / "text.atlas"), "--no-browser")
    assert code == 2
    assert "not an atlas" in sentence(err)
    cut = tmp_path / "cut.atlas"
    cut.write_bytes(atlas.read_bytes()[:-10])
    code, _, err = run("open", str(cut), "--no-browser")
    assert code == 2
    assert "cut off" in sentence(err)


def test_a_port_that_is_taken_or_none_is_one_sentence(run, atlas: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, _, err = run("open", str(atlas), "--no-browser", "--port", str(port))
    assert code == 2
    assert f"`--port` {port} cannot be taken, it is in use by another program" in sentence(err)
    assert "65535" in sentence(run("open", str(atlas), "--no-browser", "--port", "70000")[2])


class WithoutStarlette:
    """A machine without the package: what Python's own finders would have raised."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "starlette":
            raise ModuleNotFoundError("No module named 'starlette'", name=name)


def test_a_missing_package_names_the_extra(run, atlas: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [
        name for name in sys.modules if name.partition(".")[0] == "starlette" or name.startswith("regard.web")
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [WithoutStarlette, *sys.meta_path])
    code, _, err = run("open", str(atlas), "--no-browser")
    assert code == 2
    assert sentence(err).endswith("pip install 'regard[web]'")


@pytest.mark.models
def test_a_model_that_does_not_exist_is_one_sentence(run, atlas: Path) -> None:
    code, _, err = run("open", str(atlas), "--no-browser", "--model", "./nowhere")
    assert code == 2
    assert "./nowhere" in sentence(err)


@pytest.mark.parametrize("ending", slow_but([signal.SIGINT], [signal.SIGINT, signal.SIGTERM]))
def test_it_serves_this_machine_until_it_is_interrupted(atlas: Path, ending: signal.Signals) -> None:
    command = [sys.executable, "-c", "from regard.cli import main; main()", "open", str(atlas), "--no-browser"]
    connection = http.client.HTTPConnection("127.0.0.1", timeout=30)
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        try:
            line = running.stderr.readline()
            connection.port = int(re.search(r"http://127\.0\.0\.1:(\d+)/ \(Ctrl-C ends it\)", line)[1])
            connection.request("GET", "/records")
            assert len(json.loads(connection.getresponse().read())["records"]) == 1
            running.send_signal(ending)  # with the connection still open
            out, err = running.communicate(timeout=20)
        finally:
            running.kill()
            connection.close()
    assert "Traceback" not in out + err
    if ending is signal.SIGINT:
        assert (running.returncode, err) == (0, "closed\n")
