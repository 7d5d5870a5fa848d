"""The records of the ledger: decisions, amendments and voids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from assent.protocol.json_value import (
    JsonValue,
    flag,
    members,
    number,
    optional_whole,
    sequence,
    text,
    whole,
)
from assent.protocol.share import Prepared, Share

RECORD_VERSION = 1


@dataclass(frozen=True, order=True)
class RecordKey:
    """A record's place in the ledger, and the term of the run that made it."""

    place: int
    term: int

    def __str__(self) -> str:
        return f"place {self.place}, term {self.term}"

    def to_json(self) -> dict[str, int]:
        return {"place": self.place, "term": self.term}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RecordKey:
        return cls(whole(value, "place"), whole(value, "term"))


@dataclass(frozen=True)
class Author:
    """Who wrote a record: tells one's own write from another's when the answer was lost."""

    run: str
    nonce: str

    def to_json(self) -> dict[str, str]:
        return {"run": self.run, "nonce": self.nonce}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Author:
        return cls(text(value, "run"), text(value, "nonce"))


@dataclass(frozen=True)
class Void:
    """An empty record: nothing was, and nothing will be, decided under this key."""

    key: RecordKey
    author: Author
    voided_at: float

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "void",
            "version": RECORD_VERSION,
            **self.key.to_json(),
            **self.author.to_json(),
            "voidedAt": self.voided_at,
        }


@dataclass(frozen=True)
class Decision:
    """The durable record of the votes that make up an epoch: its existence is the commit point.

    `digest` is that of Spark's offset-log entry for the epoch, `completed_through` the newest
    epoch known to be complete when this one was decided, `tasks` the number of tasks that voted
    (those without rows have no share).
    """

    key: RecordKey
    author: Author
    epoch: int
    digest: str
    completed_through: int | None
    decided_at: float
    tasks: int
    shares: tuple[Share, ...]
    contexts: tuple[JsonValue, ...] = ()
    snapshots: Mapping[str, JsonValue] = field(default_factory=dict)
    statistics: Mapping[str, JsonValue] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "decision",
            "version": RECORD_VERSION,
            **self.key.to_json(),
            **self.author.to_json(),
            "epoch": self.epoch,
            "digest": self.digest,
            "completedThrough": self.completed_through,
            "decidedAt": self.decided_at,
            "tasks": self.tasks,
            "shares": [share.to_json() for share in self.shares],
            "contexts": list(self.contexts),
            "snapshots": dict(self.snapshots),
            "statistics": dict(self.statistics),
        }


@dataclass(frozen=True)
class Settlement:
    """What was settled about one transaction without the store: by an operator, or as a loss.

    `outcome` is "committed", "aborted" (it will be written again) or "lost" (it will not).
    """

    partition: int
    sink: int
    outcome: str
    reason: str

    def __post_init__(self) -> None:
        if self.outcome not in ("committed", "aborted", "lost"):
            raise ValueError(f"a settlement is committed, aborted or lost, not {self.outcome!r}")

    def to_json(self) -> dict[str, Any]:
        return {
            "partition": self.partition,
            "sink": self.sink,
            "outcome": self.outcome,
            "reason": self.reason,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Settlement:
        return cls(
            whole(value, "partition"),
            whole(value, "sink"),
            text(value, "outcome"),
            text(value, "reason"),
        )


@dataclass(frozen=True)
class Amendment:
    """A record beside a decision, which itself never changes (rule 2).

    It replaces the shares of partitions whose transactions the store gave up, or, when `whole`,
    all of them; or it holds settlements.
    """

    key: RecordKey
    author: Author
    amends: RecordKey
    epoch: int
    decided_at: float
    tasks: int
    whole: bool = False
    shares: tuple[Share, ...] = ()
    settlements: tuple[Settlement, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "amendment",
            "version": RECORD_VERSION,
            **self.key.to_json(),
            **self.author.to_json(),
            "amends": self.amends.to_json(),
            "epoch": self.epoch,
            "decidedAt": self.decided_at,
            "tasks": self.tasks,
            "whole": self.whole,
            "shares": [share.to_json() for share in self.shares],
            "settlements": [settlement.to_json() for settlement in self.settlements],
        }


Record: TypeAlias = Decision | Amendment | Void


def record_from_json(value: Mapping[str, Any]) -> Record:
    """Read a record back; KeyError, TypeError or ValueError if it is not one that we know."""
    version = value["version"]
    if type(version) is not int or not 1 <= version <= RECORD_VERSION:
        raise ValueError(f"version {version!r}; this release reads up to {RECORD_VERSION}")
    kind = value["kind"]
    key = RecordKey.from_json(value)
    author = Author.from_json(value)
    if kind == "void":
        return Void(key, author, number(value, "voidedAt"))
    if kind == "decision":
        return Decision(
            key,
            author,
            whole(value, "epoch"),
            text(value, "digest"),
            optional_whole(value, "completedThrough"),
            number(value, "decidedAt"),
            whole(value, "tasks"),
            tuple(Share.from_json(share) for share in sequence(value, "shares")),
            tuple(sequence(value, "contexts")),
            members(value, "snapshots"),
            members(value, "statistics"),
        )
    if kind == "amendment":
        return Amendment(
            key,
            author,
            RecordKey.from_json(value["amends"]),
            whole(value, "epoch"),
            number(value, "decidedAt"),
            whole(value, "tasks"),
            flag(value, "whole"),
            tuple(Share.from_json(share) for share in sequence(value, "shares")),
            tuple(
                Settlement.from_json(settlement) for settlement in sequence(value, "settlements")
            ),
        )
    raise ValueError(f"unknown kind of record {kind!r}")


@dataclass(frozen=True)
class DecidedEpoch:
    """A decision together with its amendments, in the order in which they were written."""

    decision: Decision
    amendments: tuple[Amendment, ...] = ()

    @property
    def epoch(self) -> int:
        return self.decision.epoch

    @property
    def tasks(self) -> int:
        """How many tasks the epoch had when it was last written as a whole."""
        return next(
            (amendment.tasks for amendment in reversed(self.amendments) if amendment.whole),
            self.decision.tasks,
        )

    def with_amendment(self, amendment: Amendment) -> DecidedEpoch:
        return DecidedEpoch(self.decision, (*self.amendments, amendment))

    def transactions(self) -> dict[tuple[int, int], Prepared]:
        """What counts now, by (partition, sink): newer shares have replaced older ones."""
        current = _by_partition_and_sink(self.decision.shares)
        for amendment in self.amendments:
            if amendment.whole:
                current = {}
            current.update(_by_partition_and_sink(amendment.shares))
        return current

    def settlements(self) -> dict[tuple[int, int], Settlement]:
        """What was settled without the store and has not been written again since."""
        settled: dict[tuple[int, int], Settlement] = {}
        for amendment in self.amendments:
            if amendment.whole:
                settled = {}
            for replaced in _by_partition_and_sink(amendment.shares):
                settled.pop(replaced, None)
            for settlement in amendment.settlements:
                settled[settlement.partition, settlement.sink] = settlement
        return settled

    def fingerprints(self) -> dict[int, str]:
        """The fingerprint of each partition's content, as last accepted."""
        fingerprints = {share.partition: share.fingerprint for share in self.decision.shares}
        for amendment in self.amendments:
            if amendment.whole:
                fingerprints = {}
            fingerprints.update({share.partition: share.fingerprint for share in amendment.shares})
        return fingerprints


def _by_partition_and_sink(shares: Iterable[Share]) -> dict[tuple[int, int], Prepared]:
    return {
        (share.partition, prepared.sink): prepared
        for share in shares
        for prepared in share.prepared
    }
