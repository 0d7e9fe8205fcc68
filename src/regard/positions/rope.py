"""RoPE: queries and keys are turned by their positions, so that their product knows the distance alone."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.checks import are_integers, check_count, check_number
from regard.errors import InputError
from regard.positions.base import Rotary
from regard.positions.rope_config import read
from regard.positions.rope_scaling import LengthScaling, Scaling

__all__ = ["RoPE"]


@dataclass(frozen=True)
class RoPE(Rotary):
    """Each pair (a, b) of a vector's numbers is turned by the angle pω at position p.

    Formula: (a, b) → (a cos pω − b sin pω, a sin pω + b cos pω)

    Su et al. 2021, 3.2, arXiv:2104.09864, with ω_i = base^(−2i/d) radians a position for pair i. Only i − j matters: a
    shift of all positions changes no score.

    Args:
        dim: Width of queries and keys, of one head.
        base: θ, the ratio of the slowest wavelength to the fastest, about.
        interleaved: False pairs number i with i + d/2 (GPT-NeoX, Llama, Qwen, Gemma), True 2i with 2i + 1 (the
            paper, GPT-J, Cohere, GLM). A checkpoint works with its own alone.
        rotary_dim: How many of the first numbers are turned; the others stay as they are. All by default; GPT-NeoX
            turns a quarter. ω is that of a vector of this width: d = rotary_dim.
        scaling: How it is stretched to longer texts: LinearScaling, NTK, DynamicNTK, YaRN, LongRoPE or Llama3; or
            Proportional, which turns the fastest pairs only.
        mrope_section: How many pairs are turned by a token's temporal position, its row and its column, where
            `RoPE.at` has positions of shape (3, batch, keys) (Qwen2-VL: Wang et al. 2024, 2.1, arXiv:2409.12191). Texts
            have three equal positions, so that without such positions this changes nothing.
        mrope_interleaved: Whether pairs of the three kinds alternate (Qwen3-VL: t h w t h w … t t) instead of three
            runs of pairs (Qwen2-VL, GLM-4V).

    Angles are float32, as checkpoints were trained, and float64 for float64 vectors; narrower vectors are turned in
    float32 and rounded once.

    Cost: O((queries + keys) · dim) time and a turned copy of q and k; a plain product follows, which fused kernels run.

    Raises:
        InputError: A width is not even or not that of the vectors, the base, a flag or the scaling is none, or the
            scaling or the sections have another number of pairs.

    >>> turn = RoPE(2)
    >>> turn.rotate(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1]))
    tensor([[1.0000, 0.0000],
            [0.5403, 0.8415]])
    >>> RoPE(8, base=10000.0, rotary_dim=4).frequencies
    tensor([1.0000, 0.0100])
    """

    dim: int
    base: float = 10000.0
    interleaved: bool = False
    rotary_dim: int | None = None
    scaling: Scaling | None = None
    mrope_section: Sequence[int] | None = None
    mrope_interleaved: bool = False

    def __post_init__(self) -> None:
        check_count("dim", self.dim, 2, "is the width of a head")
        width, name = (self.dim, "dim") if self.rotary_dim is None else (self.rotary_dim, "rotary_dim")
        check_count(name, width, 2, "counts the numbers that are turned")
        if width % 2:
            raise InputError(
                f"`{name}` must be even, numbers are turned in pairs, got {width}: rotary_dim={max(2, width - 1)} "
                "turns the pairs there are"
            )
        if width > self.dim:
            raise InputError(f"`rotary_dim` must be at most the width of a head ({self.dim}), got {width}")
        check_number("base", self.base, "is the ratio of wavelengths", least=1.0)
        for name in ("interleaved", "mrope_interleaved"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"`{name}` must be True or False, got {getattr(self, name)!r}")
        if self.scaling is not None and not isinstance(self.scaling, Scaling):
            raise InputError(f"`scaling` must be one of regard.positions, such as YaRN, or None, got {self.scaling!r}")
        if self.scaling is not None:
            self.scaling.check(width // 2)
        if self.mrope_section is not None:
            object.__setattr__(self, "mrope_section", _check_section(self.mrope_section, width // 2))
            if isinstance(self.scaling, LengthScaling):
                raise InputError(
                    f"`mrope_section` and {type(self.scaling).__name__} do not go together: three positions of a token "
                    "have no length; choose another scaling, such as YaRN"
                )
        elif self.mrope_interleaved:
            raise InputError("`mrope_interleaved` is the order of `mrope_section`: give mrope_section=(t, h, w) too")

    @classmethod
    def from_transformers(cls, config: Any, *, interleaved: bool, layer_type: str | None = None) -> "RoPE":
        """Read a transformers configuration, by its new names (rope_parameters) or the old ones (rope_scaling).

        Args:
            config: A model's configuration; of a model with several parts that part's, such as config.text_config.
            interleaved: Configurations do not have it: False for Llama and most, True for GPT-J, Cohere, GLM.
            layer_type: Which layers, where they differ (Gemma 3: "full_attention" or "sliding_attention").

        Raises:
            InputError: It has no width, no base, or a type of RoPE that is not here.

        >>> from types import SimpleNamespace
        >>> from regard.positions import LinearScaling
        >>> old = SimpleNamespace(head_dim=8, rope_theta=500.0, rope_scaling={"type": "linear", "factor": 2.0})
        >>> RoPE.from_transformers(old, interleaved=False) == RoPE(8, base=500.0, scaling=LinearScaling(2.0))
        True
        """
        return cls(**read(config, layer_type), interleaved=interleaved)

    def at(self, position_ids: Int[Tensor, "*three #batch keys"]) -> "RoPEAt":
        """The same with positions of their own for each sequence, as left-padded batches and packed rows need them.

        `position_ids` have the shape (batch, keys), or (1, keys) for all sequences. They are the positions of all keys
        of the call, and the queries are the last of these positions. They have the same meaning as transformers'
        `position_ids`, except for DynamicNTK and LongRoPE: their length is that of each text, which ends where the next
        position is not larger, so that padding and other texts change nothing; transformers takes the longest text for
        all. With `mrope_section` they may have the shape (3, batch, keys): temporal position, row and column.

        Raises:
            InputError: They are no integers (batch, keys), or, in the call, not one for each key; or they are three for
                each key and there is no `mrope_section`.

        >>> turn, x = RoPE(2), torch.ones(1, 1, 2, 2)
        >>> turn.at(torch.tensor([[5, 6]])).rotate(x, torch.arange(2)).equal(turn.rotate(x, torch.tensor([5, 6])))
        True
        """
        return RoPEAt(self, position_ids)

    @property
    def frequencies(self) -> Float[Tensor, " pairs"]:
        """ω of each pair, in radians a position, after scaling (DynamicNTK, LongRoPE: within the original length)."""
        return self._frequencies(1, torch.device("cpu"), torch.float32)[0]

    def check(self, dim: int) -> None:
        """Raise where vectors have another width."""
        if dim != self.dim:
            raise InputError(
                f"`rotary` is made for vectors of width {self.dim}, got {dim} in q: RoPE({dim}), or "
                "rotary_dim=... to turn a part of them"
            )

    def resolve(self, queries: int, keys: int, q_offset: int) -> "RoPE":
        """Fix the length of a scaling that depends on it: queries and keys turn alike wherever the queries stand."""
        if isinstance(self.scaling, LengthScaling) and self.scaling.length is None:
            return replace(self, scaling=self.scaling.at_length(max(keys, q_offset + queries)))
        return self

    def rotate(
        self, x: Float[Tensor, "*leading n dim"], positions: Int[Tensor, " n"]
    ) -> Float[Tensor, "*leading n dim"]:
        """Turn each vector by its position; in the vectors' own type."""
        self.check(x.shape[-1])
        return self.turn(x, *self.angles(positions, x.dtype))

    def angles(
        self, positions: Int[Tensor, "*batch n"], dtype: torch.dtype, lengths: Int[Tensor, "*batch n"] | None = None
    ) -> tuple[Float[Tensor, "*batch n pairs"], Float[Tensor, "*batch n pairs"]]:
        """Cosine and sine of each position's angles, for vectors of a type; layers that turn alike can share them.

        `lengths` are those of the texts that positions are in, by default the last position + 1 for all. Positions
        (3, batch, n) are those of `mrope_section`.
        """
        wide = torch.promote_types(dtype, torch.float32)
        length = lengths if lengths is not None else positions.max() + 1 if positions.numel() else 1
        frequencies, sharpening = self._frequencies(length, positions.device, wide)
        angles = positions.to(wide)[..., None] * frequencies
        if self.mrope_section is not None and positions.ndim == 3:
            angles = angles.gather(0, self._sections(positions.device).expand(1, *angles.shape[1:]))[0]
        return angles.cos() * sharpening, angles.sin() * sharpening

    def doubled(self, cos: Tensor, sin: Tensor) -> tuple[Float[Tensor, "n width"], Float[Tensor, "n width"]]:
        """Angles for both halves of a vector at once: the sine of the first is negative; interleaved ones stay."""
        if self.interleaved:
            return cos, sin
        return torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)

    def turn(
        self,
        x: Float[Tensor, "*leading n dim"],
        cos: Float[Tensor, "*#leading n pairs"],
        sin: Float[Tensor, "*#leading n pairs"],
    ) -> Float[Tensor, "*leading n dim"]:
        """Turn each vector by angles that are known.

        For halves they may come `doubled`, as wide as what is turned: half the operations on a small step.
        """
        width = self.dim if self.rotary_dim is None else self.rotary_dim
        turned, rest = (x, None) if width == x.shape[-1] else (x[..., :width], x[..., width:])
        turned = turned.to(cos.dtype)
        if not self.interleaved and cos.shape[-1] == width:
            a, b = turned.chunk(2, -1)
            turned = torch.addcmul(turned * cos, torch.cat([b, a], -1), sin)
        elif not self.interleaved:
            a, b = turned.chunk(2, -1)
            turned = torch.cat([a * cos - b * sin, a * sin + b * cos], -1)
        else:
            a, b = turned[..., ::2], turned[..., 1::2]
            turned = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
        turned = turned.to(x.dtype)
        return turned if rest is None else torch.cat([turned, rest], -1)

    def _sections(self, device: torch.device) -> Int[Tensor, " pairs"]:
        """Which of a token's three positions turns each pair."""
        assert self.mrope_section is not None
        if not self.mrope_interleaved:
            sizes = torch.tensor(self.mrope_section, device=device)
            return torch.arange(3, device=device).repeat_interleave(sizes, output_size=sum(self.mrope_section))
        section = torch.zeros(sum(self.mrope_section), dtype=torch.int64, device=device)
        for kind in (1, 2):
            section[kind : 3 * self.mrope_section[kind] : 3] = kind
        return section

    def _frequencies(
        self, length: Int[Tensor, "*batch"] | int, device: torch.device, dtype: torch.dtype
    ) -> tuple[Tensor, float]:
        width = self.dim if self.rotary_dim is None else self.rotary_dim
        plain = 1.0 / self.base ** (torch.arange(0, width, 2, dtype=dtype, device=device) / width)
        return (plain, 1.0) if self.scaling is None else self.scaling(plain, self.base, length)


