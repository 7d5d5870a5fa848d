"""What the planning side hands to the tasks of an epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from assent.protocol.json_value import (
    as_text,
    as_whole,
    flag,
    number,
    optional_whole,
    sequence,
    text,
    whole,
)
from assent.protocol.record import RecordKey


@dataclass(frozen=True)
class Torn:
    """Which parts of a decided epoch the store gave up and the tasks have to write again.

    `whole` when nothing of the epoch was committed: then everything is written again, by any
    number of tasks. Otherwise `parts` are the (partition, sink) to be written again, each with
    the fingerprint of its rows: by that, not by its number, a task knows that it holds one.
    """

    whole: bool
    parts: Mapping[tuple[int, int], str] = field(default_factory=dict)

    def sinks_of(self, fingerprint: str) -> tuple[int, ...]:
        """The sinks that have to get these rows again."""
        return tuple(sorted({at[1] for at, torn in self.parts.items() if torn == fingerprint}))

    def to_json(self) -> dict[str, Any]:
        parts = [[*part, fingerprint] for part, fingerprint in self.parts.items()]
        return {"whole": self.whole, "parts": parts}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Torn:
        parts = {
            (as_whole(partition, "parts"), as_whole(sink, "parts")): as_text(torn, "parts")
            for partition, sink, torn in sequence(value, "parts")
        }
        return cls(flag(value, "whole"), parts)


@dataclass(frozen=True)
class Decided:
    """The newest decided epoch. Complete, unless it is torn."""

    epoch: int
    key: RecordKey
    amendments: tuple[RecordKey, ...] = ()
    torn: Torn | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "key": self.key.to_json(),
            "amendments": [key.to_json() for key in self.amendments],
            "torn": self.torn.to_json() if self.torn else None,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Decided:
        torn = value["torn"]
        return cls(
            whole(value, "epoch"),
            RecordKey.from_json(value["key"]),
            tuple(RecordKey.from_json(key) for key in sequence(value, "amendments")),
            None if torn is None else Torn.from_json(torn),
        )


@dataclass(frozen=True)
class Assignment:
    """The key under which the coming epoch will be decided, and what is decided already.

    The planning side fixes it; it travels with the tasks and comes back with their votes, and
    the committing side uses what it finds there: it never computes a place itself.
    """

    identity: str
    key: RecordKey
    run: str
    completed_through: int | None = None
    decided: Decided | None = None
    recover_seconds: float = 0.0

    def is_decided(self, epoch: int) -> bool:
        """Whether all of the epoch, or a part of it, is committed."""
        decided = self.decided
        if decided is None or epoch != decided.epoch:
            return False
        return decided.torn is None or not decided.torn.whole

    def to_json(self) -> dict[str, Any]:
        return {
            "identity": self.identity,
            **self.key.to_json(),
            "run": self.run,
            "completedThrough": self.completed_through,
            "decided": self.decided.to_json() if self.decided else None,
            "recoverSeconds": self.recover_seconds,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Assignment:
        decided = value["decided"]
        return cls(
            text(value, "identity"),
            RecordKey.from_json(value),
            text(value, "run"),
            optional_whole(value, "completedThrough"),
            None if decided is None else Decided.from_json(decided),
            number(value, "recoverSeconds"),
        )
