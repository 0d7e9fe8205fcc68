"""How RoPE is stretched to texts longer than those of training: each rule changes the frequencies."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.checks import check_count, check_number, is_number
from regard.errors import InputError

__all__ = [
    "NTK",
    "DynamicNTK",
    "LengthScaling",
    "LinearScaling",
    "Llama3",
    "LongRoPE",
    "Proportional",
    "Scaling",
    "YaRN",
]


class Scaling:
    """A frozen value that changes RoPE's frequencies."""

    def check(self, pairs: int) -> None:
        """Raise an InputError where it has numbers for another number of pairs."""

    def __call__(
        self, frequencies: Float[Tensor, " pairs"], base: float, length: Int[Tensor, "*batch"] | int
    ) -> tuple[Float[Tensor, " pairs"], float]:
        """Give the new frequencies (radians a position, fastest first) and the factor on cosine and sine.

        `frequencies` are base^(−2i/d), and `length` is the last position + 1.
        """
        raise NotImplementedError  # each scaling defines it


class LengthScaling(Scaling):
    """A scaling that depends on the length of the text: a dataclass with the field `length`, which fixes it."""

    length: int | None

    def at_length(self, length: int) -> Self:
        """Give the same for texts of this length, unless a length is fixed already."""
        return replace(self, length=length) if self.length is None else self  # type: ignore[type-var]

    def _tokens(self, length: Int[Tensor, "*batch"] | int, frequencies: Tensor) -> Int[Tensor, "*batch"]:
        """The length that counts, on the device of the frequencies."""
        tokens = length if self.length is None else self.length
        if isinstance(tokens, Tensor):
            return tokens.to(frequencies.device)
        return torch.full((), tokens, dtype=torch.int64, device=frequencies.device)  # also of a compiler's symbol


@dataclass(frozen=True)
class LinearScaling(Scaling):
    """ω / factor: positions are interpolated (Chen et al. 2023, arXiv:2306.15595).

    Cost: none beside RoPE's: dim/2 frequencies are changed once a call.

    >>> LinearScaling(4.0)(torch.tensor([1.0, 0.1]), 100.0, 8)
    (tensor([0.2500, 0.0250]), 1.0)
    """

    factor: float

    def __post_init__(self) -> None:
        _check_factor(self.factor)

    def __call__(self, frequencies: Tensor, base: float, length: Tensor | int) -> tuple[Tensor, float]:
        """Divide all alike."""
        return frequencies / self.factor, 1.0


@dataclass(frozen=True)
class NTK(Scaling):
    """base · factor^(d/(d−2)): the fastest pair stays as it is, the slowest turns `factor` times slower ("NTK-aware").

    bloc97 2023; Peng et al. 2023, 3.1, arXiv:2309.00071. Pair i of d/2 turns factor^(i/(d/2 − 1)) times slower.

    Cost: none beside RoPE's: dim/2 frequencies are changed once a call.

    >>> NTK(4.0)(torch.tensor([1.0, 0.1, 0.01]), 1000.0, 8)
    (tensor([1.0000, 0.0500, 0.0025]), 1.0)
    """

    factor: float

    def __post_init__(self) -> None:
        _check_factor(self.factor)

    def __call__(self, frequencies: Tensor, base: float, length: Tensor | int) -> tuple[Tensor, float]:
        """Slow each pair a little more than the one before it."""
        return _slowed(frequencies, frequencies.new_tensor(self.factor)), 1.0


