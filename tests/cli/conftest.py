"""The command line, run in this process as a person runs it."""

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
