"""Sessions of a PostgreSQL: those of the driver, kept for a while, and those of tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from assent.sinks.postgres_address import Address
from assent.sinks.postgres_errors import translated
from assent.sinks.session_pool import SessionPool

if TYPE_CHECKING:
    import adbc_driver_postgresql.dbapi as adbc
    import psycopg

Rows = list[tuple[Any, ...]]
Ask = Callable[[str], Rows]
"""Runs one statement and gives its rows."""


@dataclass(frozen=True)
class Sessions:
    """Opens sessions in which no default of the user's role spoils what is promised."""

    address: Address
    lock_timeout: float
    durable: bool = True

    @contextmanager
    def control(self) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        """A session for the driver's side, in autocommit. It is kept if nothing went wrong."""
        connection = _control.take(self._key) or self._connect()
        try:
            with translated(f"PostgreSQL at {self.address}"):
                yield connection
        except BaseException:
            connection.close()
            raise
        _control.keep(self._key, connection)

    def open_task(self) -> adbc.Connection:
        """A session for a task, in autocommit: one that an earlier task has left, or a new one.

        A new one costs tens of milliseconds: the client reads the server's types first.
        """
        import adbc_driver_postgresql.dbapi as adbc

        kept: adbc.Connection | None = _tasks.take(self._key)
        if kept is not None:
            return kept
        with translated(f"PostgreSQL at {self.address}"):
            connection = adbc.connect(self.address.conninfo(), autocommit=True)
            try:
                asking(connection)(self._settings())
            except BaseException:
                connection.close()
                raise
        return connection

    def keep_task(self, connection: adbc.Connection) -> None:
        """Leave a session, outside of any transaction, to the next task of this process."""
        _tasks.keep(self._key, connection)

    def trim(self) -> None:
        """Leave few sessions open until the next epoch."""
        _control.trim(self._key)

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
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


def asking(connection: adbc.Connection | psycopg.Connection[tuple[Any, ...]]) -> Ask:
    """Statements over a connection of either client."""

    def ask(statement: str) -> Rows:
        with connection.cursor() as cursor:
            cursor.execute(statement.encode() if _is_psycopg(connection) else statement)
            return list(cursor.fetchall()) if cursor.description else []

    return ask


def close_idle() -> None:
    """Close what this process keeps open between epochs."""
    _control.close_idle()
    _tasks.close_idle()


def _is_psycopg(connection: object) -> bool:
    return type(connection).__module__.partition(".")[0] == "psycopg"


def _answers(connection: Any) -> bool:
    try:
        asking(connection)("SELECT 1")
    except Exception:
        return False  # either client has errors of its own
    return True


_control: SessionPool[psycopg.Connection[tuple[Any, ...]]] = SessionPool(
    _answers, lambda connection: connection.close()
)
_tasks: SessionPool[Any] = SessionPool(_answers, lambda connection: connection.close())
