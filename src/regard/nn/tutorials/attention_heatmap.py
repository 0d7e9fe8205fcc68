"""The lesson's picture: the weights of one head as a heat map, queries down, keys across."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from regard.errors import InputError, MissingExtraError
from regard.record.layers import at_index
from regard.record.tokens import Token
from regard.render.figure_panels import axis_names, ink, label_size
from regard.render.fonts import fonts_for
from regard.render.labels import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["visualize_attention"]

_UPRIGHT = 24  # names of two characters that find room beside one another


def visualize_attention(
    attention_weights: Sequence[Any] | Tensor | npt.NDArray[Any], tokens: Sequence[str], layer: int = 0, head: int = 0
) -> "Axes":
    """Draw the weights of one head of the first sequence with matplotlib, and give the axes (`.figure.savefig`).

    It is pyplot's current figure. Where matplotlib has windows, or in a notebook, it is shown at once.

    Args:
        attention_weights: Of each layer a tensor (batch, heads, n, n) or (heads, n, n); or one such tensor, of which
            `layer` is the name.
        tokens: The n tokens of the sequence, at most 48 of which are written out.
        layer, head: Which to draw, counted from 0.

    Raises:
        InputError: There is no such layer or head, or not as many tokens as weights.
        MissingExtraError: matplotlib is not installed.

    >>> import torch
    >>> axes = visualize_attention([torch.eye(3).expand(1, 2, 3, 3)], ["the", "cat", "sat"], layer=0, head=1)
    >>> axes.get_title()
    'Attention weights: layer 0, head 1'
    """
    weights = _weights_of(attention_weights, layer, head)
    names = [Token(visible(str(token))) for token in tokens]
    if weights.shape != (len(names), len(names)):
        raise InputError(
            f"`tokens` must be the {weights.shape[0]} of {weights.shape[0]} × {weights.shape[1]} weights, got "
            f"{len(names)}: cut off the padding of one or the other; regard.watch draws queries and keys that differ"
        )
    try:
        from matplotlib import pyplot
        from matplotlib.backends.registry import BackendFilter, backend_registry
    except ImportError as error:
        raise MissingExtraError("matplotlib", "figures") from error
    axes = _draw(weights, axis_names(names), f"layer {layer}, head {head}")
    if pyplot.get_backend().lower() not in backend_registry.list_builtin(BackendFilter.NON_INTERACTIVE):
        pyplot.show()
    return axes


def _weights_of(attention_weights: Any, layer: int, head: int) -> npt.NDArray[Any]:
    """The matrix of one head of the first sequence."""
    if isinstance(attention_weights, (list, tuple)) or getattr(attention_weights, "ndim", 0) == 5:
        layer = at_index("layer", layer, len(attention_weights), "layers")
        attention_weights = attention_weights[layer]
    if attention_weights is None:
        raise InputError("`attention_weights` has no weights yet, got None: call the model first")
    plain = attention_weights.detach().float().cpu() if isinstance(attention_weights, Tensor) else attention_weights
    weights = np.asarray(plain)
    if weights.ndim not in (2, 3, 4):
        raise InputError(
            "`attention_weights` must be a list of layers, each (batch, heads, n, n), or one of them, got shape "
            f"{weights.shape}"
        )
    heads = weights[0] if weights.ndim == 4 else weights if weights.ndim == 3 else weights[None]
    chosen: npt.NDArray[Any] = heads[at_index("head", head, len(heads), "heads")]
    return chosen


def _draw(weights: npt.NDArray[Any], names: Sequence[str], title: str) -> "Axes":
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    fonts = fonts_for(names)
    text: dict[str, Any] = {
        "fontfamily": list(fonts.families),
        "fontsize": label_size(len(names)),
        "parse_math": False,
        "usetex": False,
    }
    figure = pyplot.figure(figsize=(8, 7), layout="constrained")
    axes: Axes = figure.add_subplot()
    count = len(weights)
    largest = float(weights.max(initial=0.0)) or 1.0
    image = axes.imshow(weights, cmap=ink(), vmin=0, vmax=largest, interpolation="nearest", extent=(0, count, count, 0))
    if names:
        at, spelled = np.arange(count) + 0.5, [fonts.spell(name) for name in names]
        short = count <= _UPRIGHT and max(map(len, spelled)) <= 2  # such as Chinese, a character a token
        turned: dict[str, Any] = {} if short else {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
        axes.set_xticks(at, spelled, **turned, **text)
        axes.set_yticks(at, spelled, **text)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.set(title=f"Attention weights: {title}", xlabel="keys", ylabel="queries")
    figure.colorbar(image, label="weight")
    return axes
