"""The tokens that are not text: the first ids of every vocabulary made here, in this order."""

__all__ = ["END", "MASK", "PAD", "SPECIAL", "START", "UNKNOWN"]

SPECIAL = ("<pad>", "<s>", "</s>", "<unk>", "<mask>")
PAD, START, END, UNKNOWN, MASK = range(len(SPECIAL))
