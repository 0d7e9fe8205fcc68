"""What is done with each line of a file, in worker processes: an atlas of it, or the scores of every head on it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from regard.files import write_atomically
from regard.heads.scores import HeadScores, PerHead
from regard.interpret.head_scores import Probe, probe_scores, read, text_rows, watched
from regard.interpret.look import look, model_identity, prepare
from regard.interpret.model_loading import advice, load_model
from regard.interpret.text_queue import TextFolder
from regard.record.atlas import save_atlas
from regard.render.csv_and_npz_files import npz

__all__ = ["LookLines", "ScoreLines", "join_scores"]

_TOKENS, _ROWS = "tokens", " rows"


class LookLines:
    """Saves an atlas of each line, as `look(line, model=, out=)` does.

    Args:
        lines: The texts, by their numbers.
        model: The name of a model.
        options: Further arguments of `look`.
    """

    def __init__(self, lines: Mapping[int, str], model: str, options: Mapping[str, Any]) -> None:
        self._lines, self._loaded, self._options = lines, load_model(model), options
        self.identity = model_identity(self._loaded)

    def __call__(self, number: int) -> tuple[Callable[[Path], None], str | None]:
        """Run the model on a line."""
        looked = look(self._lines[number], model=self._loaded, **self._options)
        return lambda path: save_atlas((looked.record,), path), looked.warning


class ScoreLines:
    """Saves, for each line, the sums of every head's scores over its rows; as number 0 the scores on random tokens.

    Args:
        lines: The texts, by their numbers, from 1.
        model: The name of a model.
    """

    def __init__(self, lines: Mapping[int, str], model: str) -> None:
        self._lines, self._loaded = lines, read(model)
        self.identity = model_identity(self._loaded)

    def __call__(self, number: int) -> tuple[Callable[[Path], None], str | None]:
        """Run the model on a line."""
        if number == 0:
            return _writer(probe_scores(self._loaded, Probe())), None
        line = self._lines[number]
        record = watched(prepare(line, model=self._loaded))
        arrays: dict[str, npt.NDArray[Any]] = {_TOKENS: np.array(record.layers[0].queries)}
        for name, rows in text_rows(record).items():
            arrays |= {name: rows.sum(-1), name + _ROWS: np.array(rows.shape[-1])}
        return _writer(arrays), advice(self._loaded, line)


def _writer(arrays: Mapping[str, npt.NDArray[Any]]) -> Callable[[Path], None]:
    return lambda path: write_atomically(path, npz(arrays))


def join_scores(texts: TextFolder, model: str) -> HeadScores:
    """Return the scores of all lines: means over their rows together, added in the order of the file.

    Raises:
        FileNotFoundError: The folder is gone.
    """
    sums: dict[str, PerHead] = {}
    rows: dict[str, int] = {}
    tokens = 0
    for number in sorted(texts.finished() - texts.reasons().keys() - {0}):
        with np.load(texts.result(number)) as found:
            tokens += found[_TOKENS].item()
            for name in [one for one in found.files if one + _ROWS in found.files]:
                sums[name] = sums[name] + found[name] if name in sums else found[name]
                rows[name] = rows.get(name, 0) + found[name + _ROWS].item()
    scores = {name: one / rows[name] if rows[name] else np.full(one.shape, np.nan) for name, one in sums.items()}
    with np.load(texts.result(0)) as found:
        scores |= {name: found[name] for name in found.files}
    return HeadScores(model, scores, tokens, str(Probe()))
