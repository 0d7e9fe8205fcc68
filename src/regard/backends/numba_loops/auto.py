"""When `auto` takes the compiled loops: for calls that were measured to be faster, where the loops are compiled.

Measured on two machines with two cores and AVX-512 BF16, an AMD EPYC and an Intel Xeon without AMX; training on the
Xeon alone, dropout and training with biases of the distance on the EPYC alone (docs/performance.md). Nobody has
measured AMX, so bfloat16 stays with PyTorch there, or less than AVX-512.
"""

from importlib import util
from typing import NamedTuple

import torch

from regard.backends.base import FEATURES
from regard.backends.call_form import unwritable
from regard.backends.numba_loops import object_code
from regard.masks.causal_and_window import band_of
from regard.positions import Relative
from regard.problem import Problem
from regard.problem_checks import learns
from regard.torch_private import assume_constant_result

__all__ = [
    "LEAST_KEYS",
    "MEASURED",
    "Measured",
    "attends_by",
    "hindrance",
    "kind_of",
    "reason_for",
    "takes",
    "takes_some",
]


class Measured(NamedTuple):
    """A kind of calls, and their time with the loops as a multiple of the time that `auto` takes without them."""

    name: str
    least: int  # queries and keys; keys alone where one query decodes
    widest: int  # vectors that were measured
    times: tuple[float, float]  # of the best and the worst size of all machines
    machines: str = "two machines"


_FLOAT, _BFLOAT = torch.float32, torch.bfloat16
MEASURED = {
    ("dense", _FLOAT): Measured("without a mask, float32", 512, 64, (0.56, 0.98)),
    ("dense", _BFLOAT): Measured("without a mask, bfloat16", 512, 64, (0.40, 0.94)),
    ("masked", _FLOAT): Measured("with a mask, float32", 512, 128, (0.53, 0.87)),
    ("masked", _BFLOAT): Measured("causal or in a window, bfloat16", 512, 128, (0.27, 0.90)),
    ("few", _FLOAT): Measured("decoding with grouped queries, float32", 4096, 128, (0.40, 0.77)),
    ("dense training", _FLOAT): Measured("without a mask in training, float32", 1024, 64, (0.88, 0.92), "one machine"),
    ("masked training", _FLOAT): Measured("with a mask in training, float32", 512, 128, (0.18, 0.84), "one machine"),
    ("dropout", _FLOAT): Measured("with dropout, float32", 512, 128, (0.18, 0.47), "one machine"),
    ("dropout", _BFLOAT): Measured("with dropout, bfloat16", 512, 128, (0.23, 0.33), "one machine"),
    ("biased training", _FLOAT): Measured(
        "with a bias of distances in training, float32", 512, 128, (0.24, 0.81), "one machine"
    ),
    ("biased training", _BFLOAT): Measured(
        "with a bias of distances in training, bfloat16", 512, 128, (0.25, 0.95), "one machine"
    ),
}
LEAST_KEYS = min(one.least for one in MEASURED.values())
_GROUP, _SIDES = (3, 16), 8  # heads that share their keys, which the loops read once, and key–value heads at most


def kind_of(problem: Problem) -> Measured | None:
    """Return the measured kind that a call belongs to, or None: sizes first, because every call comes here."""
    found, size = None, min(problem.queries, problem.keys)
    if size >= LEAST_KEYS:
        found = MEASURED.get((_name_of(problem), problem.q.dtype))
    elif _decodes(problem):
        found, size = MEASURED.get(("few", problem.q.dtype)), problem.keys
    if found is None or size < found.least or max(problem.q.shape[-1], problem.v.shape[-1]) > found.widest:
        return None
    # What Python answers is asked pair by pair, on every path; blocks in float32 beat pairs of bfloat16 on the Xeon.
    return found if unwritable(problem) is None and (problem.q.dtype == _FLOAT or _is_plain(problem)) else None


def _name_of(problem: Problem) -> str:
    if problem.dropout is not None:
        return "dropout"
    if _trains_with_distances(problem):
        return "biased training"
    kind = "dense" if problem.mask is None else "masked"
    return f"{kind} training" if FEATURES["gradients"](problem) else kind


