"""What a run of faults did, and what came of it."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from assent.testing.chaos.strike import Strike
from assent.testing.reader import Rows


@dataclass
class Result:
    """One run on one stage."""

    sink: str
    seed: int
    guarantee: str
    strikes: list[tuple[float, Strike]] = field(default_factory=list)
    """With their times, by the monotonic clock."""
    unavailable: list[str] = field(default_factory=list)
    """Faults that this machine cannot produce."""
    starts: int = 0
    looks: int = 0
    rows: int = 0
    lost: int = 0
    duplicated: int = 0
    phantom: int = 0
    torn: int = 0
    pending: list[str] = field(default_factory=list)
    unfinished: list[int] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    recoveries: list[float] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        """Nothing lost, nothing twice, nothing made up, torn or left behind, at any time."""
        counted = self.lost or self.duplicated or self.phantom or self.torn
        return not (counted or self.pending or self.unfinished or self.violations)

    @property
    def faults(self) -> int:
        return len(self.strikes)

    def judge(self, found: Rows, expected: Rows) -> None:
        """Compare what is there with what should be."""
        self.rows = expected.total()
        self.lost = len(expected.keys() - found.keys())
        self.duplicated = found.total() - len(found)
        self.phantom = len(found.keys() - expected.keys())

    def measure_recoveries(self, totals: Sequence[tuple[float, int]]) -> None:
        """From each fault until a reader saw new rows again; `totals` are times and counts."""
        for struck, _ in self.strikes:
            before = max((count for when, count in totals if when <= struck), default=0)
            again = [when for when, count in totals if when > struck and count > before]
            if again:
                self.recoveries.append(min(again) - struck)

    def to_json(self) -> dict[str, Any]:
        """What is kept of a run, and what the page about it is made of."""
        kinds = Counter(strike.fault.value for _, strike in self.strikes)
        steps = Counter(strike.step for _, strike in self.strikes)
        return {
            "sink": self.sink,
            "seed": self.seed,
            "guarantee": self.guarantee,
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "ok": self.good,
            "faults": self.faults,
            "byKind": dict(sorted(kinds.items())),
            "byStep": dict(sorted(steps.items())),
            "unavailable": self.unavailable,
            "starts": self.starts,
            "recoverySeconds": _summary(self.recoveries),
            "looks": self.looks,
            "rows": self.rows,
            "lost": self.lost,
            "duplicated": self.duplicated,
            "phantom": self.phantom,
            "torn": self.torn,
            "pending": self.pending,
            "unfinished": self.unfinished,
            "violations": self.violations,
            "seconds": round(self.seconds, 1),
        }


def _summary(values: Sequence[float]) -> dict[str, float | int]:
    if not values:
        return {"count": 0}
    ordered = sorted(values)
    return {
        "count": len(ordered),
        "median": round(statistics.median(ordered), 2),
        "p95": round(ordered[int(0.95 * (len(ordered) - 1))], 2),
        "longest": round(ordered[-1], 2),
    }
