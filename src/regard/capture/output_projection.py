"""Find W_O, the projection of the concatenated heads, by the names that models use."""

from collections.abc import Iterator

from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import ObservationError

__all__ = ["output_projection", "weight_of"]

# Of the module that calls attention: PyTorch, OPT, BART, CLIP and ours; Llama and its kin; GPT-2; DistilBERT; GPT-NeoX,
# Falcon, Phi, ALBERT; timm; T5; ModernBERT; diffusers.
_NAMES = ("out_proj", "o_proj", "c_proj", "out_lin", "dense", "proj", "o", "Wo", "wo", "to_out")


def output_projection(
    owner: nn.Module | None, parent: nn.Module | None, width: int, name: str
) -> Float[Tensor, "in_width out_width"]:
    """Return the output projection of the module that owns a call, or BERT's `output.dense` of the parent module.

    Raises:
        ObservationError: No projection with an input of `width` numbers was found, or several.
    """
    found = {id(one): one for one in _candidates(owner, parent) if _takes(one, width)}
    if len(found) == 1:
        return weight_of(*found.values())
    what = "several modules may be it" if found else f"no module there takes in the {width} numbers of all its heads"
    raise ObservationError(
        f"the output projection of {name or 'this call'} ({type(owner).__name__}) is not known, as {what}: name it "
        "with statistics.ValueNorm(projection={...}), from module names to nn.Linear modules"
    )


def weight_of(module: nn.Module | Tensor) -> Float[Tensor, "in_width out_width"]:
    """Return the weight for multiplication from the right; a tensor must have nn.Linear's layout."""
    weight = module if isinstance(module, Tensor) else module.weight
    assert isinstance(weight, Tensor)
    return weight.detach() if type(module).__name__ == "Conv1D" else weight.detach().T


def _candidates(owner: nn.Module | None, parent: nn.Module | None) -> Iterator[nn.Module]:
    around = getattr(parent, "output", None)
    for one in [*(getattr(owner, name, None) for name in _NAMES), getattr(around, "dense", None)]:
        first = next(iter(one), None) if isinstance(one, nn.Sequential | nn.ModuleList) else one
        if isinstance(first, nn.Module):
            yield first


def _takes(module: nn.Module, width: int) -> bool:
    weight = getattr(module, "weight", None)
    known = isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"
    if not known or not isinstance(weight, Tensor) or weight.ndim != 2 or not weight.is_floating_point():
        return False
    return weight_of(module).shape[0] == width