@dataclass(frozen=True)
class DynamicNTK(LengthScaling):
    """NTK by factor · L/P − (factor − 1): pairs turn slower, the longer the text (emozilla 2023).

    L is the length if it exceeds the length P of training; up to P nothing changes. Queries and keys must be rotated
    for the same L. regard.attention does this if the queries are the last positions. A cache keeps keys as they were
    turned: beyond P, keys keep the L of the call that added them, as in transformers' `generate`, and outputs differ
    from those of the whole text at once. To avoid this, go without a cache, or fix L with `length`.

    Args:
        factor: s; at L = P it is not felt, at L = 2P it slows by s + 1.
        original_max_position_embeddings: P, in tokens.
        length: L, in tokens; the last position + 1 by default, with `RoPE.at` that of each text.

    Cost: none beside RoPE's: dim/2 frequencies are changed once a call.

    >>> DynamicNTK(2.0, original_max_position_embeddings=8)(torch.tensor([1.0, 0.1]), 100.0, 8)
    (tensor([1.0000, 0.1000]), 1.0)
    >>> DynamicNTK(2.0, original_max_position_embeddings=8)(torch.tensor([1.0, 0.1]), 100.0, 20)
    (tensor([1.0000, 0.0250]), 1.0)
    """

    factor: float
    original_max_position_embeddings: int
    length: int | None = None

    def __post_init__(self) -> None:
        _check_factor(self.factor)
        _check_original(self.original_max_position_embeddings)
        if self.length is not None:
            check_count("length", self.length, 1, "counts tokens")

    def __call__(self, frequencies: Tensor, base: float, length: Tensor | int) -> tuple[Tensor, float]:
        """Slow the pairs for the length at hand."""
        trained = self.original_max_position_embeddings
        share = self._tokens(length, frequencies).clamp(min=trained).to(frequencies.dtype)[..., None] / trained
        return _slowed(frequencies, self.factor * share - (self.factor - 1)), 1.0


@dataclass(frozen=True)
class YaRN(Scaling):
    """Slow pairs are interpolated, fast ones kept, with a ramp between; and the scores sharpened.

    Formula: ω · (γ + (1 − γ)/factor)

    Peng et al. 2023, 3.2–3.4, arXiv:2309.00071: γ falls from 1 at the pair that turns `beta_fast` times in the original
    length to 0 at the one that turns `beta_slow` times. Cosine and sine are multiplied by `attention_factor`, so the
    scores by its square.

    Args:
        factor: s, how many times longer the texts are.
        original_max_position_embeddings: Length in training, in tokens.
        beta_fast: Turns at which, and above which, a pair is kept.
        beta_slow: Turns at which, and below which, a pair is interpolated.
        attention_factor: 0.1 · ln s + 1 by default. DeepSeek's mscale and mscale_all_dim are the quotient of two such.
        truncate: Begin and end the ramp at whole pairs, as the authors' code does; GPT-OSS does not.

    Cost: none beside RoPE's: dim/2 frequencies are changed once a call.

    >>> scaling = YaRN(4.0, original_max_position_embeddings=64, beta_fast=8, beta_slow=1)
    >>> scaling(torch.tensor([1.0, 0.1, 0.01]), 1000.0, 8)
    (tensor([1.0000, 0.0625, 0.0025]), 1.138629436111989)
    """

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        _check_factor(self.factor)
        _check_original(self.original_max_position_embeddings)
        check_number("beta_slow", self.beta_slow, "counts turns")
        check_number("beta_fast", self.beta_fast, "counts turns, more than `beta_slow`,", least=self.beta_slow)
        if self.attention_factor is not None:
            check_number("attention_factor", self.attention_factor, "multiplies cosine and sine")

    def __call__(self, frequencies: Tensor, base: float, length: Tensor | int) -> tuple[Tensor, float]:
        """Mix the frequencies as they are with the interpolated ones."""
        pairs = frequencies.shape[0]
        first, last = (
            pairs * math.log(self.original_max_position_embeddings / (turns * 2 * math.pi)) / math.log(base)
            for turns in (self.beta_fast, self.beta_slow)
        )
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, 2 * pairs - 1)
        steps = torch.arange(pairs, dtype=frequencies.dtype, device=frequencies.device)
        # The authors' 0.001 keeps a ramp without width from dividing by zero.
        ramp = ((steps - first) / (0.001 if first == last else last - first)).clamp(0, 1)
        sharpening = 0.1 * math.log(self.factor) + 1 if self.attention_factor is None else self.attention_factor
        return frequencies / self.factor * ramp + frequencies * (1 - ramp), sharpening


