"""Sessions of a PostgreSQL: those of the driver, kept for a while, and those of tasks."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from assent.sinks.postgres_address import Address
from assent.sinks.postgres_errors import translated

if TYPE_CHECKING:
    import adbc_driver_postgresql.dbapi as adbc
    import psycopg

Rows = list[tuple[Any, ...]]
Ask = Callable[[str], Rows]
"""Runs one statement and gives its rows."""

_KEPT = 4


@dataclass(frozen=True)
class Sessions:
    """Opens sessions in which no default of the user's role spoils what is promised."""

    address: Address
    lock_timeout: float
    durable: bool = True

    @contextmanager
    def control(self) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        """A session for the driver's side, in autocommit. It is kept if nothing went wrong."""
        connection = self._take() or self._connect()
        try:
            with translated(f"PostgreSQL at {self.address}"):
                yield connection
        except BaseException:
            connection.close()
            raise
        self._keep(connection)

    def open_task(self) -> adbc.Connection:
        """A session for a task, in autocommit: one that an earlier task has left, or a new one.

        A new one costs tens of milliseconds: the client reads the server's types first.
        """
        import adbc_driver_postgresql.dbapi as adbc

        with _lock:
            kept = _task_idle.pop(self._key, None)
        if kept is not None:
            try:
                asking(kept)(self._settings())
                return kept
            except adbc.Error:
                kept.close()  # the server was restarted meanwhile
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
        with _lock:
            known = _task_idle.setdefault(self._key, connection)
        if known is not connection:
            connection.close()

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

    def _take(self) -> psycopg.Connection[tuple[Any, ...]] | None:
        import psycopg

        while True:
            with _lock:
                idle = _idle.get(self._key)
                if not idle:
                    return None
                connection = idle.pop()
            try:
                connection.execute("SELECT 1")
            except psycopg.Error:
                connection.close()  # the server was restarted meanwhile
            else:
                return connection

    def _keep(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        with _lock:
            idle = _idle.setdefault(self._key, [])
            if len(idle) < _KEPT and not connection.closed:
                idle.append(connection)
                return
        connection.close()

    @property
    def _key(self) -> tuple[int, str, str]:
        # By process: a forked one must leave alone what its parent holds.
        return os.getpid(), self.address.conninfo(), self._settings()


def asking(connection: adbc.Connection | psycopg.Connection[tuple[Any, ...]]) -> Ask:
    """Statements over a connection of either client."""

    def ask(statement: str) -> Rows:
        with connection.cursor() as cursor:
            cursor.execute(statement.encode() if _is_psycopg(connection) else statement)
            return list(cursor.fetchall()) if cursor.description else []

    return ask


def close_idle() -> None:
    """Close what this process keeps open between epochs."""
    own = os.getpid()
    connections: list[Any] = []
    with _lock:
        for key in [key for key in _idle if key[0] == own]:
            connections += _idle.pop(key)
        for key in [key for key in _task_idle if key[0] == own]:
            connections.append(_task_idle.pop(key))
    for connection in connections:
        connection.close()


def _is_psycopg(connection: object) -> bool:
    return type(connection).__module__.partition(".")[0] == "psycopg"


_lock = threading.Lock()
_Key = tuple[int, str, str]
_idle: dict[_Key, list[psycopg.Connection[tuple[Any, ...]]]] = {}
_task_idle: dict[_Key, Any] = {}
atexit.register(close_idle)
