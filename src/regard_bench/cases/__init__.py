"""The cases, in the order of the table; each file is one case (see `regard_bench.rows`)."""

from regard_bench.cases import beyond, bf16, decoding, dense, peers, seeing, small, sparse, whole_models, window
from regard_bench.rows import Case

__all__ = ["CASES"]

CASES: tuple[Case, ...] = (dense, bf16, window, sparse, beyond, decoding, small, whole_models, peers, seeing)