@dataclass(frozen=True)
class LongRoPE(LengthScaling):
    """Each pair is slowed by a factor of its own, which is another one beyond the length of training.

    Formula: ω_i / λ_i

    Ding et al. 2024, arXiv:2402.13753, and Phi-3 (Abdin et al. 2024, arXiv:2404.14219). Cosine and sine are multiplied
    by `attention_factor` at every length.

    A text has one set of factors for all its positions: regard.attention, and `RoPE.at` for each text, choose it by
    the last position. A cache keeps keys as they were turned. If a text grows beyond
    `original_max_position_embeddings` while it is decoded with a cache, the keys before keep the short factors and new
    queries and keys have the long ones, as in a forward pass of transformers with `past_key_values`: outputs after
    this step differ from those of the whole text at once. To avoid this, run on the whole text again with a new cache
    at this step (transformers' `Phi3ForCausalLM.generate` does), or fix `length` for the whole text.

    Args:
        factor: s, how many times longer the texts are.
        short_factor: λ of each pair, fastest first, of texts of at most `original_max_position_embeddings` tokens.
        long_factor: λ of each pair of longer texts.
        original_max_position_embeddings: P, the length in training, in tokens; at least 2.
        attention_factor: √(1 + ln s / ln P) by default.
        length: The length of the text, in tokens; the last position + 1 by default, with `RoPE.at` that of each text.

    Cost: none beside RoPE's: dim/2 frequencies are changed once a call.

    >>> scaling = LongRoPE(16.0, short_factor=(1.0, 2.0), long_factor=(1.0, 20.0), original_max_position_embeddings=4)
    >>> scaling(torch.tensor([1.0, 0.1]), 100.0, 4)
    (tensor([1.0000, 0.0500]), 1.7320508075688772)
    >>> scaling(torch.tensor([1.0, 0.1]), 100.0, 5)[0]
    tensor([1.0000, 0.0050])
    """

    factor: float
    short_factor: Sequence[float]
    long_factor: Sequence[float]
    original_max_position_embeddings: int
    attention_factor: float | None = None
    length: int | None = None

    def __post_init__(self) -> None:
        _check_factor(self.factor)
        what = "is the length in training and"
        check_count("original_max_position_embeddings", self.original_max_position_embeddings, 2, what)
        for name in ("short_factor", "long_factor"):
            object.__setattr__(self, name, _check_factors(name, getattr(self, name)))
        if len(self.short_factor) != len(self.long_factor):
            raise InputError(
                "`short_factor` and `long_factor` must have a number for each pair, got "
                f"{len(self.short_factor)} and {len(self.long_factor)}"
            )
        if self.attention_factor is not None:
            check_number("attention_factor", self.attention_factor, "multiplies cosine and sine")
        if self.length is not None:
            check_count("length", self.length, 1, "counts tokens")

    def check(self, pairs: int) -> None:
        """Raise where there are factors for another number of pairs."""
        if len(self.short_factor) != pairs:
            raise InputError(
                f"`short_factor` and `long_factor` must have a number for each of the {pairs} pairs that are turned, "
                f"got {len(self.short_factor)}: rotary_dim={2 * len(self.short_factor)} turns as many"
            )

    def __call__(self, frequencies: Tensor, base: float, length: Tensor | int) -> tuple[Tensor, float]:
        """Divide by the factors of the length at hand."""
        short, long = (frequencies.new_tensor(factors) for factors in (self.short_factor, self.long_factor))
        is_long = self._tokens(length, frequencies)[..., None] > self.original_max_position_embeddings
        sharpening = self.attention_factor
        if sharpening is None:
            sharpening = math.sqrt(1 + math.log(self.factor) / math.log(self.original_max_position_embeddings))
        return frequencies / torch.where(is_long, long, short), sharpening


