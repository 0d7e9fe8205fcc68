"""Scores of texts and labels against references: BLEU and chrF by sacreBLEU, accuracy and F1."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from regard.errors import InputError, MissingExtraError
from regard.languages import find_language

__all__ = ["ClassificationScore", "TranslationScore", "classification_scores", "translation_scores"]


@dataclass(frozen=True)
class TranslationScore:
    """BLEU and chrF, 0 to 100, each with its sacreBLEU signature."""

    bleu: float
    chrf: float
    bleu_signature: str
    chrf_signature: str


def translation_scores(
    predictions: Sequence[str],
    references: Sequence[Sequence[str]],
    target_lang: str | None = None,
    *,
    tokenize: str | None = None,
    lowercase: bool = False,
    chrf_word_order: int = 0,
) -> TranslationScore:
    """Return corpus BLEU (Papineni et al. 2002; Post 2018, arXiv:1804.08771) and chrF (Popović 2015).

    Args:
        predictions: A translation of each sentence.
        references: One or several reference translations of each.
        target_lang: Any code of the target language, by which BLEU's tokenizer is chosen.
        tokenize: The name of sacreBLEU's tokenizer for BLEU, in place of `target_lang`.
        lowercase: Whether the case of letters is ignored.
        chrf_word_order: Longest n-gram of words that chrF counts beside its 6 characters; 2 for chrF++ (Popović 2017).

    Raises:
        InputError: There is nothing to score, a sentence has no reference, or the language or the tokenizer is unknown.
        MissingExtraError: sacrebleu is not installed, or what this tokenizer needs.
    """
    if (target_lang is None) == (tokenize is None):
        raise InputError("give either `target_lang`, the language of the translations, or `tokenize`")
    chosen = tokenize if target_lang is None else find_language(target_lang).bleu_tokenizer
    try:
        from sacrebleu.metrics import BLEU, CHRF
    except ImportError as missing:
        raise MissingExtraError("sacrebleu", "train") from missing
    if chosen not in BLEU.TOKENIZERS:
        raise InputError(
            f"`tokenize` must be a tokenizer of sacreBLEU, {', '.join(sorted(BLEU.TOKENIZERS))}, got {chosen!r}"
        )
    if not predictions or len(predictions) != len(references) or not all(references):
        raise InputError(f"each of {len(predictions)} translations needs a reference, got {sum(map(bool, references))}")
    most = max(map(len, references))
    # sacreBLEU wants one list for each rank of reference; None where a sentence has fewer.
    ranks = [[texts[rank] if rank < len(texts) else None for texts in references] for rank in range(most)]
    try:
        bleu = BLEU(tokenize=chosen, lowercase=lowercase)
    except (ImportError, RuntimeError) as missing:  # MeCab and SentencePiece are extras of sacreBLEU
        raise InputError(
            f"sacreBLEU's tokenizer {chosen} is not installed: {' '.join(str(missing).split())}"
        ) from missing
    chrf = CHRF(word_order=chrf_word_order, lowercase=lowercase)
    words, letters = (metric.corpus_score(list(predictions), ranks).score for metric in (bleu, chrf))
    return TranslationScore(words, letters, str(bleu.get_signature()), str(chrf.get_signature()))


@dataclass(frozen=True)
class ClassificationScore:
    """Accuracy and F1, 0 to 1.

    Args:
        accuracy: Share of labels that are right.
        f1_macro: Mean of each label's F1, all labels alike, as scikit-learn's `f1_score(average="macro")`.
        f1_micro: F1 of all decisions together; where each text has one label, the same as accuracy.
    """

    accuracy: float
    f1_macro: float
    f1_micro: float


def classification_scores(predictions: Sequence[str], labels: Sequence[str]) -> ClassificationScore:
    """Return accuracy and F1 = 2 · right / (predicted + true) of labels.

    Labels that were predicted or are true count, each with an F1 of 0 where none of its texts is right.

    Raises:
        InputError: There is nothing to score, or the numbers of predictions and labels differ.

    >>> classification_scores(["cat", "dog", "dog", "cat"], ["cat", "dog", "cat", "bird"])
    ClassificationScore(accuracy=0.5, f1_macro=0.38888888888888884, f1_micro=0.5)
    """
    if not predictions or len(predictions) != len(labels):
        raise InputError(f"each of {len(predictions)} predictions needs a label, got {len(labels)}")
    right = Counter(label for predicted, label in zip(predictions, labels, strict=True) if predicted == label)
    counted = Counter(predictions) + Counter(labels)
    f1 = [2 * right[label] / count for label, count in counted.items()]
    accuracy = right.total() / len(labels)
    return ClassificationScore(accuracy, sum(f1) / len(f1), accuracy)
