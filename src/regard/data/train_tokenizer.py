"""Training tokenizers with the `tokenizers` package: characters, BPE and Unigram, for any script.

- Characters: each is a token, spaces too. What fits Chinese, Japanese and Korean best when data are few.
- BPE and Unigram: a space is written "▁" and belongs to the word after it, as in SentencePiece, and one is put before
  the text, so that a word is the same token at its start. Text is first cut into words, numerals' digits, punctuation,
  and runs of one script (Han, Hiragana, Katakana, Hangul, Latin), so that no token crosses from one to another.

Text is put into Unicode's composed form (NFC) and nothing else is changed: NFKC would make "，" a "," and "Ａ" an "A",
which differ for Chinese and Japanese readers. What is decoded is what was encoded.
"""

import json
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from regard.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from tokenizers.normalizers import Normalizer

__all__ = ["BOS", "EOS", "MASK", "PAD", "SPECIAL", "UNKNOWN", "train_characters", "train_pieces"]

_SPACE = "▁"
# Onigmo's syntax; the last alternative takes what no other does: letters of other scripts, line breaks, lone marks.
_WORDS = "|".join(
    (
        r"▁?\p{Latin}[\p{Latin}\p{M}]*(?:['’]\p{Latin}+)*",  # don't is one word
        r"▁?\p{Hangul}+",
        r"\p{Han}+",
        r"[\p{Hiragana}ー]+",
        r"[\p{Katakana}ー]+",
        r"▁?\p{N}",
        r"▁?[^\s▁\p{L}\p{N}\p{M}]+\p{M}*",  # punctuation, emoji with their marks and joiners
        r"▁?(?:(?!\p{Han}|\p{Hiragana}|\p{Katakana}|\p{Hangul}|\p{Latin})[\p{L}\p{M}])+",
        r"▁",
        r"\s",
    )
)


def train_characters(texts: Sequence[str], vocab_size: int, *, lowercase: bool) -> str:
    """Return a tokenizer.json in which each character is a token: the `vocab_size` most frequent, special ones too."""
    try:
        from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    except ImportError as missing:
        raise MissingExtraError("tokenizers", "train") from missing
    normalizer = _normalizer(lowercase=lowercase)
    counts = _characters(texts, normalizer)
    ordered = sorted(counts, key=lambda character: (-counts[character], character))[: vocab_size - len(SPECIAL)]
    vocabulary = {token: index for index, token in enumerate((*SPECIAL, *ordered))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL[UNKNOWN]))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer.to_str(pretty=True)


def train_pieces(texts: Sequence[str], kind: str, vocab_size: int, *, lowercase: bool) -> str:
    """Return a tokenizer.json of BPE or Unigram; every character of the texts is a token too, so none is unknown.

    Raises:
        InputError: `vocab_size` has no room for the characters.
    """
    try:
        from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError as missing:
        raise MissingExtraError("tokenizers", "train") from missing
    normalizer = _normalizer(lowercase=lowercase, space=_SPACE)
    alphabet = sorted(_characters(texts, normalizer))
    if (least := len(SPECIAL) + len(alphabet)) > vocab_size:
        raise InputError(
            f"`vocab_size` must have room for the {len(alphabet):,} different characters of the texts and "
            f"{len(SPECIAL)} special tokens ({least:,}), got {vocab_size:,}: raise it, or take "
            'model_type="char", which leaves rare ones out'
        )
    options: dict[str, Any] = {"vocab_size": vocab_size, "special_tokens": list(SPECIAL), "initial_alphabet": alphabet}
    trainer: trainers.Trainer
    if kind == "bpe":
        tokenizer = Tokenizer(models.BPE(unk_token=SPECIAL[UNKNOWN], fuse_unk=False))
        trainer = trainers.BpeTrainer(**options, show_progress=False)
    else:
        tokenizer = Tokenizer(models.Unigram())
        trainer = trainers.UnigramTrainer(**options, unk_token=SPECIAL[UNKNOWN], show_progress=False)
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_WORDS), "isolated")
    tokenizer.decoder = decoders.Sequence([decoders.Replace(_SPACE, " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.train_from_iterator(texts, trainer, length=len(texts))
    trained = tokenizer.to_str(pretty=True)
    return trained if kind == "bpe" else _settled(trained)


def _normalizer(*, lowercase: bool, space: str = "") -> "Normalizer":
    from tokenizers import normalizers

    steps: list[Normalizer] = [normalizers.NFC()]
    if lowercase:
        steps.append(normalizers.Lowercase())
    if space:
        steps += [normalizers.Prepend(space), normalizers.Replace(" ", space)]
    return normalizers.Sequence(steps)


def _settled(trained: str) -> str:
    """Give Unigram the same scores and ids in each run.

    The trainer adds characters that it had dropped in the order of a hash table, the score of each 0.0001 above that of
    the one before; and sums differ in their last digits. Here those characters share the lowest score, scores have four
    decimals, and equal ones are in the order of their text.
    """
    tokenizer = json.loads(trained)
    vocabulary = tokenizer["model"]["vocab"]
    special, pieces = vocabulary[: len(SPECIAL)], vocabulary[len(SPECIAL) :]
    lowest = min(score for _, score in pieces)

    def settled(piece: str, score: float) -> float:
        steps = (score - lowest) / 1e-4
        was_dropped = len(piece) == 1 and steps < len(pieces) and abs(steps - round(steps)) < 1e-4
        return round(lowest if was_dropped else score, 4)

    scored = [(piece, settled(piece, score)) for piece, score in pieces]
    tokenizer["model"]["vocab"] = [*special, *sorted(scored, key=lambda one: (-one[1], one[0]))]
    return json.dumps(tokenizer, ensure_ascii=False, indent=2)


def _characters(texts: Sequence[str], normalizer: "Normalizer") -> Counter[str]:
    """How often each character occurs, as the normalizer leaves it."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(normalizer.normalize_str(text))
    return counts


SPECIAL = ("<pad>", "<s>", "</s>", "<unk>", "<mask>")
PAD, BOS, EOS, UNKNOWN, MASK = range(len(SPECIAL))
