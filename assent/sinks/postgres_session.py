"""Sessions of a PostgreSQL: those of the driver, kept for a while, and those of tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from assent.sinks.postgres_address import Address
from assent.sinks.postgres_errors import translated
from assent.sinks.session_pool import SessionPool

if TYPE_CHECKING:
    import psycopg

Connection: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"
Rows = list[tuple[Any, ...]]
Ask = Callable[[str], Rows]
"""Runs one statement and gives its rows."""

_CANCEL_SECONDS = 5.0


@dataclass(frozen=True)
class Sessions:
    """Opens sessions in which no default of the user's role spoils what is promised."""

    address: Address
    lock_timeout: float
    durable: bool = True

    @contextmanager
    def control(self) -> Iterator[Connection]:
        """A session for the driver's side, in autocommit. It is kept if nothing went wrong."""
        connection = _control.take(self._key) or self._connect()
        try:
            with translated(f"PostgreSQL at {self.address}"):
                yield connection
        except BaseException:
            connection.close()
            raise
        _control.keep(self._key, connection)

    def open_task(self) -> Connection:
        """A session for a task, in autocommit: one that an earlier task has left, or a new one."""
        return _tasks.take(self._key) or self._connect()

    def keep_task(self, connection: Connection) -> None:
        """Leave a session, outside of any transaction, to the next task of this process."""
        _tasks.keep(self._key, connection)

    def trim(self) -> None:
        """Leave few sessions open until the next epoch."""
        _control.trim(self._key)

    def _connect(self) -> Connection:
        import psycopg

        with translated(f"PostgreSQL at {self.address}"):
            connection = psycopg.connect(self.address.conninfo(), autocommit=True)
            try:
                connection.execute(self._settings().encode())
            except BaseException:
                connection.close()
                raise
        return connection

    def _settings(self) -> str:
        """One statement; settings that an older server does not know are left out."""
        settings = {
            "lock_timeout": f"{max(1, round(self.lock_timeout * 1000))}",
            "statement_timeout": "0",
            "idle_in_transaction_session_timeout": "0",
            "idle_session_timeout": "0",
            "transaction_timeout": "0",
            "default_transaction_isolation": "read committed",
            "default_transaction_read_only": "off",
            "default_transaction_deferrable": "off",
            "client_min_messages": "warning",
            "standard_conforming_strings": "on",
            # A task whose machine is gone holds its locks no longer than this.
            "tcp_keepalives_idle": "30",
            "tcp_keepalives_interval": "10",
            "tcp_keepalives_count": "3",
            # After the driver has answered to Spark, nothing may be lost with the server.
            "synchronous_commit": "on" if self.durable else "off",
        }
        # Somebody who has chosen more than that keeps it.
        kept = "'remote_apply'" if self.durable else "''"
        values = ", ".join(f"('{name}', '{value}')" for name, value in settings.items())
        return (
            "SELECT set_config(wanted.name, wanted.value, false)"
            f" FROM (VALUES {values}) AS wanted (name, value)"
            " JOIN pg_catalog.pg_settings AS known ON known.name = wanted.name"
            f" WHERE NOT (known.name = 'synchronous_commit' AND known.setting = {kept})"
        )

    @property
    def _key(self) -> tuple[str, str]:
        return self.address.conninfo(), self._settings()


def asking(connection: Connection) -> Ask:
    """Statements over a connection."""

    def ask(statement: str) -> Rows:
        with connection.cursor() as cursor:
            cursor.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    return ask


def abandon(connection: Connection) -> None:
    """Close a connection, whatever it is at. What runs on the server is told to end.

    A session that waits for a lock would not see that its client is gone, and keep its own locks.
    """
    from psycopg.pq import TransactionStatus

    try:
        if connection.info.transaction_status is TransactionStatus.ACTIVE:
            connection.cancel_safe(timeout=_CANCEL_SECONDS)
    finally:
        connection.close()


def close_idle() -> None:
    """Close what this process keeps open between epochs."""
    _control.close_idle()
    _tasks.close_idle()


def _answers(connection: Connection) -> bool:
    import psycopg

    try:
        asking(connection)("SELECT 1")
    except psycopg.Error:
        return False
    return True


_control: SessionPool[Connection] = SessionPool(_answers, lambda connection: connection.close())
_tasks: SessionPool[Connection] = SessionPool(_answers, lambda connection: connection.close())
