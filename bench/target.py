"""What the benchmarks are to reach. Whether they do is computed from what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True)
class Target:
    """A bound that has to be kept, and a better one to aim at."""

    what: str
    bound: float
    aim: float
    unit: str = ""
    at_most: bool = False

    def keeps(self, value: float, bound: float) -> bool:
        return value <= bound if self.at_most else value >= bound

    def wording(self, bound: float) -> str:
        return f"{'≤' if self.at_most else '≥'} {bound:g}{' ' + self.unit if self.unit else ''}"


KAFKA_EQUAL = Target("Kafka exactly-once ÷ built-in with equal settings, large epochs", 1.0, 1.3)
KAFKA_DEFAULTS = Target("Kafka exactly-once ÷ built-in with defaults, large epochs", 1.4, 2.0)
SMALL_P50 = Target("Kafka, small epochs: p50 above built-in", 40, 15, "ms", at_most=True)
SMALL_P99 = Target("Kafka, small epochs: p99 above built-in", 100, 40, "ms", at_most=True)
COPY_SPARK = Target("Kafka to Kafka ÷ Spark's built-in source and sink", 1.0, 1.3)
COPY_FLINK = Target("Kafka to Kafka ÷ Flink exactly-once", 0.5, 1.0)
POSTGRES_JDBC = Target("PostgreSQL ÷ Spark's JDBC writer", 3.0, 6.0)
POSTGRES_COPY = Target("PostgreSQL, one task ÷ psql's \\copy", 0.9, 1.2)
FILES = Target("files ÷ Spark's file sink", 1.0, 1.3)
GROWTH = Target("epoch 100,000 ÷ epoch 10", 1.1, 1.0, at_most=True)
RECOVERY = Target("1,000 pending transactions recovered", 5.0, 1.0, "s", at_most=True)

ALL = (
    KAFKA_EQUAL,
    KAFKA_DEFAULTS,
    SMALL_P50,
    SMALL_P99,
    COPY_SPARK,
    COPY_FLINK,
    POSTGRES_JDBC,
    POSTGRES_COPY,
    FILES,
    GROWTH,
    RECOVERY,
)


@dataclass(frozen=True)
class Outcome:
    """A target and what was measured; `detail` says of what, where there are several."""

    target: Target
    value: float
    detail: str = ""

    @property
    def met(self) -> bool:
        return self.target.keeps(self.value, self.target.bound)

    @property
    def aim_met(self) -> bool:
        return self.target.keeps(self.value, self.target.aim)

    @property
    def verdict(self) -> str:
        return "aim met" if self.aim_met else "met" if self.met else "NOT met"

    def to_json(self) -> dict[str, Any]:
        return {
            "target": vars(self.target),
            "value": self.value,
            "detail": self.detail,
            "met": self.met,
            "aimMet": self.aim_met,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Whether it is met is computed again, never taken from the file."""
        return cls(Target(**value["target"]), value["value"], value["detail"])
