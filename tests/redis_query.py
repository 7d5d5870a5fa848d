"""A query without Spark whose sink is Redis: its ledger is on disk, its processes come and go."""

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
from assent.sinks.redis import RedisSink
from assent.testing.memory import MemoryCheckpoint
from assent.testing.redis import RedisCluster, RedisServer
from tests.query import Killed

Rows = Sequence[Mapping[str, int]]
"""The rows of an epoch, task by task: a number for each key."""


def batch(rows: Mapping[str, int]) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "key": pa.array(rows.keys(), pa.string()),
            "number": pa.array(rows.values(), pa.int64()),
        }
    )


def waits_for_disk(server: RedisServer) -> bool:
    """Whether the server can be asked to wait until rows are on disk: since 7.2."""
    major, minor, *_ = server.client().info("server")["redis_version"].split(".")
    return (int(major), int(minor)) >= (7, 2)


class RedisStage:
    """A prefix of its own, a sink for it, and what readers see."""

    def __init__(self, server: RedisServer | RedisCluster) -> None:
        self.server = server
        self.prefix = f"{nonce()}:"
        self.identity = nonce()

    def sink(self, **more: Any) -> RedisSink:
        more.setdefault("key_columns", ["key"])
        more.setdefault("structure", "string")
        more.setdefault("timeout", 10.0)
        more.setdefault("url", self.server.url)
        sink = RedisSink(key_prefix=self.prefix, **more)
        received: RedisSink = pickle.loads(pickle.dumps(sink))  # as it reaches a task
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

    def seen(self) -> dict[str, Any]:
        """What a reader finds below the prefix, whatever its type; read without the sink."""
        found: dict[str, Any] = {}
        client: Any = self.server.client()
        with client:
            for key in client.scan_iter(f"{self.prefix}*"):
                read = {"string": client.get, "hash": client.hgetall, "zset": self._members}
                found[key.removeprefix(self.prefix)] = read[client.type(key)](key)
        return found

    def _members(self, key: str) -> dict[str, float]:
        client: Any = self.server.client()
        with client:
            return dict(client.zrange(key, 0, -1, withscores=True))


class RedisQuery(RedisStage):
    """What of a query is durable: prefix, ledger and checkpoint."""

    def __init__(self, server: RedisServer | RedisCluster, folder: Path, **more: Any) -> None:
        super().__init__(server)
        self._folder = folder
        self._more = more
        self.checkpoint = MemoryCheckpoint()

    def start(self, trace: Trace = no_trace) -> Coordinator:
        """A new driver process."""
        return Coordinator(
            Ledger(LocalStore(str(self._folder / "_assent"))),
            [self.sink(**self._more)],
            self.checkpoint,
            Policy(commit_timeout=10),
            trace=trace,
        )

    def plan(self, coordinator: Coordinator, epoch: int) -> Assignment:
        self.checkpoint.offsets.setdefault(epoch, f"digest of {epoch}")
        return coordinator.plan()

    def tasks(self, assignment: Assignment, epoch: int, rows: Rows, attempt: int = 0) -> list[Vote]:
        votes = []
        for partition, part in enumerate(rows):
            received = Assignment.from_json(assignment.to_json())
            participant = Participant([self.sink(**self._more)], received)
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

        coordinator = self.start(trace)
        try:
            self.run(coordinator, epoch, rows)
        except Killed:
            return
        raise AssertionError(f"nobody reached {when.value} {step.name}")
