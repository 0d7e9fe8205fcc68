"""The machine's limits, what a call has to do at least, and its speed as a share of a limit."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from regard_bench.timing import Ratio

__all__ = ["Peaks", "Resource", "Work", "shown_peaks", "shown_share"]


class Resource(StrEnum):
    """What limits a call."""

    FLOAT32 = "float32"  # fused multiply–adds
    BFLOAT16 = "bfloat16"
    MEMORY = "memory"


_NAMES = {
    Resource.FLOAT32: "float32 peak",
    Resource.BFLOAT16: "bfloat16 peak",
    Resource.MEMORY: "memory's speed",
}


@dataclass(frozen=True)
class Work:
    """What a call has to do at least: floating-point operations of a type, or bytes of memory to read."""

    resource: Resource
    amount: float


@dataclass(frozen=True)
class Peaks:
    """The machine's limits, as measured in a run.

    Args:
        rates: Operations or bytes per second.
        products: The same of PyTorch's matrix products of 1,024 × 1,024.
        missing: Why a limit was not measured.
        cache_bytes: Size of the last cache before memory; None where the system does not report it.
    """

    rates: Mapping[Resource, Ratio] = field(default_factory=dict)
    products: Mapping[Resource, Ratio] = field(default_factory=dict)
    missing: Mapping[Resource, str] = field(default_factory=dict)
    cache_bytes: int | None = None

    def share(self, work: Work, rate: Ratio) -> Ratio | None:
        """Return the share of its limit that a call reaches; None where the limit was not measured.

        Half the interval is the root of the sum of squares of those of the call and of the limit, which were measured
        one after the other, as shares of their medians.

        >>> peaks = Peaks({Resource.MEMORY: Ratio(20.0, 19.2, 20.8, 30)})
        >>> peaks.share(Work(Resource.MEMORY, 1), Ratio(10.0, 9.7, 10.3, 9))
        Ratio(median=0.5, low=0.475, high=0.525, rounds=9)
        """
        peak = self.rates.get(work.resource)
        if peak is None:
            return None
        below, above = (math.hypot(*(_half(one, side) for one in (rate, peak))) for side in (-1, 1))
        share = rate.median / peak.median
        return Ratio(share, share * (1 - below), share * (1 + above), rate.rounds)

    def fits_cache(self, work: Work) -> bool:
        """Return whether the bytes that a call reads fit in the cache, which may be faster than memory."""
        return work.resource is Resource.MEMORY and self.cache_bytes is not None and work.amount <= self.cache_bytes

    def as_json(self) -> dict[str, Any]:
        """Return the limits as JSON values."""
        found: dict[str, Any] = {}
        for one in Resource:
            rates = {"rate": self.rates.get(one), "matrix_product": self.products.get(one)}
            found[one] = {name: rate and vars(rate) for name, rate in rates.items()} | {
                "why": self.missing.get(one, "")
            }
        return found | {"cache_bytes": self.cache_bytes}


def shown_share(share: Mapping[str, Any], between: str = ", ") -> str:
    """Return the share of a limit, from the JSON of a row, as text; `between` is before a remark.

    >>> shown_share({"of": "float32", "median": 0.314, "low": 0.301, "high": 0.327, "in_cache": False})
    '31 % of peak (30 – 33)'
    >>> shown_share({"of": "memory", "median": 1.4, "low": 1.3, "high": 1.5, "in_cache": True})
    '140 % of memory (130 – 150), in cache'
    """
    limit = "memory" if share["of"] == Resource.MEMORY else "peak"
    spread = f" ({_percent(share['low'])} – {_percent(share['high'])})" if share["low"] < share["high"] else ""
    return f"{_percent(share['median'])} % of {limit}{spread}{f'{between}in cache' if share['in_cache'] else ''}"


def shown_peaks(peaks: Mapping[str, Any]) -> dict[str, str]:
    """Return the limits, from their JSON, as text by name.

    >>> of = {"rate": vars(Ratio(236.2e9, 235e9, 237e9, 60)), "matrix_product": vars(Ratio(2e11, 199e9, 201e9, 60))}
    >>> none = {"rate": None, "matrix_product": None, "why": "no native kernels"}
    >>> memory = {"rate": vars(Ratio(28.1e9, 28e9, 28.2e9, 60)), "matrix_product": None}
    >>> for line in shown_peaks({"float32": of, "bfloat16": none, "memory": memory}).items():
    ...     print(*line)
    float32 peak 236 GFLOP/s (235 – 237); matrix products 200 (199 – 201)
    bfloat16 peak not measured: no native kernels
    memory's speed 28.1 GB/s (28.0 – 28.2)
    """
    found = {}
    for one, name in _NAMES.items():
        rate, product = peaks[one]["rate"], peaks[one]["matrix_product"]
        unit = " GB/s" if one is Resource.MEMORY else " GFLOP/s"
        why = "" if rate else peaks[one]["why"]
        text = _shown_rate(rate, unit) if rate else f"not measured{': ' * bool(why)}{why}"
        found[name] = text + (f"; matrix products {_shown_rate(product, '')}" if product else "")
    return found


def _half(ratio: Ratio, side: int) -> float:
    """Return half of an interval as a share of the median, below or above it."""
    return abs((ratio.low if side < 0 else ratio.high) - ratio.median) / ratio.median


def _percent(share: float) -> str:
    return f"{100 * share:.0f}" if abs(share) >= 0.0995 else f"{100 * share:.1f}"


def _shown_rate(rate: Mapping[str, Any], unit: str) -> str:
    median, low, high = (rate[name] / 1e9 for name in ("median", "low", "high"))
    digits = 0 if median >= 100 else 1
    return f"{median:.{digits}f}{unit} ({low:.{digits}f} – {high:.{digits}f})"
