"""The MySQL and MariaDB sink: bulk loads from Arrow; committed from the driver, by name."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

from assent.protocol.errors import (
    AssentError,
    ConfigurationError,
    FencedError,
    RetriableError,
    TornEpochError,
)
from assent.protocol.handle import Handle
from assent.protocol.name import TransactionName
from assent.protocol.pending import Pending
from assent.protocol.verdict import Verdict
from assent.sinks.mysql_address import Address
from assent.sinks.sql_mode import CommitMode
from assent.sinks.sql_name import SqlName
from assent.sinks.sql_sink import SqlSink
from assent.sinks.sql_witness import State, verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    # Libraries of the extra: whoever only names the sink does without them.
    from assent.sinks.mysql_session import Ask, Sessions
    from assent.sinks.mysql_table import TableName
    from assent.sinks.mysql_witness import Witnesses
    from assent.sinks.mysql_writer import MySqlTransaction


class MySqlSink(SqlSink["MySqlTransaction", Address, "TableName"]):
    """Rows into a table of MySQL or MariaDB: appended, merged by key, or put in place of all.

    Parameters
    ----------
    url
        `jdbc:mysql://host:port/database` or `jdbc:mariadb://host:port/database`.
    dbtable
        The table: `table` or `database.table`.
    user, password
        The login, unless the URL has it.
    write_mode
        `append`, `upsert` (by `key_columns`), or `overwrite` (each epoch replaces all rows).
    key_columns, order_column, delete_column
        With `upsert`: the key; which of several rows of one key in an epoch is the last; and a
        boolean that is true for rows that delete their key.
    commit_mode
        `prepared` (XA transactions, for `append` alone), `staged` (staging tables, moved in one
        transaction), or `auto`, which chooses and says which.
    create_table
        Create the table from the schema of the rows if it is missing.
    lock_timeout
        Seconds after which waiting for a lock fails; whole ones.
    retained_witnesses
        For how many epochs the database remembers what was committed.
    """

    kind: ClassVar[str] = "mysql"

    def _locate(
        self, url: str, dbtable: str, user: str | None, password: str | None
    ) -> tuple[Address, TableName]:
        if importlib.util.find_spec("pymysql") is None:
            raise ImportError("the MySQL sink needs PyMySQL: pip install 'assent[mysql]'")
        from assent.sinks.mysql_table import TableName

        address = Address.parse(url, user, password)
        return address, TableName.parse(dbtable, address.database)

    def check(self, schema: pa.Schema, overwrite: bool = False) -> None:
        """Ask options, rows, server and table; create what is missing and may be created."""
        from assent.sinks.mysql_check import Wish, check_server

        self._take_overwrite(overwrite)
        wish = Wish(
            self.table,
            self.write_mode,
            self.commit_mode if self._exactly_once else None,
            self.create_table,
            self._mark,
        )
        with self._sessions().control() as session:
            self._chosen = check_server(session, wish, schema)

    # In the tasks.

    def begin(self, name: TransactionName, epoch: int) -> MySqlTransaction:
        from assent.sinks.mysql_writer import MySqlTransaction

        return MySqlTransaction(
            self._sessions(),
            self.table,
            SqlName(name, self._mark),
            epoch,
            self.write_mode,
            self.commit_mode if self._exactly_once else None,
        )

    def write(self, transaction: MySqlTransaction, batch: pa.RecordBatch) -> None:
        transaction.write(batch)

    def pre_commit(self, transaction: MySqlTransaction) -> Handle:
        transaction.finish()
        return self._handle(transaction.name, transaction.commit_mode)

    def discard(self, transaction: MySqlTransaction) -> None:
        transaction.discard()

    # On the driver, or wherever an operator is.

    def commit(self, handle: Handle) -> None:
        """Commit what is prepared; seal what is staged, which `publish` moves."""
        from assent.sinks.mysql_xa import xid

        name = self._name(handle)
        if not self._exactly_once:
            return
        if not _is_prepared(handle):
            if self.verdict(handle) is Verdict.PENDING:  # not if its table is gone
                with self._sessions().control() as session:
                    self._witnesses.seal(session.ask, name)
        elif self._settled(f"XA COMMIT {xid(name)}"):
            return
        found = self.verdict(handle)
        if found is Verdict.PENDING:
            raise RetriableError(f"{handle} is still held by the session that prepared it")
        if found is not Verdict.COMMITTED:
            raise TornEpochError(f"{handle} cannot be committed: it is {found.value}")

    def publish(self, epoch: int, handles: Sequence[Handle]) -> None:
        """Move what is staged, all of it in one transaction; now and then, prune witnesses."""
        if not self._exactly_once:
            return
        names = [self._name(handle) for handle in handles]
        staged = [
            name
            for name, handle in zip(names, handles, strict=True)
            if handle.details.get("mode") == CommitMode.STAGED.value
        ]
        with self._sessions().control() as session:
            if staged:
                with _transaction(session.ask):
                    self._move(session.ask, epoch, staged)
                # After the commit: dropping a table would be one.
                self._drop(session.ask, staged)
            prunable = self._prunable(names)
            if prunable is not None:
                with _transaction(session.ask):
                    self._witnesses.prune(session.ask, *prunable)
        self._sessions().trim()

    def abort(self, handle: Handle) -> None:
        from assent.sinks.mysql_xa import recoverable, xid

        name = self._name(handle)
        if not self._exactly_once:
            return
        if _is_prepared(handle) and self._settled(f"XA ROLLBACK {xid(name)}"):
            return
        with self._sessions().control() as session:
            if _is_prepared(handle) and name in recoverable(session.ask, name.name.identity):
                raise RetriableError(f"{handle} is still held by the session that prepared it")
            with _transaction(session.ask):
                self._forget(session.ask, name)
            self._drop(session.ask, [name])

    def verdict(self, handle: Handle) -> Verdict:
        name = self._name(handle)
        with self._sessions().control() as session:
            if not self._witnesses.exists(session.ask):
                return Verdict.UNKNOWN  # somebody has dropped what the database knew
            found = self._witnesses.find(session.ask, name, prepared=_is_prepared(handle))
        return verdict(name.name.place, found)

    def pending(self, identity: str) -> Iterable[Pending]:
        # Whoever is told to stage need not have the right to list what is prepared.
        prepared = self.commit_mode != CommitMode.STAGED.value
        with self._sessions().control() as session:
            found = self._witnesses.open(session.ask, identity, prepared=prepared)
        return [
            Pending.named(self._handle(one.name, one.mode), one.name.name, one.since)
            for one in found
        ]

    # Inside.

    def _sessions(self) -> Sessions:
        from assent.sinks.mysql_session import Sessions

        return Sessions(self.address, self.lock_timeout)

    @property
    def _witnesses(self) -> Witnesses:
        from assent.sinks.mysql_witness import Witnesses

        return Witnesses(self.table.schema, self._mark)

    def _settled(self, statement: str) -> bool:
        """Run it; False if the server knows no such transaction, which is no verdict.

        It may be gone, or still be held by the session that prepared it.
        """
        from assent.sinks.mysql_errors import NO_SUCH_XID, code

        try:
            with self._sessions().control() as session:
                session.ask(statement)
        except AssentError as error:
            if error.__cause__ is None or code(error.__cause__) != NO_SUCH_XID:
                raise
            return False
        return True

    def _move(self, ask: Ask, epoch: int, names: Sequence[SqlName]) -> None:
        """One publisher at a time: the second finds everything committed."""
        from assent.sinks.mysql_move import move
        from assent.sinks.mysql_table import Table, TableName, literal

        table = Table.find(ask, self.table)
        if table is None:
            raise ConfigurationError(f"there is no table {self.table} at {self.address}")
        wanted = ", ".join(literal(str(name)) for name in names)
        found = ask(
            f"SELECT name, state, staging FROM {self._witnesses.table} WHERE name IN ({wanted})"
            " ORDER BY name FOR UPDATE"
        )
        if len(found) != len(names):
            raise TornEpochError(
                f"epoch {epoch} cannot be moved into {self.target}: staging tables have been "
                "removed. Nothing is lost: start the query again, and their rows are written again"
            )
        waiting = [
            (name, staging) for name, state, staging in found if state != State.COMMITTED.value
        ]
        if not waiting:
            return
        stagings = [TableName(self.table.schema, name) for _, name in waiting if name is not None]
        move(ask, stagings, table, self.write_mode)
        ask(
            f"UPDATE {self._witnesses.table} SET state = {literal(State.COMMITTED.value)},"
            f" staging = NULL WHERE name IN ({', '.join(literal(name) for name, _ in waiting)})"
        )

    def _forget(self, ask: Ask, name: SqlName) -> None:
        from assent.sinks.mysql_table import literal

        condition = f"FROM {self._witnesses.table} WHERE name = {literal(str(name))}"
        found = ask(f"SELECT state {condition} FOR UPDATE")
        if found and found[0][0] != State.STAGED.value:
            raise FencedError(f"{name} is committed and cannot be aborted any more")
        if found:
            ask(f"DELETE {condition}")

    def _drop(self, ask: Ask, names: Sequence[SqlName]) -> None:
        from assent.sinks.mysql_witness import staging_table

        stagings = ", ".join(str(staging_table(self.table.schema, name)) for name in names)
        ask(f"DROP TABLE IF EXISTS {stagings}")


def _is_prepared(handle: Handle) -> bool:
    return handle.details.get("mode") == CommitMode.PREPARED.value


@contextmanager
def _transaction(ask: Ask) -> Iterator[None]:
    """All of it or nothing. After an error the session is closed, which rolls back."""
    ask("START TRANSACTION")
    yield
    ask("COMMIT")
