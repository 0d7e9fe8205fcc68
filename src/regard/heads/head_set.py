"""A set of attention heads that do one job, with a linear readout of their weights, kept as one small JSON file."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from regard.errors import InputError, MissingExtraError
from regard.files import printable, read_bytes, read_text, replace_files
from regard.heads.json_file import read_json_file, write_json_file
from regard.heads.scores import head_number

__all__ = ["HeadSet", "ReadoutScore"]

_FORMAT, _VERSION = "regard head set", 1
_LARGEST = 2**20  # bytes of a file; a model of 100 layers with 100 heads each needs half of it
_Z = 1.959963984540054  # the 97.5 % quantile of the normal distribution


@dataclass(frozen=True)
class ReadoutScore:
    """The accuracy of a readout on `num_examples` examples, with its 95 % interval."""

    accuracy: float
    confidence_interval: tuple[float, float]
    num_examples: int

    def __post_init__(self) -> None:
        """Check the numbers of a file."""
        numbers = (self.accuracy, *_floats("confidence_interval", self.confidence_interval))
        if not all(0 <= one <= 1 for one in numbers) or len(self.confidence_interval) != 2:
            raise InputError(
                f"a `ReadoutScore` needs an accuracy and two ends of an interval from 0 to 1, got {numbers}"
            )
        if type(self.num_examples) is not int or self.num_examples < 1:
            raise InputError(f"`num_examples` must be a number from 1, got {self.num_examples!r}")

    @classmethod
    def of(cls, num_correct: float, num_examples: int) -> "ReadoutScore":
        """Return the accuracy with Wilson's interval (Wilson 1927, 10.1080/01621459.1927.10502953).

        >>> print(ReadoutScore.of(10, 10))  # the lower end is n / (n + z²)
        1.00 (0.72 to 1.00, 10 examples)
        """
        share, z2 = num_correct / num_examples, _Z**2
        middle = (share + z2 / (2 * num_examples)) / (1 + z2 / num_examples)
        spread = _Z * math.sqrt(share * (1 - share) / num_examples + z2 / (4 * num_examples**2))
        spread /= 1 + z2 / num_examples
        return cls(share, (max(0.0, middle - spread), min(1.0, middle + spread)), num_examples)

    def __str__(self) -> str:
        low, high = self.confidence_interval
        return f"{self.accuracy:.2f} ({low:.2f} to {high:.2f}, {self.num_examples} examples)"


@dataclass(frozen=True)
class HeadSet:
    """Heads of one model that do one job, the strongest first, and what is known of them.

    `heads` are pairs (layer, head), counted from 0 within `stream`, a stream of a record or the pair of streams of
    cross-attention. `weights` are those of a linear readout, one per head, by default all alike: of several candidates,
    the readout chooses the one with the largest Σ_h weights[h] · p_h(candidate), where p_h is the weight that head h
    gives it. `head_scores` is what each head was chosen by, its weight on the right keys. `method` says how the heads
    were found, `model` and `fingerprint` in which model (see `regard.find_heads`).

    `held_out` is the accuracy of the readout on examples that neither chose the heads nor fitted their weights,
    `chance` that of guessing. `shuffled_labels` is the accuracy of a readout that was fitted and tested with shuffled
    labels. Where the readout was fitted to the log-probabilities of answers without some of the documents,
    `correlation` is that of its scores with these, the mean over the same held-out examples. `threshold` is the mean
    over rows of the largest sum of a candidate, weighted by `strength_weights`, below which none seems right, if the
    examples had counterparts without a right one; `error_rate` is how often it was wrong on other pairs.

    Raises:
        InputError: There is no head, one is given twice or is no pair of numbers from 0, or a number does not fit.

    >>> chosen = HeadSet([(17, 3), (17, 4)])
    >>> chosen.names, chosen.weights
    (('17.3', '17.4'), (0.5, 0.5))
    """

    heads: tuple[tuple[int, int], ...]
    weights: tuple[float, ...] = ()
    job: str = ""
    stream: str | tuple[str, str] = "text"
    head_scores: tuple[float, ...] = ()
    method: str = ""
    model: str = ""
    fingerprint: str = ""
    correlation: float | None = None
    held_out: ReadoutScore | None = None
    shuffled_labels: ReadoutScore | None = None
    chance: float | None = None
    threshold: float | None = None
    error_rate: float | None = None

    def __post_init__(self) -> None:
        """Bring lists to tuples, and check all fields."""
        heads = _pairs(self.heads)
        object.__setattr__(self, "heads", heads)
        weights = _floats("weights", self.weights) or (1 / len(heads),) * len(heads)
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "head_scores", _floats("head_scores", self.head_scores))
        for name, found in (("weights", self.weights), ("head_scores", self.head_scores)):
            if found and len(found) != len(heads):
                raise InputError(f"`{name}` must be a number per head, {len(heads)} of them, got {len(found)}")
        object.__setattr__(self, "stream", _stream(self.stream))
        for name in ("job", "method", "model", "fingerprint"):
            if not isinstance(found := getattr(self, name), str):
                raise InputError(f"`{name}` must be a text, got {found!r}")
        for name in ("held_out", "shuffled_labels"):
            if not isinstance(found := getattr(self, name), ReadoutScore | None):
                raise InputError(f"`{name}` must be a ReadoutScore or None, got {found!r}")
        limits = {"chance": (0, 1), "error_rate": (0, 1), "correlation": (-1, 1), "threshold": (-math.inf, math.inf)}
        for name, (least, most) in limits.items():
            if (given := getattr(self, name)) is not None and not least <= _floats(name, (given,))[0] <= most:
                raise InputError(f"`{name}` must be from {least} to {most}, got {given!r}")

    def __len__(self) -> int:
        """Return the number of heads."""
        return len(self.heads)

    @property
    def names(self) -> tuple[str, ...]:
        """The heads as LAYER.HEAD."""
        return tuple(head_number(*one) for one in self.heads)

    @property
    def strength_weights(self) -> tuple[float, ...]:
        """The weight of each head where it is asked whether anything was read at all: `head_scores` above 0, with the
        sum 1, because a head that prefers the right candidate gives little where there is none; else `weights`.
        """
        scores = [max(one, 0.0) for one in self.head_scores]
        return tuple(one / sum(scores) for one in scores) if sum(scores) > 0 else self.weights

    @property
    def control_failed(self) -> bool:
        """Whether the readout of shuffled labels is better than chance: its interval is above it."""
        if self.shuffled_labels is None or self.chance is None:
            return False
        return self.shuffled_labels.confidence_interval[0] > self.chance

    def check_model(self, fingerprint: str) -> None:
        """Refuse another model than the one in which the heads were found; sets without a fingerprint fit any.

        Raises:
            InputError: The fingerprint is another one.
        """
        if self.fingerprint and fingerprint != self.fingerprint:
            raise InputError(
                f"these heads were found in {self.model or 'another model'} (fingerprint {self.fingerprint}), and this "
                f"model has the fingerprint {fingerprint}: find them again with regard.find_heads, or use "
                'dataclasses.replace(heads, fingerprint="")'
            )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the set as one JSON file, whole or not at all; `HeadSet.load` reads it.

        Raises:
            InputError: It cannot be written.
        """
        content = {"format": _FORMAT, "version": _VERSION, **asdict(self)}
        write_json_file(Path(path), content)

    @property
    def alignment_heads(self) -> list[list[int]]:
        """The pairs [layer, head] as Whisper's `generation_config.alignment_heads` has them in transformers; vLLM and
        CTranslate2 read the same key.
        """
        return [list(one) for one in sorted(self.heads)]

    def save_duo_attention(
        self,
        folder: str | os.PathLike[str],
        *,
        num_hidden_layers: int,
        num_attention_heads: int,
        num_key_value_heads: int,
        sink_size: int = 128,
        recent_size: int = 256,
    ) -> None:
        """Save the set as a pattern of DuoAttention (Xiao et al. 2024, arXiv:2410.10819), which kvpress reads too.

        The folder gets `full_attention_heads.tsv`, a row for each layer with a number for each key–value head, and
        `config.json` with `sink_size` and `recent_size`. A key–value head has 0.5 + measure / 2, of the strongest of
        the query heads of the set that share it, and 0 if there is none: with the threshold 0.5, the heads of the set
        keep all keys.

        Raises:
            InputError: A head is not one of such a model, the folder cannot be written, or it has a `config.json` of
                something else, such as a model's.
        """
        if num_key_value_heads < 1 or num_attention_heads % num_key_value_heads:
            raise InputError(
                f"`num_attention_heads` must be a multiple of `num_key_value_heads`, got {num_attention_heads} and "
                f"{num_key_value_heads}"
            )
        rows = [[0.0] * num_key_value_heads for _ in range(num_hidden_layers)]
        measures = self.head_scores or (1.0,) * len(self)
        for (layer, head), measure in zip(self.heads, measures, strict=True):
            if layer >= num_hidden_layers or head >= num_attention_heads:
                raise InputError(
                    f"`heads` must be of a model of {num_hidden_layers} layers with {num_attention_heads} heads, got "
                    f"{head_number(layer, head)}"
                )
            shared = head * num_key_value_heads // num_attention_heads
            rows[layer][shared] = max(rows[layer][shared], 0.5 + min(max(measure, 0.0), 1.0) / 2)
        folder = Path(folder)
        _refuse_folder_of_something_else(folder)
        table = "".join("\t".join(f"{one:.6f}" for one in row) + "\n" for row in rows)
        sizes = {"sink_size": sink_size, "recent_size": recent_size}

        def write(draft: Path) -> None:
            (draft / "full_attention_heads.tsv").write_text(table, "utf-8")
            (draft / "config.json").write_text(json.dumps(sizes), "utf-8")

        replace_files(folder, write)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "HeadSet":
        """Return the set that `save` has saved.

        Raises:
            InputError: There is no such file, it is no head set, of another version, or damaged.
        """
        try:
            found = read_json_file(Path(path), _FORMAT, _VERSION, largest=_LARGEST, saved_by="HeadSet.save")
            return cls.from_dict({name: one for name, one in found.items() if name not in ("format", "version")})
        except InputError as problem:
            raise InputError(f"cannot read the head set {printable(path)}: {problem}") from None

    @classmethod
    def load_at2(cls, path: str | os.PathLike[str]) -> "HeadSet":
        """Return every head with its coefficient of AT2 (Cohen-Wang et al. 2025, arXiv:2504.13752).

        The file is safetensors with one tensor of shape (layers, heads). AT2's score of a part is Σ over layers and
        heads of coefficient · Σ_{j in part} weight(i, j), the mean over the tokens of the answer, where i is the
        position that predicts the token: that of `regard.sources` with these heads. A coefficient of 0 leaves its head
        out.

        Raises:
            InputError: There is no such file, it is of another format, or it is no such tensor.
            MissingExtraError: safetensors is not installed.
        """
        try:
            coefficients = _coefficients(Path(path))
        except InputError as problem:
            raise InputError(f"cannot read AT2's coefficients from {printable(path)}: {problem}") from None
        heads = tuple((int(layer), int(head)) for layer, head in np.argwhere(coefficients))
        weights = tuple(float(coefficients[one]) for one in heads)
        return cls(heads, weights, job="AT2", method=f"AT2's coefficients, {Path(path).name}")

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "HeadSet":
        """Return the set whose fields a JSON object has, checked.

        Raises:
            InputError: It lacks `heads`, or a field is unknown or does not fit.
        """
        if not isinstance(data, Mapping):
            raise InputError(f"it must be an object with `heads`, got {str(data)[:40]}")
        known = [one.name for one in fields(cls)]
        if unknown := sorted(data.keys() - set(known)):
            raise InputError(f"its keys must be {', '.join(known)}, got {unknown[0][:40]!r}")
        if "heads" not in data:
            raise InputError("it must have `heads`, a list of [layer, head]")
        scores = {name: _score(name, data[name]) for name in ("held_out", "shuffled_labels") if name in data}
        return cls(**{**data, **scores})


