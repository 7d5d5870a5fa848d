"""A query without Spark into a store of keys: its ledger is on disk, its processes come and go."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from assent.ledger.local import LocalStore
from assent.protocol.handle import Handle
from assent.protocol.name import TransactionName, nonce
from assent.protocol.policy import Policy
from assent.protocol.sink import Sink
from assent.testing.query import SinkQuery

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


class KeyedQuery(SinkQuery[Mapping[str, int]]):
    """A query on such a place, whose ledger is on disk."""

    def __init__(self, stage: KeyedStage, folder: Path, **more: Any) -> None:
        super().__init__(
            lambda: stage.sink(**more),
            lambda part: [batch(part)] if part else [],
            LocalStore(str(folder / "_assent")),
            Policy(commit_timeout=20),
        )
