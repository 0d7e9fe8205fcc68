"""When `auto` takes the kernels: for calls that were measured to be faster, with the library that is loaded.

Those for AVX-512 were measured on two machines with two cores, an AMD EPYC and an Intel Xeon without AMX; training on
the Xeon alone; dropout, short causal calls and training with biases of the distance on the EPYC alone; those for AVX2
on the EPYC beside PyTorch and MKL that were limited to AVX2 too (docs/performance.md). Nobody has measured AMX, so
bfloat16 stays with PyTorch there. Of libraries that nobody has measured, `auto` takes what PyTorch's fused kernel
lacks: windows, dropout, gradients of biases.
"""

import sys
from collections.abc import Mapping
from typing import NamedTuple

import torch

from regard.backends.base import FEATURES
from regard.backends.call_form import unwritable
from regard.backends.native import library
from regard.masks import Causal
from regard.masks.causal_and_window import band_of
from regard.positions.base import is_by_distance
from regard.problem import Problem
from regard.problem_checks import learns
from regard.torch_private import assume_constant_result

__all__ = ["LEAST_KEYS", "RULES", "Rule", "attends_by", "hindrance", "reason_for", "rule_for", "takes", "takes_some"]


class Rule(NamedTuple):
    """A kind of calls for which `auto` takes the kernels, and their time as a multiple of the time without them."""

    name: str
    least: int  # queries and keys; keys alone where one query decodes
    widest: int  # vectors that were measured
    times: tuple[float, float] | None  # of the best and the worst size of all machines; None where nobody measured
    machines: str = "two machines"
    windows: bool = False  # of masks, bands that end before and after a query alone


_FLOAT, _BFLOAT = torch.float32, torch.bfloat16
_Rules = Mapping[tuple[str, torch.dtype], Rule]
_V4_BF16: _Rules = {
    ("dense", _FLOAT): Rule("without a mask, float32", 512, 64, (0.56, 0.98)),
    ("dense", _BFLOAT): Rule("without a mask, bfloat16", 512, 64, (0.40, 0.94)),
    ("masked", _FLOAT): Rule("with a mask, float32", 512, 128, (0.53, 0.87)),
    ("masked", _BFLOAT): Rule("causal or in a window, bfloat16", 512, 128, (0.27, 0.90)),
    ("short causal", _FLOAT): Rule("causal, of 256 to 511 tokens, float32", 256, 64, (0.46, 0.54), "one machine"),
    ("few", _FLOAT): Rule("decoding with grouped queries, float32", 4096, 128, (0.40, 0.77)),
    ("dense training", _FLOAT): Rule("without a mask in training, float32", 1024, 64, (0.88, 0.92), "one machine"),
    ("masked training", _FLOAT): Rule("with a mask in training, float32", 512, 128, (0.18, 0.84), "one machine"),
    ("dropout", _FLOAT): Rule("with dropout, float32", 16, 128, (0.06, 0.47), "one machine"),
    ("dropout training", _FLOAT): Rule("with dropout in training, float32", 128, 128, (0.18, 0.52), "one machine"),
    ("dropout", _BFLOAT): Rule("with dropout, bfloat16", 512, 128, (0.23, 0.33), "one machine"),
    ("dropout training", _BFLOAT): Rule("with dropout in training, bfloat16", 512, 128, (0.23, 0.33), "one machine"),
    ("biased training", _FLOAT): Rule(
        "with a bias of distances in training, float32", 512, 128, (0.24, 0.81), "one machine"
    ),
    ("biased training", _BFLOAT): Rule(
        "with a bias of distances in training, bfloat16", 512, 128, (0.25, 0.95), "one machine"
    ),
}
_V4: _Rules = {(kind, dtype): rule for (kind, dtype), rule in _V4_BF16.items() if dtype == _FLOAT}
_UNMEASURED: _Rules = {
    ("masked", _FLOAT): Rule("in a window, float32", 512, 128, None, windows=True),
    ("masked training", _FLOAT): Rule("in a window in training, float32", 512, 128, None, windows=True),
    ("dropout", _FLOAT): Rule("with dropout, float32", 512, 128, None),
    ("dropout training", _FLOAT): Rule("with dropout in training, float32", 512, 128, None),
    ("biased training", _FLOAT): Rule("with a bias of distances in training, float32", 512, 128, None),
}
_V3: _Rules = {
    ("masked", _FLOAT): Rule("with a mask, float32", 512, 128, (0.65, 0.96), "one machine"),
    ("masked training", _FLOAT): Rule("with a mask in training, float32", 512, 128, (0.52, 0.84), "one machine"),
    ("dropout", _FLOAT): Rule("with dropout, float32", 16, 128, (0.08, 0.69), "one machine"),
    ("dropout training", _FLOAT): Rule("with dropout in training, float32", 128, 128, (0.45, 0.66), "one machine"),
    ("biased training", _FLOAT): Rule(
        "with a bias of distances in training, float32", 512, 128, (0.53, 0.65), "one machine"
    ),
}
RULES: Mapping[str, _Rules] = {
    "x86_64_v4_bf16": _V4_BF16,
    "x86_64_v4": _V4,
    "x86_64_v3": _V3,
    "unmeasured": _UNMEASURED,
    "": {},
}
LEAST_KEYS = 16  # of any call that a rule takes
_LONG = 512  # … without dropout
_SHORT_CAUSAL = 256  # … causal, forward
_GROUP, _SIDES = (3, 16), 8  # heads that share their keys, which a kernel reads once, and key–value heads at most


