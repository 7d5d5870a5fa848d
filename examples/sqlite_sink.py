"""A sink of one's own: rows into SQLite, exactly once.

SQLite has no prepared transactions. The sink makes its own: rows are staged under the name of
their transaction, and committing moves them, and says so, in one SQLite transaction::

    python examples/sqlite_sink.py --folder views
"""

from __future__ import annotations

import argparse
import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

import assent
from assent import Handle, Pending, TransactionName, Verdict
from assent.testing.pageviews import PageViews

TABLES = """
CREATE TABLE IF NOT EXISTS transactions (name TEXT PRIMARY KEY, state TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS staged (name TEXT NOT NULL, row TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS staged_by_name ON staged (name);
CREATE TABLE IF NOT EXISTS visible (row TEXT NOT NULL);
"""
# A task that is late, whose transaction was swept as dead, stages nothing.
STAGE = "INSERT INTO staged SELECT name, ? FROM transactions WHERE name = ? AND state = 'open'"
# A settled transaction stays listed, as a witness: its verdict is known for ever.
SETTLE = "UPDATE transactions SET state = ? WHERE name = ? AND state = 'open'"
SHOW = "INSERT INTO visible SELECT row FROM staged WHERE name = ?"
STATE = "SELECT state FROM transactions WHERE name = ?"
OPEN = "SELECT name FROM transactions WHERE state = 'open'"


class SqliteSink(assent.Sink[str]):
    """Writes every row, as JSON, into the table `visible`."""

    kind = "sqlite"

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    @property
    def target(self) -> str:
        return str(self.path)

    def check(self, schema: pa.Schema, overwrite: bool = False) -> None:
        with closing(sqlite3.connect(self.path, timeout=60)) as connection:
            connection.executescript(TABLES)

    def begin(self, name: TransactionName, epoch: int) -> str:
        with self._database() as database:
            database.execute("INSERT INTO transactions VALUES (?, 'open')", [str(name)])
        return str(name)

    def write(self, transaction: str, batch: pa.RecordBatch) -> None:
        rows = [(json.dumps(row, default=str), transaction) for row in batch.to_pylist()]
        with self._database() as database:
            database.executemany(STAGE, rows)

    def pre_commit(self, transaction: str) -> Handle:
        return Handle(self.kind, transaction)  # every write is durable already

    def commit(self, handle: Handle) -> None:
        self._settle(handle, "committed")
        if self.verdict(handle) is not Verdict.COMMITTED:
            raise RuntimeError(f"{handle} in {self.path} was not open and is not committed")

    def abort(self, handle: Handle) -> None:
        self._settle(handle, "aborted")

    def verdict(self, handle: Handle) -> Verdict:
        with self._database() as database:
            [state] = database.execute(STATE, [handle.name]).fetchone() or ["unknown"]
        return Verdict.PENDING if state == "open" else Verdict(state)

    def pending(self, identity: str) -> Iterable[Pending]:
        with self._database() as database:
            names = [TransactionName.parse(name) for (name,) in database.execute(OPEN)]
        mine = [name for name in names if name.identity == identity]
        return [Pending.named(Handle(self.kind, str(name)), name) for name in mine]

    def _settle(self, handle: Handle, state: str) -> None:
        """Settle an open transaction; leave a settled one as it is."""
        with self._database() as database:
            if database.execute(SETTLE, [state, handle.name]).rowcount:
                if state == "committed":
                    database.execute(SHOW, [handle.name])
                database.execute("DELETE FROM staged WHERE name = ?", [handle.name])

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        """One SQLite transaction. It takes the write lock at once, so what it reads stays true."""
        with closing(sqlite3.connect(self.path, timeout=60, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            with connection:
                yield connection


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page views of the scripted topic into SQLite."""
    parser = argparse.ArgumentParser(description="Page views into SQLite, exactly once.")
    parser.add_argument("--folder", type=Path, required=True, help="database and checkpoint")
    parser.add_argument("--master", default="local[2]")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    database = options.folder / "views.db"
    session = (
        SparkSession.builder.master(options.master)
        .appName("sqlite-sink")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    try:
        session.dataSource.register(PageViews)
        query = (
            session.readStream.format("assent-pageviews")
            .load()
            .writeStream.foreachBatch(assent.Epochs(SqliteSink(database)))
            .option("checkpointLocation", str(options.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    finally:
        session.stop()
    with closing(sqlite3.connect(database)) as connection:
        [(rows,)] = connection.execute("SELECT count(*) FROM visible")
    print(f"{rows} page views")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
