"""A query without Spark whose sink is HBase: its ledger is on disk, its processes come and go."""

from __future__ import annotations

import pickle
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
from assent.protocol.step import Moment, Step, Trace, When, no_trace
from assent.protocol.vote import Vote
from assent.sinks.hbase import HBaseSink
from assent.testing.hbase import HBaseServer
from assent.testing.memory import MemoryCheckpoint
from tests.query import Killed

Rows = Sequence[Mapping[str, int]]
"""The rows of an epoch, task by task: a number for each key."""


def batch(rows: Mapping[str, int]) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "key": pa.array(rows.keys(), pa.string()),
            "x": pa.array(rows.values(), pa.int64()),
        }
    )


class HBaseStage:
    """A table of its own, a sink for it, and what readers see."""

    def __init__(self, server: HBaseServer, **family: Any) -> None:
        self.server = server
        self.table = f"t{nonce()}"
        self.identity = nonce()
        self.client = server.connection()
        self.client.create_table(self.table, {"cf": family, "other": {}})

    def sink(self, **more: Any) -> HBaseSink:
        more.setdefault("key_columns", ["key"])
        more.setdefault("timeout", 20.0)
        sink = HBaseSink(self.server.address, self.table, **more)
        received: HBaseSink = pickle.loads(pickle.dumps(sink))  # as it reaches a task
        return received

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

    def rows(self) -> dict[str, dict[str, str]]:
        """All cells that a reader finds; read without the sink."""
        return {
            key.decode(): {name.decode(): value.decode() for name, value in cells.items()}
            for key, cells in self.client.table(self.table).scan()
        }

    def seen(self) -> dict[str, str]:
        """The cell `cf:x` of every row."""
        return {key: cells["cf:x"] for key, cells in self.rows().items()}

    def compact(self) -> None:
        """Flush and compact everything, so that deletions and what they hide are forgotten."""
        self.client.disable_table(self.table)  # flushes
        self.client.enable_table(self.table)
        self.client.compact_table(self.table, major=True)


class HBaseQuery(HBaseStage):
    """What of a query is durable: table, ledger and checkpoint."""

    def __init__(self, server: HBaseServer, folder: Path) -> None:
        super().__init__(server)
        self._folder = folder
        self.checkpoint = MemoryCheckpoint()

    def start(self, trace: Trace = no_trace) -> Coordinator:
        """A new driver process."""
        return Coordinator(
            Ledger(LocalStore(str(self._folder / "_assent"))),
            [self.sink()],
            self.checkpoint,
            Policy(commit_timeout=30),
            trace=trace,
        )

    def plan(self, coordinator: Coordinator, epoch: int) -> Assignment:
        self.checkpoint.offsets.setdefault(epoch, f"digest of {epoch}")
        return coordinator.plan()

    def tasks(self, assignment: Assignment, epoch: int, rows: Rows) -> list[Vote]:
        votes = []
        for partition, part in enumerate(rows):
            participant = Participant([self.sink()], Assignment.from_json(assignment.to_json()))
            batches = [batch(part)] if part else []
            votes.append(Vote.parse(str(participant.vote(epoch, partition, 0, batches))))
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
