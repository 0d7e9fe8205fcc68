"""Vision transformers of transformers: their grids are found, and the overlay is what their eager attention gives."""

from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard.errors import InputError
from regard.interpret.vision_transformers import grid_of, image_of
from regard.render.patches import PatchGrid
from sweeps import sweep

t = pytest.importorskip("transformers")

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
SMALL |= {"image_size": 32, "patch_size": 8}
MODELS: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "ViT": ("ViT", {}, ("cls",)),
    "tall": ("ViT", {"image_size": (24, 40)}, ("cls",)),
    "DeiT": ("DeiT", {}, ("cls", "distillation")),
    "CLIP": ("CLIPVision", {}, ("cls",)),
    "SigLIP": ("SiglipVision", {}, ()),
    "DINOv2": ("Dinov2WithRegisters", {"num_register_tokens": 2}, ("cls", "register 0", "register 1")),
}
ROWS, COLUMNS = 4, 4


def made(name: str) -> torch.nn.Module:
    kind, more, _ = MODELS[name]
    torch.manual_seed(1)
    model = getattr(t, f"{kind}Model")._from_config(
        getattr(t, f"{kind}Config")(**SMALL | more), attn_implementation="eager"
    )
    with torch.no_grad():
        for one in model.parameters():
            if one.ndim >= 2:
                one.normal_(0, 1.5 * one.shape[-1] ** -0.5)
    return model.eval()


def drawing(height: int = 32, width: int = 32) -> np.ndarray:
    """A disc, a box and a slope of colours."""
    y, x = np.mgrid[:height, :width]
    disc, box = (x - 10) ** 2 + (y - 12) ** 2 < 36, (x > 18) & (y > 18)
    red, green = np.where(disc, 230, 40 + 2 * x), np.where(disc, 60, 80 + 3 * y)
    return np.stack([red, green, np.where(box, 220, 90)], -1).astype(np.uint8)


@pytest.mark.parametrize("name", MODELS)
def test_the_overlay_is_the_weights_that_the_model_gives(name: str) -> None:
    model = made(name)
    rows, columns = (3, 5) if name == "tall" else (ROWS, COLUMNS)
    image = drawing(8 * rows, 8 * columns)
    pixels = torch.from_numpy(image).permute(2, 0, 1)[None].float() / 127.5 - 1
    with torch.no_grad(), regard.watch(model) as seen:
        given = model(pixel_values=pixels, output_attentions=True).attentions[1][0].numpy()
    prefix = len(MODELS[name][2])
    for patch, at in (((2, 1), prefix + 2 * columns + 1), *((one, n) for n, one in enumerate(MODELS[name][2]))):
        figure = seen.plot_patches(image, model, layer=1, head=2, patch=patch)
        laid = figure.axes[1].images[1].get_array()
        assert laid.shape == (rows, columns)
        np.testing.assert_allclose(laid.ravel(), given[2, at, prefix:], atol=1e-6)
    mean = seen.plot_patches(image, model.config, layer=1, patch=(0, 0)).axes[1].images[1].get_array()
    np.testing.assert_allclose(mean.ravel(), given[:, prefix, prefix:].mean(0), atol=1e-6)
    assert grid_of(model, seen.record, 0, "image") == PatchGrid(rows, columns, MODELS[name][2])


