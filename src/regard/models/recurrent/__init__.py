"""Sequence to sequence with recurrent networks: the fixed context vector, and attention in its place."""

from regard.models.recurrent.config import RecurrentConfig
from regard.models.recurrent.layers import RecurrentState
from regard.models.recurrent.seq2seq import RecurrentContinuation, RecurrentOutput, RecurrentSeq2Seq

__all__ = ["RecurrentConfig", "RecurrentContinuation", "RecurrentOutput", "RecurrentSeq2Seq", "RecurrentState"]
