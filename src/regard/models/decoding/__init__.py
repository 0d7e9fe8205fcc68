"""How the next token is chosen, for any model: greedy, sampling, beam search."""

from regard.models.decoding.base import Continuation, Decoding, GeneratedSequence, GenerationLimits
from regard.models.decoding.beam import BeamSearch
from regard.models.decoding.greedy import Greedy
from regard.models.decoding.markov import Markov
from regard.models.decoding.rules import BadWords, NoRepeatNGram, RepetitionPenalty, TokenRule
from regard.models.decoding.sampling import Sampling

__all__ = [
    "BadWords",
    "BeamSearch",
    "Continuation",
    "Decoding",
    "GeneratedSequence",
    "GenerationLimits",
    "Greedy",
    "Markov",
    "NoRepeatNGram",
    "RepetitionPenalty",
    "Sampling",
    "TokenRule",
]
