"""What a run of training is made of, as frozen values; `reading.py` makes them from a file and the command line."""

import math
from dataclasses import dataclass, field
from typing import Literal

from regard.data.tokenizer import LARGEST_VOCABULARY
from regard.errors import InputError
from regard.models.recurrent.config import AttentionKind
from regard.nn.block_base import Norm
from regard.nn.feed_forward import Activation
from regard.train.schedules import Noam, Schedule

__all__ = [
    "CausalLanguage",
    "Checkpoint",
    "Classification",
    "Config",
    "MaskedLanguage",
    "Model",
    "Optimizer",
    "Recurrent",
    "Run",
    "Synthetic",
    "Task",
    "Transformer",
    "Translation",
    "Words",
]

Precision = Literal["fp32", "bf16", "fp16"]

# The largest counts that mean anything; what fits into the memory of this machine, `sizes.py` knows.
_ROWS, _LONGEST, _WIDEST, _DEEPEST = 10**9, 2**20, 2**20, 10_000


def _least(name: str, value: int, least: int) -> None:
    if value < least:
        raise InputError(f"`{name}` must be at least {least}, got {value}")


def _at_most(value: object, **most: int) -> None:
    """Refuse a count that is a slip of the finger, before something loops over it or reserves memory for it."""
    for name, largest in most.items():
        if (found := getattr(value, name)) is not None and found > largest:
            raise InputError(f"`{name}` must be at most {largest:,}, got {found:,}")


def _between(name: str, value: float, low: float, high: float, *, least: bool = False) -> None:
    if not (low < value < high or (least and value == low)):
        raise InputError(f"`{name}` must be {'at least' if least else 'above'} {low} and below {high}, got {value}")


@dataclass(frozen=True, kw_only=True)
class Words:
    """How texts become tokens: what a vocabulary is trained as.

    Args:
        kind: "bpe", "unigram" or "characters"; "characters" is what Chinese, Japanese and Korean ask for.
        size: Number of tokens at most.
        lowercase: Whether capital letters are made small ones.
    """

    kind: Literal["bpe", "unigram", "characters"] = "bpe"
    size: int = 8000
    lowercase: bool = False

    def __post_init__(self) -> None:
        _least("size", self.size, 8)
        _at_most(self, size=LARGEST_VOCABULARY)


@dataclass(frozen=True, kw_only=True)
class Translation:
    """Sentence pairs: the first column is read, the second written.

    Args:
        data: TSV, JSON Lines (`source`, `target`) or gzip of these.
        also: A further file of pairs, all of which are trained on.
        held_out: Pairs kept for evaluation; none of their sources is trained on.
        source, target: Languages as ISO 639-1 codes; the metric's tokenizer depends on the target.
        script: What Chinese is written in, in the data and in what is said: "hans", "hant", or as it comes.
        source_words, target_words: Vocabularies; a target in Chinese, Japanese or Korean has characters by default.
        longest: Tokens of either side; longer pairs are left out and counted.
        shown: How many held-out sentences are translated and shown at each evaluation.
        scored: How many of them are translated for BLEU at each evaluation; all of them at the end.
    """

    data: str
    also: str | None = None
    held_out: int = 1000
    source: str = "en"
    target: str = "zh"
    script: Literal["hans", "hant"] | None = None
    source_words: Words = Words()
    target_words: Words | None = None
    longest: int = 128
    shown: int = 3
    scored: int = 200

    def __post_init__(self) -> None:
        for name, least in (("held_out", 1), ("longest", 2), ("shown", 0), ("scored", 0)):
            _least(name, getattr(self, name), least)
        _at_most(self, held_out=_ROWS, longest=_LONGEST, shown=_ROWS, scored=_ROWS)

    @property
    def written_words(self) -> Words:
        """The target's vocabulary."""
        spaced = self.target not in ("zh", "ja", "ko")
        return self.target_words or (Words() if spaced else Words(kind="characters"))


