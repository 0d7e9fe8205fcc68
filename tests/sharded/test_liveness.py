"""A rank that is killed or stopped makes the others fail within 30 seconds, with a sentence that names it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import lost_ranks
from lost_ranks import RANKS, SITUATIONS, lost_rank

from sweeps import sweep

LOST_RANKS = Path(lost_ranks.__file__)


def check_all(folder, how, *, seconds):
    """Lose a rank in every situation at once; the others name it, so many seconds later at most."""
    asked = [sys.executable, LOST_RANKS, folder, str(int(how)), "45"]
    subprocess.run(asked, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True, timeout=300)
    for case in sweep(SITUATIONS):
        with case as name:
            _check(folder / name, lost_rank(name), seconds)


def _check(folder, lost, seconds):
    when_lost = float((folder / "lost").read_text())
    for rank in {*range(RANKS)} - {lost}:
        assert (folder / f"said.{rank}").exists(), f"rank {rank} hangs"
        when, words = (folder / f"said.{rank}").read_text().split(" ", 1)
        assert words.startswith(f"rank {lost} is gone ("), words
        assert words.endswith(f"so rank {rank} cannot go on: start the processes again, from the last checkpoint")
        assert float(when) - when_lost <= seconds


def test_the_others_name_a_rank_that_is_killed_whatever_it_does(tmp_path):
    check_all(tmp_path, signal.SIGKILL, seconds=20)


@pytest.mark.slow
def test_the_others_name_a_rank_that_is_stopped_whatever_it_does(tmp_path):
    check_all(tmp_path, signal.SIGSTOP, seconds=30)
