"""A query without Spark whose sink is Kafka: its ledger is on disk, its processes come and go."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from assent.ledger.ledger import Ledger
from assent.ledger.local import LocalStore
from assent.protocol.assignment import Assignment
from assent.protocol.coordinator import Coordinator
from assent.protocol.name import TransactionName, nonce
from assent.protocol.participant import Participant
from assent.protocol.policy import Policy
from assent.protocol.step import Moment, Step, Trace, When, no_trace
from assent.protocol.vote import Vote
from assent.sinks.kafka import KafkaSink
from assent.testing.kafka import KafkaCluster
from assent.testing.memory import MemoryCheckpoint
from assent.testing.query import Killed
from tests.kafka_kit import await_committed

Rows = Sequence[Sequence[str]]
"""The rows of an epoch, task by task."""


def batch(*rows: str) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(rows, pa.string())})


class KafkaStage:
    """A topic of its own, a sink for it, and what readers see."""

    def __init__(self, kafka: KafkaCluster, partitions: int = 2) -> None:
        self.kafka = kafka
        self.topic = f"topic-{nonce()}"
        self.identity = nonce()
        kafka.create_topic(self.topic, partitions)

    @property
    def schema(self) -> pa.Schema:
        return batch().schema

    def sink(self, **more: Any) -> KafkaSink:
        more.setdefault("transaction_timeout", 60.0)
        more.setdefault("topic", self.topic)
        sink = KafkaSink(self.kafka.settings(), **more)
        received: KafkaSink = pickle.loads(pickle.dumps(sink))  # as it reaches a task
        return received

    def name(
        self, place: int = 0, partition: int = 0, attempt: int = 0, term: int = 0
    ) -> TransactionName:
        return TransactionName(self.identity, term, place, partition, nonce(), attempt)

    def await_rows(self, *rows: str) -> None:
        await_committed(self.kafka.bootstrap_servers, self.topic, rows)


class KafkaQuery(KafkaStage):
    """What of a query is durable: topic, ledger and checkpoint."""

    def __init__(self, kafka: KafkaCluster, folder: Path, **more: Any) -> None:
        super().__init__(kafka)
        self._folder = folder
        self._more = more
        self.checkpoint = MemoryCheckpoint()

    def start(self, trace: Trace = no_trace) -> Coordinator:
        """A new driver process."""
        return Coordinator(
            Ledger(LocalStore(str(self._folder / "_assent"))),
            [self.sink(**self._more)],
            self.checkpoint,
            Policy(commit_timeout=30),
            trace=trace,
        )

    def plan(self, coordinator: Coordinator, epoch: int) -> Assignment:
        self.checkpoint.offsets.setdefault(epoch, f"digest of {epoch}")
        return coordinator.plan()

    def write(self, assignment: Assignment, epoch: int, rows: Rows, attempt: int = 0) -> list[Vote]:
        votes = []
        for partition, part in enumerate(rows):
            received = Assignment.from_json(assignment.to_json())
            participant = Participant([self.sink(**self._more)], received)
            batches = [batch(*part)] if part else []
            votes.append(Vote.parse(str(participant.vote(epoch, partition, attempt, batches))))
        return votes

    def run(self, coordinator: Coordinator, epoch: int, rows: Rows) -> Assignment:
        """A whole epoch, up to Spark's commit log."""
        assignment = self.plan(coordinator, epoch)
        coordinator.commit(self.write(assignment, epoch, rows), epoch)
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

    def pending(self, identity: str) -> list[str]:
        return [found.handle.name for found in self.sink(**self._more).pending(identity)]