@dataclass(frozen=True, kw_only=True)
class Synthetic:
    """A task whose answers are known: "copy", "reverse", "sort", or "recall" of the value beside a key.

    Args:
        task: Which one.
        symbols: How many different ones.
        shortest, longest: Their number in a text; for "recall", pairs of key and value.
        examples, held_out: Texts that are trained on and others.
    """

    task: Literal["copy", "reverse", "sort", "recall"]
    symbols: int = 16
    shortest: int = 3
    longest: int = 20
    examples: int = 20000
    held_out: int = 500

    def __post_init__(self) -> None:
        for name, least in (("symbols", 2), ("shortest", 1), ("examples", 1), ("held_out", 1)):
            _least(name, getattr(self, name), least)
        _least("longest", self.longest, self.shortest)
        _at_most(self, symbols=LARGEST_VOCABULARY, longest=_LONGEST, examples=_ROWS, held_out=_ROWS)


@dataclass(frozen=True, kw_only=True)
class CausalLanguage:
    """The next token of running text.

    Args:
        data: Plain text, JSON Lines (`text`) or gzip of these; a line is a document.
        held_out: Documents kept for evaluation.
        words: The vocabulary; a checkpoint brings its own.
        length: Tokens in a row of a batch.
        packed: Documents are packed into rows, none of which sees another; else the text is cut where a row is full.
    """

    data: str
    held_out: int = 200
    words: Words = Words()
    length: int = 128
    packed: bool = False

    def __post_init__(self) -> None:
        _least("held_out", self.held_out, 1)
        _least("length", self.length, 2)
        _at_most(self, held_out=_ROWS, length=_LONGEST)


@dataclass(frozen=True, kw_only=True)
class MaskedLanguage:
    """Tokens hidden in a text (Devlin et al. 2019, arXiv:1810.04805): of 15 %, 80 % masked, 10 % random, 10 % kept.

    Args:
        data: As for a causal language model.
        held_out: Documents kept for evaluation.
        words: The vocabulary; a checkpoint brings its own.
        length: Tokens in a row of a batch.
        share: How many tokens are asked for.
    """

    data: str
    held_out: int = 200
    words: Words = Words()
    length: int = 128
    share: float = 0.15

    def __post_init__(self) -> None:
        _least("held_out", self.held_out, 1)
        _least("length", self.length, 2)
        _at_most(self, held_out=_ROWS, length=_LONGEST)
        _between("share", self.share, 0, 1)


@dataclass(frozen=True, kw_only=True)
class Classification:
    """Texts with labels: TSV of text and label, or JSON Lines with `text` and `label`.

    Args:
        data: The file.
        held_out: Texts kept for evaluation.
        words: The vocabulary; a checkpoint brings its own.
        longest: Tokens; a longer text is cut, and those are counted.
    """

    data: str
    held_out: int = 200
    words: Words = Words()
    longest: int = 128

    def __post_init__(self) -> None:
        _least("held_out", self.held_out, 1)
        _least("longest", self.longest, 2)
        _at_most(self, held_out=_ROWS, longest=_LONGEST)


Task = Translation | Synthetic | CausalLanguage | MaskedLanguage | Classification


@dataclass(frozen=True, kw_only=True)
class Transformer:
    """A Transformer from scratch; names as in `models.TransformerConfig`.

    Args:
        layers: Blocks of each side that the task needs: encoder and decoder to translate, one of them else.
        positions: What tells a model where a token stands.
    """

    width: int = 256
    heads: int = 4
    hidden: int = 1024
    layers: int = 3
    kv_heads: int | None = None
    positions: Literal["sinusoidal", "learned", "buckets", "slopes", "clipped", "rope", "none"] = "sinusoidal"
    norm: Norm = "layer"
    norm_first: bool = True
    activation: Activation = "relu"
    dropout: float = 0.1

    def __post_init__(self) -> None:
        for name in ("width", "heads", "hidden", "layers"):
            _least(name, getattr(self, name), 1)
        if self.kv_heads is not None:
            _least("kv_heads", self.kv_heads, 1)
        _at_most(self, width=_WIDEST, heads=_WIDEST, hidden=_WIDEST, layers=_DEEPEST, kv_heads=_WIDEST)
        if self.width % self.heads:
            nearest = max(1, round(self.width / self.heads)) * self.heads
            raise InputError(
                f"`width` must be a multiple of `heads`, got {self.width} and {self.heads}: take {nearest}, for example"
            )


