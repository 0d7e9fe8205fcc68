"""The cases, in the order of the table."""

from regard_bench.cases.busy_process import BUSY
from regard_bench.cases.few_queries import DECODING, SMALL
from regard_bench.cases.full_and_causal import BEYOND, BF16, DENSE, TRAINING
from regard_bench.cases.peers import PEERS
from regard_bench.cases.seeing import SEEING
from regard_bench.cases.short_sequences import SHORT
from regard_bench.cases.sparse_masks import SPARSE, WINDOW
from regard_bench.cases.whole_models import MODELS

__all__ = ["CASES"]

CASES = (DENSE, BF16, WINDOW, TRAINING, SPARSE, BEYOND, DECODING, SMALL, SHORT, BUSY, MODELS, PEERS, SEEING)