@dataclass(frozen=True, eq=False)
class RoPEAt(Rotary):
    """RoPE by positions that each sequence has for itself; `RoPE.at` makes it."""

    rotary: RoPE
    position_ids: Int[Tensor, "*three #batch keys"]

    def __post_init__(self) -> None:
        ids: object = self.position_ids
        if not isinstance(ids, Tensor) or not are_integers(ids) or not (ids.ndim == 2 or self._are_three(ids)):
            got = f"{ids.dtype} of shape {tuple(ids.shape)}" if isinstance(ids, Tensor) else type(ids).__name__
            sections = "" if self.rotary.mrope_section is None else " or (3, batch, keys)"
            way_out = "write position_ids[None] for positions that all sequences share"
            if isinstance(ids, Tensor) and ids.ndim == 3 and not sections:
                way_out = "three positions for each token need RoPE(..., mrope_section=(t, h, w))"
            raise InputError(f"`position_ids` must be integers (batch, keys){sections}, got {got}: {way_out}")

    def _are_three(self, ids: Tensor) -> bool:
        return self.rotary.mrope_section is not None and ids.ndim == 3 and ids.shape[0] == 3

    def check(self, dim: int) -> None:
        """Raise where vectors have another width."""
        self.rotary.check(dim)

    def resolve(self, queries: int, keys: int, q_offset: int) -> "RoPEAt":
        """Check that there is a position for each key and that the queries are among them."""
        if self.position_ids.shape[-1] != keys or q_offset < 0:
            raise InputError(
                f"`position_ids` must be (batch, {keys}), one for each key, of which the {queries} queries are the "
                f"last, got {tuple(self.position_ids.shape)}"
            )
        return self

    def rotate(
        self, x: Float[Tensor, "batch heads n dim"], positions: Int[Tensor, " n"]
    ) -> Float[Tensor, "batch heads n dim"]:
        """Turn each vector by what stands at its place in `position_ids`."""
        self.check(x.shape[-1])
        if x.ndim != 4 or 1 != self.position_ids.shape[-2] != x.shape[0]:
            raise InputError(
                f"`position_ids` must be (batch, keys) with the batch of q, k and v ({x.shape[0]}) or 1, got "
                f"{tuple(self.position_ids.shape)}"
            )
        here = positions.to(self.position_ids.device)
        lengths = None
        if isinstance(self.rotary.scaling, LengthScaling):
            lengths = _lengths_of_texts(self.position_ids)[:, here].to(x.device)
        cos, sin = self.rotary.angles(self.position_ids[..., here].to(x.device), x.dtype, lengths)
        return self.rotary.turn(x, cos[:, None], sin[:, None])


def _check_section(section: object, pairs: int) -> tuple[int, ...]:
    """Give the numbers of pairs of the three kinds as a tuple."""
    sizes = tuple(section) if isinstance(section, Sequence) else ()
    counts = all(isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in sizes)
    if len(sizes) != 3 or not counts or sum(sizes) != pairs:
        raise InputError(
            "`mrope_section` must be three numbers of pairs (temporal, row, column) whose sum is that of the pairs "
            f"that are turned ({pairs}), got {section!r}"
        )
    return sizes


def _lengths_of_texts(position_ids: Int[Tensor, "batch keys"]) -> Int[Tensor, "batch keys"]:
    """The last position + 1 of the text that each position is in; one that is not above the last begins a text."""
    is_first = torch.arange(position_ids.shape[1], device=position_ids.device) == 0
    begins = is_first | (position_ids <= position_ids.roll(1, 1))
    text = begins.long().cumsum(1) - 1
    last = torch.zeros_like(position_ids).scatter_reduce(1, text, position_ids, "amax")
    return last.gather(1, text) + 1
