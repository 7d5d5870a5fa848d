"""What one task contributes to an epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from assent.protocol.handle import Handle
from assent.protocol.json_value import number, sequence, text, whole


@dataclass(frozen=True)
class Prepared:
    """A transaction that is durable in its store and waits for the decision.

    `sink` is the position of the sink in the epoch's group of sinks.
    """

    sink: int
    handle: Handle
    rows: int
    bytes: int
    started_at: float

    def age(self, now: float) -> float:
        """Seconds since the transaction was opened; never negative, whatever the clocks say."""
        return max(0.0, now - self.started_at)

    def to_json(self) -> dict[str, Any]:
        return {
            "sink": self.sink,
            "handle": self.handle.to_json(),
            "rows": self.rows,
            "bytes": self.bytes,
            "startedAt": self.started_at,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Prepared:
        return cls(
            whole(value, "sink"),
            Handle.from_json(value["handle"]),
            whole(value, "rows"),
            whole(value, "bytes"),
            number(value, "startedAt"),
        )


@dataclass(frozen=True)
class Share:
    """The part of an epoch that one task wrote: its transactions and what was in them."""

    partition: int
    attempt: int
    fingerprint: str
    prepared: tuple[Prepared, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "partition": self.partition,
            "attempt": self.attempt,
            "fingerprint": self.fingerprint,
            "prepared": [prepared.to_json() for prepared in self.prepared],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Share:
        return cls(
            whole(value, "partition"),
            whole(value, "attempt"),
            text(value, "fingerprint"),
            tuple(Prepared.from_json(prepared) for prepared in sequence(value, "prepared")),
        )
