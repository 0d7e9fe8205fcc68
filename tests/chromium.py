"""Chromium for the tests that need it: whether it is here, how it starts, and the address that a page has written."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
needs_chromium = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"Chromium is not installed at {CHROMIUM}")


@contextmanager
def chromium() -> Iterator:
    """A browser, closed in the end."""
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


def rest(tab, milliseconds: int) -> None:
    """Wait by a timer of the page: of two timers the later one never fires first, however busy the machine."""
    tab.evaluate("time => new Promise(wake => setTimeout(wake, time))", milliseconds)


def address(tab) -> str:
    """The hash of a page's address, once it follows the view.

    The page writes it 150 ms after it is drawn (render/page/view.js). `tab.url` may be older: it comes by an event.
    """
    rest(tab, 300)
    return tab.evaluate("location.hash")


def view(tab) -> dict[str, str]:
    """Return the view that the page's address specifies."""
    return dict(part.split("=", 1) for part in address(tab).removeprefix("#").split("&"))


def visit(tab, old: str, new: str) -> None:
    """Change the page's address as a reader would who edits it."""
    before = address(tab)
    assert old in before
    tab.evaluate("hash => { location.hash = hash; }", before.replace(old, new))
