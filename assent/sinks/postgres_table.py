"""A table of PostgreSQL: its name, what it looks like, and whether rows fit it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from assent.protocol.errors import ConfigurationError
from assent.sinks.postgres_session import Ask
from assent.sinks.postgres_types import ColumnType, Convert, converter
from assent.sinks.sql_mode import UPSERT, WriteMode

if TYPE_CHECKING:
    import pyarrow as pa

_NAME = re.compile(r'\s*(?:"(?P<quoted>(?:[^"]|"")+)"|(?P<plain>[^\W\d][\w$]*))\s*(?P<dot>\.|$)')


@dataclass(frozen=True)
class TableName:
    """A name as PostgreSQL reads it: without quotation marks, it is in lower case."""

    schema: str | None
    table: str

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Read the option `dbtable`: table, or schema.table, quoted or not."""
        parts: list[str] = []
        rest = text
        while match := _NAME.match(rest):
            quoted = match["quoted"]
            parts.append(match["plain"].lower() if quoted is None else quoted.replace('""', '"'))
            rest = rest[match.end() :]
            if not match["dot"]:
                break
        else:
            parts = []
        if rest or not 1 <= len(parts) <= 2:
            raise ConfigurationError(
                f"option dbtable is {text!r}; expected table or schema.table, with quotation marks "
                'around names that are not in lower case ("Views")'
            )
        return cls(parts[0] if len(parts) == 2 else None, parts[-1])

    def __str__(self) -> str:
        """Quoted, for statements."""
        table = quote(self.table)
        return table if self.schema is None else f"{quote(self.schema)}.{table}"


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str
    type: ColumnType
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


@dataclass(frozen=True)
class Table:
    """What the catalogue says of a table."""

    name: TableName
    """With its schema."""
    kind: str
    """`r` for a table, `p` for a partitioned one."""
    durable: bool
    columns: tuple[Column, ...]
    unique: tuple[UniqueIndex, ...]
    constrained: tuple[str, ...]
    """The names of all unique indexes and exclusion constraints, whatever they are over."""

    @classmethod
    def find(cls, ask: Ask, name: TableName) -> Table | None:
        """Look a table up, along the search path if the name has no schema."""
        found = ask(
            "SELECT c.oid::int8, n.nspname::text, c.relname::text, c.relkind::text,"
            " c.relpersistence::text FROM pg_catalog.pg_class c"
            " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
            f" WHERE c.oid = to_regclass({literal(str(name))})"
        )
        if not found:
            return None
        oid, schema, table, kind, persistence = found[0]
        unique, constrained = _indexes(ask, oid)
        return cls(
            TableName(schema, table),
            kind,
            persistence == "p",
            _columns(ask, oid),
            unique,
            constrained,
        )

    def column(self, name: str) -> Column | None:
        """The column that rows mean by a name: the same, or the only one but for case."""
        for column in self.columns:
            if column.name == name:
                return column
        near = [column for column in self.columns if column.name.lower() == name.lower()]
        return near[0] if len(near) == 1 else None

    def fit(self, schema: pa.Schema, mode: WriteMode) -> tuple[Wire, ...]:
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
            convert = converter(field.name, field.type, column.type)
            wires.append(Wire(field.name, column.name, convert, mode.is_key(field.name)))
        given = {wire.column for wire in wires}
        missing = [one.name for one in self.columns if one.required and one.name not in given]
        if missing:
            raise ConfigurationError(
                f"table {self.name} has columns that take no nulls and have no default, and the "
                f"rows do not bring them: {', '.join(missing)}"
            )
        if mode.kind == UPSERT:
            self._check_key(wires)
        return tuple(wires)

    def _check_key(self, wires: Sequence[Wire]) -> None:
        keys = {wire.column for wire in wires if wire.key}
        if not any(set(index.columns) == keys for index in self.unique):
            raise ConfigurationError(
                f"table {self.name} has no unique index or primary key over exactly the key "
                f"columns ({', '.join(sorted(keys))}), which an upsert needs; create one"
            )


@dataclass(frozen=True)
class Wire:
    """One column of the rows on its way into one column of the table."""

    source: str
    column: str
    convert: Convert
    key: bool = False


def quote(name: str) -> str:
    """An identifier for a statement."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text for a statement, with standard_conforming_strings."""
    return "'" + text.replace("'", "''") + "'"


def _columns(ask: Ask, oid: int) -> tuple[Column, ...]:
    rows = ask(
        "SELECT a.attname::text, b.typname::text, b.typtype::text, e.typname::text,"
        " CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE a.atttypmod END::int4,"
        " format_type(a.atttypid, a.atttypmod), a.attnotnull OR t.typnotnull,"
        " a.atthasdef OR a.attidentity <> '' OR t.typdefault IS NOT NULL,"
        " a.attgenerated <> '' OR a.attidentity = 'a'"
        " FROM pg_catalog.pg_attribute a"
        " JOIN pg_catalog.pg_type t ON t.oid = a.atttypid"
        " JOIN pg_catalog.pg_type b"
        "  ON b.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END"
        " LEFT JOIN pg_catalog.pg_type e ON e.oid = b.typelem AND b.typcategory = 'A'"
        f" WHERE a.attrelid = {oid} AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"
    )
    columns = []
    for name, base, kind, element, modifier, shown, not_null, default, computed in rows:
        if element is not None:
            inner = ColumnType(element, shown.removesuffix("[]"), modifier)
            type_ = ColumnType("array", shown, -1, inner)
        else:
            type_ = ColumnType("enum" if kind == "e" else base, shown, modifier)
        required = not_null and not default and not computed
        columns.append(Column(name, type_, required, not_null, computed))
    return tuple(columns)


def _indexes(ask: Ask, oid: int) -> tuple[tuple[UniqueIndex, ...], tuple[str, ...]]:
    rows = ask(
        "SELECT i.relname::text, x.indpred IS NULL AND x.indexprs IS NULL AND x.indimmediate"
        " AND x.indisunique, a.attname::text"
        " FROM pg_catalog.pg_index x JOIN pg_catalog.pg_class i ON i.oid = x.indexrelid"
        " LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = x.indrelid"
        "  AND a.attnum = ANY (x.indkey[0:x.indnkeyatts - 1])"
        f" WHERE x.indrelid = {oid} AND (x.indisunique OR x.indisexclusion) AND x.indisvalid"
        " ORDER BY i.relname, a.attnum"
    )
    columns: dict[str, list[str]] = {}
    for index, plain, column in rows:
        names = columns.setdefault(index, [])
        if plain and column is not None:
            names.append(column)
    plain_indexes = (UniqueIndex(name, tuple(keys)) for name, keys in columns.items() if keys)
    return tuple(plain_indexes), tuple(columns)
