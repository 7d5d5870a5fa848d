"""One COPY into a table, fed batch by batch."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa

from assent.sinks.postgres_table import TableName

if TYPE_CHECKING:
    import adbc_driver_postgresql.dbapi as adbc

_AHEAD = 2
_POLL_SECONDS = 0.1


class Copy:
    """Runs in a thread, so that Spark, the client and the server work at the same time.

    Only a few batches are under way. What the server finds fault with may show at a later
    `write`, and shows at `finish` at the latest.
    """

    def __init__(self, connection: adbc.Connection, table: TableName, schema: pa.Schema) -> None:
        self._batches: queue.Queue[pa.RecordBatch | None] = queue.Queue(_AHEAD)
        self._given_up = False
        self._failure: BaseException | None = None
        self._cursor = connection.cursor()
        self._reader = pa.RecordBatchReader.from_batches(schema, self._take())
        self._thread = threading.Thread(
            target=self._run, args=(table,), name="assent-copy", daemon=True
        )
        self._thread.start()

    def write(self, batch: pa.RecordBatch | None) -> None:
        """Hand a batch over; waits if the server is behind. None is the end."""
        while True:
            if not self._thread.is_alive():
                assert self._failure is not None
                raise self._failure
            with suppress(queue.Full):
                self._batches.put(batch, timeout=_POLL_SECONDS)
                return

    def finish(self) -> None:
        """Return when the server has taken everything in."""
        self.write(None)
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        self._cursor.close()

    def give_up(self) -> None:
        """End it, whatever it is waiting for."""
        self._given_up = True
        while self._thread.is_alive():
            with suppress(queue.Empty):
                self._batches.get_nowait()
            with suppress(queue.Full):
                self._batches.put_nowait(None)
            with suppress(Exception):
                self._cursor.adbc_cancel()
            self._thread.join(_POLL_SECONDS)

    def _take(self) -> Iterator[pa.RecordBatch]:
        while (batch := self._batches.get()) is not None and not self._given_up:
            yield batch
        if self._given_up:
            raise RuntimeError("given up")

    def _run(self, table: TableName) -> None:
        try:
            self._cursor.adbc_ingest(
                table.table, self._reader, mode="append", db_schema_name=table.schema
            )
        except BaseException as error:
            self._failure = error
