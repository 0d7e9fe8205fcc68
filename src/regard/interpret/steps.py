"""A head of a real model worked out step by step: the row of one token in what was captured of the head."""

from dataclasses import dataclass

from regard.capture.steps import CapturedHead, Worked, work_captured
from regard.capture.token_row import TokenRow, token_row

__all__ = ["HeadSteps", "head_steps"]

WHOLE = 512  # up to so many keys every row is worked out; of longer texts the chosen row alone


@dataclass(frozen=True, eq=False)
class HeadSteps:
    """A head worked out, the row in it that was asked for, and the token of that row."""

    worked: Worked
    row: int
    token: TokenRow


def head_steps(captured: CapturedHead, token: str | None = None) -> HeadSteps:
    """Work out a captured head for one token (see `token_row`), which by default is the last one that is not special.

    Of a text of more than 512 tokens only that token's row is worked out.

    Raises:
        InputError: the text has no such token.
    """
    tokens = captured.query_tokens or captured.tokens[-len(captured.queries) :]
    found = token_row(tokens, token, first=captured.position(0))
    if len(captured.keys) > WHOLE:
        return HeadSteps(work_captured(captured.row(found.row)), 0, found)
    return HeadSteps(work_captured(captured), found.row, found)
