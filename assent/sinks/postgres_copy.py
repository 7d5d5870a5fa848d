"""One COPY into a table, fed batch by batch."""

from __future__ import annotations

import select
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from assent.sinks.postgres_binary import BEGIN, END, Cells, rows
from assent.sinks.postgres_table import TableName, quote

if TYPE_CHECKING:
    import psycopg


class Copy:
    """Sends rows while the server takes in earlier ones; what is on its way is bounded.

    What the server finds fault with shows at `finish`.
    """

    def __init__(
        self, connection: psycopg.Connection[Any], table: TableName, columns: Sequence[str]
    ) -> None:
        names = ", ".join(quote(column) for column in columns)
        statement = f"COPY {table} ({names}) FROM STDIN (FORMAT binary)"
        self._connection = connection
        self._copying = connection.cursor().copy(statement.encode())
        self._copy = self._copying.__enter__()
        self._copy.write(BEGIN)

    def write(self, columns: Sequence[Cells], count: int) -> None:
        """Send so many rows; waits while the server is behind."""
        self._copy.write(rows(columns, count))
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

    def give_up(self) -> None:
        """Forget it. Its connection has to be closed before, so that nothing is waited for."""
        end = RuntimeError("given up")
        with suppress(Exception):
            self._copying.__exit__(type(end), end, None)
