"""The command line: one file a command, all talk here, and nothing computed."""

import errno
import io
import os
import sys
from contextlib import suppress
from typing import NoReturn

from regard.errors import InputError, MissingExtraError, RankError, RegardError

__all__ = ["main"]

_INTERRUPTED = 130


def main() -> None:
    """Run `regard`; what goes wrong on purpose is one sentence and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that knows ASCII only shows ? and stops nothing
    written = ""
    try:
        _run()
    except OSError:
        written = "\n"  # a line break that `_flush` cannot write shows that standard output is what failed
        raise
    finally:
        _flush(written)


def _run() -> None:
    try:
        try:
            from regard.cli.app import app
        except ImportError as missing:
            if missing.name and missing.name.partition(".")[0] in ("typer", "rich", "click"):
                raise MissingExtraError(missing.name, "cli") from missing
            raise
        _check_arguments()
        app()
    except RegardError as problem:
        print(f"regard: {problem}", file=sys.stderr)
        if isinstance(problem, RankError):  # the interpreter would wait for what the rank owes, gloo for half an hour
            sys.stderr.flush()
            os._exit(2)
        sys.exit(2)
    except KeyboardInterrupt:
        _interrupted()
    except SystemExit as ended:
        if ended.code == _INTERRUPTED:  # typer turns Ctrl-C into it and says nothing
            _interrupted()
        raise


def _flush(written: str) -> None:
    """Write this and what standard output still holds, and end with a sentence where it cannot be written."""
    try:
        if sys.stdout is not None:  # None: it was closed before
            sys.stdout.write(written)
            sys.stdout.flush()
        return
    except OSError as problem:
        reason = problem
    with suppress(OSError, ValueError):  # the interpreter flushes it again, and would complain in its own words
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if reason.errno == errno.EPIPE:  # whoever reads has seen enough
        sys.exit(1)
    print(f"regard: standard output cannot be written: {reason.strerror or reason}", file=sys.stderr)
    sys.exit(2)


def _check_arguments() -> None:
    """Refuse an argument that is no text, unless it is the name of something on the disk, which may be any bytes."""
    for one in sys.argv[1:]:
        if any("\ud800" <= letter <= "\udfff" for letter in one) and not os.path.exists(one):
            shown = os.fsencode(one)[:60].decode(errors="backslashreplace")
            raise InputError(f"the argument {shown} is no UTF-8 text: convert it, for example with iconv")


def _interrupted() -> NoReturn:
    print("regard: interrupted; no file was left half-written", file=sys.stderr)
    sys.exit(_INTERRUPTED)
