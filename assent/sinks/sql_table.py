"""A table of a database: what the catalogue says of it, and whether rows fit it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from assent.protocol.errors import ConfigurationError
from assent.sinks.sql_mode import UPSERT, WriteMode

if TYPE_CHECKING:
    import pyarrow as pa

Convert = Callable[["pa.Array"], "pa.Array"]
"""From values of rows to what a column takes on the wire."""

Name = TypeVar("Name")
Type = TypeVar("Type")


@dataclass(frozen=True)
class Column(Generic[Type]):
    """A column of a table."""

    name: str
    type: Type
    required: bool = False
    """It takes no nulls and has no default: rows must bring it."""
    not_null: bool = False
    computed: bool = False
    """The server makes its values: rows cannot bring it."""


@dataclass(frozen=True)
class UniqueIndex:
    """A unique index over plain columns, for all rows."""

    name: str
    columns: tuple[str, ...]
    lengths: tuple[int | None, ...] = ()
    """Where only the beginning of a column's values is indexed: how much of it."""


@dataclass(frozen=True)
class Wire(Generic[Type]):
    """One column of the rows on its way into one column of the table."""

    source: str
    column: Column[Type]
    convert: Convert
    key: bool = False


@dataclass(frozen=True)
class SqlTable(Generic[Name, Type]):
    """What the catalogue says of a table."""

    name: Name
    """With its schema."""
    columns: tuple[Column[Type], ...]
    unique: tuple[UniqueIndex, ...]
    constrained: tuple[str, ...]
    """The names of all unique indexes and the like, whatever they are over."""

    @abstractmethod
    def converter(self, field: pa.Field, column: Column[Type]) -> Convert:
        """How values of a field become those of a column; refused if something would be lost."""

    def column(self, name: str) -> Column[Type] | None:
        """The column that rows mean by a name: the same, or the only one but for case."""
        for column in self.columns:
            if column.name == name:
                return column
        near = [column for column in self.columns if column.name.lower() == name.lower()]
        return near[0] if len(near) == 1 else None

    def fit(self, schema: pa.Schema, mode: WriteMode) -> tuple[Wire[Type], ...]:
        """How rows of that schema are written, column by column; refused if they do not fit."""
        mode.check(schema)
        wires = []
        for field in schema:
            column = self.column(field.name)
            if column is None:
                if mode.is_extra(field.name):
                    continue
                raise ConfigurationError(
                    f"table {self.name} has no column for {field.name!r}; its columns are "
                    f"{', '.join(column.name for column in self.columns)}"
                )
            if column.computed:
                raise ConfigurationError(
                    f"column {column.name!r} of table {self.name} is computed by the server; leave "
                    "it out of the rows"
                )
            convert = self.converter(field, column)
            wires.append(Wire(field.name, column, convert, mode.is_key(field.name)))
        given = {wire.column.name for wire in wires}
        missing = [one.name for one in self.columns if one.required and one.name not in given]
        if missing:
            raise ConfigurationError(
                f"table {self.name} has columns that take no nulls and have no default, and the "
                f"rows do not bring them: {', '.join(missing)}"
            )
        if mode.kind == UPSERT:
            self._check_key(wires)
        return tuple(wires)

    def _check_key(self, wires: Sequence[Wire[Type]]) -> None:
        keys = {wire.column.name for wire in wires if wire.key}
        if not any(set(index.columns) == keys and not any(index.lengths) for index in self.unique):
            raise ConfigurationError(
                f"table {self.name} has no unique index or primary key over exactly the key "
                f"columns ({', '.join(sorted(keys))}), which an upsert needs; create one"
            )