def rule_for(problem: Problem, rules: _Rules | None = None) -> Rule | None:
    """Return the rule by which the kernels take a call, those of the loaded library by default, or None: sizes first,
    because every call comes here.
    """
    rules = RULES[_loaded()] if rules is None else rules
    rule, size = None, min(problem.queries, problem.keys)
    if size >= _LONG or (problem.dropout is not None and size >= LEAST_KEYS):
        rule = rules.get((_name_of(problem), problem.q.dtype))
    elif size >= _SHORT_CAUSAL:
        rule = rules.get(("short causal", problem.q.dtype)) if _is_causal_alone(problem) else None
    elif _decodes(problem):
        rule, size = rules.get(("few", problem.q.dtype)), _keys_read(problem)
    if rule is None or size < rule.least or max(problem.q.shape[-1], problem.v.shape[-1]) > rule.widest:
        return None
    if rule.windows and not _is_window(problem):
        return None
    # What Python answers is asked pair by pair, on every path; blocks in float32 beat pairs of bfloat16 on the Xeon.
    return rule if unwritable(problem) is None and (problem.q.dtype == _FLOAT or _is_plain(problem)) else None


@assume_constant_result
def _loaded() -> str:
    """Return the name of the rules for the library of this process; those of AMX's processors have no bfloat16."""
    if library.refuses() is not None:
        return ""
    name = library.library().name
    if sys.platform == "win32":
        return "unmeasured"
    if name == "x86_64_v4_bf16" and "amx" in library.instruction_sets():
        return "x86_64_v4"
    return name if name in RULES else "unmeasured"


def _is_causal_alone(problem: Problem) -> bool:
    """Whether it is a causal call of as many queries as keys, in which nothing learns, as was measured."""
    square = problem.queries == problem.keys and _name_of(problem) == "masked"
    return square and problem.mask is not None and type(problem.mask.mask) is Causal


def _is_window(problem: Problem) -> bool:
    band = None if problem.mask is None else band_of(problem.mask.mask)
    if band is None:
        return False
    before, after = band.within(problem.queries + problem.keys)
    return before + after + 1 < min(problem.queries, problem.keys)


def _name_of(problem: Problem) -> str:
    if problem.dropout is None and _trains_with_distances(problem):
        return "biased training"
    kind = "dropout" if problem.dropout is not None else "dense" if problem.mask is None else "masked"
    trains = FEATURES["gradients"](problem) or (problem.dropout is not None and learns(problem.bias))
    return f"{kind} training" if trains else kind


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
    return is_by_distance(problem.bias) and learns(problem.q, problem.k, problem.v, problem.bias)


def _keys_read(problem: Problem) -> int:
    return problem.seen.columns if problem.leaves_keys_out else problem.keys


def _decodes(problem: Problem) -> bool:
    """Whether one query of each head meets keys that enough heads share, and few sequences and heads have."""
    group, sides = problem.heads // problem.kv_heads, problem.batch * problem.kv_heads
    measured = _GROUP[0] <= group <= _GROUP[1] and sides <= _SIDES
    trained = FEATURES["gradients"](problem) or learns(problem.bias)
    return problem.queries == 1 and measured and not trained and problem.dropout is None


def takes(problem: Problem) -> bool:
    """Return whether `auto` takes the kernels."""
    return rule_for(problem) is not None and not _is_bound_to_pytorch(problem)


def attends_by(device: torch.device) -> str:
    """Say in some words what `auto` takes in this process, which decides on the last bits of results."""
    if not takes_some(device):
        return "PyTorch's kernels"
    return f"regard's kernels for {library.library().name} and PyTorch's"


def takes_some(device: torch.device) -> bool:
    """Return whether `auto` takes the kernels for some calls on a device in this process."""
    return device.type == "cpu" and bool(RULES[_loaded()])


def reason_for(problem: Problem) -> str:
    """Say why `auto` takes the kernels."""
    rule = rule_for(problem)
    assert rule is not None
    sizes = f"{problem.queries:,} queries and {problem.keys:,} keys"
    if rule.times is None:
        return f"{sizes}; calls {rule.name}, are what PyTorch's fused kernel lacks"
    return f"{sizes}; calls {rule.name}, were measured faster from {rule.least:,} on"


def hindrance(problem: Problem) -> str:
    """Say what hinders `auto` from taking kernels that would be faster; "" where nothing does."""
    why = library.refuses()
    rule = None if why is None else rule_for(problem, _V4_BF16)
    if rule is None or rule.times is None or _is_bound_to_pytorch(problem):
        return ""
    best, worst = rule.times
    gain = f"calls {rule.name}, took {best:.2f} – {worst:.2f} of the time on {rule.machines} with AVX-512"
    return f"{why}; {gain}"


def _is_bound_to_pytorch(problem: Problem) -> bool:
    """Whether something learns whose gradient the kernels lack, or PyTorch's deterministic operations are wanted."""
    bias = None if is_by_distance(problem.bias) else problem.bias
    return torch.are_deterministic_algorithms_enabled() or learns(problem.score, bias, problem.normalizer)
