"""Rows that are put aside come back as they were, however many."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from assent.spark import spool
from assent.spark.spool import spooled


def some_batches() -> list[pa.RecordBatch]:
    schema = pa.schema(
        {
            "number": pa.int64(),
            "text": pa.string(),
            "list": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            "at": pa.timestamp("us", tz="UTC"),
            "price": pa.decimal128(38, 18),
        }
    )
    rows = [
        {"number": 1, "text": "ü\0", "list": [{"key": "k", "value": b"\xff"}], "at": 5, "price": 7},
        {"number": None, "text": None, "list": None, "at": None, "price": None},
        {"number": -1, "text": "", "list": [], "at": 0, "price": 0},
    ]
    table = pa.Table.from_pylist(rows * 50, schema)
    return [batch.slice(1) for batch in table.to_batches(max_chunksize=40)]


@pytest.mark.parametrize("memory", [2**20, 10], ids=["in memory", "in a file"])
def test_rows_come_back_as_they_were(memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "_MEMORY_BYTES", memory)
    given = some_batches()
    with spooled(iter(given)) as aside:
        found = list(aside)
    assert found == given
    assert [batch.schema for batch in found] == [batch.schema for batch in given]


def test_no_rows() -> None:
    empty = pa.record_batch({"row": pa.array([], pa.int64())})
    with spooled([]) as nothing, spooled([empty]) as no_rows:
        assert list(nothing) == []
        assert list(no_rows) == [empty]


def test_batches_are_not_kept() -> None:
    """However large a partition: only what is in the file's memory stays."""
    before = pa.total_allocated_bytes()
    most = 0

    def many() -> Iterator[pa.RecordBatch]:
        nonlocal most
        for number in range(50):
            yield pa.record_batch({"row": pa.array([number] * 100_000, pa.int64())})
            most = max(most, pa.total_allocated_bytes() - before)

    with spooled(many()) as aside:
        for batch in aside:
            most = max(most, pa.total_allocated_bytes() - before)
            assert batch.num_rows == 100_000
    assert most < 10 * 800_000


def test_input_that_fails_fails_the_task() -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield from some_batches()
        raise ConnectionError("no more")

    with pytest.raises(ConnectionError, match="no more"), spooled(failing()):
        raise AssertionError("something was put aside")
