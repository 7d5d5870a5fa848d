"""Sessions of a MySQL or MariaDB: those of the driver, kept for a while, and those of tasks."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pymysql
from pymysql.connections import Connection, MySQLResult

from assent.protocol.errors import RetriableError
from assent.sinks.mysql_address import Address
from assent.sinks.mysql_errors import refused_rows, translated
from assent.sinks.session_pool import SessionPool

if TYPE_CHECKING:
    import pyarrow as pa

Rows = list[tuple[Any, ...]]
Ask = Callable[[str], Rows]
"""Runs one statement and gives its rows."""

_DETACH_SECONDS = 30.0
_POLL_SECONDS = 0.005
_PIECE = 1 << 20
# Nothing is adjusted to fit, and 0 in a column that counts by itself is 0.
_SQL_MODE = (
    "STRICT_ALL_TABLES,STRICT_TRANS_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO,"
    "NO_ENGINE_SUBSTITUTION,NO_AUTO_VALUE_ON_ZERO"
)


class Session(Connection):  # type: ignore[misc]
    """A connection that sends rows from memory where LOAD DATA LOCAL would send a file."""

    _rows: Sequence[memoryview] = ()

    def ask(self, statement: str) -> Rows:
        with self.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

    def load(self, statement: str, rows: pa.Buffer | None, count: int, what: str) -> None:
        """Run a statement that adds rows: all of them, exactly as they are, or an error.

        `rows` is what LOAD DATA LOCAL gets for its file.
        """
        if rows is not None:
            view = memoryview(rows)
            self._rows = [view[at : at + _PIECE] for at in range(0, len(view), _PIECE)]
        try:
            with self.cursor() as cursor:
                added = cursor.execute(statement)
                warned = cursor.warning_count
        finally:
            self._rows = ()
        if warned or added != count:
            warnings = self.ask("SHOW WARNINGS")
            raise refused_rows(what, [(str(a), int(b), str(c)) for a, b, c in warnings])

    @property
    def is_mariadb(self) -> bool:
        return "mariadb" in str(self.get_server_info()).lower()

    @property
    def release(self) -> tuple[int, ...]:
        """The version, such as (8, 0, 31)."""
        text = str(self.get_server_info()).removeprefix("5.5.5-")  # MariaDB, to old clients
        numbers = text.partition("-")[0].split(".")
        return tuple(int(number) for number in numbers if number.isdigit())

    @cached_property
    def detaches(self) -> bool:
        """Whether a prepared transaction is anybody's at once, and not when its session ends."""
        found = self.ask("SHOW VARIABLES LIKE 'xa_detach_on_prepare'")
        return [value for _, value in found] == ["ON"]

    def _create_ssl_ctx(self, sslp: Any) -> Any:
        # Once per process: reading the system's certificates takes longer than all the rest.
        wanted = repr(sorted(sslp.items()))
        if wanted not in _contexts:
            _contexts[wanted] = super()._create_ssl_ctx(sslp)
        return _contexts[wanted]

    def _read_query_result(self, unbuffered: bool = False) -> Any:
        # As in the parent, but for the class of the result.
        self._result = None
        result = _Result(self)
        result.read()
        self._result = result
        if result.server_status is not None:
            self.server_status = result.server_status
        return result.affected_rows


class _Result(MySQLResult):  # type: ignore[misc]
    def _read_load_local_packet(self, first_packet: Any) -> None:
        # A server may name any file of this machine; it gets the rows, whatever it names.
        connection = self.connection
        for piece in connection._rows:
            connection.write_packet(bytes(piece))
        connection.write_packet(b"")
        self._read_ok_packet(connection._read_packet())


@dataclass(frozen=True)
class Sessions:
    """Opens sessions in which no default of the server or the user spoils what is promised."""

    address: Address
    lock_timeout: float

    @contextmanager
    def control(self) -> Iterator[Session]:
        """A session for the driver's side, in autocommit. It is kept if nothing went wrong."""
        session = _pool.take(self._key) or self._connect()
        try:
            with translated(f"MySQL at {self.address}"):
                yield session
        except BaseException:
            close(session)
            raise
        self.keep(session)

    def open_task(self) -> Session:
        """A session for a task, in autocommit: one that was left, or a new one."""
        return _pool.take(self._key) or self._connect()

    def keep(self, session: Session) -> None:
        """Leave a session, outside of any transaction, to whoever is next in this process."""
        _pool.keep(self._key, session)

    def trim(self) -> None:
        """Leave few sessions open until the next epoch."""
        _pool.trim(self._key)

    def end(self, session: Session) -> None:
        """End a session that has prepared, and wait until the server has let go of it.

        Before that, nobody else could commit: the server would not know the transaction.
        """
        number = session.thread_id()
        close(session)
        deadline = time.monotonic() + _DETACH_SECONDS
        with self.control() as control:
            while control.ask(f"SELECT 1 FROM information_schema.processlist WHERE id = {number}"):
                if time.monotonic() > deadline:
                    raise RetriableError(
                        f"MySQL at {self.address}: the session that prepared a transaction does "
                        f"not end"
                    )
                time.sleep(_POLL_SECONDS)

    def _connect(self) -> Session:
        with translated(f"MySQL at {self.address}"):
            session = Session(**self.address.connect_arguments(), local_infile=True)
            try:
                _watch(session)
                for statement in self._settings(session):
                    session.ask(statement)
            except BaseException:
                close(session)
                raise
        return session

    def _settings(self, session: Session) -> list[str]:
        seconds = max(1, round(self.lock_timeout))
        settings = {
            "sql_mode": f"'{_SQL_MODE}'",
            "time_zone": "'+00:00'",
            "autocommit": "1",
            "innodb_lock_wait_timeout": f"{seconds}",
            "lock_wait_timeout": f"{seconds}",
            "wait_timeout": "28800",
            "net_read_timeout": "600",
            "net_write_timeout": "600",
            "foreign_key_checks": "1",
            "unique_checks": "1",
            "sql_notes": "1",
            "sql_safe_updates": "0",
            "sql_big_selects": "1",
            "completion_type": "0",
        }
        if session.is_mariadb:
            settings["max_statement_time"] = "0"
        values = ", ".join(f"{name} = {value}" for name, value in settings.items())
        return [
            f"SET SESSION {values}",
            # Fewer gaps between keys are locked than by default.
            "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE",
        ]

    @property
    def _key(self) -> tuple[str, float]:
        return repr(sorted(self.address.connect_arguments().items())), self.lock_timeout


def close(session: Session) -> None:
    """End a session. The server rolls back what is not prepared or committed."""
    with suppress(pymysql.Error, OSError):
        session.close()


def close_idle() -> None:
    """Close what this process keeps open between epochs."""
    _pool.close_idle()


def _answers(session: Session) -> bool:
    try:
        session.ping(reconnect=False)
    except (pymysql.Error, OSError):
        return False
    return True


def _watch(session: Session) -> None:
    """A server that is gone without a word is missed within a minute."""
    for name, value in (
        ("TCP_KEEPIDLE", 30),
        ("TCP_KEEPINTVL", 10),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 60000),
    ):
        if hasattr(socket, name):
            session._sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


_contexts: dict[str, Any] = {}
_pool: SessionPool[Session] = SessionPool(_answers, close)
