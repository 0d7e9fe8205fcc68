"""What holds for every test: what this machine lacks is said at the start, and CI allows no skip."""

import gc
import importlib
import os
import shutil
from importlib import util
from pathlib import Path

import pytest
from hypothesis import settings

from shared_folders import make_once

# No test may depend on an idle machine.
settings.register_profile("regard", deadline=None)
settings.load_profile("regard")

os.environ["MPLBACKEND"] = "Agg"  # where there is a screen, pyplot would wait for its window to be closed

_SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
_LACKING = {
    "Chromium (apt-get install chromium)": lambda: not Path("/usr/bin/chromium").exists(),
    "a C++ compiler (apt-get install g++)": lambda: shutil.which("g++") is None,
    "Playwright (pip install playwright)": lambda: util.find_spec("playwright") is None,
    "the Tatoeba sample (../shared/data)": lambda: not (_SHARED / "tatoeba-eng-cmn.tsv").exists(),
    "the extras (pip install -c constraints.txt -e '.[all]')": lambda: util.find_spec("transformers") is None,
}


_LONGEST = "test_whole.py"  # minutes that no other process could share at the end of a run


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest, so that the other processes have the rest to do beside it."""
    items.sort(key=lambda item: item.path.name != _LONGEST)


def pytest_collection_finish() -> None:
    """Take what was imported and collected out of the garbage collector, which takes a second to look through it."""
    gc.collect()
    gc.freeze()


def pytest_report_header() -> list[str]:
    """Say with a word what is missing before its tests are skipped."""
    return [f"missing here, so that tests will be skipped: {what}" for what, lacks in _LACKING.items() if lacks()]


@pytest.fixture(scope="session")
def chinese_font() -> None:
    """What a test needs that draws Chinese: a font of the system, or the one that `regard models get` installs."""
    from regard.errors import ObservationError
    from regard.render.fonts import FONT, fonts_for

    if FONT.find() is None:
        try:
            fonts_for("貓鼠ネコ")
        except ObservationError:
            pytest.skip("no font has Chinese characters: regard models get font")


@pytest.fixture(scope="session")
def small_translator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of the translator of the examples, which stays in the cache folder: one process trains it for all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).resolve().parents[1] / "examples")
        example = importlib.import_module("train_a_small_translator")
    make_once(tmp_path_factory, "small-translator", lambda _: example.translator())
    return example.FOLDER / "run"


def pytest_sessionfinish(session: pytest.Session) -> None:
    """With CI=true a skipped test is a failed one."""
    if _forbidden_skips(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say why a run without a failure has failed."""
    if skips := _forbidden_skips(config):
        terminalreporter.write_line(f"CI allows no skip, and {skips} were skipped: install what they lack", red=True)


def _forbidden_skips(config: pytest.Config) -> int:
    """How many tests, or modules of tests, were skipped where none may be.

    Instructions that the processor lacks cannot be installed: machines of CI differ in them.
    """
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("CI") != "true" or reporter is None:
        return 0
    skipped = reporter.stats.get("skipped", ())
    return sum(": the processor has no " not in str(report.longrepr) for report in skipped)
