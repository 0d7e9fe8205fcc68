"""Buffers that are computed from sizes, and that no checkpoint holds."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

__all__ = ["ComputedBuffers"]


class ComputedBuffers(nn.Module):
    """A module whose buffers `make_buffers` computes: anew where `to_empty` gives a module of "meta" its memory.

    `load_state_dict` then fills the parameters alone, and no number would be in the buffers.
    """

    def make_buffers(self) -> None:
        """Compute and register the buffers, on the default device."""
        raise NotImplementedError

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        had_numbers = not any(one.is_meta for one in self.buffers(recurse=False))
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if not had_numbers:
            empty = dict(self.named_buffers(recurse=False))
            self.make_buffers()
            for name, one in empty.items():
                setattr(self, name, getattr(self, name).to(one.device, one.dtype))
        return self
