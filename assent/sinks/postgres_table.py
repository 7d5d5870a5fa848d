"""A table of PostgreSQL: its name, what it looks like, and whether rows fit it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from assent.protocol.errors import ConfigurationError
from assent.sinks.postgres_session import Ask
from assent.sinks.postgres_types import ColumnType, converter
from assent.sinks.sql_table import Column, Convert, SqlTable, UniqueIndex

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
class Table(SqlTable[TableName, ColumnType]):
    """What the catalogue says of a table."""

    kind: str
    """`r` for a table, `p` for a partitioned one."""
    durable: bool

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
            _columns(ask, oid),
            unique,
            constrained,
            kind,
            persistence == "p",
        )

    def converter(self, field: pa.Field, column: Column[ColumnType]) -> Convert:
        return converter(field.name, field.type, column.type)


def quote(name: str) -> str:
    """An identifier for a statement."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text for a statement, with standard_conforming_strings."""
    return "'" + text.replace("'", "''") + "'"


def _columns(ask: Ask, oid: int) -> tuple[Column[ColumnType], ...]:
    rows = ask(
        "SELECT a.attname::text, b.typname::text, b.typtype::text, e.typname::text, e.oid::int8,"
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
    for name, base, kind, element, number, modifier, shown, not_null, default, computed in rows:
        if element is not None:
            inner = ColumnType(element, shown.removesuffix("[]"), modifier)
            type_ = ColumnType("array", shown, -1, inner, number)
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
