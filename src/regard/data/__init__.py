"""Data: corpora read from files, vocabularies, and rows of token ids made into batches."""

from regard.data.batching import batches, deal
from regard.data.chinese_script import Script, to_script
from regard.data.corpus import Corpus
from regard.data.hsk import fetch_hsk
from regard.data.masking import mask_tokens
from regard.data.packing import pack, packed
from regard.data.padding import pad, windows
from regard.data.read_corpus import read_corpus
from regard.data.splitting import references, split, without_sources
from regard.data.synthetic import AssociativeRecall, Copy, Reverse, Sort, Synthetic
from regard.data.tokenizer import Vocabulary, VocabularyKind
from regard.data.wheel_registry import FetchError

__all__ = [
    "AssociativeRecall",
    "Copy",
    "Corpus",
    "FetchError",
    "Reverse",
    "Script",
    "Sort",
    "Synthetic",
    "Vocabulary",
    "VocabularyKind",
    "batches",
    "deal",
    "fetch_hsk",
    "mask_tokens",
    "pack",
    "packed",
    "pad",
    "read_corpus",
    "references",
    "split",
    "to_script",
    "windows",
    "without_sources",
]
