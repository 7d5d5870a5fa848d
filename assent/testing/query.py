"""A query without Spark on a real sink: its ledger is durable, its processes come and go."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import pyarrow as pa

from assent.ledger.ledger import Ledger
from assent.ledger.store import RecordStore
from assent.protocol.assignment import Assignment
from assent.protocol.coordinator import Coordinator
from assent.protocol.participant import Participant
from assent.protocol.policy import Policy
from assent.protocol.sink import Sink
from assent.protocol.step import Moment, Step, Trace, When, no_trace
from assent.protocol.vote import Vote
from assent.testing.memory import MemoryCheckpoint, MemoryStore

Part = TypeVar("Part")
"""The rows of one task, in whatever form a test likes best."""


class Killed(BaseException):
    """The process is gone. Not an Exception, so that nobody handles it."""


class SinkQuery(Generic[Part]):
    """What of a query is durable: what its sink writes to, its ledger, and its checkpoint.

    `make` gives the sink, a new object for each process; `batches` what a task is given.
    """

    def __init__(
        self,
        make: Callable[[], Sink[Any]],
        batches: Callable[[Part], Sequence[pa.RecordBatch]],
        store: RecordStore | None = None,
        policy: Policy | None = None,
    ) -> None:
        self._make = make
        self._batches = batches
        self._store = store or MemoryStore()
        self._policy = policy or Policy(commit_timeout=30.0)
        self.checkpoint = MemoryCheckpoint()

    def sink(self) -> Sink[Any]:
        """As it reaches a task."""
        received: Sink[Any] = pickle.loads(pickle.dumps(self._make()))
        return received

    def start(self, trace: Trace = no_trace) -> Coordinator:
        """A new driver process."""
        return Coordinator(
            Ledger(self._store),
            [self.sink()],
            self.checkpoint,
            self._policy,
            trace=trace,
        )

    def plan(self, coordinator: Coordinator, epoch: int) -> Assignment:
        """Spark fixes the input of an epoch and plans it."""
        self.checkpoint.offsets.setdefault(epoch, f"digest of {epoch}")
        return coordinator.plan()

    def task(
        self,
        assignment: Assignment,
        epoch: int,
        partition: int,
        part: Part,
        attempt: int = 0,
        trace: Trace = no_trace,
    ) -> Vote:
        """One task; it gets the assignment, and gives its vote, as text."""
        received = Assignment.from_json(assignment.to_json())
        participant = Participant([self.sink()], received, trace=trace)
        vote = participant.vote(epoch, partition, attempt, self._batches(part))
        return Vote.parse(str(vote))

    def write(
        self,
        assignment: Assignment,
        epoch: int,
        parts: Sequence[Part],
        attempt: int = 0,
        trace: Trace = no_trace,
    ) -> list[Vote]:
        """All tasks of an epoch."""
        return [
            self.task(assignment, epoch, partition, part, attempt, trace)
            for partition, part in enumerate(parts)
        ]

    def run(
        self,
        coordinator: Coordinator,
        epoch: int,
        parts: Sequence[Part],
        trace: Trace = no_trace,
    ) -> Assignment:
        """A whole epoch, up to Spark's commit log."""
        assignment = self.plan(coordinator, epoch)
        coordinator.commit(self.write(assignment, epoch, parts, trace=trace), epoch)
        self.checkpoint.committed.add(epoch)
        return assignment

    def die(self, when: When, step: Step, epoch: int, parts: Sequence[Part], past: int = 0) -> None:
        """A driver that runs the epoch and is killed at a moment, the first or a later one."""
        left = past

        def trace(moment: Moment) -> None:
            nonlocal left
            if (moment.when, moment.step) != (when, step) or moment.epoch not in (None, epoch):
                return
            if left == 0:
                raise Killed(str(moment))
            left -= 1

        try:
            self.run(self.start(trace), epoch, parts, trace)
        except Killed:
            return
        raise AssertionError(f"nobody reached {when.value} {step.name}")


class BatchQuery(SinkQuery[Sequence[pa.RecordBatch]]):
    """A query whose tasks are given batches."""

    def __init__(
        self,
        make: Callable[[], Sink[Any]],
        store: RecordStore | None = None,
        policy: Policy | None = None,
    ) -> None:
        super().__init__(make, list, store, policy)
