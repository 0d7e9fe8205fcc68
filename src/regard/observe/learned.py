"""What was learned of a model: which modules attend in one kind of call of it, and how.

The first call of each kind is followed operator by operator (`following`). If all of its attention was heard at the
dispatcher (`listening`), later calls are only listened to, by any watch, as long as the model lives: what is heard is
looked up here. Another kind of call (other arguments, gradients, another implementation of attention) is followed too.
"""

import weakref
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, cast

import torch
from torch import Tensor, nn

__all__ = ["Attends", "Learned", "Script", "learned_of", "parts_of", "signature_of"]


@dataclass(frozen=True)
class Attends:
    """What one heard call was."""

    heads: int
    cross: bool | None  # whether keys have another source than queries; None if unknown
    is_other: bool  # whether its queries are made of other inputs than the ids of the model's call


@dataclass(eq=False)
class Script:
    """The attention of one kind of call, by the name of the module."""

    calls: dict[str, list[Attends]] = field(default_factory=lambda: defaultdict(list))  # in the order of its calls
    softmaxes: set[str] = field(default_factory=set)  # modules with a softmax that is no attention
    is_read_first: bool = False  # whether it begins with an embedding or an image's convolution, so that nothing before
    # these needs to be followed
    settings: Hashable = None  # those of its modules as it was learned
    is_heard: bool = True  # whether all of it was heard, so that nothing needs to be followed

    def settings_of(self, modules: Mapping[str, nn.Module]) -> Hashable:
        """Return what may settle which way the code of the modules takes that attend: numbers and names among their
        attributes, and the types of all others.
        """
        return tuple(
            tuple((key, value if isinstance(value, _PLAIN) else type(value)) for key, value in vars(module).items())
            for name in self.calls
            if (module := modules.get(name)) is not None
        )

    def find(self, name: str, turn: int, heads: int) -> Attends | None:
        """Return what a call is, the `turn`-th of its module in this pass; None if it does not fit.

        A module that did not attend before is taken for its neighbour in the list of layers, if these all agree.
        """
        calls = self.calls.get(name) or self._of_neighbours(name)
        if not calls:
            return None
        found = calls[turn] if turn < len(calls) else calls[-1] if len(set(calls)) == 1 else None
        return found if found is not None and found.heads == heads else None

    def has_softmax(self, name: str) -> bool:
        """Return whether a module, or its neighbour in the list of layers, has a softmax that is no attention."""
        pattern = _without_numbers(name)
        return name in self.softmaxes or any(_without_numbers(other) == pattern for other in self.softmaxes)

    def _of_neighbours(self, name: str) -> list[Attends] | None:
        pattern = _without_numbers(name)
        if pattern == name:
            return None
        alike = [calls for other, calls in self.calls.items() if _without_numbers(other) == pattern]
        return alike[0] if alike and all(one == alike[0] for one in alike) else None


_PLAIN = (bool, int, float, str, NoneType)


def _without_numbers(name: str) -> str:
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


class Learned:
    """The scripts of a model, by the kind of call, and what else of it settles how it attends."""

    def __init__(self, model: nn.Module) -> None:
        self.scripts: dict[Hashable, Script] = {}
        self.names = {id(module): name for name, module in model.named_modules()}
        self._by_name = {name: weakref.ref(module) for name, module in model.named_modules()}
        self.places: dict[str, Any] = {}  # of modules by their names, as `streams` finds them
        self._modules = [weakref.ref(one) for one in parts_of(model)]
        configs = (getattr(one, "config", None) for one in model.modules())
        self._configs = list({id(one): one for one in configs if one is not None}.values())

    def is_of(self, model: nn.Module) -> bool:
        """Return whether the model still consists of the same modules."""
        modules = list(parts_of(model))
        return len(modules) == len(self._modules) and all(
            known() is one for known, one in zip(self._modules, modules, strict=True)
        )

    def known(self, key: Hashable) -> Script | None:
        """Return the script of a kind of call, if the modules that attend in it have the settings that they had."""
        script = self.scripts.get(key)
        if script is not None and script.settings != script.settings_of(self._modules_of(script)):
            del self.scripts[key]
            return None
        return script

    def keep(self, key: Hashable, script: Script) -> None:
        """Keep what was learned of a kind of call."""
        if key not in self.scripts:
            script.settings = script.settings_of(self._modules_of(script))
            self.scripts[key] = script

    def _modules_of(self, script: Script) -> dict[str, nn.Module]:
        found = ((name, self._by_name[name]()) for name in script.calls if name in self._by_name)
        return {name: module for name, module in found if module is not None}

    def state_of(self, model: nn.Module) -> Hashable:
        """Return what settles which way the code of its modules takes, besides their arguments."""
        found = []
        for one in parts_of(model):
            own = one.__dict__
            hooks = len(own["_forward_hooks"]), len(own["_forward_pre_hooks"])
            found.append((own.get("training"), hooks, "forward" in own))
        return hash(tuple(found))

    @property
    def is_read_first(self) -> bool:
        """Whether all kinds of calls so far are heard from their beginning, and attend: where parts of the model are
        called one by one, what is between them matters too.
        """
        scripts = self.scripts.values()
        return bool(scripts) and all(one.is_heard and one.is_read_first and one.calls for one in scripts)

    def settings(self) -> Hashable:
        """Return the implementations of attention that the model's configurations name."""
        return tuple(getattr(one, "_attn_implementation", None) for one in self._configs)


def parts_of(model: nn.Module) -> Iterator[nn.Module]:
    """Yield a module and all in it, each once, in a fifth of the time that `modules` takes."""
    waiting, known = [model], {id(model)}
    while waiting:
        one = waiting.pop()
        yield one
        for part in one.__dict__["_modules"].values():
            if part is not None and id(part) not in known:
                known.add(id(part))
                waiting.append(part)


_learned: "weakref.WeakKeyDictionary[nn.Module, Learned]" = weakref.WeakKeyDictionary()


def learned_of(model: nn.Module) -> Learned:
    """Return what was learned of a model so far; nothing if its modules are others since."""
    known = _learned.get(model)
    if known is None or not known.is_of(model):
        known = _learned[model] = Learned(model)
    return known


def signature_of(name: str, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Hashable:
    """Return the kind of a call: what decides which way a module's code takes, but for the sizes of its tensors."""
    autocast = torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")
    modes = module.training, torch.is_inference_mode_enabled(), autocast
    return name, modes, tuple(map(_kind, args)), tuple((key, _kind(one)) for key, one in kwargs.items())


def _kind(one: Any) -> Hashable:
    if isinstance(one, Tensor):
        return type(one), one.dtype, one.ndim, one.requires_grad, one.is_nested
    if one is None or isinstance(one, bool | str):
        return one
    if isinstance(one, Mapping):
        return type(one), tuple((str(key), _kind(value)) for key, value in one.items())
    if isinstance(one, tuple | list):
        return type(one), tuple(map(_kind, one)) if len(one) < 8 else len(one)
    return cast(Hashable, type(one))
