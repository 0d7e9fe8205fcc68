"""A rank that is killed or stopped makes the others fail within 30 seconds, with a sentence that names it."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from processes import launch


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "killed while the others are busy", "stopped"])
def test_the_others_name_the_rank_that_is_lost(tmp_path, how):
    launch(3, tmp_path, how, lost=(1,))
    lost = float((tmp_path / "lost").read_text())
    for rank in (0, 2):
        when, words = (tmp_path / f"said.{rank}").read_text().split(" ", 1)
        assert float(when) - lost <= 30
        assert words.startswith("rank 1 is gone (")
        assert words.endswith(f"so rank {rank} cannot go on: start the processes again, from the last checkpoint")
