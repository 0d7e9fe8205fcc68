"""Dropout of weights that is a function of a seed and the place, so that nothing need be kept to repeat it.

keep(b, h, i, j) = hash(seed, b, h, i, j) ≥ p · 2³², and a weight that is kept is divided by 1 − p (Srivastava et al.
2014). Rows and columns are hashed apart, combined by exclusive or, and mixed by two rounds of multiply and shift
(the finalizer of MurmurHash3): three passes over a tile in 32-bit integers, and the same numbers for every tiling.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard.errors import InputError
from regard.torch_private import is_onnx_export

__all__ = ["Dropout"]


@dataclass(frozen=True, eq=False)
class Dropout:
    """Drop each weight with probability `p`, chosen by `seed`, a tensor of one int64 on the device of the call."""

    p: float
    seed: Int[Tensor, ""]

    @classmethod
    def of(cls, p: float, generator: torch.Generator | None, device: torch.device) -> "Dropout | None":
        """Draw a seed for one call, from the generator or PyTorch's own; None where nothing is dropped."""
        if isinstance(p, bool) or not isinstance(p, int | float) or not 0 <= p < 1:
            raise InputError(f"`dropout` is a probability from 0 to less than 1, got {p!r}")
        if p == 0:
            return None
        if is_onnx_export():
            raise InputError(
                "`dropout` draws by integer arithmetic that ONNX lacks: export the module after module.eval(), or pass "
                "dropout=0.0"
            )
        if generator is not None and not isinstance(generator, torch.Generator):
            raise InputError(f"`generator` must be a torch.Generator, got {type(generator).__name__}")
        where = device if generator is None else generator.device
        seed = torch.randint(-(2**62), 2**62, (), generator=generator, device=where)
        return cls(float(p), seed.to(device))

    def keep(
        self, batch: slice, heads: slice, rows: Int[Tensor, "*#items rows"], columns: Int[Tensor, "*#items columns"]
    ) -> Bool[Tensor, "batch heads *items rows columns"]:
        """Tell which weights are kept; rows and columns are indices of queries and keys, not positions."""
        bits = self.row_bits(batch, heads, rows)[..., None] ^ self.column_bits(columns)[..., None, :]
        bits.mul_(_TIMES[0])
        bits.bitwise_xor_(bits >> _SHIFT)  # the shift copies the sign, which leaves a bijection
        bits.mul_(_TIMES[1])
        return bits >= self.least_bits

    def row_bits(self, batch: slice, heads: slice, rows: Int[Tensor, "*#items rows"]) -> Int[Tensor, "..."]:
        """Hash sequences, heads and queries to int32 (batch, heads, *items, rows)."""
        device = self.seed.device
        b, h = (torch.arange(part.start, part.stop, device=device) for part in (batch, heads))
        heads_of = ((b[:, None] << 16) + h).reshape(b.shape[0], h.shape[0], *(1,) * rows.ndim)
        return _mixed((heads_of << 28) + rows.to(device) + self.seed)

    def column_bits(self, columns: Int[Tensor, "*#items columns"]) -> Int[Tensor, "*#items columns"]:
        """Hash keys to int32, for all sequences and heads."""
        return _mixed(columns.to(self.seed.device) + (self.seed >> 17))

    @property
    def least_bits(self) -> int:
        """The least mixed number, as a signed one of 32 bits, with which a weight is kept."""
        return int(self.p * 2**32) - 2**31


_TIMES = (0x85EBCA6B - 2**32, 0xC2B2AE35 - 2**32)  # odd multipliers of MurmurHash3's finalizer, as signed numbers
_SHIFT = 15


def _mixed(numbers: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """64 bits mixed (the finalizer of SplitMix64), of which the upper 32 are kept."""
    for times, shift in ((0xBF58476D1CE4E5B9, 30), (0x94D049BB133111EB, 27)):
        numbers = (numbers ^ ((numbers >> shift) & (2 ** (64 - shift) - 1))) * (times - 2**64)
    numbers = numbers ^ ((numbers >> 31) & (2**33 - 1))
    return (numbers >> 32).to(torch.int32)
