"""A query without Spark whose sink is Kafka: its ledger is on disk, its processes come and go."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from assent.ledger.local import LocalStore
from assent.protocol.name import TransactionName, nonce
from assent.protocol.policy import Policy
from assent.sinks.kafka import KafkaSink
from assent.testing.kafka import KafkaCluster
from assent.testing.query import SinkQuery
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

    def sink(self, client: Mapping[str, str] | None = None, **more: Any) -> KafkaSink:
        more.setdefault("transaction_timeout", 60.0)
        more.setdefault("topic", self.topic)
        sink = KafkaSink({**self.kafka.settings(), **(client or {})}, **more)
        received: KafkaSink = pickle.loads(pickle.dumps(sink))  # as it reaches a task
        return received

    def name(
        self, place: int = 0, partition: int = 0, attempt: int = 0, term: int = 0
    ) -> TransactionName:
        return TransactionName(self.identity, term, place, partition, nonce(), attempt)

    def await_rows(self, *rows: str) -> None:
        await_committed(self.kafka.bootstrap_servers, self.topic, rows)


class KafkaQuery(SinkQuery[Sequence[str]]):
    """A query on a topic of its own, whose ledger is on disk."""

    def __init__(self, kafka: KafkaCluster, folder: Path, **more: Any) -> None:
        self.stage = KafkaStage(kafka)
        super().__init__(
            lambda: self.stage.sink(**more),
            lambda part: [batch(*part)] if part else [],
            LocalStore(str(folder / "_assent")),
            Policy(commit_timeout=30),
        )

    def pending(self, identity: str) -> list[str]:
        return [found.handle.name for found in self.sink().pending(identity)]
