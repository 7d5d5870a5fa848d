"""What a benchmark found: samples summed up, with the settings that they were taken under."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from bench.target import Outcome

FORMAT = 2
"""Of the JSON. A report is made of this one only."""


@dataclass(frozen=True)
class Measure:
    """The samples of one contender in one quantity: median, quartiles, 99th percentile, ends."""

    group: str
    name: str
    unit: str
    n: int
    median: float
    lower: float
    upper: float
    p99: float
    least: float
    most: float
    settings: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        group: str,
        name: str,
        unit: str,
        samples: Sequence[float],
        settings: Mapping[str, str] | None = None,
    ) -> Self:
        ordered = sorted(samples)
        if not ordered:
            raise ValueError(f"{group}, {name}: nothing was measured")
        return cls(
            group,
            name,
            unit,
            len(ordered),
            statistics.median(ordered),
            quantile(ordered, 0.25),
            quantile(ordered, 0.75),
            quantile(ordered, 0.99),
            ordered[0],
            ordered[-1],
            dict(settings or {}),
        )


@dataclass(frozen=True)
class Result:
    """All of one benchmark. `fairness` says what was done to give every side its best."""

    bench: str
    title: str
    fairness: str
    sizes: Mapping[str, Any]
    measures: tuple[Measure, ...]
    outcomes: tuple[Outcome, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    load: float = 0.0
    """Of the machine, as one minute's average, before the benchmark began."""
    date: str = ""
    machine: str = ""
    commit: str = ""
    """Of Assent: what was measured."""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "outcomes": [outcome.to_json() for outcome in self.outcomes]}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        return cls(
            **{
                **value,
                "measures": tuple(Measure(**measure) for measure in value["measures"]),
                "outcomes": tuple(Outcome.from_json(outcome) for outcome in value["outcomes"]),
                "notes": tuple(value["notes"]),
            }
        )

    def median(self, group: str, name: str) -> float:
        return find(self.measures, group, name).median


def find(measures: Sequence[Measure], group: str, name: str) -> Measure:
    """That measure; one only has that name in its group."""
    [found] = [measure for measure in measures if (measure.group, measure.name) == (group, name)]
    return found


def ratio(measures: Sequence[Measure], group: str, name: str, base: str) -> float:
    """The median of one divided by that of another."""
    return find(measures, group, name).median / find(measures, group, base).median


def fastest(measures: Sequence[Measure], group: str, beginning: str) -> str:
    """The name of the fastest of those whose names begin so, by rows per second."""
    found = [one for one in measures if one.group == group and one.name.startswith(beginning)]
    return max(found, key=lambda measure: measure.median).name


def quantile(ordered: Sequence[float], part: float) -> float:
    """Between the two nearest samples in proportion, so that few samples are no error."""
    place = part * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