@dataclass(frozen=True, kw_only=True)
class Recurrent:
    """A GRU or LSTM encoder–decoder; names as in `models.RecurrentConfig`, where `attention` may be "none"."""

    width: int = 256
    hidden: int = 256
    layers: int = 1
    cell: Literal["gru", "lstm"] = "gru"
    attention: AttentionKind | Literal["none"] = "bahdanau"
    bidirectional: bool = True
    dropout: float = 0.1

    def __post_init__(self) -> None:
        for name in ("width", "hidden", "layers"):
            _least(name, getattr(self, name), 1)
        _at_most(self, width=_WIDEST, hidden=_WIDEST, layers=_DEEPEST)


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A model to go on from: a folder, an id of the hub, or a bundled model (minilm, smollm2, me5)."""

    name: str
    dropout: float | None = None


Model = Transformer | Recurrent | Checkpoint


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101); matrices alone are decayed.

    Args:
        rate: The learning rate at its highest.
        schedule: What it is multiplied by at each step.
        betas, eps, decay: AdamW's.
        clip: The gradient's norm at most; 0 for no limit.
        smoothing: Label smoothing: this share of the target is spread over the vocabulary.
    """

    rate: float = 1e-3
    schedule: Schedule = field(default_factory=Noam)
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-9
    decay: float = 0.01
    clip: float = 1.0
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        _between("rate", self.rate, 0, 10)
        _between("smoothing", self.smoothing, 0, 1, least=True)
        for beta in self.betas:
            _between("betas", beta, 0, 1, least=True)
        for name in ("eps", "decay"):
            _between(name, getattr(self, name), 0, math.inf, least=True)
        if not self.clip >= 0:  # nor is it nan
            raise InputError(f"`clip` must be at least 0, which is no limit, got {self.clip}")


@dataclass(frozen=True, kw_only=True)
class Run:
    """How long, in what pieces, and what is kept.

    Args:
        steps, epochs: When training ends; one of them.
        tokens: Of a batch, padding included, for each process and each part of a step.
        parts: How many parts a step has, whose gradients are added.
        precision: "bf16" and "fp16" compute in it where that is safe (autocast); weights stay in fp32.
        compiled: Whether the model goes through torch.compile.
        evaluate: Steps between evaluations, each of which is saved; None for every epoch.
        save: Steps between checkpoints besides; None for none.
        patience: Evaluations without improvement after which training ends; None to go on.
        metric: What improvement is measured by; None for the task's own.
        keep: How many of the last checkpoints are kept; the best one is kept besides.
        average: The model is the mean of so many of the last checkpoints that were evaluated; 1 for the best one.
        threads: Of the processor; None for PyTorch's choice. Sums depend on it in their last bits.
    """

    steps: int | None = None
    epochs: int | None = None
    tokens: int = 4096
    parts: int = 1
    precision: Precision = "fp32"
    compiled: bool = False
    evaluate: int | None = None
    save: int | None = None
    patience: int | None = None
    metric: str | None = None
    keep: int = 3
    average: int = 1
    threads: int | None = None

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise InputError("training ends after `steps` or after `epochs`: give one of them under [run]")
        for name in (
            "steps",
            "epochs",
            "tokens",
            "parts",
            "evaluate",
            "save",
            "patience",
            "keep",
            "average",
            "threads",
        ):
            if getattr(self, name) is not None:
                _least(name, getattr(self, name), 1)
        _at_most(self, steps=10**12, epochs=10_000, tokens=2**31, parts=10_000, threads=4096)
        if self.average > self.keep:
            raise InputError(
                f"`average` takes the last {self.average} checkpoints, and `keep` is {self.keep}: raise it"
            )


@dataclass(frozen=True, kw_only=True)
class Config:
    """A whole run.

    Args:
        out: The folder of the run: checkpoints, log, figure, and the model in the end.
        task: What is learned.
        model: What learns it.
        optimizer: How.
        run: How long.
        seed: Of the weights, the data's order, and dropout.
    """

    out: str
    task: Task
    run: Run
    model: Model = Transformer()
    optimizer: Optimizer = field(default_factory=Optimizer)
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.out.strip():
            raise InputError("`out` must name the folder of the run, got nothing")
        if not 0 <= self.seed < 2**31:
            raise InputError(f"`seed` must be from 0 to 2³¹ − 1, got {self.seed}")
