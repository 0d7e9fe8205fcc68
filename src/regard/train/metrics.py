"""BLEU and chrF of translations by sacreBLEU, with the tokenizer of the target language."""

from collections.abc import Sequence
from dataclasses import dataclass

from regard.errors import InputError, MissingExtraError

__all__ = ["Score", "bleu_tokenizer", "translation_scores"]

# What sacreBLEU calls them. 13a cuts at spaces, and Chinese has none: a whole sentence is one word, and BLEU is 0.
_TOKENIZERS = {"zh": "zh", "ja": "char", "ko": "char", "th": "char"}


@dataclass(frozen=True)
class Score:
    """BLEU and chrF, 0 to 100, each with its sacreBLEU signature."""

    bleu: float
    chrf: float
    bleu_signature: str
    chrf_signature: str


def bleu_tokenizer(language: str) -> str:
    """Return the name of sacreBLEU's tokenizer for a language (ISO 639-1).

    Japanese and Korean are counted in characters, which needs no dictionary (ja-mecab and ko-mecab do).

    >>> bleu_tokenizer("zh"), bleu_tokenizer("de"), bleu_tokenizer("zh-Hant")
    ('zh', '13a', 'zh')
    """
    return _TOKENIZERS.get(language.lower().replace("_", "-").partition("-")[0], "13a")


def translation_scores(predictions: Sequence[str], references: Sequence[Sequence[str]], target_lang: str) -> Score:
    """Return corpus BLEU (Papineni et al. 2002; Post 2018, arXiv:1804.08771) and chrF (Popović 2015).

    Args:
        predictions: A translation of each sentence.
        references: One or several reference translations of each.
        target_lang: The target language, ISO 639-1.

    Raises:
        InputError: There is nothing to score, or a sentence has no reference.
        MissingExtraError: sacrebleu is not installed.
    """
    try:
        from sacrebleu.metrics import BLEU, CHRF
    except ImportError as missing:
        raise MissingExtraError("sacrebleu", "train") from missing
    if not predictions or len(predictions) != len(references) or not all(references):
        raise InputError(f"each of {len(predictions)} translations needs a reference, got {sum(map(bool, references))}")
    most = max(map(len, references))
    # sacreBLEU wants one list for each rank of reference; None where a sentence has fewer.
    ranks = [[one[rank] if rank < len(one) else None for one in references] for rank in range(most)]
    bleu, chrf = BLEU(tokenize=bleu_tokenizer(target_lang)), CHRF()
    found, letters = bleu.corpus_score(list(predictions), ranks), chrf.corpus_score(list(predictions), ranks)
    return Score(found.score, letters.score, str(bleu.get_signature()), str(chrf.get_signature()))
