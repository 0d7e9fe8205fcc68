"""score_heads_for_pairs(): find the heads that attend from one given word to another, over many sentences."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from regard.errors import InputError
from regard.heads.change_loss_and_pairs import PairScores, WordPair
from regard.heads.patterns import is_causal
from regard.hub import Loaded
from regard.interpret.head_scores import by_number, read
from regard.interpret.look import prepare
from regard.interpret.watch import watch
from regard.record.places import find_places
from regard.record.records import Record
from regard.record.tokens import Token

__all__ = ["pair_of", "score_heads_for_pairs"]


def score_heads_for_pairs(
    pairs: Sequence[str],
    sentences: Sequence[str],
    *,
    model: str | Loaded | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> PairScores:
    """Measure the weight of each head from one word on another, and its variation over sentences.

    The weight of a sentence is the mean over the subwords of the source and the sum over the subwords of the target. If
    a word occurs several times, the weight is the mean over the occurrences of the source and the sum over those of the
    target. In a causal model only occurrences of the source after a target count.

    Args:
        pairs: Pairs of words, such as "it>animal".
        sentences: Sentences with both words of a pair; the number of others is reported.
        model: A bundled model, a Hugging Face folder or id, or a loaded model; by default it is chosen by the text's
            language.
        progress: Called with the number of finished sentences and the total number.

    Raises:
        InputError: A pair is invalid, no sentence has its words, or the model does not exist.
    """
    found = [_Collected(*pair_of(pair)) for pair in pairs]
    if not found:
        raise InputError('`pairs` must name two words at least, such as "it>animal"')
    lines = [line.strip() for line in sentences if line.strip()]
    if not lines:
        raise InputError("there are no sentences: write some, one a line, that have both words of a pair")
    loaded = read(model, "\n".join(lines))
    unused = 0
    for number, line in enumerate(lines, 1):
        unused += not _take(line, found, loaded)
        if progress is not None:
            progress(number, len(lines))
    return PairScores(loaded.name, tuple(one.pair(loaded.name) for one in found), len(lines), unused)


def _take(line: str, found: Sequence["_Collected"], loaded: Loaded) -> bool:
    """Process one sentence for the pairs whose words it has, and return whether there is such a pair."""
    prepared = prepare(line, model=loaded)
    tokens = prepared.tokens["text"][0]
    wanted = [one for one in found if one.takes(tokens)]
    if wanted:
        with watch(loaded.model, keep="weights") as seen:
            prepared.run()
        for one in wanted:
            one.add(seen.record, tokens)
    return bool(wanted)


def pair_of(text: str) -> tuple[str, str]:
    """Return the two words of "it>animal".

    >>> pair_of("it>animal"), pair_of("它 → 貓")
    (('it', 'animal'), ('它', '貓'))
    """
    parts = [part.strip() for part in text.replace("→", ">").replace("＞", ">").split(">")]
    if len(parts) != 2 or not all(parts):
        raise InputError(f'a pair must be two words with > between them, such as "it>animal", got {text!r}')
    if parts[0].casefold() == parts[1].casefold():
        raise InputError(f"a pair must be two different words, got {text!r}: the score `same` looks for equal ones")
    return parts[0], parts[1]


@dataclass(eq=False)
class _Collected:
    """The results of one pair so far."""

    source: str
    target: str
    weights: list[npt.NDArray[np.float64]] = field(default_factory=list)
    even: list[float] = field(default_factory=list)
    missing: int = 0
    later: int = 0

    def takes(self, tokens: Sequence[Token]) -> bool:
        """Return whether a sentence has both words, and count it if not."""
        both = bool(find_places(tokens, self.source)) and bool(find_places(tokens, self.target))
        self.missing += not both
        return both

    def add(self, record: Record, tokens: Sequence[Token]) -> None:
        """Add the weights of one sentence that has both words."""
        sources, targets = (
            [place.positions for place in find_places(tokens, name)] for name in (self.source, self.target)
        )
        causal, keys = all(map(is_causal, record.layers)), record.layers[0].keys
        if causal:
            sources = [one for one in sources if min(targets)[-1] < one[0]]
        if not sources:
            self.later += 1
            return
        columns = sorted({piece for one in targets for piece in one})
        of_sources = [_weights(record, one, columns) for one in sources]
        self.weights.append(np.mean(of_sources, axis=0))
        rows = [row for one in sources for row in one]
        shares = [sum(key <= row for key in columns) / (row + 1) if causal else len(columns) / keys for row in rows]
        self.even.append(float(np.mean(shares)))

    def pair(self, model: str) -> WordPair:
        """Return the result."""
        if not self.weights:
            later = f", and in {self.later} of them the second only comes later, where {model} cannot look"
            raise InputError(
                f"no sentence shows {self.source!r} looking at {self.target!r}: {self.missing} lack one of the words"
                f"{later if self.later else ''}; write some that have both, one a line"
            )
        weights = np.stack(self.weights)
        return WordPair(self.source, self.target, weights, float(np.mean(self.even)), self.missing, self.later)


def _weights(record: Record, rows: Sequence[int], columns: Sequence[int]) -> npt.NDArray[np.float64]:
    """Return the mean over the rows of the sum over the columns, of shape (layers, heads), NaN where a layer has fewer
    heads.
    """
    most = max(layer.heads for layer in record.layers)
    found = np.full((len(record.layers), most), np.nan)
    for number, layer in enumerate(record.layers):
        assert layer.weights is not None  # every weight is stored
        found[number, : layer.heads] = layer.weights[0][:, list(rows)][:, :, list(columns)].sum(-1).mean(-1)
    return by_number(found, record)
