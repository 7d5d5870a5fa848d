"""From a query's columns to mutations of HBase's rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from assent.protocol.errors import AssentError, ConfigurationError
from assent.sinks.cell_text import (
    cells,
    check_cell,
    check_columns,
    check_key,
    check_no_duplicates,
    integers,
    is_ordered,
    keys,
)

# Of HBase itself: a row's key has two bytes for its length, and the sign is lost.
_LONGEST_KEY = 32_767


@dataclass(frozen=True)
class RowMutation:
    """What happens to one row: cells that it gets, and columns or families that it loses."""

    key: bytes
    cells: Mapping[bytes, bytes]
    gone: tuple[bytes, ...] = ()
    order: int | None = None

    @property
    def size(self) -> int:
        return len(self.key) + sum(len(name) + len(cell) for name, cell in self.cells.items())


@dataclass(frozen=True)
class RowFormat:
    """How rows become rows of HBase.

    Each value column is the cell `<family>:<column>`, or what `column_mapping` says. A null is no
    cell, and removes an older one; `delete_column`, where true, removes the row.
    """

    key_columns: tuple[str, ...]
    column_family: str = "cf"
    value_columns: tuple[str, ...] = ()
    column_mapping: Mapping[str, str] = field(default_factory=dict)
    order_column: str | None = None
    delete_column: str | None = None

    def check(self, schema: pa.Schema) -> None:
        """ConfigurationError, naming column and type, for rows that cannot be written."""
        check_no_duplicates(schema)
        if not self.key_columns:
            raise ConfigurationError("option keyColumns is missing: which columns make the key?")
        check_key(schema, "keyColumns", self.key_columns)
        check_columns(schema, "valueColumns", self.value_columns)
        check_columns(schema, "columnMapping", tuple(self.column_mapping))
        values = self._values(schema)
        if not values:
            raise ConfigurationError("no column is left for the value; set option valueColumns")
        for name in values:
            check_cell(name, schema.field(name).type)
        places = [self._place(name) for name in values]
        if len(set(places)) != len(places):
            twice = next(place for place in places if places.count(place) > 1)
            raise ConfigurationError(
                f"two columns go to the cell {twice}; mend option columnMapping"
            )
        if self.order_column is not None:
            check_columns(schema, "orderColumn", [self.order_column])
            kind = schema.field(self.order_column).type
            if not is_ordered(kind):
                raise ConfigurationError(
                    f"option orderColumn names {self.order_column!r} of type {kind}; it has to be "
                    "a whole number or timestamp"
                )
        if self.delete_column is not None:
            check_columns(schema, "deleteColumn", [self.delete_column])
            kind = schema.field(self.delete_column).type
            if not pa.types.is_boolean(kind):
                raise ConfigurationError(
                    f"option deleteColumn names {self.delete_column!r} of type {kind}; it has to "
                    "be boolean"
                )

    def families(self, schema: pa.Schema) -> list[str]:
        """The families that rows of this schema go to."""
        places = (self._place(name) for name in self._values(schema))
        return sorted({place.partition(":")[0] for place in places})

    def rows(self, batch: pa.RecordBatch) -> Iterator[RowMutation]:
        """The rows of a batch, in its order."""
        names = self._values(batch.schema)
        places = [self._place(name).encode() for name in names]
        families = tuple(family.encode() for family in self.families(batch.schema))
        columns = [cells(batch.column(name)) for name in names]
        deletions: list[bool | None] = [False] * batch.num_rows
        if self.delete_column is not None:
            deletions = batch.column(self.delete_column).to_pylist()
        orders: list[int | None] = [None] * batch.num_rows
        if self.order_column is not None:
            orders = integers(batch.column(self.order_column))
        found = keys(batch, self.key_columns, b"")
        for key, deleted, order, *row in zip(found, deletions, orders, *columns, strict=True):
            if not 0 < len(key) <= _LONGEST_KEY:
                raise AssentError(
                    f"a row has a key of {len(key)} bytes; HBase takes 1 to {_LONGEST_KEY}"
                )
            if deleted:
                yield RowMutation(key, {}, families, order)
                continue
            there = {
                place: value for place, value in zip(places, row, strict=True) if value is not None
            }
            gone = tuple(place for place, value in zip(places, row, strict=True) if value is None)
            yield RowMutation(key, there, gone, order)

    def _values(self, schema: pa.Schema) -> list[str]:
        taken = {*self.key_columns, self.order_column, self.delete_column}
        return list(self.value_columns) or [name for name in schema.names if name not in taken]

    def _place(self, name: str) -> str:
        return self.column_mapping.get(name, f"{self.column_family}:{name}")
