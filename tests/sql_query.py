"""A query without Spark whose sink is a database: its ledger is on disk, its processes come and go.

What differs from one database to the other is behind `SqlStage`.
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from assent.ledger.ledger import Ledger
from assent.ledger.local import LocalStore
from assent.protocol.assignment import Assignment
from assent.protocol.coordinator import Coordinator
from assent.protocol.handle import Handle
from assent.protocol.name import TransactionName, nonce
from assent.protocol.participant import Participant
from assent.protocol.policy import Policy
from assent.protocol.sink import Sink
from assent.protocol.step import Moment, Step, Trace, When, no_trace
from assent.protocol.vote import Vote
from assent.testing.memory import MemoryCheckpoint
from assent.testing.query import Killed

Row = tuple[int, str]
Rows = Sequence[Sequence[Row]]
"""The rows of an epoch, task by task: a key and a text."""


def batch(*rows: Row) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "id": pa.array([key for key, _ in rows], pa.int64()),
            "page": pa.array([page for _, page in rows], pa.string()),
        }
    )


class SqlStage(ABC):
    """A table of its own, sinks for it, and what readers see of it."""

    def __init__(self, **options: Any) -> None:
        self.table = f"views_{nonce()}"
        self.identity = nonce()
        self.options = options

    @abstractmethod
    def make(self, **options: Any) -> Sink[Any]:
        """A sink for the table."""

    @abstractmethod
    def rows(self) -> list[Row]:
        """What a reader sees, in order."""

    @abstractmethod
    def prepared(self) -> list[str]:
        """What the store says is prepared, by whomever."""

    @abstractmethod
    def staged(self) -> list[str]:
        """The staging tables that there are."""

    @abstractmethod
    def take_back(self, waiting: str) -> None:
        """Roll back or drop one of `prepared` or `staged`, as an administrator would."""

    def sink(self, **more: Any) -> Sink[Any]:
        received: Sink[Any] = pickle.loads(pickle.dumps(self.make(**{**self.options, **more})))
        return received  # as it reaches a task

    def name(self, place: int = 0, partition: int = 0, term: int = 0) -> TransactionName:
        return TransactionName(self.identity, term, place, partition, nonce())

    def prepare(self, *rows: Row, sink: Sink[Any] | None = None, **name: int) -> Handle:
        """One task, up to its vote."""
        sink = sink or self.sink()
        transaction = sink.begin(self.name(**name), 0)
        try:
            for row in rows:
                sink.write(transaction, batch(row))
            return sink.pre_commit(transaction)
        except BaseException:
            sink.discard(transaction)
            raise

    def handles(self, identity: str | None = None) -> list[Handle]:
        return [found.handle for found in self.sink().pending(identity or self.identity)]


class SqlQuery:
    """What of a query is durable: table, ledger and checkpoint."""

    def __init__(self, stage: SqlStage, folder: Path, commit_timeout: float = 30.0) -> None:
        self.stage = stage
        self._folder = folder
        self._policy = Policy(commit_timeout=commit_timeout)
        self.checkpoint = MemoryCheckpoint()

    def start(self, trace: Trace = no_trace) -> Coordinator:
        """A new driver process."""
        sink = self.stage.sink()
        sink.check(batch().schema)
        return Coordinator(
            Ledger(LocalStore(str(self._folder / "_assent"))),
            [sink],
            self.checkpoint,
            self._policy,
            trace=trace,
        )

    def plan(self, coordinator: Coordinator, epoch: int) -> Assignment:
        self.checkpoint.offsets.setdefault(epoch, f"digest of {epoch}")
        return coordinator.plan()

    def task(
        self,
        assignment: Assignment,
        epoch: int,
        partition: int,
        rows: Sequence[Row],
        attempt: int = 0,
        trace: Trace = no_trace,
    ) -> Vote:
        received = Assignment.from_json(assignment.to_json())
        participant = Participant([self.stage.sink()], received, trace=trace)
        batches = [batch(row) for row in rows]
        return Vote.parse(str(participant.vote(epoch, partition, attempt, batches)))

    def write(
        self,
        assignment: Assignment,
        epoch: int,
        rows: Rows,
        attempt: int = 0,
        trace: Trace = no_trace,
    ) -> list[Vote]:
        return [
            self.task(assignment, epoch, partition, part, attempt, trace)
            for partition, part in enumerate(rows)
        ]

    def run(
        self, coordinator: Coordinator, epoch: int, rows: Rows, trace: Trace = no_trace
    ) -> Assignment:
        """A whole epoch, up to Spark's commit log."""
        assignment = self.plan(coordinator, epoch)
        coordinator.commit(self.write(assignment, epoch, rows, trace=trace), epoch)
        self.checkpoint.committed.add(epoch)
        return assignment

    def die(self, when: When, step: Step, epoch: int, rows: Rows, *, past: int = 0) -> None:
        """A driver that runs the epoch and is killed at a moment, the first one or a later."""
        left = past

        def trace(moment: Moment) -> None:
            nonlocal left
            if (moment.when, moment.step) == (when, step) and moment.epoch in (None, epoch):
                if left == 0:
                    raise Killed(str(moment))
                left -= 1

        try:
            self.run(self.start(trace), epoch, rows, trace)
        except Killed:
            return
        raise AssertionError(f"nobody reached {when.value} {step.name}")
