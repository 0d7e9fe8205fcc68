"""A job of worker processes whose texts say what happens to the worker, and a command that shares such texts.

python tests/interpret/shared_texts.py FOLDER COUNT WORKERS SECONDS

The second half of the texts take SECONDS each.
"""

import os
import signal
import sys
import time
from pathlib import Path

from regard.errors import InputError
from regard.interpret.text_folder import open_text_folder
from regard.interpret.text_workers import share_texts


class Job:
    """Saves the text and the number of its process; `log` gets a line for each text that is begun."""

    def __init__(self, log, wrong=None):
        self.identity = {"model": "none"}
        self._log = Path(log)
        if wrong == "refused":
            raise InputError("there is no such model")
        if wrong == "killed":
            os.kill(os.getpid(), signal.SIGKILL)

    def __call__(self, text):
        with self._log.open("a") as log:  # a short line is added whole
            log.write(f"{os.getpid()} {text}\n")
        what, _, seconds = str(text).partition(" ")
        if what == "killed" or (what == "killed_once" and self._log.read_text().count(f" {text}\n") == 1):
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "exits":
            os._exit(3)
        if what == "fails":
            raise ValueError("of\nno use")
        if what == "waits":
            time.sleep(float(seconds))
        return lambda path: self._save(path, text), "it is odd" if what == "odd" else None

    def _save(self, path, text):
        if text == "full":
            raise InputError("cannot write: no space left")
        if text == "breaks":
            raise OSError("broken")
        path.write_text(f"{text} {os.environ['OMP_NUM_THREADS']}")


def main():
    folder, count, workers, seconds = sys.argv[1:]
    texts = {number: f"waits {seconds if 2 * number > int(count) else 0}" for number in range(1, int(count) + 1)}
    with open_text_folder(Path(folder), ".result", texts, {}) as opened:
        share_texts(
            texts, opened, Job, f"{folder}.log", num_workers=int(workers), progress=lambda done: None,
            warn=sys.exit,
        )  # fmt: skip


if __name__ == "__main__":
    main()
