"""A place for the rows of a task that wait until it is known what they are."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pyarrow as pa

_MEMORY_BYTES = 64 * 2**20


@contextmanager
def spooled(batches: Iterable[pa.RecordBatch]) -> Iterator[Iterable[pa.RecordBatch]]:
    """In memory while they are few, then in a file that has no name and is gone with the process.

    Few tasks ever need it: those that replay an epoch of which a store gave up a part.
    """
    with tempfile.SpooledTemporaryFile(_MEMORY_BYTES) as file:
        writer: pa.RecordBatchStreamWriter | None = None
        for batch in batches:
            if writer is None:
                writer = pa.ipc.new_stream(file, batch.schema)
            writer.write_batch(batch)
        if writer is None:
            yield ()
            return
        writer.close()
        file.seek(0)
        with pa.ipc.open_stream(file) as reader:
            yield reader
