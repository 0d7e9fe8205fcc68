"""The command line: one file a command, all talk here, and nothing computed."""

import sys

from regard.errors import MissingExtraError, RegardError

__all__ = ["main"]


def main() -> None:
    """Run `regard`; what goes wrong on purpose is one sentence and exit code 2."""
    try:
        try:
            from regard.cli.app import app
        except ImportError as missing:
            if missing.name and missing.name.partition(".")[0] in ("typer", "rich", "click"):
                raise MissingExtraError(missing.name, "cli") from missing
            raise
        app()
    except RegardError as problem:
        print(f"regard: {problem}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("regard: interrupted; nothing was left half-written", file=sys.stderr)
        sys.exit(130)
