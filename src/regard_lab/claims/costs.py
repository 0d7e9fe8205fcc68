"""Time and memory over the length: which kind of attention grows as n², as n·w, or as n."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor

import regard
from regard import masks
from regard.approximations import Compression, performer_attention, random_features
from regard_lab.charts import Line, Lines
from regard_lab.experiment import Claim, Finding, Numbers, Part, Setting, within
from regard_lab.measuring import exponent, peak_bytes, seconds_in_turn

__all__ = ["CLAIM", "judge", "run"]

CLAIM = Claim(
    number=6,
    name="costs",
    title="What attention costs",
    statement="Full attention takes time and memory in n²; a window takes n·w; Longformer, BigBird, Linformer and "
    "Performer take n; in blocks, full attention takes time in n² and memory in n.",
    source="Vaswani et al. 2017, table 1, arXiv:1706.03762; Beltagy et al. 2020, arXiv:2004.05150; Zaheer et al. 2020, "
    "arXiv:2007.14062; Wang et al. 2020, arXiv:2006.04768; Choromanski et al. 2021, arXiv:2009.14794; Rabe & "
    "Staats 2021, arXiv:2112.05682",
)
DIM, WINDOW, RANK, FEATURES = 64, 256, 64, 64
QUADRATIC, LINEAR = (1.6, 2.4), (0.7, 1.3)  # ranges of powers of n that count as n² and as n
AT_MOST = (0.0, 1.3)  # power of memory in blocks: their size is independent of n, other tensors are not
UPPER = 3  # number of sizes, the largest, that the power is fitted to
FULL, BLOCKS = "full, by the formula", "full, in blocks"
# The expected powers of n of each: time, memory.
EXPECTED = {
    FULL: (QUADRATIC, QUADRATIC),
    BLOCKS: (QUADRATIC, AT_MOST),
    "window": (LINEAR, AT_MOST),
    "Longformer": (LINEAR, AT_MOST),
    "BigBird": (LINEAR, AT_MOST),
    "Linformer": (LINEAR, LINEAR),
    "Performer": (LINEAR, LINEAR),
}
SIZES = {True: (1024, 2048, 4096, 8192), False: (1024, 2048, 4096, 8192, 16384)}
LONG = {True: (4096, 8192, 16384, 32768), False: (8192, 16384, 32768, 65536, 131072)}
WIDTHS, AT = (512, 1024, 2048, 4096), 16384  # widths of the window, and the length at which they are compared

Call = Callable[[], object]


def judge(numbers: Numbers) -> tuple[Part, ...]:
    """Return the parts: each power of n within its range, in time and in memory; for the window also the power of w."""
    parts = []
    for name, expected in EXPECTED.items():
        for what, (least, most) in zip(("time", "memory"), expected, strict=True):
            power = numbers[f"power of n, {what}"][name]
            said = {QUADRATIC: "n²", LINEAR: "n"}.get((least, most), "at most n")
            text = f"{name}: {what} grows as n^{power:.2f}{_spread(numbers, what, name)}, {said} was said"
            parts.append(Part(text, within(least <= power <= most)))
    power = numbers["power of w, time"]
    text = f"window: time grows as w^{power:.2f} at n = {AT:,}, w was said"
    parts.append(Part(text, within(LINEAR[0] <= power <= LINEAR[1])))
    return tuple(parts)


def _spread(numbers: Numbers, what: str, name: str) -> str:
    if what == "memory":
        return ""
    low, high = numbers["power of n, time, least and most"][name]
    return f" ({low:.2f} to {high:.2f} over repetitions)"


def run(setting: Setting) -> Finding:
    """Time forward calls alternately, for one head of 64; count bytes at the peak; fit powers to the largest sizes."""
    repeats = 5 if setting.quick else 11
    times: dict[str, dict[int, list[float]]] = {}
    memory: dict[str, dict[int, int]] = {}
    for name in EXPECTED:
        setting.progress(name)
        sizes = (SIZES if QUADRATIC in EXPECTED[name] else LONG)[setting.quick]
        with torch.inference_mode():
            calls = {n: _call(name, n, setting.seed) for n in sizes}
            times[name] = seconds_in_turn(calls, repeats)
            memory[name] = {n: peak_bytes(call) for n, call in calls.items()}
    setting.progress("window over w")
    widths = _over_widths(setting, repeats)
    numbers = _numbers(times, memory, widths, repeats)
    parts = judge(numbers)
    powers = numbers["power of n, time"]
    full, window = powers[FULL], powers["window"]
    dense, blocks = (memory[name][SIZES[setting.quick][-1]] for name in (FULL, BLOCKS))
    text = (
        f"By the formula time grows as n^{full:.2f}; over {SIZES[setting.quick][-1]:,} tokens it holds "
        f"{dense / 2**20:,.0f} MiB, in blocks {blocks / 2**20:,.1f} MiB. A window of {WINDOW} grows as n^{window:.2f}."
    )
    return Finding(
        parts, numbers, f"full n^{full:.2f}, window n^{window:.2f}, Performer n^{powers['Performer']:.2f}", text,
        "Forward only, on a CPU, one head of 64, float32. A power says nothing on the factor before it: see "
        "the seconds. "
        "Linear ones are fitted over longer texts, as below some thousand tokens what each call costs anyway "
        "outweighs.",
        tuple(_charts(times, memory)),
    )  # fmt: skip


def _inputs(n: int, seed: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    q, k, v = torch.randn(3, 1, 1, n, DIM, generator=generator)
    return q, k, v


def _call(name: str, n: int, seed: int) -> Call:
    """Return a forward call of a mechanism over n tokens, with its parameters and random features already made."""
    q, k, v = _inputs(n, seed)
    generator = torch.Generator().manual_seed(seed)
    if name == "Linformer":
        compression = Compression(n, RANK, sharing="headwise")
        return lambda: regard.attention(q, *compression(k, v))
    if name == "Performer":
        features = random_features(FEATURES, DIM, generator=generator)
        return lambda: performer_attention(q, k, v, features)
    if name in (FULL, BLOCKS):
        return lambda: regard.attention(q, k, v, backend="reference" if name == FULL else "strips", max_bytes=2**34)
    made: dict[str, Callable[[], masks.Mask]] = {
        "window": lambda: masks.Causal() & masks.Window(WINDOW),
        "Longformer": lambda: masks.longformer(WINDOW, global_positions=[0]),
        "BigBird": masks.bigbird,
    }
    mask = made[name]().bind(n, n)
    return lambda: regard.attention(q, k, v, mask=mask, backend="strips")


def _over_widths(setting: Setting, repeats: int) -> dict[int, list[float]]:
    q, k, v = _inputs(AT, setting.seed)
    bound = {w: (masks.Causal() & masks.Window(w)).bind(AT, AT) for w in WIDTHS}
    with torch.inference_mode():
        calls = {
            w: (lambda mask=mask: regard.attention(q, k, v, mask=mask, backend="strips")) for w, mask in bound.items()
        }
        return seconds_in_turn(calls, repeats)


def _numbers(
    times: Mapping[str, Mapping[int, list[float]]],
    memory: Mapping[str, Mapping[int, int]],
    widths: Mapping[int, list[float]],
    repeats: int,
) -> dict[str, Any]:
    """Return the powers of the fastest times, their range over the repetitions, and all measurements."""
    fitted = {name: _powers(of_sizes) for name, of_sizes in times.items()}
    return {
        "repetitions": repeats,
        "power of n, time": {name: power for name, (power, _) in fitted.items()},
        "power of n, time, least and most": {name: spread for name, (_, spread) in fitted.items()},
        "power of n, memory": {name: _power(list(one), list(one.values())) for name, one in memory.items()},
        "power of w, time": _power(list(widths), [min(one) for one in widths.values()]),
        "seconds": {name: {str(n): min(one) for n, one in of_sizes.items()} for name, of_sizes in times.items()},
        "seconds over w": {str(w): min(one) for w, one in widths.items()},
        "peak bytes": {name: {str(n): one for n, one in of_sizes.items()} for name, of_sizes in memory.items()},
    }


def _powers(of_sizes: Mapping[int, list[float]]) -> tuple[float, list[float]]:
    """Return the power of the fastest times, and the smallest and largest power of a single repetition."""
    sizes = list(of_sizes)
    each = [_power(sizes, [of_sizes[n][at] for n in sizes]) for at in range(len(of_sizes[sizes[0]]))]
    return _power(sizes, [min(of_sizes[n]) for n in sizes]), [min(each), max(each)]


def _power(sizes: Sequence[float], values: Sequence[float]) -> float:
    return exponent(sizes[-UPPER:], values[-UPPER:])


def _charts(times: Mapping[str, Mapping[int, list[float]]], memory: Mapping[str, Mapping[int, int]]) -> list[Lines]:
    seconds = tuple(
        Line(
            name, tuple(map(float, one)), tuple(median(each) for each in one.values()),
            tuple(min(each) for each in one.values()), tuple(max(each) for each in one.values()),
        )
        for name, one in times.items()
    )  # fmt: skip
    mebibytes = tuple(
        Line(name, tuple(map(float, one)), tuple(each / 2**20 for each in one.values())) for name, one in memory.items()
    )
    return [
        Lines(
            "Time of a forward call",
            "Seconds of one core; the median, with a band from the fastest to the slowest repetition.",
            "tokens n", "seconds", seconds, log_across=True, log_up=True,
        ),
        Lines(
            "Memory at the peak of a forward call",
            "Bytes of all tensors alive at once, over what there was before the call.",
            "tokens n", "MiB", mebibytes, log_across=True, log_up=True,
        ),
    ]  # fmt: skip
