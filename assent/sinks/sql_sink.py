"""What the sinks of databases share: options, settings, and the names of transactions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Generic, Self, TypeVar

from assent.protocol.errors import ConfigurationError
from assent.protocol.guarantee import Guarantee
from assent.protocol.handle import Handle
from assent.protocol.sink import Sink, Transaction
from assent.sinks.mark import mark
from assent.sinks.option import (
    Option,
    Parser,
    boolean,
    choice,
    columns,
    positive_integer,
    text,
    timeout,
)
from assent.sinks.sql_mode import OVERWRITE, UPSERT, WRITE_MODES, CommitMode, WriteMode
from assent.sinks.sql_name import SqlName

COMMIT_MODES = ("auto", *(mode.value for mode in CommitMode))

_PRUNE_EVERY = 10
_ANY_TEXT = Parser("any text", lambda value: value)

Address = TypeVar("Address")
Name = TypeVar("Name")


class SqlSink(Sink[Transaction], Generic[Transaction, Address, Name]):
    """Rows into a table of a database: appended, merged by key, or put in place of all."""

    OPTIONS: ClassVar[tuple[Option, ...]] = (
        Option("url", text, description="where the database is", secret=True),
        Option("dbtable", text, description="the table, with or without what it is in"),
        Option("user", text, None, "whom to log in as"),
        Option("password", _ANY_TEXT, None, "the user's password", secret=True),
        Option("writeMode", choice(*WRITE_MODES), "append", "what becomes of rows in the table"),
        Option("keyColumns", columns, (), "upsert: columns by which a row replaces another"),
        Option("orderColumn", text, None, "upsert: the highest value of a key in an epoch wins"),
        Option("deleteColumn", text, None, "upsert: a boolean, true for rows that delete"),
        Option("commitMode", choice(*COMMIT_MODES), "auto", "how an epoch becomes visible"),
        Option("createTable", boolean, False, "create the table if it is missing"),
        Option("lockTimeout", timeout, 30.0, "how long to wait for a lock"),
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
        self.address, self.table = self._locate(url, dbtable, user, password)
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

    @abstractmethod
    def _locate(
        self, url: str, dbtable: str, user: str | None, password: str | None
    ) -> tuple[Address, Name]:
        """Where the table is; neither shows a secret when it is shown."""

    @classmethod
    def from_options(cls, values: Mapping[str, Any]) -> Self:
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
        return f"{type(self).__name__}({self.target!r})"

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

    def _take_overwrite(self, overwrite: bool) -> None:
        """What `check` is told of complete mode."""
        if overwrite and self._write_mode.kind == UPSERT:
            raise ConfigurationError(
                "complete mode replaces all rows, and option writeMode is upsert; use the output "
                "mode update (with foreachBatch), or leave writeMode out"
            )
        self.overwrite = overwrite

    @property
    def _exactly_once(self) -> bool:
        return self.guarantee is Guarantee.EXACTLY_ONCE

    @property
    def _mark(self) -> str:
        return mark(self.target)

    def _prunable(self, names: Sequence[SqlName]) -> tuple[str, int] | None:
        """The identity, and through which place witnesses may go; None for not this time."""
        newest = max(names, key=lambda name: name.name.place).name
        through = newest.place - self.retained_witnesses
        return (newest.identity, through) if newest.place % _PRUNE_EVERY == 0 < through else None

    def _handle(self, name: SqlName, mode: CommitMode | None) -> Handle:
        details = {"mode": "plain" if mode is None else mode.value, "target": self.target}
        return Handle(self.kind, str(name), details)

    def _name(self, handle: Handle) -> SqlName:
        return SqlName.of(handle, self.kind, self.target)
