"""A task's side of the MySQL sink: one session, one transaction."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from assent.protocol.errors import AssentError, ConfigurationError, RetriableError
from assent.sinks.mysql_check import choose_mode, collation
from assent.sinks.mysql_errors import translated
from assent.sinks.mysql_move import Wires, create_staging, find_conflict, move
from assent.sinks.mysql_rows import insert_statements, load_lines, load_statement, slices
from assent.sinks.mysql_session import Sessions, close
from assent.sinks.mysql_table import Table, TableName
from assent.sinks.mysql_types import converter, new_type
from assent.sinks.mysql_witness import Witnesses, staging_table
from assent.sinks.mysql_xa import earlier_attempts, xid
from assent.sinks.sql_mode import APPEND, CommitMode, WriteMode
from assent.sinks.sql_name import SqlName
from assent.sinks.sql_table import Column, Wire
from assent.sinks.sql_witness import State

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger("assent")

_POLL_SECONDS = 0.1
# What parses fastest; and half of the least that servers are set to, whatever they are set to.
_INSERT_BYTES = 1 << 20


class MySqlTransaction:
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
        self._session = sessions.open_task()
        self._ask = self._session.ask
        self._wires: Wires | None = None
        self._staging: TableName | None = None
        try:
            with translated(self._what):
                self._table = self._find(target)
                self.commit_mode = self._choose(commit_mode)
                [(local, packet)] = self._ask("SELECT @@local_infile, @@max_allowed_packet")
                self._loads = bool(local)
                self._detaches = self._session.detaches
                self._most_bytes = min(_INSERT_BYTES, int(packet) // 2)
                if self._writes_directly:
                    self._begin()
        except BaseException:
            self.close()
            raise

    @property
    def _writes_directly(self) -> bool:
        return self.commit_mode is not CommitMode.STAGED and self._mode.kind == APPEND

    def _begin(self) -> None:
        if self.commit_mode is CommitMode.PREPARED:
            self._yield_to_earlier_attempts()
            self._ask(f"XA START {xid(self.name)}")
        else:
            self._ask("START TRANSACTION")
        # From here on, nobody changes the types under the rows on their way.
        self._ask(f"EXPLAIN INSERT INTO {self._table.name} () VALUES ()")
        self._table = self._find(self._table.name)

    def write(self, batch: pa.RecordBatch) -> None:
        """Send the rows of a batch; the server takes all of them as they are, or the task fails."""
        with translated(self._what):
            if self._wires is None:
                self._wires = self._set_up(batch.schema)
            self._refuse_nulls(batch, self._wires)
            table = self._staging or self._table.name
            columns = [wire.column for wire in self._wires]
            for part in slices(batch):
                texts = [wire.convert(part.column(wire.source)) for wire in self._wires]
                if self._loads:
                    lines, rows = load_lines(texts), part.num_rows
                    self._session.load(load_statement(table, columns), lines, rows, self._what)
                    continue
                for statement, rows in insert_statements(table, columns, texts, self._most_bytes):
                    self._session.load(statement, None, rows, self._what)

    def finish(self) -> None:
        """Make everything durable, and leave it to be committed by its name."""
        with translated(self._what):
            if self._staging is not None and self._wires is not None:
                conflict = find_conflict(
                    self._ask, self._staging, self._table, self._wires, self._mode
                )
                if conflict is not None:
                    raise AssentError(f"{self._what}: {conflict}; nothing was written")
                if self.commit_mode is None:
                    move(self._ask, [self._staging], self._table, self._mode)
            self._vote()
            if self.commit_mode is CommitMode.PREPARED and not self._detaches:
                self._sessions.end(self._session)
                return
            if self.commit_mode is None and self._staging is not None:
                self._ask(f"DROP TEMPORARY TABLE {self._staging}")
        self._sessions.keep(self._session)

    def _vote(self) -> None:
        witnesses = Witnesses(self._table.name.schema, self.name.mark)
        if self.commit_mode is None:
            self._ask("COMMIT")
        elif self.commit_mode is CommitMode.STAGED:
            if self._staging is None:
                self._ask("START TRANSACTION")
            witnesses.insert(self._ask, self.name, self._epoch, State.STAGED, self._staging)
            self._ask("COMMIT")
        else:
            witnesses.insert(self._ask, self.name, self._epoch, State.COMMITTED, None)
            self._ask(f"XA END {xid(self.name)}")
            self._ask(f"XA PREPARE {xid(self.name)}")

    def discard(self) -> None:
        """Give everything up. The server rolls back what is not prepared or committed."""
        self.close()
        if self.commit_mode is CommitMode.STAGED and self._staging is not None:
            with self._sessions.control() as control:
                control.ask(f"DROP TABLE IF EXISTS {self._staging}")

    def close(self) -> None:
        """End the session."""
        close(self._session)

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
        return choose_mode(self._session, commit_mode, self._mode, self._table)[0]

    def _yield_to_earlier_attempts(self) -> None:
        """An earlier attempt of this task that is prepared keeps its keys locked (rule 6).

        If its vote had counted, Spark would have ended this attempt by now. So one that stays
        prepared for `lockTimeout` is rolled back. Should its vote have counted after all, the
        epoch is found torn and is written again: slower, not wrong.
        """
        deadline = time.monotonic() + self._sessions.lock_timeout
        # Without unique indexes, nobody waits for anybody.
        while self._table.constrained and (earlier := earlier_attempts(self._ask, self.name)):
            if time.monotonic() >= deadline:
                for found in earlier:
                    logger.warning("%s: rolling back the earlier attempt %s", self._what, found)
                    with suppress(RetriableError), translated(self._what):
                        self._ask(f"XA ROLLBACK {xid(found)}")
            time.sleep(_POLL_SECONDS)

    def _set_up(self, schema: pa.Schema) -> Wires:
        wires = self._table.fit(schema, self._mode)
        if self._writes_directly:
            return wires
        known = {wire.source for wire in wires}
        order = collation(self._ask)
        extras = []
        for field in schema:
            if field.name not in known:
                made = Column(field.name, new_type(field.name, field.type, order))
                convert = converter(field.name, field.type, made.type)
                extras.append(Wire(field.name, made, convert))
        self._staging = staging_table(self._table.name.schema, self.name)
        comment = str(self.name) if self.commit_mode is CommitMode.STAGED else None
        all_wires = [*wires, *extras]
        create_staging(self._ask, self._staging, self._table, all_wires, self._mode, comment)
        # Only now: whatever makes a table ends a transaction.
        self._ask("START TRANSACTION")
        return all_wires

    def _refuse_nulls(self, batch: pa.RecordBatch, wires: Wires) -> None:
        """The server would put something else in some columns, and only warn."""
        for wire in wires:
            # A row that deletes need not be a whole row: such are looked at in the end.
            if not (wire.key or (wire.column.not_null and not self._mode.delete)):
                continue
            if batch.column(wire.source).null_count:
                raise AssentError(
                    f"{self._what}: a row has no value in column {wire.source!r}"
                    + (", by which rows are merged" if wire.key else ", which takes no nulls")
                )