def _coefficients(path: Path) -> npt.NDArray[np.float64]:
    """Return the only tensor of a safetensors file, (layers, heads)."""
    try:
        from safetensors import SafetensorError
        from safetensors.numpy import load
    except ImportError as missing:
        raise MissingExtraError("safetensors", "models") from missing
    try:
        tensors = load(read_bytes(path, largest=_LARGEST))
    except InputError:
        raise
    except OSError as problem:
        raise InputError(problem.strerror or str(problem)) from None
    except (SafetensorError, KeyError, TypeError, ValueError) as problem:
        reason = " ".join(str(problem).split())[:100]
        raise InputError(f"it must be safetensors of float16, float32 or float64, got {reason}") from None
    shapes = {name: one.shape for name, one in tensors.items()}
    if len(shapes) != 1 or any(len(shape) != 2 or shape[0] < 2 for shape in shapes.values()):
        raise InputError(f"it must have one tensor of shape (layers, heads), from 2 layers, got {str(shapes)[:100]}")
    (found,) = (one.astype(np.float64) for one in tensors.values())
    if not np.isfinite(found).all() or not found.any():
        raise InputError("its coefficients must be finite, and not all 0")
    return np.asarray(found)


def _refuse_folder_of_something_else(folder: Path) -> None:
    """Refuse a path that is no folder, and one whose `config.json` another program needs."""
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise InputError(f"`folder` must be a folder, got the file {folder}")
    config = folder / "config.json"
    try:
        found = json.loads(read_text(config)) if os.path.exists(config) else {"sink_size": 0}
    except (OSError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or "sink_size" not in found:
        raise InputError(
            f"`folder` has a config.json of something else, which the pattern's would replace, got {folder}: name a "
            "folder of its own"
        )


def _score(name: str, given: Any) -> ReadoutScore | None:
    if given is None:
        return None
    wanted = {one.name for one in fields(ReadoutScore)}
    if not isinstance(given, Mapping) or given.keys() != wanted:
        raise InputError(f"`{name}` must be an object with {', '.join(sorted(wanted))}, got {str(given)[:60]}")
    interval = _floats("confidence_interval", given["confidence_interval"])
    accuracy = _floats("accuracy", (given["accuracy"],))[0]
    if len(interval) != 2:
        raise InputError(f"`confidence_interval` must be two numbers, got {len(interval)}")
    return ReadoutScore(accuracy, (interval[0], interval[1]), given["num_examples"])


def _pairs(given: Any) -> tuple[tuple[int, int], ...]:
    if isinstance(given, str) or not isinstance(given, Sequence) or not given:
        raise InputError(f"`heads` must be a list of pairs (layer, head), such as [(17, 3)], got {str(given)[:60]!r}")
    for one in given:
        whole = isinstance(one, Sequence) and len(one) == 2 and all(type(part) is int and part >= 0 for part in one)
        if not whole:
            raise InputError(f"`heads` must be pairs of a layer and a head, counted from 0, got {str(one)[:60]!r}")
    found = tuple((int(layer), int(head)) for layer, head in given)
    if len(set(found)) < len(found):
        twice = next(one for at, one in enumerate(found) if one in found[:at])
        raise InputError(f"`heads` must differ, got {head_number(*twice)} more than once")
    return found


def _floats(name: str, given: Any) -> tuple[float, ...]:
    fits = isinstance(given, Sequence) and not isinstance(given, str)
    if not fits or not all(type(one) in (int, float) and math.isfinite(one) for one in given):
        raise InputError(f"`{name}` must be finite numbers, got {str(given)[:60]!r}")
    return tuple(float(one) for one in given)


def _stream(given: Any) -> str | tuple[str, str]:
    if isinstance(given, str) and given:
        return given
    if isinstance(given, Sequence) and len(given) == 2 and all(isinstance(one, str) and one for one in given):
        return given[0], given[1]
    raise InputError(f"`stream` must be a name or a pair of names, got {str(given)[:60]!r}")
