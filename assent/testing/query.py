"""A query without Spark on a real sink: its ledger is durable, its processes come and go."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from assent.ledger.ledger import Ledger
from assent.ledger.store import RecordStore
from assent.protocol.assignment import Assignment
from assent.protocol.coordinator import Coordinator
from assent.protocol.participant import Participant
from assent.protocol.policy import Policy
from assent.protocol.settler import one_by_one
from assent.protocol.sink import Sink
from assent.protocol.step import Moment, Step, Trace, When, no_trace
from assent.protocol.vote import Vote
from assent.testing.memory import MemoryCheckpoint, MemoryStore

Tasks = Sequence[Sequence[pa.RecordBatch]]
"""The batches of an epoch, task by task."""


class Killed(BaseException):
    """The process is gone. Not an Exception, so that nobody handles it."""


class SinkQuery:
    """What of a query is durable: what its sink writes to, its ledger, and its checkpoint.

    `make` gives the sink, a new object for each process.
    """

    def __init__(
        self,
        make: Callable[[], Sink[Any]],
        store: RecordStore | None = None,
        policy: Policy | None = None,
    ) -> None:
        self._make = make
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
            parallel=one_by_one,
        )

    def plan(self, coordinator: Coordinator, epoch: int) -> Assignment:
        """Spark fixes the input of an epoch and plans it."""
        self.checkpoint.offsets.setdefault(epoch, f"digest of {epoch}")
        return coordinator.plan()

    def write(
        self,
        assignment: Assignment,
        epoch: int,
        tasks: Tasks,
        attempt: int = 0,
        trace: Trace = no_trace,
    ) -> list[Vote]:
        """All tasks of an epoch; each gets the assignment, and gives its vote, as text."""
        votes = []
        for partition, batches in enumerate(tasks):
            received = Assignment.from_json(assignment.to_json())
            participant = Participant([self.sink()], received, trace=trace)
            votes.append(Vote.parse(str(participant.vote(epoch, partition, attempt, batches))))
        return votes

    def run(
        self, coordinator: Coordinator, epoch: int, tasks: Tasks, trace: Trace = no_trace
    ) -> Assignment:
        """A whole epoch, up to Spark's commit log."""
        assignment = self.plan(coordinator, epoch)
        coordinator.commit(self.write(assignment, epoch, tasks, trace=trace), epoch)
        self.checkpoint.committed.add(epoch)
        return assignment

    def die(self, when: When, step: Step, epoch: int, tasks: Tasks, past: int = 0) -> bool:
        """A driver that runs the epoch and is killed at a moment, the first or a later one.

        False if it came to its end without such a moment.
        """
        left = past

        def trace(moment: Moment) -> None:
            nonlocal left
            if (moment.when, moment.step) != (when, step):
                return
            if left == 0:
                raise Killed(str(moment))
            left -= 1

        try:
            self.run(self.start(trace), epoch, tasks, trace)
        except Killed:
            return True
        return False
