"""The PostgreSQL sink: binary COPY from Arrow; committed from the driver, by name."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

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
from assent.protocol.sink import Sink
from assent.protocol.verdict import Verdict
from assent.sinks.mark import mark
from assent.sinks.option import (
    Option,
    Parser,
    boolean,
    choice,
    columns,
    duration,
    positive_integer,
    text,
)
from assent.sinks.postgres_address import Address
from assent.sinks.sql_mode import OVERWRITE, WRITE_MODES, CommitMode, WriteMode
from assent.sinks.sql_name import SqlName
from assent.sinks.sql_witness import verdict

if TYPE_CHECKING:
    import pyarrow as pa

    # Libraries of the extra: whoever only names the sink does without them.
    from assent.sinks.postgres_session import Ask, Sessions
    from assent.sinks.postgres_table import Table
    from assent.sinks.postgres_witness import Witnesses
    from assent.sinks.postgres_writer import PostgresTransaction

logger = logging.getLogger("assent")

COMMIT_MODES = ("auto", *(mode.value for mode in CommitMode))

_PRUNE_EVERY = 10
_ANY_TEXT = Parser("any text", lambda value: value)


class PostgresSink(Sink["PostgresTransaction"]):
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

    OPTIONS: ClassVar[tuple[Option, ...]] = (
        Option("url", text, description="where the database is", secret=True),
        Option("dbtable", text, description="the table: table or schema.table"),
        Option("user", text, None, "whom to log in as"),
        Option("password", _ANY_TEXT, None, "the user's password", secret=True),
        Option("writeMode", choice(*WRITE_MODES), "append", "what becomes of rows in the table"),
        Option("keyColumns", columns, (), "upsert: columns by which a row replaces another"),
        Option("orderColumn", text, None, "upsert: the highest value of a key in an epoch wins"),
        Option("deleteColumn", text, None, "upsert: a boolean, true for rows that delete"),
        Option("commitMode", choice(*COMMIT_MODES), "auto", "how an epoch becomes visible"),
        Option("createTable", boolean, False, "create the table if it is missing"),
        Option("lockTimeout", duration, 30.0, "how long to wait for a lock"),
        Option("retainedWitnesses", positive_integer, 100, "epochs whose outcome is remembered"),
        # Of Spark's JDBC writer, so that moving over is a change of the format's name.
        Option("driver", _ANY_TEXT, None, "taken, and without effect"),
        Option("batchsize", _ANY_TEXT, None, "taken, and without effect"),
        Option("isolationLevel", _ANY_TEXT, None, "taken, and without effect"),
        Option("numPartitions", _ANY_TEXT, None, "taken, and without effect"),
    )

    def __init__(
        self,
        url: str,
        dbtable: str,
        user: str | None = None,
        password: str | None = None,
        write_mode: str = "append",
        key_columns: Sequence[str] = (),
        order_column: str | None = None,
        delete_column: str | None = None,
        commit_mode: str = "auto",
        create_table: bool = False,
        lock_timeout: float = 30.0,
        retained_witnesses: int = 100,
    ) -> None:
        _require_libraries()
        from assent.sinks.postgres_table import TableName

        self.address = Address.parse(url, user, password)
        self.address.conninfo()  # what is wrong with the address is wrong from the start
        self.table = TableName.parse(dbtable)
        self._write_mode = WriteMode(write_mode, tuple(key_columns), order_column, delete_column)
        if commit_mode not in COMMIT_MODES:
            raise ConfigurationError(
                f"option commitMode is {commit_mode!r}; expected one of {', '.join(COMMIT_MODES)}"
            )
        self.commit_mode = commit_mode
        self.create_table = create_table
        self.lock_timeout = lock_timeout
        self.retained_witnesses = retained_witnesses
        self._chosen: CommitMode | None = None

    @classmethod
    def from_options(cls, values: Mapping[str, Any]) -> PostgresSink:
        """The sink for what `read_options` made of `OPTIONS`."""
        return cls(
            url=values["url"],
            dbtable=values["dbtable"],
            user=values["user"],
            password=values["password"],
            write_mode=values["writeMode"],
            key_columns=values["keyColumns"],
            order_column=values["orderColumn"],
            delete_column=values["deleteColumn"],
            commit_mode=values["commitMode"],
            create_table=values["createTable"],
            lock_timeout=values["lockTimeout"],
            retained_witnesses=values["retainedWitnesses"],
        )

    def __repr__(self) -> str:
        return f"PostgresSink({self.target!r})"

    @property
    def target(self) -> str:
        return f"{self.address} {self.table}"

    @property
    def distribution(self) -> tuple[str, ...]:
        """Tasks that prepare must not share keys: the second would wait for the first."""
        mode = self.write_mode
        # Staged rows of one key meet in the move; without an order nobody could tell the last.
        apart = self._chosen is not CommitMode.STAGED or mode.order is None
        return mode.keys if apart else ()

    @property
    def write_mode(self) -> WriteMode:
        """What the option says, or what Spark's complete mode asks for."""
        if not self.overwrite:
            return self._write_mode
        return replace(self._write_mode, kind=OVERWRITE, keys=(), order=None, delete=None)

    @property
    def replaces(self) -> bool:
        return self.write_mode.kind == OVERWRITE

    def check(self, schema: pa.Schema, overwrite: bool = False) -> None:
        """Ask options, rows, server and table; create what is missing and may be created."""
        from assent.sinks.postgres_check import Wish, check_server
        from assent.sinks.postgres_session import asking

        if overwrite and self._write_mode.kind == "upsert":
            raise ConfigurationError(
                "complete mode replaces all rows, and option writeMode is upsert; use the output "
                "mode update (with foreachBatch), or leave writeMode out"
            )
        self.overwrite = overwrite
        wish = Wish(
            self.table,
            self.write_mode,
            self.commit_mode if self._exactly_once else None,
            self.create_table,
            mark(self.target),
        )
        with self._sessions().control() as connection:
            self._chosen = check_server(asking(connection), wish, schema)

    # In the tasks.

    def begin(self, name: TransactionName, epoch: int) -> PostgresTransaction:
        from assent.sinks.postgres_writer import PostgresTransaction

        return PostgresTransaction(
            self._sessions(),
            self.table,
            SqlName(name, mark(self.target)),
            epoch,
            self.write_mode,
            self.commit_mode if self._exactly_once else None,
        )

    def write(self, transaction: PostgresTransaction, batch: pa.RecordBatch) -> None:
        transaction.write(batch)

    def pre_commit(self, transaction: PostgresTransaction) -> Handle:
        transaction.finish()
        chosen = transaction.commit_mode
        return self._handle(transaction.name, "plain" if chosen is None else chosen.value)

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
            newest = max(names, key=lambda name: name.name.place).name
            if newest.place % _PRUNE_EVERY == 0 and newest.place > self.retained_witnesses:
                with connection.transaction():
                    self._witnesses(table).prune(
                        ask, newest.identity, newest.place - self.retained_witnesses
                    )

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
            Pending.named(self._handle(one.name, one.mode), one.name.name, one.since)
            for one in found
        ]

    # Inside.

    @property
    def _exactly_once(self) -> bool:
        return self.guarantee is Guarantee.EXACTLY_ONCE

    def _sessions(self) -> Sessions:
        from assent.sinks.postgres_session import Sessions

        return Sessions(self.address, self.lock_timeout, self.guarantee is not Guarantee.NONE)

    def _witnesses(self, table: Table) -> Witnesses:
        from assent.sinks.postgres_witness import Witnesses

        return Witnesses(table.name.schema or "", mark(self.target))

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

    def _handle(self, name: SqlName, mode: str) -> Handle:
        return Handle(self.kind, str(name), {"mode": mode, "target": self.target})

    def _name(self, handle: Handle) -> SqlName:
        return SqlName.of(handle, self.kind, self.target)


def _require_libraries() -> None:
    for library in ("psycopg", "adbc_driver_postgresql"):
        if importlib.util.find_spec(library) is None:
            raise ImportError(
                "the PostgreSQL sink needs psycopg and adbc-driver-postgresql: "
                "pip install 'assent[postgres]'"
            )
