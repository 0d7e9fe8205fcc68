"""Special tokens: the first ids of every tokenizer trained here, in this order."""

__all__ = ["BOS", "EOS", "MASK", "PAD", "SPECIAL", "UNKNOWN"]

SPECIAL = ("<pad>", "<s>", "</s>", "<unk>", "<mask>")
PAD, BOS, EOS, UNKNOWN, MASK = range(len(SPECIAL))