@dataclass(frozen=True)
class Proportional(Scaling):
    """The fastest pairs are turned, the slowest not at all (p-RoPE); all may be interpolated.

    Formula: ω_i / factor for i < partial_rotary_factor · d/2, else 0

    Barbero et al. 2025, arXiv:2410.06205; Gemma 4. Unlike `rotary_dim`, it leaves ω and the pairs of the whole
    width d.

    Args:
        partial_rotary_factor: p, the share of the pairs that are turned, from 0 to 1; rounded down to whole pairs.
        factor: s, how many times longer the texts are.

    Cost: none beside RoPE's: dim/2 frequencies are changed once a call.

    >>> Proportional(0.5)(torch.tensor([1.0, 0.1, 0.01, 0.001]), 10000.0, 8)
    (tensor([1.0000, 0.1000, 0.0000, 0.0000]), 1.0)
    """

    partial_rotary_factor: float
    factor: float = 1.0

    def __post_init__(self) -> None:
        if not is_number(self.partial_rotary_factor) or not 0 <= self.partial_rotary_factor <= 1:
            raise InputError(
                "`partial_rotary_factor` is the share of the pairs that are turned and must be a number from 0 to 1, "
                f"got {self.partial_rotary_factor!r}"
            )
        _check_factor(self.factor)

    def __call__(self, frequencies: Tensor, base: float, length: Tensor | int) -> tuple[Tensor, float]:
        """Stop the slowest pairs."""
        pairs = frequencies.shape[0]
        turned = int(self.partial_rotary_factor * 2 * pairs // 2)
        steps = torch.arange(pairs, device=frequencies.device)
        return torch.where(steps < turned, frequencies / self.factor, 0.0), 1.0


@dataclass(frozen=True)
class Llama3(Scaling):
    """Three bands by turns in the original length: fast pairs are kept, slow ones divided, between them blended.

    Llama 3.1 (Dubey et al. 2024, arXiv:2407.21783, and its code): with t = original_max_position_embeddings · ω / 2π
    turns and γ = (t − low_freq_factor) / (high_freq_factor − low_freq_factor) clipped to [0, 1].

    Formula: ω · (γ + (1 − γ) / factor)

    Cost: none beside RoPE's: dim/2 frequencies are changed once a call.

    >>> scaling = Llama3(4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=100)
    >>> scaling(torch.tensor([1.0, 0.157, 0.01]), 1000.0, 8)
    (tensor([1.0000, 0.0981, 0.0025]), 1.0)
    """

    factor: float = 8.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192

    def __post_init__(self) -> None:
        _check_factor(self.factor)
        check_number("low_freq_factor", self.low_freq_factor, "counts turns")
        check_number(
            "high_freq_factor",
            self.high_freq_factor,
            "counts turns, more than `low_freq_factor`,",
            least=self.low_freq_factor,
        )
        _check_original(self.original_max_position_embeddings)

    def __call__(self, frequencies: Tensor, base: float, length: Tensor | int) -> tuple[Tensor, float]:
        """Blend the frequencies as they are with the interpolated ones."""
        turns = self.original_max_position_embeddings * frequencies / (2 * math.pi)
        low, high = self.low_freq_factor, self.high_freq_factor
        kept = ((turns - low) / (high - low)).clamp(0, 1)
        return frequencies * kept + frequencies / self.factor * (1 - kept), 1.0


def _slowed(frequencies: Tensor, factor: Tensor) -> Tensor:
    """(base · factor^(d/(d−2)))^(−2i/d) = base^(−2i/d) · factor^(−i/(d/2 − 1))."""
    pairs = frequencies.shape[0]
    steps = torch.arange(pairs, dtype=frequencies.dtype, device=frequencies.device)
    return frequencies * factor ** (-steps / max(pairs - 1, 1))


def _check_factor(factor: float) -> None:
    check_number("factor", factor, "says how many times longer the texts are", least=1.0, included=True)


def _check_original(length: int) -> None:
    if isinstance(length, bool) or not isinstance(length, int) or length < 1:
        raise InputError(
            "`original_max_position_embeddings` is the length in training and must be an integer above 0, got "
            f"{length!r}"
        )


def _check_factors(name: str, factors: object) -> tuple[float, ...]:
    """Give a sequence of finite numbers above 0 as a tuple."""
    if not isinstance(factors, Sequence) or not all(is_number(value) and 0 < value < 2**62 for value in factors):
        raise InputError(f"`{name}` must be a finite number above 0 for each pair, got {factors!r}")
    return tuple(float(value) for value in factors)
