"""A sink of one's own in forty lines: rows as JSON lines, a file for each task and epoch.

The store is a folder. A transaction is a file in `open`, and committing it is renaming it into
`done`, which is one act. Run it with::

    python examples/custom_sink.py --folder views
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO

import pyarrow as pa
from pyspark.sql import SparkSession

import assent
from assent import Handle, Pending, TransactionName, Verdict
from assent.testing.pageviews import PageViews


class LinesSink(assent.Sink[IO[str]]):
    """Each row as a line of JSON in the files of the folder `done`."""

    kind = "lines"

    def __init__(self, folder: Path) -> None:
        self.open, self.done = folder.absolute() / "open", folder.absolute() / "done"

    @property
    def target(self) -> str:
        return str(self.done)

    def check(self, schema: pa.Schema, overwrite: bool = False) -> None:
        self.open.mkdir(parents=True, exist_ok=True)
        self.done.mkdir(exist_ok=True)

    def begin(self, name: TransactionName, epoch: int) -> IO[str]:
        return (self.open / str(name)).open("x")

    def write(self, transaction: IO[str], batch: pa.RecordBatch) -> None:
        transaction.writelines(json.dumps(row, default=str) + "\n" for row in batch.to_pylist())

    def pre_commit(self, transaction: IO[str]) -> Handle:
        with transaction:
            transaction.flush()
            os.fsync(transaction.fileno())
        return Handle(self.kind, Path(transaction.name).name)

    def discard(self, transaction: IO[str]) -> None:
        transaction.close()

    def commit(self, handle: Handle) -> None:
        if self.verdict(handle) is not Verdict.COMMITTED:
            os.rename(self.open / handle.name, self.done / handle.name)

    def abort(self, handle: Handle) -> None:
        (self.open / handle.name).unlink(missing_ok=True)

    def verdict(self, handle: Handle) -> Verdict:
        if (self.open / handle.name).exists():  # first: a file only ever moves from here to there
            return Verdict.PENDING
        return Verdict.COMMITTED if (self.done / handle.name).exists() else Verdict.ABORTED

    def pending(self, identity: str) -> Iterable[Pending]:
        for path in self.open.glob(f"assent-{identity}-*"):
            yield Pending.named(Handle(self.kind, path.name), TransactionName.parse(path.name))


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page views of the scripted topic into files of lines."""
    parser = argparse.ArgumentParser(description="Page views as JSON lines, exactly once.")
    parser.add_argument("--folder", type=Path, required=True, help="output and checkpoint")
    parser.add_argument("--master", default="local[2]")
    options = parser.parse_args(arguments)
    sink = LinesSink(options.folder / "views")
    session = (
        SparkSession.builder.master(options.master)
        .appName("custom-sink")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    try:
        session.dataSource.register(PageViews)
        query = (
            session.readStream.format("assent-pageviews")
            .load()
            .writeStream.foreachBatch(assent.Epochs(sink))
            .option("checkpointLocation", str(options.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    finally:
        session.stop()
    rows = sum(len(path.read_text().splitlines()) for path in sink.done.iterdir())
    print(f"{rows} page views")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
