"""The loss of `labels`, for each output head as transformers computes it; labels of −100 count for nothing."""

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from regard.errors import InputError
from regard.models.output_heads import (
    LanguageModel,
    MaskedLanguageModel,
    OutputHead,
    SequenceClassification,
    TokenClassification,
)

__all__ = ["IGNORED", "loss_of", "shift_tokens_right"]

IGNORED = -100


def loss_of(head: OutputHead | None, kind: str, logits: Tensor | None, labels: Tensor) -> Float[Tensor, ""]:
    """Return the mean loss.

    A decoder's labels are the input ids themselves, which the loss shifts by one; an encoder–decoder's are the target,
    which `shift_tokens_right` makes the decoder's input. A classifier of one label has a mean squared error, one whose
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
    return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED)


def _classification(head: SequenceClassification, logits: Tensor, labels: Tensor) -> Tensor:
    if head.num_labels == 1:
        return functional.mse_loss(logits.squeeze(), labels.squeeze().to(logits.dtype))
    if labels.is_floating_point():
        return functional.binary_cross_entropy_with_logits(logits, labels)
    return functional.cross_entropy(logits, labels.flatten(), ignore_index=IGNORED)


def shift_tokens_right(labels: Tensor, pad_token_id: int | None, start_token_id: int | None) -> Tensor:
    """Return the decoder's input for labels: the start token, then all labels but the last, padding for those of −100.

    Raises:
        InputError: The model has no start token, or labels of −100 and no padding token.
    """
    if start_token_id is None:
        raise InputError(
            "`labels` without decoder_input_ids need special_tokens=SpecialTokens(decoder_start_token_id=...)"
        )
    shifted = labels.new_full(labels.shape, start_token_id)
    shifted[:, 1:] = labels[:, :-1]
    if pad_token_id is None:
        if bool((shifted == IGNORED).any()):
            raise InputError("`labels` of −100 need special_tokens=SpecialTokens(pad_token_id=...)")
        return shifted
    return shifted.masked_fill(shifted == IGNORED, pad_token_id)
