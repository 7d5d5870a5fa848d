"""A query without Spark: what of it is durable, and processes that come and go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from assent.ledger.ledger import Ledger
from assent.ledger.store import RecordStore
from assent.protocol.assignment import Assignment
from assent.protocol.coordinator import Coordinator
from assent.protocol.handle import Handle
from assent.protocol.json_value import JsonValue
from assent.protocol.listener import EpochListener
from assent.protocol.parallel import one_by_one
from assent.protocol.participant import Participant
from assent.protocol.policy import Policy
from assent.protocol.record import Amendment, Decision, Record, RecordKey, Void
from assent.protocol.step import Moment, Step, Trace, When, no_trace
from assent.protocol.verdict import Verdict
from assent.protocol.vote import Vote
from assent.testing.memory import MemoryCheckpoint, MemoryServer, MemorySink, MemoryStore
from assent.testing.query import Killed

Rows = Sequence[Sequence[int]]
"""The rows of an epoch, task by task."""


class Clock:
    """Time that passes only when somebody sleeps or a test says so."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class WatchedSink(MemorySink):
    """A memory sink that notes what is asked of it, and fails where it is told to."""

    def __init__(self, server: MemoryServer, name: str, timeout: float | None = None) -> None:
        super().__init__(server, name, interfere=self._note)
        self.transaction_timeout = timeout
        self.operations: list[str] = []
        self.recovered: list[tuple[str, Handle, JsonValue]] = []
        self.confirmed: list[tuple[Handle, Verdict]] = []
        self.context: JsonValue = None
        self.failing: dict[str, Exception] = {}
        self.before_commit: Callable[[Handle], None] = lambda handle: None

    def _note(self, operation: str) -> None:
        self.operations.append(operation)
        if operation in self.failing:
            raise self.failing[operation]

    def user_context(self, epoch: int) -> JsonValue:
        return self.context

    def commit(self, handle: Handle) -> None:
        self.before_commit(handle)
        super().commit(handle)

    def confirm(self, handles: Sequence[Handle], end: Verdict) -> None:
        if "confirm" in self.failing:
            raise self.failing["confirm"]
        self.confirmed += [(handle, end) for handle in handles]

    def recover_and_commit(self, handle: Handle, context: JsonValue) -> None:
        self.recovered.append(("commit", handle, context))
        self.commit(handle)

    def recover_and_abort(self, handle: Handle, context: JsonValue) -> None:
        self.recovered.append(("abort", handle, context))
        self.abort(handle)


class NotingListener(EpochListener):
    """Notes every call, and keeps a count of epochs as its state."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.count = 0

    def on_epoch_complete(self, epoch: int) -> None:
        self.calls.append(("complete", epoch))

    def on_epoch_aborted(self, epoch: int) -> None:
        self.calls.append(("aborted", epoch))

    def snapshot(self, epoch: int) -> JsonValue:
        self.count += 1
        return {"count": self.count}

    def restore(self, epoch: int, state: JsonValue) -> None:
        assert isinstance(state, dict)
        self.count = int(state["count"])
        self.calls.append(("restore", epoch))


def batches(rows: Iterable[int]) -> Iterator[pa.RecordBatch]:
    """The rows as batches of at most two."""
    table = pa.table({"row": pa.array(list(rows), pa.int64())})
    yield from table.to_batches(max_chunksize=2)


@dataclass
class Query:
    """The store, the ledger's disk and the checkpoint of a query; they survive every process."""

    store: RecordStore = field(default_factory=MemoryStore)
    targets: Sequence[str] = ("memory",)
    policy: Policy = field(default_factory=Policy)
    timeout: float | None = None
    clock: Clock = field(default_factory=Clock)
    checkpoint: MemoryCheckpoint = field(default_factory=MemoryCheckpoint)

    def __post_init__(self) -> None:
        self.servers = [MemoryServer() for _ in self.targets]
        self.sinks = [
            WatchedSink(server, target, self.timeout)
            for server, target in zip(self.servers, self.targets, strict=True)
        ]
        self.ledger = Ledger(self.store, self.clock)

    @property
    def server(self) -> MemoryServer:
        return self.servers[0]

    @property
    def sink(self) -> WatchedSink:
        return self.sinks[0]

    def start(
        self, listeners: Sequence[EpochListener] = (), trace: Trace = no_trace
    ) -> Coordinator:
        """A new driver process."""
        return Coordinator(
            Ledger(self.store, self.clock),
            self.sinks,
            self.checkpoint,
            self.policy,
            listeners,
            clock=self.clock,
            sleep=self.clock.sleep,
            trace=trace,
            parallel=one_by_one,
        )

    def plan(self, coordinator: Coordinator, epoch: int, digest: str | None = None) -> Assignment:
        """Spark fixes the input of an epoch and plans it."""
        self.checkpoint.offsets.setdefault(epoch, digest or f"digest of {epoch}")
        return coordinator.plan()

    def write(self, assignment: Assignment, epoch: int, rows: Rows, attempt: int = 0) -> list[Vote]:
        """All tasks of an epoch; each gets the assignment, and gives its vote, as text."""
        return [
            self.task(assignment, epoch, partition, part, attempt)
            for partition, part in enumerate(rows)
        ]

    def task(
        self,
        assignment: Assignment,
        epoch: int,
        partition: int,
        rows: Sequence[int],
        attempt: int = 0,
    ) -> Vote:
        received = Assignment.from_json(assignment.to_json())
        participant = Participant(self.sinks, received, clock=self.clock)
        return Vote.parse(str(participant.vote(epoch, partition, attempt, batches(rows))))

    def run(self, coordinator: Coordinator, epoch: int, rows: Rows) -> None:
        """A whole epoch, up to Spark's commit log."""
        self.run_up_to_commit_log(coordinator, epoch, rows)
        self.checkpoint.committed.add(epoch)

    def run_up_to_commit_log(self, coordinator: Coordinator, epoch: int, rows: Rows) -> None:
        votes = self.write(self.plan(coordinator, epoch), epoch, rows)
        coordinator.commit(votes, epoch)

    def die(self, when: When, step: Step, epoch: int, rows: Rows, *, past: int = 0) -> None:
        """A driver that runs the epoch and is killed at a moment, the first one or a later."""
        left = past

        def trace(moment: Moment) -> None:
            nonlocal left
            if (moment.when, moment.step) == (when, step):
                if left == 0:
                    raise Killed(str(moment))
                left -= 1

        try:
            self.run_up_to_commit_log(self.start(trace=trace), epoch, rows)
        except Killed:
            return
        raise AssertionError(f"nobody reached {when.value} {step.name}")

    # What can be seen afterwards

    def rows(self, position: int = 0) -> list[object]:
        return sorted(self.servers[position].rows(), key=str)

    def open(self) -> list[str]:
        return [name for server in self.servers for name in server.open()]

    def records(self) -> list[Record]:
        return [self.ledger.read(key) for key in self.ledger.record_keys()]

    def decisions(self) -> list[Decision]:
        return [record for record in self.records() if isinstance(record, Decision)]

    def amendments(self) -> list[Amendment]:
        return [record for record in self.records() if isinstance(record, Amendment)]

    def voids(self) -> list[RecordKey]:
        return [record.key for record in self.records() if isinstance(record, Void)]

    def state(self, handle: Handle, position: int = 0) -> Verdict:
        return self.servers[position].transactions[handle.name].state


def handles(votes: Iterable[Vote]) -> list[Handle]:
    return [prepared.handle for vote in votes for prepared in vote.share.prepared]
