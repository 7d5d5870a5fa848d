"""COPY into a table, fed batch by batch."""

from __future__ import annotations

import select
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from assent.sinks.postgres_binary import BEGIN, END, Cells, rows
from assent.sinks.postgres_table import TableName, quote

if TYPE_CHECKING:
    import psycopg


_RING_BYTES = 16 * 2**20
"""What one COPY may hold of the server's buffers.

Then it uses them again: it waits for the log to reach the disk, and writes its pages out itself.
A COPY that ends before leaves them to be written when the server sees fit, as an INSERT does.
"""
_ROW_BYTES = 32  # what a row takes up in a page, beside its values


class Copy:
    """Sends rows while the server takes in earlier ones; what is on its way is bounded.

    Many rows go by several statements. What the server finds fault with shows at the end of one,
    at `finish` at the latest.
    """

    def __init__(
        self, connection: psycopg.Connection[Any], table: TableName, columns: Sequence[str]
    ) -> None:
        names = ", ".join(quote(column) for column in columns)
        self._statement = f"COPY {table} ({names}) FROM STDIN (FORMAT binary)".encode()
        self._connection = connection
        self._begin()

    def write(self, columns: Sequence[Cells], count: int) -> None:
        """Send so many rows; waits while the server is behind."""
        data = rows(columns, count)
        pages = len(data) + count * _ROW_BYTES
        if self._pages and self._pages + pages > _RING_BYTES:
            self.finish()
            self._begin()
        self._pages += pages
        self._copy.write(data)
        # The client would keep whatever is not sent yet, without limit.
        connection = self._connection.pgconn
        poll = select.poll()
        poll.register(connection.socket, select.POLLIN | select.POLLOUT)
        while connection.flush():
            [(_, event)] = poll.poll()
            if event & ~select.POLLOUT:
                connection.consume_input()  # or the server might wait to be heard

    def finish(self) -> None:
        """Return when the server has taken everything in."""
        self._copy.write(END)
        self._copying.__exit__(None, None, None)

    def _begin(self) -> None:
        self._pages = 0
        self._copying = self._connection.cursor().copy(self._statement)
        self._copy = self._copying.__enter__()
        self._copy.write(BEGIN)

    def give_up(self) -> None:
        """Forget it. Its connection has to be closed before, so that nothing is waited for."""
        end = RuntimeError("given up")
        with suppress(Exception):
            self._copying.__exit__(type(end), end, None)