def _is_plain(problem: Problem) -> bool:
    """Whether bfloat16 was measured to be faster: with dropout, which PyTorch's fused kernel lacks, in training with a
    bias of distances, for bands, and for what that kernel computes without a mask.
    """
    if problem.dropout is not None or _trains_with_distances(problem):
        return True
    if problem.mask is not None:
        return band_of(problem.mask.mask) is not None
    more = problem.bias, problem.score.softcap, problem.sink
    return all(one is None for one in more) and not problem.wants_lse


def _trains_with_distances(problem: Problem) -> bool:
    """Whether a bias of i − j, or q, k or v beside one, learns."""
    return isinstance(problem.bias, Relative) and learns(problem.q, problem.k, problem.v, problem.bias)


def _decodes(problem: Problem) -> bool:
    """Whether one query of each head meets keys that enough heads share, and few sequences and heads have."""
    group, sides = problem.heads // problem.kv_heads, problem.batch * problem.kv_heads
    measured = _GROUP[0] <= group <= _GROUP[1] and sides <= _SIDES
    trained = FEATURES["gradients"](problem) or learns(problem.bias)
    return problem.queries == 1 and measured and not trained and problem.dropout is None


def takes(problem: Problem) -> bool:
    """Return whether `auto` takes the loops."""
    if kind_of(problem) is None or _is_bound_to_pytorch(problem):
        return False
    return object_code.are_ready() and _is_measured(problem.q.dtype)


def attends_by(device: torch.device) -> str:
    """Say in some words what `auto` takes in this process, which decides on the last bits of results."""
    return "numba's loops and PyTorch's kernels" if takes_some(device) else "PyTorch's kernels"


def takes_some(device: torch.device) -> bool:
    """Return whether `auto` takes the loops for some calls on a device in this process."""
    return device.type == "cpu" and object_code.are_ready() and _is_measured(_FLOAT)


def reason_for(problem: Problem) -> str:
    """Say why `auto` takes the loops."""
    found = kind_of(problem)
    assert found is not None
    sizes = f"{problem.queries:,} queries and {problem.keys:,} keys"
    return f"its loops are compiled; {sizes}; calls {found.name}, were measured faster from {found.least:,} on"


def hindrance(problem: Problem) -> str:
    """Say what hinders `auto` from taking loops that would be faster; "" where they were not measured to be."""
    found = kind_of(problem)
    if found is None or _is_bound_to_pytorch(problem) or object_code.is_switched_off() or takes(problem):
        return ""
    best, worst = found.times
    gain = f"calls {found.name}, then took {best:.2f} – {worst:.2f} of the time on {found.machines} with AVX-512"
    if any(util.find_spec(name) is None for name in ("numba", "llvmlite")):
        way = "the package `numba` is not installed: pip install 'regard[numba]', then `regard doctor --compile`"
        return f"{way}; {gain}" if torch.backends.cpu.get_cpu_capability() == "AVX512" else ""
    if not _is_measured(problem.q.dtype):
        return ""
    if object_code.is_kept():
        return (
            "this process found no loops when it first looked for them; a later one takes them, unless their file is "
            "damaged (`regard doctor --compile` makes it anew)"
        )
    return f"its loops are not compiled on this machine: `regard doctor --compile`; {gain}"


@assume_constant_result
def _is_measured(dtype: torch.dtype) -> bool:
    """Whether the loops were measured on a processor like this one."""
    features = object_code.processor().features
    if "avx512f" not in features or dtype != _BFLOAT:
        return "avx512f" in features
    return object_code.has_pairs() and not any(one.startswith("amx") for one in features)


def _is_bound_to_pytorch(problem: Problem) -> bool:
    """Whether something learns whose gradient the loops lack or nobody measured, or PyTorch's deterministic operations
    are wanted.
    """
    bias = None if isinstance(problem.bias, Relative) else problem.bias
    return torch.are_deterministic_algorithms_enabled() or learns(problem.score, bias, problem.normalizer)
