"""Which masks hold tensors: what is planned for a mask may be kept only as long as nothing in it can change."""

from torch import Tensor

from regard.masks.base import Mask

__all__ = ["holders"]


def holders(value: object) -> list[Mask] | None:
    """List the masks in a mask that hold tensors of their own; None where it holds what may change without a trace.

    Raises:
        InputError: A mask's own tensor was changed in place.

    >>> from regard.masks import Causal, MaskMod
    >>> holders(Causal()), holders(~MaskMod(lambda batch, head, i, j: i == j)) is None
    ([], True)
    """
    if isinstance(value, Mask):
        names = getattr(value, "__dataclass_fields__", None)
        if names is None or not value.owns_tensors():
            return None
        parts = [getattr(value, name) for name in names]
        inner = [holders(one) for one in parts]
        own = [value] if any(isinstance(one, Tensor) for one in parts) else []
        return None if None in inner else own + [one for some in inner for one in some or []]
    if isinstance(value, tuple):
        return None if any(holders(one) is None for one in value) else []
    return [] if value is None or isinstance(value, Tensor | int | float | str) else None
