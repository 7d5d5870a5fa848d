"""A task's side of the PostgreSQL sink: one session, one transaction."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from assent.protocol.errors import AssentError, ConfigurationError, RetriableError
from assent.sinks.postgres_binary import cells
from assent.sinks.postgres_copy import Copy
from assent.sinks.postgres_errors import translated
from assent.sinks.postgres_move import create_staging, find_conflict, move
from assent.sinks.postgres_session import Sessions, abandon, asking
from assent.sinks.postgres_table import Table, TableName, literal
from assent.sinks.postgres_types import ColumnType, column_type, converter
from assent.sinks.postgres_witness import Witnesses, earlier_attempts, staging_name
from assent.sinks.sql_mode import APPEND, CommitMode, WriteMode, choose
from assent.sinks.sql_name import SqlName
from assent.sinks.sql_table import Wire
from assent.sinks.sql_witness import State

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger("assent")

_POLL_SECONDS = 0.1
_BATCH_BYTES = 4 * 2**20  # what is converted and sent at once: bounds memory


class PostgresTransaction:
    """Rows on their way into a table, in one transaction of one session.

    With `commit_mode` None the transaction is committed at the end, by the task itself.
    """

    def __init__(
        self,
        sessions: Sessions,
        target: TableName,
        name: SqlName,
        epoch: int,
        mode: WriteMode,
        commit_mode: str | None,
    ) -> None:
        self.name = name
        self._epoch = epoch
        self._mode = mode
        self._sessions = sessions
        self._what = f"transaction {name} into {target} at {sessions.address}"
        self._connection = sessions.open_task()
        self._ask = asking(self._connection)
        self._wires: tuple[Wire[ColumnType], ...] | None = None
        self._staging: TableName | None = None
        self._copy: Copy | None = None
        try:
            with translated(self._what):
                if commit_mode is not None and earlier_attempts(self._ask, name):
                    self._yield_to_earlier_attempts(self._find(target))
                self._ask("BEGIN")
                # From here on, nobody changes the types under the rows on their way.
                self._ask(f"LOCK TABLE ONLY {target} IN ROW EXCLUSIVE MODE")
                self._table = self._find(target)
                self.commit_mode = self._choose(commit_mode)
        except BaseException:
            self.close()
            raise

    @property
    def _writes_directly(self) -> bool:
        return self.commit_mode is not CommitMode.STAGED and self._mode.kind == APPEND

    def write(self, batch: pa.RecordBatch) -> None:
        """Copy the rows of a batch, in the binary form that is exactly that of the columns."""
        with translated(self._what):
            if self._wires is None:
                self._wires = self._set_up(batch.schema)
                columns = [wire.column.name for wire in self._wires]
                self._copy = Copy(self._connection, self._staging or self._table.name, columns)
            step = max(1, _BATCH_BYTES * batch.num_rows // max(1, batch.nbytes))
            for start in range(0, batch.num_rows, step):
                self._write(batch.slice(start, step), self._wires)

    def _write(self, batch: pa.RecordBatch, wires: Sequence[Wire[ColumnType]]) -> None:
        assert self._copy is not None
        columns = []
        for wire in wires:
            values = batch.column(wire.source)
            if wire.key and values.null_count:
                raise AssentError(
                    f"a row has no value in key column {wire.source!r}; rows are merged by it"
                )
            columns.append(cells(wire.convert(values), wire.column.type.element_number))
        self._copy.write(columns, batch.num_rows)

    def finish(self) -> None:
        """Make everything durable, and leave it to be committed by its name."""
        with translated(self._what):
            if self._copy is not None:
                self._copy.finish()
            if self._staging is not None and self._wires is not None:
                conflict = find_conflict(
                    self._ask, self._staging, self._table, self._wires, self._mode
                )
                if conflict is not None:
                    raise AssentError(f"{self._what}: {conflict}; nothing was written")
                if self.commit_mode is not CommitMode.STAGED:
                    move(self._ask, [self._staging], self._table, self._mode)
            self._vote()
        self._sessions.keep_task(self._connection)

    def _vote(self) -> None:
        witnesses = Witnesses(self._table.name.schema or "", self.name.mark)
        if self.commit_mode is None:
            self._ask("COMMIT")
        elif self.commit_mode is CommitMode.STAGED:
            staging = None if self._staging is None else str(self._staging)
            witnesses.insert(self._ask, self.name, self._epoch, State.STAGED, staging)
            self._ask("COMMIT")
        else:
            witnesses.insert(self._ask, self.name, self._epoch, State.COMMITTED, None)
            self._ask(f"PREPARE TRANSACTION {literal(str(self.name))}")

    def close(self) -> None:
        """End the session. The server rolls back what is not prepared or committed."""
        with suppress(Exception):
            abandon(self._connection)
        if self._copy is not None:
            self._copy.give_up()

    def _find(self, target: TableName) -> Table:
        table = Table.find(self._ask, target)
        if table is None:
            raise ConfigurationError(
                f"there is no table {target}; it was there when the query began"
            )
        return table

    def _choose(self, commit_mode: str | None) -> CommitMode | None:
        if commit_mode is None:
            return None
        [(limit,)] = self._ask("SELECT current_setting('max_prepared_transactions')::int4")
        return choose(commit_mode, self._mode, self._table.constrained, limit > 0)[0]

    def _yield_to_earlier_attempts(self, table: Table) -> None:
        """An earlier attempt of this task that is prepared keeps its keys locked (rule 6).

        If its vote had counted, Spark would have ended this attempt by now. So one that has been
        prepared for longer than `lockTimeout` is rolled back. Should its vote have counted after
        all, the epoch is found torn and is written again: slower, not wrong.
        """
        # Without unique indexes, nobody waits for anybody.
        while table.constrained and (earlier := earlier_attempts(self._ask, self.name)):
            for gid, age in earlier:
                if age < self._sessions.lock_timeout:
                    continue
                logger.warning("%s: rolling back the earlier attempt %s", self._what, gid)
                with suppress(RetriableError), translated(self._what):
                    self._ask(f"ROLLBACK PREPARED {literal(gid)}")
            time.sleep(_POLL_SECONDS)

    def _set_up(self, schema: pa.Schema) -> tuple[Wire[ColumnType], ...]:
        wires = self._table.fit(schema, self._mode)
        if self._writes_directly:
            return wires
        known = {wire.source for wire in wires}
        extras = [field for field in schema if field.name not in known]
        self._staging = staging_name(self._table.name.schema or "", self.name.name, self.name.mark)
        create_staging(
            self._ask,
            self._staging,
            self._table,
            wires,
            [(field.name, column_type(field.name, field.type)) for field in extras],
            self._mode,
            durable=self.commit_mode is CommitMode.STAGED,
        )
        return wires + self._fit_extras(extras)

    def _fit_extras(self, extras: list[pa.Field]) -> tuple[Wire[ColumnType], ...]:
        """Columns that the target has not: the staging table has them for what they are."""
        staged = Table.find(self._ask, self._staging) if extras and self._staging else None
        wires = []
        for field in extras:
            column = staged.column(field.name) if staged else None
            assert column is not None
            convert = converter(field.name, field.type, column.type)
            wires.append(Wire(field.name, column, convert))
        return tuple(wires)
