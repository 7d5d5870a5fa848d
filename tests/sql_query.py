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

from assent.ledger.local import LocalStore
from assent.protocol.coordinator import Coordinator
from assent.protocol.handle import Handle
from assent.protocol.name import TransactionName, nonce
from assent.protocol.policy import Policy
from assent.protocol.sink import Sink
from assent.protocol.step import Trace, no_trace
from assent.testing.query import SinkQuery

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


class SqlQuery(SinkQuery[Sequence[Row]]):
    """A query on such a table, whose ledger is on disk."""

    def __init__(self, stage: SqlStage, folder: Path, commit_timeout: float = 30.0) -> None:
        super().__init__(
            stage.sink,
            lambda rows: [batch(row) for row in rows],
            LocalStore(str(folder / "_assent")),
            Policy(commit_timeout=commit_timeout),
        )
        self.stage = stage

    def start(self, trace: Trace = no_trace) -> Coordinator:
        self.sink().check(batch().schema)
        return super().start(trace)
