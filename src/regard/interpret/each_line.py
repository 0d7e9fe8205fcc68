"""What is done with each line of a file, in worker processes: an atlas of it, or the scores of every head on it.

torch and models are imported where they are used: in workers, which limit its threads before, and not in the process
that starts them.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from regard.files import write_atomically
from regard.heads.scores import HeadScores, PerHead
from regard.interpret.text_folder import TextFolder
from regard.record.atlas import save_atlas
from regard.render.csv_and_npz_files import npz

__all__ = ["LookLines", "ScoreLines", "join_scores"]

_TOKENS, _ROWS = "tokens", " rows"


class LookLines:
    """Saves an atlas of each line, as `look(line, model=, out=)` does.

    Args:
        model: The name of a model.
        options: Further arguments of `look`.
    """

    def __init__(self, model: str, options: Mapping[str, Any]) -> None:
        from regard.interpret.look import look, model_identity
        from regard.interpret.model_loading import load_model

        self._loaded, self._look, self._options = load_model(model), look, options
        self.identity = model_identity(self._loaded)

    def __call__(self, text: str | None) -> tuple[Callable[[Path], None], str | None]:
        """Run the model on a line."""
        assert text is not None
        looked = self._look(text, model=self._loaded, **self._options)
        return lambda path: save_atlas((looked.record,), path), looked.warning


class ScoreLines:
    """Saves, for each line, the sums of every head's scores over its rows; for None the scores on random tokens.

    Args:
        model: The name of a model.
    """

    def __init__(self, model: str) -> None:
        from regard.interpret.head_scores import read
        from regard.interpret.look import model_identity

        self._loaded = read(model)
        self.identity = model_identity(self._loaded)

    def __call__(self, text: str | None) -> tuple[Callable[[Path], None], str | None]:
        """Run the model on a line."""
        from regard.interpret.head_scores import Probe, probe_scores, text_rows, watched
        from regard.interpret.look import prepare
        from regard.interpret.model_loading import advice

        if text is None:
            return _writer(probe_scores(self._loaded, Probe())), None
        record = watched(prepare(text, model=self._loaded))
        arrays: dict[str, npt.NDArray[Any]] = {_TOKENS: np.array(record.layers[0].queries)}
        for name, rows in text_rows(record).items():
            arrays |= {name: rows.sum(-1), name + _ROWS: np.array(rows.shape[-1])}
        return _writer(arrays), advice(self._loaded, text)


def _writer(arrays: Mapping[str, npt.NDArray[Any]]) -> Callable[[Path], None]:
    return lambda path: write_atomically(path, npz(arrays))


def join_scores(texts: TextFolder, model: str) -> HeadScores:
    """Return the scores of all lines: means over their rows together, added in the order of the file."""
    from regard.interpret.head_scores import Probe

    sums: dict[str, PerHead] = {}
    rows: dict[str, int] = {}
    tokens = 0
    for number in sorted(texts.finished() - texts.reasons().keys() - {0}):
        with np.load(texts.result(number)) as line:
            tokens += line[_TOKENS].item()
            for name in [name for name in line.files if name + _ROWS in line.files]:
                sums[name] = sums[name] + line[name] if name in sums else line[name]
                rows[name] = rows.get(name, 0) + line[name + _ROWS].item()
    scores = {name: total / rows[name] if rows[name] else np.full(total.shape, np.nan) for name, total in sums.items()}
    with np.load(texts.result(0)) as probe:
        scores |= {name: probe[name] for name in probe.files}
    return HeadScores(model, scores, tokens, str(Probe()))
