"""The command line, run in this process as a person runs it."""

import functools
import sys

import pytest

from regard.cli import main


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def call(*arguments: str, columns: int = 80) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["regard", *arguments])
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("NO_COLOR", "1")
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return call


@pytest.fixture(scope="module")
def models_stay_loaded():
    """Let a bundled model be read once for all commands of a module, each of which would read it again."""
    as_transformers = pytest.importorskip("regard.models.as_transformers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(as_transformers, "load_bundled", functools.cache(as_transformers.load_bundled))
        yield


@pytest.fixture
def refused(run):
    """Run a command that ends with one sentence and exit code 2, and return the sentence."""

    def call(*arguments: str) -> str:
        code, out, err = run(*arguments)
        assert (code, out) == (2, ""), out
        assert len(err.strip().splitlines()) == 1, err
        assert "Traceback" not in err
        return err

    return call