def test_of_a_model_with_a_text_too_the_layers_of_the_image_are_named() -> None:
    text = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    ends = {"vocab_size": 99, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    model = t.CLIPModel(t.CLIPConfig(vision_config=SMALL, text_config=text | ends)).eval()
    pixels = torch.zeros(1, 3, 32, 32)
    with torch.no_grad(), regard.watch(model) as seen:
        model(input_ids=torch.tensor([[1, 5, 2]]), pixel_values=pixels)
    seen.plot_patches(drawing(), model, layer=0)
    image = [one.name for one in seen.record if "vision" in one.name]
    words = f"3 positions of layer 'text_model.*choose layer '{image[0]}' or '{image[1]}', or give"
    with pytest.raises(InputError, match=words):
        seen.plot_patches(drawing(), model, layer=0, stream="text")


def test_an_image_comes_in_any_form() -> None:
    image = drawing()
    planes = torch.from_numpy(image).permute(2, 0, 1)
    forms = [image, image / 255, planes, planes[None], planes / 255, (planes / 255).double(), image.astype(np.int64)]
    for form in forms:
        np.testing.assert_array_equal(image_of(form), image)
    pil = pytest.importorskip("PIL.Image")
    np.testing.assert_array_equal(image_of(pil.fromarray(image)), image)
    np.testing.assert_array_equal(image_of(pil.fromarray(image).convert("RGBA")), image)
    grey = image[..., 0]
    for form in (grey, grey[..., None], torch.from_numpy(grey)[None], pil.fromarray(grey)):
        np.testing.assert_array_equal(image_of(form), np.repeat(grey[..., None], 3, -1))
    assert np.abs(image_of((planes / 255).bfloat16()).astype(int) - image).max() <= 1


NO_IMAGES = [
    (np.zeros((2, 3, 8, 8)), r"got \(2, 3, 8, 8\): of a batch pass one image"),
    (np.zeros(8), r"the shape \(height, width, 3\)"),
    (np.full((8, 8, 3), -1.0), r"floats from 0 to 1, got float64 from -1 to -1: undo the processor's"),
    (np.full((8, 8, 3), 256), r"bytes from 0 to 255"),
    (np.full((8, 8, 3), np.nan), r"from nan to nan"),
    (np.full((8, 8, 3), "x"), r"floats from 0 to 1, got <U1: convert it first"),
]


def test_what_is_no_image_is_refused_with_the_way_out() -> None:
    for case in sweep(NO_IMAGES, lambda row: row[1]):
        with case as (image, words), pytest.raises(InputError, match=words):
            image_of(image)


@pytest.mark.parametrize("name", ["ViT", "DINOv2"])
def test_patches_of_an_image_of_another_shape_have_no_names(name: str) -> None:
    """As many patches in two rows of eight had the names of four rows of four."""
    model, options = made(name), {"interpolate_pos_encoding": True} if name == "ViT" else {}
    with torch.no_grad(), regard.watch(model) as seen:
        model(pixel_values=torch.zeros(1, 3, 16, 64), **options)
    assert seen.record.tokens == {}
    with pytest.raises(InputError, match=r"has read this shape, give its grid, PatchGrid\(rows, columns, prefix\)"):
        seen.plot_patches(drawing(16, 64), model, layer=0)
    with torch.no_grad(), regard.watch(model) as seen:
        model(pixel_values=torch.zeros(1, 3, 32, 32), **options)
    assert [one.text for one in seen.record.stream("image")][-1] == "(3,3)"


def test_patches_in_another_order_have_no_names_and_no_grid() -> None:
    sizes = {"vision_output_dim": 32, "projector_input_dim": 32, "projector_output_dim": 32}
    last = t.Llama4VisionModel(t.Llama4VisionConfig(**SMALL | {"intermediate_size": 128}, **sizes)).eval()
    shuffled = t.ViTMAEModel(t.ViTMAEConfig(**SMALL, mask_ratio=0.0)).eval()
    for model, said in ((shuffled, "vit_mae, which has its patches in random"), (last, "llama4_.* class token after")):
        with torch.no_grad(), regard.watch(model) as seen:
            model(pixel_values=torch.zeros(1, 3, 32, 32))
        assert seen.record.tokens == {}
        with pytest.raises(InputError, match=rf"`grid` cannot be that of a {said}"):
            seen.plot_patches(drawing(), model, layer=0)


def test_a_grid_can_be_given_and_is_never_guessed() -> None:
    model = made("ViT")
    with torch.no_grad(), regard.watch(model) as seen:
        model(pixel_values=torch.zeros(1, 3, 64, 32), interpolate_pos_encoding=True)  # 8 × 4 patches
    with pytest.raises(InputError, match=r"33 positions of layer .*, got 4 × 4 .* \(cls\): give PatchGrid"):
        seen.plot_patches(drawing(64, 32), model, layer=0)
    figure = seen.plot_patches(drawing(64, 32), PatchGrid(8, 4), layer=0)
    assert figure.axes[1].images[1].get_array().shape == (8, 4)
    with pytest.raises(InputError, match=r"`grid` must be a vision model, its config, or a PatchGrid.*got int"):
        seen.plot_patches(drawing(), 16, layer=0)
    with pytest.raises(InputError, match=r"proportions of 8 × 4 patches, got 32 × 32 pixels"):
        seen.plot_patches(drawing(), PatchGrid(8, 4), layer=0)
