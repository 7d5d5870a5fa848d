"""What a task has under way in HBase."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from assent.protocol.errors import AssentError
from assent.protocol.name import TransactionName
from assent.sinks.hbase_connection import HBaseConnection
from assent.sinks.hbase_owner import Claim, HBaseOwner
from assent.sinks.hbase_rows import RowMutation

_CALL_ROWS = 1000
_CALL_BYTES = 2 << 20


@dataclass
class HBaseTransaction:
    """Writes rows with the timestamp of their epoch.

    HBase itself keeps the cell with the higher timestamp, whatever the order of arrival. A
    deletion hides what has its timestamp or a lower one, until a compaction forgets it: so each
    call asks first whether the epoch is still the newest.

    With an order, a row is written when all of the task's are known: two versions of one row
    under one timestamp, of which one may be a deletion, would not keep their order.
    """

    name: TransactionName
    claim: Claim
    connection: HBaseConnection
    owner: HBaseOwner
    table: str
    guarded: bool
    ordered_rows: int | None
    """How many rows may wait for the end of the task; None without an order."""
    _waiting: dict[bytes, RowMutation] = field(default_factory=dict)

    def write(self, rows: Iterable[RowMutation]) -> None:
        """Write rows, or take them in; HBase has answered for those that are written."""
        if self.ordered_rows is None:
            self._send(rows)
            return
        for row in rows:
            known = self._waiting.get(row.key)
            if known is None or _rank(known) <= _rank(row):
                self._waiting[row.key] = row
        if len(self._waiting) > self.ordered_rows:
            raise AssentError(
                f"a task has more than {self.ordered_rows} keys, and with orderColumn all of them "
                "wait in memory; spread the rows over more tasks, raise option orderedRows, or "
                "reduce them to one row per key before the sink and leave orderColumn out"
            )

    def finish(self) -> None:
        """Everything is written, and was written in time."""
        self._send(self._waiting.values())
        self._waiting = {}
        if self.guarded:
            self.owner.require(self.claim)

    def _send(self, rows: Iterable[RowMutation]) -> None:
        chunk: list[RowMutation] = []
        size = 0
        for row in rows:
            chunk.append(row)
            size += row.size
            if len(chunk) >= _CALL_ROWS or size >= _CALL_BYTES:
                self._call(chunk)
                chunk, size = [], 0
        if chunk:
            self._call(chunk)

    def _call(self, rows: list[RowMutation]) -> None:
        if self.guarded:
            self.owner.require(self.claim)
        self.connection.write(self.table, rows, self.claim.timestamp)


def _rank(row: RowMutation) -> tuple[bool, int]:
    # A null comes before all others.
    return row.order is not None, row.order or 0
