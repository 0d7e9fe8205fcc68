"""What a loss is computed from: the labels of texts, the decoder's input that they make, and the loss itself."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn import functional

from regard.errors import InputError
from regard.models.output_heads import (
    IGNORED,
    LanguageModel,
    MaskedLanguageModel,
    OutputHead,
    SequenceClassification,
    TokenClassification,
)
from regard.tensors import unwrapped

if TYPE_CHECKING:
    from regard.models.config import TransformerConfig

__all__ = ["decoder_inputs", "labels_of_texts", "loss_of", "up_to_last_label"]


def labels_of_texts(
    labels: Shaped[Tensor, "batch n"],
    mask: Bool[Tensor, "batch n"] | None,
    documents: Int[Tensor, "batch n"] | None,
    *,
    shifted: bool,
) -> Shaped[Tensor, "batch n"]:
    """Return the labels of rows with padding, or of several texts, −100 where they are none.

    Where the loss is shifted, a text's first token is no label: before it is padding (from which transformers predicts
    it all the same), or another text. Padding beside `documents`, which are negative there, is none either.

    >>> labels_of_texts(torch.tensor([[5, 6, 7, 0]]), None, torch.tensor([[0, 0, 1, -1]]), shifted=True)
    tensor([[   5,    6, -100, -100]])
    """
    about = mask if documents is None else documents
    if about is None or labels.shape != about.shape or not (shifted or documents is not None):
        return labels  # of another shape: the loss refuses them
    none = torch.zeros_like(about, dtype=torch.bool)
    if shifted:
        none[:, 1:] = (about[:, 1:] != about[:, :-1]) & (about[:, 1:] if documents is None else True)
    if documents is not None:
        none |= documents < 0
    return labels.masked_fill(none.to(labels.device), IGNORED)


def decoder_inputs(
    labels: Int[Tensor, "batch target"], mask: Tensor | None, config: "TransformerConfig"
) -> tuple[Int[Tensor, "batch target"], Tensor | None]:
    """Return the decoder's input for labels, and its mask.

    The input is the start token, then all labels but the last, padding for those of −100. It needs a mask where the
    length of a text counts: −100 at its end are padding.

    Raises:
        InputError: The model has no start token, or labels of −100 and no padding token; or labels are of whole texts.
    """
    pad_token_id, start_token_id = config.special_tokens.pad_token_id, config.start_token_id
    if labels.ndim != 2:
        raise InputError(
            f"`labels` of shape {tuple(labels.shape)} are no target (batch, tokens): give decoder_input_ids= too"
        )
    if start_token_id is None:
        raise InputError(
            "`labels` without decoder_input_ids need special_tokens=SpecialTokens(decoder_start_token_id=...)"
        )
    shifted = labels.new_full(labels.shape, start_token_id)
    shifted[:, 1:] = labels[:, :-1]
    if pad_token_id is None:
        if bool(unwrapped(shifted == IGNORED).any()):
            raise InputError("`labels` of −100 need special_tokens=SpecialTokens(pad_token_id=...)")
    else:
        shifted = shifted.masked_fill(shifted == IGNORED, pad_token_id)
    return shifted, up_to_last_label(labels) if mask is None and config.angles_depend_on_length else mask


def up_to_last_label(labels: Int[Tensor, "batch target"]) -> Bool[Tensor, "batch target"]:
    """Return which tokens of the decoder's input are before the padding at the end, whose labels are −100.

    >>> up_to_last_label(torch.tensor([[5, -100, 6, -100, -100]]))
    tensor([[ True,  True,  True, False, False]])
    """
    return (labels != IGNORED).flip(1).cumsum(1).flip(1) > 0


def loss_of(head: OutputHead | None, kind: str, logits: Tensor | None, labels: Tensor) -> Float[Tensor, ""]:
    """Return the mean loss.

    A decoder's labels are the input ids themselves, which the loss shifts by one; an encoder–decoder's are the target,
    which `decoder_inputs` makes the decoder's input. A classifier of one label has a mean squared error, one whose
    labels are floats a binary cross-entropy for each label.

    Raises:
        InputError: The model has no head with a loss, or the labels have another shape.
    """
    if logits is None or not isinstance(
        head, LanguageModel | MaskedLanguageModel | SequenceClassification | TokenClassification
    ):
        raise InputError(f"`labels` need an output head with a loss, such as output_heads.LanguageModel(), got {head}")
    labels = labels.to(logits.device)
    if isinstance(head, SequenceClassification):
        return _classification(head, logits, labels)
    if labels.shape != logits.shape[:2]:
        raise InputError(
            f"`labels` must have shape {tuple(logits.shape[:2])}, as the tokens, got {tuple(labels.shape)}"
        )
    if isinstance(head, LanguageModel) and kind == "decoder":
        logits, labels = logits[:, :-1], labels[:, 1:]
    wide = logits.flatten(0, 1).to(torch.promote_types(logits.dtype, torch.float32))
    return functional.cross_entropy(wide, labels.flatten(), ignore_index=IGNORED)


def _classification(head: SequenceClassification, logits: Tensor, labels: Tensor) -> Tensor:
    if head.num_labels == 1:
        return functional.mse_loss(logits.squeeze(), labels.squeeze().to(logits.dtype))
    if labels.is_floating_point():
        return functional.binary_cross_entropy_with_logits(logits, labels)
    return functional.cross_entropy(logits, labels.flatten(), ignore_index=IGNORED)
