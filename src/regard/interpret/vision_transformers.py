"""Vision transformers of transformers: their patch grids, and images in the forms that users have them."""

from collections.abc import Collection
from typing import Any

import numpy as np
from torch import nn

from regard.errors import InputError
from regard.record.layers import Stream
from regard.record.records import Layer, Record
from regard.record.tokens import Token
from regard.render.patches import Image, PatchGrid

__all__ = ["grid_of", "image_of", "patch_tokens"]

_DISTILLED = "deit"
_BARE = ("siglip", "siglip_vision_model", "siglip2", "vivit", "ijepa")  # no token before the patches
# Positions in another order than a grid's rows behind the tokens of `_prefix`.
_UNORDERED = {
    "vit_mae": "has its patches in random order: call it with noise=torch.arange(patches).expand(batch, -1), and "
    "give PatchGrid(rows, columns, prefix)",
    "llama4_vision_model": "has its class token after the patches: draw seen.weights(...)[..., :-1], by position",
}
_PLANES = (1, 3, 4)


def grid_of(model: Any, record: Record, layer: int | str | Layer, stream: Stream | None = None) -> PatchGrid:
    """Return the patch grid of a model, from the model or its `config`.

    The number of tokens before the patches follows from the layer's positions; these may be [CLS], DeiT's [DIST] and
    registers (Darcet et al. 2024, arXiv:2309.16588).

    Raises:
        InputError: The config has no image and patch size, or the layer has another number of positions.
    """
    if isinstance(model, PatchGrid):
        return model
    config = getattr(model, "config", model)
    config = getattr(config, "vision_config", config)
    grid = _grid(config)
    if grid is None:
        raise InputError(
            f"`grid` must be a vision model, its config, or a PatchGrid(rows, columns, prefix), got "
            f"{type(model).__name__} without `image_size` and `patch_size`"
        )
    if (reason := _disorder(config)) is not None:
        raise InputError(f"`grid` cannot be that of a {config.model_type}, which {reason}")
    rows, columns, names = grid.rows, grid.columns, grid.prefix
    seen = record.layer(layer, stream)
    found = seen.keys - rows * columns
    if found != len(names):
        fitting = [one.name for one in record.layers if one.keys == rows * columns + len(names)]
        way = f"choose layer {' or '.join(map(repr, fitting))}, or give" if fitting else "give"
        raise InputError(
            f"`grid` must fit the {seen.keys} positions of layer {seen.name!r}, got {rows} × {columns} patches and "
            f"{len(names)} tokens before them ({', '.join(names) or 'none'}): {way} PatchGrid(rows, columns, prefix)"
        )
    return grid


def _grid(config: Any) -> PatchGrid | None:
    """Return the grid of a vision model's configuration."""
    size, patch = _pair(getattr(config, "image_size", None)), _pair(getattr(config, "patch_size", None))
    if size is None or patch is None or not all(patch):
        return None
    return PatchGrid(size[0] // patch[0], size[1] // patch[1], _prefix(config))


def patch_tokens(
    model: nn.Module, record: Record, convolved: Collection[tuple[int, int]] = ()
) -> dict[str, tuple[tuple[Token, ...], ...]]:
    """Name the positions of image towers by their patches' rows and columns, "(0,3)", if the grid is known.

    `convolved` has the rows and columns that convolutions made of images: as many patches in other rows and columns
    than the configuration's are those of an image of another shape.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    whole = getattr(getattr(model, "config", None), "vision_config", None)
    found = {}
    for layer in record.layers:
        stream, length = layer.key_tokens, layer.keys
        if stream in found or stream.split()[0] not in ("image", "source"):
            continue
        path = layer.name.partition("#")[0].split(".")
        around = [modules.get(".".join(path[:end])) for end in range(len(path), -1, -1)] if layer.kind == "self" else []
        configs = [getattr(one, "config", None) for one in around]
        known = ((config, _grid(config)) for config in (*configs, whole))
        grid = next((grid for config, grid in known if grid is not None and _disorder(config) is None), None)
        if grid is not None and grid.positions == length and _is_seen(grid, convolved):
            patches = [f"({row},{column})" for row in range(grid.rows) for column in range(grid.columns)]
            names = (*(Token(one, special=True, space=True) for one in grid.prefix),
                     *(Token(one, space=True) for one in patches))  # fmt: skip
            found[stream] = (names,) * layer.batch
    return found


def _is_seen(grid: PatchGrid, convolved: Collection[tuple[int, int]]) -> bool:
    """Return whether no convolution gave another grid of as many patches."""
    as_many = {one for one in convolved if one[0] * one[1] == grid.rows * grid.columns}
    return as_many <= {(grid.rows, grid.columns)}


def image_of(image: Any) -> Image:
    """Convert an image to (height, width, 3) bytes from a PIL image, an array or a tensor, with channels first or
    last.

    Raises:
        InputError: The shape is another, or the values are not colours: bytes from 0 to 255, or floats from 0 to 1.
    """
    if hasattr(image, "convert"):
        return np.asarray(image.convert("RGB"), dtype=np.uint8)
    if hasattr(image, "detach"):
        image = image.detach().cpu()
        image = (image.float() if image.is_floating_point() else image).numpy()
    pixels = np.asarray(image)
    if pixels.ndim == 4 and len(pixels) == 1:
        pixels = pixels[0]
    if pixels.ndim == 3 and pixels.shape[0] in _PLANES and pixels.shape[2] not in _PLANES:
        pixels = np.moveaxis(pixels, 0, -1)
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    if pixels.ndim != 3 or pixels.shape[2] not in _PLANES or 0 in pixels.shape:
        raise InputError(
            f"`image` must have the shape (height, width, 3), (3, height, width) or (height, width), got "
            f"{np.shape(image)}: of a batch pass one image"
        )
    return np.ascontiguousarray(np.broadcast_to(_bytes(pixels[..., :3]), (*pixels.shape[:2], 3)))


def _bytes(pixels: np.ndarray[Any, Any]) -> Image:
    rule = "`image` must hold bytes from 0 to 255 or floats from 0 to 1"
    if pixels.dtype.kind not in "iuf":
        raise InputError(f"{rule}, got {pixels.dtype}: convert it first, as with PIL's image.convert('RGB')")
    low, high = float(pixels.min()), float(pixels.max())
    whole = pixels.dtype.kind in "iu"
    if not (low >= 0 and high <= (255 if whole else 1)):  # NaN is neither
        raise InputError(
            f"{rule}, got {pixels.dtype} from {low:.4g} to {high:.4g}: undo the processor's normalization (pixels * "
            "std + mean), or pass the image itself"
        )
    return pixels.astype(np.uint8) if whole else np.rint(pixels * 255).astype(np.uint8)


def _pair(size: Any) -> tuple[int, int] | None:
    if isinstance(size, int):
        return size, size
    if isinstance(size, (tuple, list)) and len(size) == 2:
        return int(size[0]), int(size[1])
    return None


def _disorder(config: Any) -> str | None:
    """Return why the patches are not the rows of a grid, if they are not."""
    return _UNORDERED.get(getattr(config, "model_type", ""))


def _prefix(config: Any) -> tuple[str, ...]:
    """Return the names of the tokens before the patches."""
    kind = str(getattr(config, "model_type", ""))
    if kind in _BARE:
        return ()
    registers = int(getattr(config, "num_register_tokens", 0) or 0)
    more = ("distillation",) if kind == _DISTILLED else ()
    return ("cls", *more, *(f"register {number}" for number in range(registers)))
