"""What a conversion between PyTorch's modules and these cannot carry, and is refused by name."""

from collections.abc import Iterable, Mapping

import torch
from torch import nn
from torch.nn.utils import parametrize

from regard.errors import InputError

__all__ = ["check_convertible", "check_untied", "copied_parameter", "copy_training", "fill"]

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_NOT_COMPUTING = {"extra_repr", "from_torch", "reset_parameters", "_reset_parameters", "to_torch"}
_PARAMETER_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def check_convertible(name: str, module: object, kind: type[nn.Module]) -> None:
    """Raise unless `module` computes what its kind does, so that its tensors are all that has to be copied.

    A subclass may add attributes and have a constructor of its own.

    Raises:
        InputError: It is of another kind, overrides a method, is parametrized or has hooks.
    """
    if not isinstance(module, kind):
        got = type(module)
        path = got.__name__ if got.__name__ != kind.__name__ else f"{got.__module__}.{got.__name__}"
        way = ": put a plain one there first, of a quantized layer's numbers dequantized" if "." in name else ""
        raise InputError(f"`{name}` must be an {_name(kind)}, got {path}{way}")
    if parametrize.is_parametrized(module):
        raise InputError(
            f"`{name}` is parametrized ({', '.join(module.parametrizations)}), and its tensors are only what these are "  # type: ignore[arg-type]
            "computed from: call torch.nn.utils.parametrize.remove_parametrizations first"
        )
    overridden = _overridden(module, kind)
    if overridden:
        raise InputError(
            f"`{name}` must compute what {_name(kind)} does, and {type(module).__name__} overrides "
            f"{', '.join(f'`{method}`' for method in sorted(overridden))}, which is no tensor to copy: convert a plain "
            f"{_name(kind)} with its state dict, and override it there"
        )
    if any(getattr(module, hooks) for hooks in _HOOKS):
        raise InputError(
            f"`{name}` has hooks, which a copy would not have ({type(module).__name__}; pruning and the old weight "
            "norm work by hooks too): remove them first (handle.remove(), torch.nn.utils.prune.remove or "
            "torch.nn.utils.remove_weight_norm), and register them on the copy"
        )
    for parameter_name, parameter in module.named_parameters(recurse=False):
        if any(getattr(parameter, hooks, None) for hooks in _PARAMETER_HOOKS):
            raise InputError(
                f"`{name}.{parameter_name}` has hooks, which a copy would not have: remove them first, and register "
                "them on the copy"
            )


def _name(kind: type[nn.Module]) -> str:
    return f"nn.{kind.__name__}" if kind.__module__.startswith("torch.") else kind.__name__


def _overridden(module: nn.Module, kind: type[nn.Module]) -> set[str]:
    """The methods of a kind that a subclass or the instance replaces."""
    classes = type(module).__mro__[: type(module).__mro__.index(kind)]
    names = {name for one in classes for name in vars(one)} | set(vars(module))
    computing = {name for name in names if name == "__call__" or not name.startswith("__")} - _NOT_COMPUTING
    return {name for name in computing if callable(getattr(kind, name, None))}


def check_untied(modules: Mapping[str, nn.Module], *, inside: bool = True) -> None:
    """Raise where two places have one parameter, which would become two; a module that is there twice counts once.

    Without `inside` only parameters that two of the modules have are looked for.

    Raises:
        InputError: A parameter is in two places.
    """
    places: dict[torch.Tensor, str] = {}
    for module_name, module in {module: (name, module) for name, module in modules.items()}.values():
        for parameter_name, parameter in module.named_parameters(remove_duplicate=not inside):
            place = f"{module_name}.{parameter_name}"
            if parameter in places:
                raise InputError(
                    f"`{place}` and `{places[parameter]}` are one parameter, and would be two in the copy: convert "
                    "without sharing it, and assign it in both places of the copy"
                )
            places[parameter] = place


def copied_parameter(tensor: torch.Tensor) -> nn.Parameter:
    """Copy a parameter, or a view of a part of one: in its type, on its device, and trained or frozen as it is."""
    return nn.Parameter(tensor.detach().clone(), requires_grad=tensor.requires_grad)


def fill(name: str, module: nn.Module, parameters: Mapping[str, nn.Parameter]) -> None:
    """Give a module these parameters in place of its own; `name` is the argument that they come from.

    Raises:
        InputError: It has others, or others of another shape.
    """
    own = dict(module.named_parameters())
    differing = own.keys() ^ parameters.keys()
    differing |= {key for key in own.keys() & parameters.keys() if own[key].shape != parameters[key].shape}
    if differing:
        raise InputError(
            f"`{name}` must have the parameters of a {type(module).__name__} in its sizes, and differs in "
            f"{', '.join(sorted(differing))}: were layers replaced, build a {type(module).__name__} and copy its parts"
        )
    for path, parameter in parameters.items():
        owner, _, leaf = path.rpartition(".")
        setattr(module.get_submodule(owner), leaf, parameter)


def copy_training(pairs: Iterable[tuple[nn.Module, nn.Module]]) -> None:
    """Put each second module of the pairs into the mode of the first, and not what is in it."""
    for source, copy in pairs:
        copy.training = source.training
