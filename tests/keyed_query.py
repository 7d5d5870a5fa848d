"""A query without Spark into a store of keys: its ledger is on disk, its processes come and go."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
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

Rows = Sequence[Mapping[str, int]]
"""The rows of an epoch, task by task: a number for each key."""


def batch(rows: Mapping[str, int]) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "key": pa.array(rows.keys(), pa.string()),
            "x": pa.array(rows.values(), pa.int64()),
        }
    )


class KeyedStage(ABC):
    """A place of its own in a store, and tasks that write there."""

    def __init__(self) -> None:
        self.identity = nonce()

    @abstractmethod
    def sink(self, **more: Any) -> Sink[Any]:
        """A sink for that place, as it reaches a task."""

    def name(self, term: int = 0, partition: int = 0, identity: str = "") -> TransactionName:
        return TransactionName(identity or self.identity, term, 0, partition, nonce())

    def write(
        self, epoch: int, rows: Mapping[str, int] | pa.RecordBatch, term: int = 0, **more: Any
    ) -> Handle:
        """One task, from begin to its vote."""
        identity = more.pop("identity", "")
        sink = self.sink(**more)
        transaction = sink.begin(self.name(term, identity=identity), epoch)
        sink.write(transaction, rows if isinstance(rows, pa.RecordBatch) else batch(rows))
        return sink.pre_commit(transaction)


class KeyedQuery:
    """What of a query is durable besides the store: ledger and checkpoint."""

    def __init__(self, stage: KeyedStage, folder: Path, **more: Any) -> None:
        self._stage = stage
        self._folder = folder
        self._more = more
        self.checkpoint = MemoryCheckpoint()

    def start(self, trace: Trace = no_trace) -> Coordinator:
        """A new driver process."""
        return Coordinator(
            Ledger(LocalStore(str(self._folder / "_assent"))),
            [self._stage.sink(**self._more)],
            self.checkpoint,
            Policy(commit_timeout=20),
            trace=trace,
        )

    def plan(self, coordinator: Coordinator, epoch: int) -> Assignment:
        self.checkpoint.offsets.setdefault(epoch, f"digest of {epoch}")
        return coordinator.plan()

    def tasks(self, assignment: Assignment, epoch: int, rows: Rows, attempt: int = 0) -> list[Vote]:
        votes = []
        for partition, part in enumerate(rows):
            received = Assignment.from_json(assignment.to_json())
            participant = Participant([self._stage.sink(**self._more)], received)
            batches = [batch(part)] if part else []
            votes.append(Vote.parse(str(participant.vote(epoch, partition, attempt, batches))))
        return votes

    def run(self, coordinator: Coordinator, epoch: int, rows: Rows) -> Assignment:
        """A whole epoch, up to Spark's commit log."""
        assignment = self.plan(coordinator, epoch)
        coordinator.commit(self.tasks(assignment, epoch, rows), epoch)
        self.checkpoint.committed.add(epoch)
        return assignment

    def die(self, when: When, step: Step, epoch: int, rows: Rows) -> None:
        """A driver that runs the epoch and is killed at a moment."""

        def trace(moment: Moment) -> None:
            if (moment.when, moment.step, moment.epoch) == (when, step, epoch):
                raise Killed(str(moment))

        try:
            self.run(self.start(trace), epoch, rows)
        except Killed:
            return
        raise AssertionError(f"nobody reached {when.value} {step.name}")
