"""A command that shares made-up texts among worker processes, which write down what they do.

python tests/interpret/shared_texts.py FOLDER TEXTS WORKERS SECONDS SILENCE

A text takes SECONDS; number 3 has no result. FOLDER.log gets a line for each text that is begun, and for each result
that is written: the worker's process, the number, and the process that started the worker. A result is the number of
the process that wrote it.
"""

import os
import sys
import time
from pathlib import Path

from regard.errors import InputError, RegardError
from regard.interpret.text_queue import TextFolder
from regard.interpret.text_workers import share_texts

WITHOUT = 3  # the text that has no result


class Job:
    """Waits, and writes the number of its process."""

    def __init__(self, log, seconds):
        self._log, self._seconds = log, seconds
        self.identity = {"model": "none"}

    def __call__(self, number):
        self._note("begun", number)
        time.sleep(self._seconds)
        if number == WITHOUT:
            raise InputError("it is the third")
        return lambda path: self._write(number, path), None

    def _write(self, number, path):
        path.write_text(str(os.getpid()))
        self._note("written", number)

    def _note(self, what, number):
        with open(self._log, "a") as log:  # a short line is added whole
            log.write(f"{what} {os.getpid()} {number} {os.getppid()}\n")


def main():
    folder, count, workers, seconds, silence = sys.argv[1:]
    texts = TextFolder(Path(folder), ".result", range(1, int(count) + 1))
    texts.create()
    done = []
    try:
        share_texts(
            texts, "shared_texts:Job", f"{folder}.log", float(seconds), num_workers=int(workers), progress=done.append,
            warn=lambda said: os.write(1, f"{said}\n".encode()), silence=float(silence),
        )  # fmt: skip
    except RegardError as problem:
        sys.exit(str(problem))
    assert done == sorted(done)
    assert done[-1] == int(count)


if __name__ == "__main__":
    main()
