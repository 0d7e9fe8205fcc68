"""What a launch of several ranks says of those that fail, and when it is made again."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from processes import launch


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "ranks"
    made.mkdir()
    return made


@pytest.mark.slow
def test_a_program_whose_connections_are_closed_is_run_once_more(folder, capsys):
    launch(3, folder, "connections close once")
    assert sorted(one.name for one in folder.glob("summed*")) == ["summed.0", "summed.1", "summed.2"]
    assert "connections close once is run again on 3 ranks" in capsys.readouterr().out


@pytest.mark.slow
def test_a_rank_that_fails_by_itself_is_named_last_and_nothing_is_run_again(folder):
    with pytest.raises(AssertionError) as failure:
        launch(3, folder, "one fails")
    assert sorted((folder.parent / "tries").read_text().split()) == ["0", "1", "2"]
    said = str(failure.value)
    assert "in this order: rank 1 ended with 1; rank" in said
    assert said.index("log.0:") < said.index("log.1:")
    assert "ValueError: rank 1 has found a fault" in said[said.index("log.1:") :]
