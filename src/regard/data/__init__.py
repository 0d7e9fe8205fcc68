"""Data: corpora read from files, tokenizers, and token ids made into batches."""

from regard.data.batching import batches, chunk_tokens, pad, shard_batch
from regard.data.chinese import FetchError, Script, fetch_hsk, to_script
from regard.data.corpus import Corpus, read_corpus
from regard.data.masking import mask_tokens
from regard.data.packing import collate_packed, pack_sequences
from regard.data.splitting import references, split, without_sources
from regard.data.synthetic import AssociativeRecall, Copy, Reverse, Sort, Synthetic
from regard.data.tokenizer import Tokenizer, TokenizerModelType
from regard.languages import Language, find_language

__all__ = [
    "AssociativeRecall",
    "Copy",
    "Corpus",
    "FetchError",
    "Language",
    "Reverse",
    "Script",
    "Sort",
    "Synthetic",
    "Tokenizer",
    "TokenizerModelType",
    "batches",
    "chunk_tokens",
    "collate_packed",
    "fetch_hsk",
    "find_language",
    "mask_tokens",
    "pack_sequences",
    "pad",
    "read_corpus",
    "references",
    "shard_batch",
    "split",
    "to_script",
    "without_sources",
]
