"""What a measurement comes to: a figure, what it is compared with, and the bound that it must keep."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Bound:
    """What a figure must keep.

    Attributes:
        of: The value itself, or its ratio to the baseline.
        limit: How much.
        at_least: Whether less than that is a miss; else more is.
    """

    of: Literal["value", "ratio"]
    limit: float
    at_least: bool = False

    def __str__(self) -> str:
        return f"{self.of} {'>=' if self.at_least else '<='} {self.limit:g}"

    def kept_by(self, measured: float) -> bool:
        """Whether a measured number is within; one that is not a number never is."""
        return measured >= self.limit if self.at_least else measured <= self.limit


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the report.

    Attributes:
        name: What was measured; the first part is what ``--only`` takes.
        value: The number itself.
        unit: Its unit.
        baseline: The same of what it is compared with, measured in the same run; None where there is nothing.
        ratio: The comparison, in the direction in which its bound is written; see :func:`times`, :func:`quicker`.
        bound: What must be kept; None for what is told for orientation.
        n: Samples of the value.
        low: 10th percentile of the samples; None where there is but one.
        high: 90th percentile.
        note: What one must know to read it.
    """

    name: str
    value: float
    unit: str
    baseline: float | None = None
    ratio: float | None = None
    bound: Bound | None = None
    n: int = 1
    low: float | None = None
    high: float | None = None
    note: str = ""

    @property
    def ok(self) -> bool:
        """Whether the bound is kept; without a bound there is nothing to miss."""
        if self.bound is None:
            return True
        measured = self.value if self.bound.of == "value" else self.ratio
        return measured is not None and self.bound.kept_by(measured)

    def to_wire(self) -> dict[str, Any]:
        """As it stands in the results' file. What is not a number becomes null, as JSON has it."""
        return {
            "name": self.name,
            "value": _number(self.value),
            "unit": self.unit,
            "baseline": _number(self.baseline),
            "ratio": _number(self.ratio),
            "bound": str(self.bound) if self.bound else None,
            "ok": self.ok,
            "n": self.n,
            "low": _number(self.low),
            "high": _number(self.high),
            "note": self.note,
        }


def percentile(samples: Sequence[float], percent: float) -> float:
    """The smallest sample that at least ``percent`` of all samples do not exceed (nearest rank)."""
    if not samples:
        raise ValueError("no samples, no percentile")
    if not 0 < percent <= 100:
        raise ValueError(f"{percent} is not a percentile")
    return sorted(samples)[max(0, math.ceil(len(samples) * percent / 100) - 1)]


def median(samples: Sequence[float]) -> float:
    """The median."""
    return statistics.median(samples)


def trimmed_mean(samples: Sequence[float]) -> float:
    """The mean of what is left without the lowest and the highest tenth.

    Times that end with one of the kubelet's rounds are spread evenly over a second, where the median of 30 samples
    is off by a twelfth of it (one standard deviation) and this by two thirds of that. Stragglers do not move it.
    """
    cut = len(samples) // 10
    return statistics.fmean(sorted(samples)[cut : len(samples) - cut])


def _compared(
    name: str,
    samples: Sequence[float],
    baseline: Sequence[float],
    ratio: float | None,
    unit: str,
    bound: Bound | None,
    note: str,
    center: Callable[[Sequence[float]], float] = median,
) -> Figure:
    return Figure(
        name,
        center(samples),
        unit,
        center(baseline),
        ratio,
        bound,
        len(samples),
        percentile(samples, 10),
        percentile(samples, 90),
        note,
    )


def times(
    name: str,
    samples: Sequence[float],
    baseline: Sequence[float],
    unit: str,
    bound: Bound | None = None,
    note: str = "",
    center: Callable[[Sequence[float]], float] = median,
) -> Figure:
    """Centers compared as value / baseline: "so many times the baseline", of times and of rates alike."""
    ratio = _divided(center(samples), center(baseline))
    return _compared(name, samples, baseline, ratio, unit, bound, note, center)


def quicker(
    name: str,
    samples: Sequence[float],
    baseline: Sequence[float],
    unit: str,
    bound: Bound | None = None,
    note: str = "",
) -> Figure:
    """Medians of times compared as baseline / value: "so many times quicker than the baseline"."""
    ratio = _divided(median(baseline), median(samples))
    return _compared(name, samples, baseline, ratio, unit, bound, note)


def at_percentile(
    name: str,
    percent: float,
    samples: Sequence[float],
    baseline: Sequence[float],
    unit: str,
    bound: Bound | None = None,
    note: str = "",
) -> Figure:
    """One percentile of both, the ratio as value / baseline."""
    value = percentile(samples, percent)
    base = percentile(baseline, percent) if baseline else None
    return Figure(
        name,
        value,
        unit,
        base,
        None if base is None else _divided(value, base),
        bound,
        len(samples),
        percentile(samples, 10),
        percentile(samples, 90),
        note,
    )


def _divided(above: float, below: float) -> float:
    return above / below if below else math.nan


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, 4)
