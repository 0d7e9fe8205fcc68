"""The location of an attention module in its model: its stack of layers, its number there, and the tower of both."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn

__all__ = ["Place", "Places"]

_WORDS = {
    **dict.fromkeys(("vision", "visual", "visn", "image", "img", "pixel", "vit"), "image"),
    **dict.fromkeys(("audio", "speech", "acoustic"), "audio"),
    "video": "video",
    "multimodal": "multimodal",
    **dict.fromkeys(("qformer", "resampler", "perceiver"), "queries"),
    **dict.fromkeys(("text", "txt", "language", "lang", "llm", "lm"), "text"),
}
_TOWERS = ("image", "audio", "video")


@dataclass(frozen=True)
class Place:
    """The location of a call site, derived from its module's path and the modules around it."""

    path: str
    stack: str  # the module of its numbered layers; without one, the parent of the module
    layer: str  # its layer in the stack; without a stack, the module itself
    number: int | None = None  # number of this layer in the model
    count: int = 0  # number of layers in the stack
    tower: str | None = None  # "image", "text", ...: the encoded modality, if known
    named: bool = False  # whether the tower follows from a module's name instead of transformers' `input_modalities`
    role: str | None = None  # "encoder" or "decoder", the outermost of these
    run: int = 1  # number of runs of the stack in this pass so far
    depth: int | None = None  # number of layers according to the configuration

    @property
    def is_text(self) -> bool:
        """Whether no module's name assigns it to a tower other than a text's."""
        return not self.named or self.tower == "text"

    @property
    def own_streams(self) -> tuple[str, ...]:
        """The streams that its positions may belong to, before all layers are known, the likeliest first."""
        if not self.is_text:
            return (str(self.tower),)
        return ("source" if self.role == "encoder" else "target"), self.tower or "text"


class Places:
    """Finds the locations of modules in the tree of their model."""

    def __init__(self, model: nn.Module) -> None:
        self._modules = dict(model.named_modules(remove_duplicate=False))

    def of(self, path: str, entries: Mapping[int, int]) -> Place:
        """Return the location of the module with this path; `entries` is the number of calls of each module, by id."""
        parts = path.split(".") if path else []
        at = next((index for index, part in enumerate(parts) if part.isdigit()), None)
        above = parts[: max(len(parts) - 1, 0) if at is None else at]
        runs = (entries.get(id(self._at(above[:end])), 0) for end in range(1, len(above) + 1))
        depths = [getattr(getattr(one, "config", None), "num_hidden_layers", None) for one in self._up(parts)]
        number, count = (None, 0) if at is None else self._number(parts, at)
        tower, named = self._tower(above)
        return Place(
            path=path,
            stack=".".join(above),
            layer=path if at is None else ".".join(parts[: at + 1]),
            number=number,
            count=count,
            tower=tower,
            named=named,
            role=next((role for part in above if (role := _role(part))), None),
            run=max(1, *runs) if above else 1,
            depth=next((depth for depth in depths if isinstance(depth, int)), None),
        )

    def _at(self, parts: Sequence[str]) -> nn.Module | None:
        return self._modules.get(".".join(parts))

    def _up(self, parts: Sequence[str]) -> list[nn.Module]:
        """Return the modules that contain this one, the innermost first."""
        found = (self._at(parts[:end]) for end in range(len(parts), -1, -1))
        return [one for one in found if one is not None]

    def _number(self, parts: Sequence[str], at: int) -> tuple[int, int]:
        """Return the layer's number and the number of layers; in stages of blocks of one kind (Swin), blocks are
        counted.
        """
        number, stages = int(parts[at]), len(_children(self._at(parts[:at])))
        for inner in range(at + 1, len(parts)):
            kinds = [type(one) for one in _children(self._at(parts[:inner]))]
            if parts[inner].isdigit() and len(kinds) > 1 and len(set(kinds)) == 1:
                blocks = [
                    len(_children(self._at([*parts[:at], str(stage), *parts[at + 1 : inner]])))
                    for stage in range(stages)
                ]
                return sum(blocks[:number]) + int(parts[inner]), sum(blocks)
        return number, stages

    def _tower(self, above: Sequence[str]) -> tuple[str | None, bool]:
        """Return the modality of the innermost module that specifies one, and whether its name does."""
        for end in range(len(above), -1, -1):
            found = {_WORDS[word] for word in _words(above[end - 1]) if word in _WORDS} if end else set()
            if len(found) == 1:
                return found.pop(), True
            inputs = getattr(self._at(above[:end]), "input_modalities", None)
            kinds = [inputs] if isinstance(inputs, str) else list(inputs or ())
            if len(kinds) == 1 and kinds[0] in _TOWERS:
                return str(kinds[0]), False
        return None, False


def _children(module: nn.Module | None) -> list[nn.Module]:
    return [] if module is None else list(module.children())


def _words(part: str) -> list[str]:
    """Return the words of a module's name, `vision_tower` or `visionTower`."""
    return re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1_\2", part).lower())


def _role(part: str) -> str | None:
    found = {word for word in _words(part) if word in ("encoder", "decoder")}
    return found.pop() if len(found) == 1 else None
