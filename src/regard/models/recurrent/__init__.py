"""Sequence to sequence with recurrent networks: the fixed context vector, and attention in its place."""

from regard.models.recurrent.config import RecurrentConfig
from regard.models.recurrent.continuation import RecurrentContinuation
from regard.models.recurrent.seq2seq import RecurrentOutput, RecurrentSeq2Seq
from regard.models.recurrent.state import RecurrentState

__all__ = ["RecurrentConfig", "RecurrentContinuation", "RecurrentOutput", "RecurrentSeq2Seq", "RecurrentState"]
