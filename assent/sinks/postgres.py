"""The PostgreSQL sink: binary COPY from Arrow; committed from the driver, by name."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

from assent.protocol.errors import (
    AssentError,
    ConfigurationError,
    FencedError,
    TornEpochError,
)
from assent.protocol.guarantee import Guarantee
from assent.protocol.handle import Handle
from assent.protocol.name import TransactionName
from assent.protocol.pending import Pending
from assent.protocol.verdict import Verdict
from assent.sinks.postgres_address import Address
from assent.sinks.sql_mode import CommitMode
from assent.sinks.sql_name import SqlName
from assent.sinks.sql_sink import SqlSink
from assent.sinks.sql_witness import verdict

if TYPE_CHECKING:
    import pyarrow as pa

    # Libraries of the extra: whoever only names the sink does without them.
    from assent.sinks.postgres_session import Ask, Sessions
    from assent.sinks.postgres_table import Table, TableName
    from assent.sinks.postgres_witness import Witnesses
    from assent.sinks.postgres_writer import PostgresTransaction


class PostgresSink(SqlSink["PostgresTransaction", Address, "TableName"]):
    """Rows into a table of PostgreSQL: appended, merged by key, or put in place of all.

    Parameters
    ----------
    url
        `jdbc:postgresql://host:port/database` or `postgresql://host:port/database`.
    dbtable
        The table: `table` or `schema.table`.
    user, password
        The login, unless the URL has it.
    write_mode
        `append`, `upsert` (by `key_columns`), or `overwrite` (each epoch replaces all rows).
    key_columns, order_column, delete_column
        With `upsert`: the key; which of several rows of one key in an epoch is the last; and a
        boolean that is true for rows that delete their key.
    commit_mode
        `prepared` (PREPARE TRANSACTION), `staged` (staging tables, moved in one transaction), or
        `auto`, which chooses and says which.
    create_table
        Create the table from the schema of the rows if it is missing.
    lock_timeout
        Seconds after which waiting for a lock fails.
    retained_witnesses
        For how many epochs the database remembers what was committed.
    """

    kind: ClassVar[str] = "postgres"

    def _locate(
        self, url: str, dbtable: str, user: str | None, password: str | None
    ) -> tuple[Address, TableName]:
        _require_libraries()
        from assent.sinks.postgres_table import TableName

        address = Address.parse(url, user, password)
        address.conninfo()  # what is wrong with the address is wrong from the start
        return address, TableName.parse(dbtable)

    def check(self, schema: pa.Schema, overwrite: bool = False) -> None:
        """Ask options, rows, server and table; create what is missing and may be created."""
        from assent.sinks.postgres_check import Wish, check_server
        from assent.sinks.postgres_session import asking

        self._take_overwrite(overwrite)
        wish = Wish(
            self.table,
            self.write_mode,
            self.commit_mode if self._exactly_once else None,
            self.create_table,
            self._mark,
        )
        with self._sessions().control() as connection:
            self._chosen = check_server(asking(connection), wish, schema)

    # In the tasks.

    def begin(self, name: TransactionName, epoch: int) -> PostgresTransaction:
        from assent.sinks.postgres_writer import PostgresTransaction

        return PostgresTransaction(
            self._sessions(),
            self.table,
            SqlName(name, self._mark),
            epoch,
            self.write_mode,
            self.commit_mode if self._exactly_once else None,
        )

    def write(self, transaction: PostgresTransaction, batch: pa.RecordBatch) -> None:
        transaction.write(batch)

    def pre_commit(self, transaction: PostgresTransaction) -> Handle:
        transaction.finish()
        return self._handle(transaction.name, transaction.commit_mode)

    def discard(self, transaction: PostgresTransaction) -> None:
        transaction.close()

    # On the driver, or wherever an operator is.

    def commit(self, handle: Handle) -> None:
        """Commit what is prepared; seal what is staged, which `publish` moves."""
        from assent.sinks.postgres_session import asking

        name = self._name(handle)
        if not self._exactly_once:
            return
        if handle.details.get("mode") == CommitMode.STAGED.value:
            with self._sessions().control() as connection:
                ask = asking(connection)
                self._witnesses(self._find(ask)).seal(ask, name)
        elif self._settled_prepared(f"COMMIT PREPARED '{name}'"):
            return
        if (found := self.verdict(handle)) is not Verdict.COMMITTED:
            raise TornEpochError(f"{handle} cannot be committed: it is {found.value}")

    def publish(self, epoch: int, handles: Sequence[Handle]) -> None:
        """Move what is staged, all of it in one transaction; now and then, prune witnesses."""
        if not self._exactly_once:
            return
        from assent.sinks.postgres_move import move_epoch
        from assent.sinks.postgres_session import asking

        names = [self._name(handle) for handle in handles]
        staged = [
            name
            for name, handle in zip(names, handles, strict=True)
            if handle.details.get("mode") == CommitMode.STAGED.value
        ]
        with self._sessions().control() as connection:
            ask = asking(connection)
            table = self._find(ask)
            if staged:
                with connection.transaction():
                    moved = move_epoch(ask, self._witnesses(table), staged, table, self.write_mode)
                if not moved:
                    raise TornEpochError(
                        f"epoch {epoch} cannot be moved into {self.target}: staging tables have "
                        "been removed. Nothing is lost: start the query again, and their rows are "
                        "written again"
                    )
            prunable = self._prunable(names)
            if prunable is not None:
                with connection.transaction():
                    self._witnesses(table).prune(ask, *prunable)
        self._sessions().trim()

    def abort(self, handle: Handle) -> None:
        from assent.sinks.postgres_move import drop_staging
        from assent.sinks.postgres_session import asking

        name = self._name(handle)
        if not self._exactly_once or self._settled_prepared(f"ROLLBACK PREPARED '{name}'"):
            return
        # It is staged, or gone.
        with self._sessions().control() as connection, connection.transaction():
            ask = asking(connection)
            if not drop_staging(ask, self._witnesses(self._find(ask)), name):
                raise FencedError(f"{name} is committed and cannot be aborted any more")

    def verdict(self, handle: Handle) -> Verdict:
        from assent.sinks.postgres_session import asking

        name = self._name(handle)
        with self._sessions().control() as connection:
            ask = asking(connection)
            witnesses = self._witnesses(self._find(ask))
            if not witnesses.exists(ask):
                return Verdict.UNKNOWN  # somebody has dropped what the database knew
            return verdict(name.name.place, witnesses.find(ask, name))

    def pending(self, identity: str) -> Iterable[Pending]:
        from assent.sinks.postgres_session import asking

        with self._sessions().control() as connection:
            ask = asking(connection)
            found = self._witnesses(self._find(ask)).open(ask, identity)
        return [
            Pending.named(self._handle(one.name, CommitMode(one.mode)), one.name.name, one.since)
            for one in found
        ]

    # Inside.

    def _sessions(self) -> Sessions:
        from assent.sinks.postgres_session import Sessions

        return Sessions(self.address, self.lock_timeout, self.guarantee is not Guarantee.NONE)

    def _witnesses(self, table: Table) -> Witnesses:
        from assent.sinks.postgres_witness import Witnesses

        return Witnesses(table.name.schema or "", self._mark)

    def _find(self, ask: Ask) -> Table:
        from assent.sinks.postgres_table import Table

        table = Table.find(ask, self.table)
        if table is None:
            raise ConfigurationError(f"there is no table {self.table} at {self.address}")
        return table

    def _settled_prepared(self, statement: str) -> bool:
        """Run it; False if there is no such prepared transaction, which is no verdict."""
        from assent.sinks.postgres_errors import UNDEFINED_OBJECT, sqlstate

        try:
            with self._sessions().control() as connection:
                connection.execute(statement.encode())
        except AssentError as error:
            if error.__cause__ is None or sqlstate(error.__cause__) != UNDEFINED_OBJECT:
                raise
            return False
        return True


def _require_libraries() -> None:
    if importlib.util.find_spec("psycopg") is None:
        raise ImportError("the PostgreSQL sink needs psycopg: pip install 'assent[postgres]'")
