"""Numbers as the page of a lesson writes them."""

import pytest

from chromium import needs_chromium
from lessons.page_functions import call, page_functions

pytestmark = [pytest.mark.browser, needs_chromium]


@pytest.fixture(scope="module")
def functions():
    with page_functions() as tab:
        yield tab


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1, "1"), (0, "0"), (-1, "−1"), (0.5, "0.5"), (2 / 3, "0.667"), (-2.8284271, "−2.83"), (1024, "1024"),
        (1e-43, "1e−43"), (2e7, "2e7"), (0.000125, "0.000125"),
        (0.99975, "0.9998"), (0.9996, "0.9996"), (0.99995, "0.99995"), (-0.99975, "−0.9998"), (1.0002, "1.0002"),
        (0.9999999, "0.9999999"), (0.998, "0.998"), (0.9994, "0.999"),
        (1 - 2**-53, "1"), (1 + 2**-52, "1"),  # what rounding leaves of 1
    ],
)  # fmt: skip
def test_what_is_not_1_or_0_is_not_written_so(functions, value: float, text: str) -> None:
    assert call(functions, "format", value) == text
