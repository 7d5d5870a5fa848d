"""What the tests of the files sink share: small epochs, and eyes for disk."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet

from assent.protocol.handle import Handle
from assent.protocol.name import TransactionName, nonce
from assent.sinks.files import FilesSink

IDENTITY = "3f2a9c0d11223344"


def name(partition: int = 0, place: int = 0, identity: str = IDENTITY) -> TransactionName:
    return TransactionName(identity, 1, place, partition, nonce())


def numbers(first: int, count: int = 5) -> pa.RecordBatch:
    values = list(range(first, first + count))
    return pa.record_batch({"n": values, "g": [f"g{value % 3}" for value in values]})


def stage(
    sink: FilesSink, epoch: int, partition: int = 0, batch: pa.RecordBatch | None = None
) -> Handle:
    transaction = sink.begin(name(partition, epoch), epoch)
    sink.write(transaction, numbers(epoch * 100 + partition * 10) if batch is None else batch)
    return sink.pre_commit(transaction)


def settle(sink: FilesSink, epoch: int, handles: list[Handle]) -> None:
    for handle in handles:
        sink.commit(handle)
    sink.publish(epoch, handles)


def visible(sink: FilesSink) -> list[int]:
    """The numbers that a reader finds."""
    found: list[int] = []
    for file in sink.output.rglob("*.parquet"):
        # Through memory: Arrow closes a file of its own when it comes to it.
        table = parquet.read_table(pa.BufferReader(file.read_bytes()), columns=["n"])
        found += table["n"].to_pylist()
    return sorted(found)


def pending(sink: FilesSink, identity: str = IDENTITY) -> list[Handle]:
    return [one.handle for one in sink.pending(identity)]


def left(sink: FilesSink) -> list[str]:
    """Everything below the staging folder, files and folders."""
    return sorted(str(path.relative_to(sink.staging)) for path in sink.staging.rglob("*"))


def only_seal(epoch: int) -> list[str]:
    sealed = f"{IDENTITY}/sealed"
    return [IDENTITY, sealed, f"{sealed}/epoch=3f2a9c0d-{epoch:06d}"]


def make_sink(output: Path, partition_columns: tuple[str, ...] = ()) -> FilesSink:
    """A sink for `numbers`, checked, so that its folders exist."""
    made = FilesSink(output, partition_columns=partition_columns)
    made.check(numbers(0).schema)
    return made


def open_files(below: Path) -> list[str]:
    """The files and folders in a folder that this process holds open."""
    links = []
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            links.append(os.readlink(descriptor))
        except FileNotFoundError:
            continue  # That of the listing itself.
    return [link for link in links if link.startswith(str(below))]


def await_closed(below: Path) -> None:
    """Wait until nothing there is open; Arrow's readers close their files late."""
    deadline = time.monotonic() + 10
    while (held := open_files(below)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert held == []
