"""Compute a head of a real model step by step, for the row of one token, from its captured q, k and v."""

from dataclasses import dataclass

from regard.capture.steps import CapturedHead, Worked, work_captured
from regard.capture.token_row import TokenRow, token_row

__all__ = ["HeadSteps", "head_steps"]

WHOLE = 512  # up to this number of keys every row is computed; for longer texts only the chosen row


@dataclass(frozen=True, eq=False)
class HeadSteps:
    """The steps of a head, the row shown, and its token."""

    worked: Worked
    row: int
    token: TokenRow


def head_steps(captured: CapturedHead, token: str | None = None) -> HeadSteps:
    """Compute the steps of a captured head for one token (see `token_row`), by default the last one that is not
    special.

    For a text of more than 512 tokens only that token's row is computed.

    Raises:
        InputError: the text has no such token.
    """
    tokens = captured.query_tokens or captured.tokens[-len(captured.queries) :]
    found = token_row(tokens, token, first=captured.position(0))
    if len(captured.keys) > WHOLE:
        return HeadSteps(work_captured(captured.row(found.row)), 0, found)
    return HeadSteps(work_captured(captured), found.row, found)
