"""Errors for models that cannot be watched, and for attention that was not recorded, each with a way out."""

import re
from collections import Counter
from collections.abc import Sequence

from torch import nn

from regard.record.missing_attention import Missing, missing_lines

__all__ = ["why_incomplete", "why_nothing"]


_ATTENTION = re.compile("att(entio)?n|transformer|bert|gpt", re.IGNORECASE)  # part of the name of a module's class
_SHOWN = 6  # maximum number of module classes listed in an error


def why_incomplete(model: nn.Module, missing: Sequence[Missing]) -> str:
    """Return which layers are missing from a record, and how to accept a partial one."""
    return (
        f"not all attention of this {type(model).__name__} could be seen: {'; '.join(missing_lines(missing))}; "
        "strict=False (--no-strict) keeps what was seen, and lists the rest in `seen.missing`"
    )


def why_nothing(model: nn.Module, calls_elsewhere: int = 0, missing: Sequence[Missing] = ()) -> str:
    """Return why no call was recorded, as far as it can be determined, and the way out."""
    if missing:
        return (
            f"no attention call of this {type(model).__name__} was seen inside the `with` block, as none that ran can "
            f"be: {'; '.join(missing_lines(missing))}. Where that is your code, let it call "
            "F.scaled_dot_product_attention or regard.attention instead"
        )
    if calls_elsewhere:
        return (
            f"no attention call was seen: this {type(model).__name__} was called in other threads only "
            f"({calls_elsewhere} times), and a watch sees the thread that opened it: call the model there, or open the "
            "watch in the thread that calls it"
        )
    implementation = getattr(getattr(model, "config", None), "_attn_implementation", None) or ""
    if "flash" in implementation or "flex" in implementation or "/" in implementation:
        return (
            f"no attention call was seen: this model runs {implementation!r}, which calls its kernel directly; load it "
            'with attn_implementation="sdpa" (or "regard") to watch it'
        )
    if any(one.is_meta for one in model.parameters()):
        return (
            "no attention was seen: this model is on the meta device, which has shapes and no numbers; load its weights"
        )
    unseen = f"no attention call of this {type(model).__name__} was seen inside the `with` block: call the model there"
    if not any(_ATTENTION.search(type(one).__name__) for one in model.modules()):
        return (
            f"{unseen}; if it was called, it seems to have no attention to see: it is made of {_parts(model)}. Where "
            "one of these is your own attention, let it call F.scaled_dot_product_attention or regard.attention"
        )
    return (
        f"{unseen}; if it was called, it computes attention where PyTorch shows no calls (flash-attn called directly, "
        "a function under torch.compile, TorchScript, a kernel of its own): let it call "
        "F.scaled_dot_product_attention or regard.attention instead"
    )


def _parts(model: nn.Module) -> str:
    """Return the classes of a model's innermost modules, the most frequent first."""
    kinds = Counter(type(one).__name__ for one in model.modules() if not any(one.children()))
    shown = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(_SHOWN))
    return shown + (f" and {len(kinds) - _SHOWN} other kinds" if len(kinds) > _SHOWN else "")
