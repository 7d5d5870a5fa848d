"""A table of MySQL or MariaDB: its name, and what it looks like."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from assent.protocol.errors import ConfigurationError
from assent.sinks.mysql_session import Ask
from assent.sinks.mysql_types import ColumnType, converter
from assent.sinks.sql_mode import UPSERT, WriteMode
from assent.sinks.sql_table import Column, Convert, SqlTable, UniqueIndex, Wire

if TYPE_CHECKING:
    import pyarrow as pa

_NAME = re.compile(r"\s*(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<plain>[\w$]+))\s*(?P<dot>\.|$)")


@dataclass(frozen=True)
class TableName:
    """A table, and the database that it is in."""

    schema: str
    table: str

    @classmethod
    def parse(cls, text: str, database: str) -> TableName:
        """Read the option `dbtable`: table, or database.table, quoted or not."""
        parts: list[str] = []
        rest = text
        while match := _NAME.match(rest):
            quoted = match["quoted"]
            parts.append(match["plain"] if quoted is None else quoted.replace("``", "`"))
            rest = rest[match.end() :]
            if not match["dot"]:
                break
        else:
            parts = []
        if rest or not 1 <= len(parts) <= 2:
            raise ConfigurationError(
                f"option dbtable is {text!r}; expected table or database.table, with backquotes "
                "around names that are not plain words (`my views`)"
            )
        return cls(parts[0] if len(parts) == 2 else database, parts[-1])

    def __str__(self) -> str:
        """Quoted, for statements."""
        return f"{quote(self.schema)}.{quote(self.table)}"


@dataclass(frozen=True)
class Table(SqlTable[TableName, ColumnType]):
    """What the catalogue says of a table."""

    kind: str
    """`BASE TABLE` for a table."""
    engine: str
    guarded: tuple[str, ...]
    """Triggers, foreign keys and the like: what only writing a row shows whether it passes."""

    @classmethod
    def find(cls, ask: Ask, name: TableName) -> Table | None:
        """Look a table up."""
        found = ask(
            "SELECT table_schema, table_name, table_type, engine FROM information_schema.tables"
            f" WHERE table_schema = {literal(name.schema)} AND table_name = {literal(name.table)}"
        )
        if not found:
            return None
        schema, table, kind, engine = found[0]
        full = TableName(schema, table)
        checks = _checks(ask, full)
        columns = _columns(ask, full, checks)
        unique, constrained, odd = _indexes(ask, full)
        documents = {column.name for column in columns if column.type.name == "json"}
        guarded = [
            constraint
            for constraint, clause in checks.items()
            if _document(clause) not in documents
        ]
        guarded += odd + _triggers_and_references(ask, full)
        return cls(full, columns, unique, constrained, kind, engine or "", tuple(guarded))

    def converter(self, field: pa.Field, column: Column[ColumnType]) -> Convert:
        return converter(field.name, field.type, column.type)

    def fit(self, schema: pa.Schema, mode: WriteMode) -> tuple[Wire[ColumnType], ...]:
        wires = super().fit(schema, mode)
        if mode.kind == UPSERT:
            self._refuse_other_indexes(wires)
        return wires

    def _refuse_other_indexes(self, wires: tuple[Wire[ColumnType], ...]) -> None:
        """ON DUPLICATE KEY UPDATE takes any unique index for the key, and would change its row."""
        keys = {wire.column.name for wire in wires if wire.key}
        given = {wire.column.name for wire in wires}
        counting = {column.name for column in self.columns if column.type.counts}
        harmless = {index.name for index in self.unique if set(index.columns) == keys}
        # What the server counts up is never there already.
        harmless |= {
            index.name for index in self.unique if (counting - given).intersection(index.columns)
        }
        others = [name for name in self.constrained if name not in harmless]
        if others:
            raise ConfigurationError(
                f"table {self.name} has more unique indexes than that of the key columns: "
                f"{', '.join(others)}. By any of them MySQL would take a row for an earlier one, "
                "and change that; drop them, or use writeMode append"
            )


def quote(name: str) -> str:
    """An identifier for a statement."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """A text for a statement, in the modes that sessions are set to."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _where(name: TableName) -> str:
    return f"table_schema = {literal(name.schema)} AND table_name = {literal(name.table)}"


def _columns(ask: Ask, name: TableName, checks: dict[str, str]) -> tuple[Column[ColumnType], ...]:
    rows = ask(
        "SELECT column_name, data_type, column_type, is_nullable, column_default, extra,"
        " character_maximum_length, numeric_precision, numeric_scale, datetime_precision,"
        " character_set_name, collation_name FROM information_schema.columns"
        f" WHERE {_where(name)} ORDER BY ordinal_position"
    )
    documents = {_document(clause) for clause in checks.values()}
    columns = []
    for column, kind, shown, nullable, default, extra, *details in rows:
        length, precision, scale, fraction, charset, collation = details
        extra = extra.lower()
        counts = "auto_increment" in extra
        computed = "generated" in extra.replace("default_generated", "")
        kind = kind.lower()
        checked = kind == "longtext" and column in documents
        type_ = ColumnType(
            "json" if checked else kind,
            shown,
            length,
            precision,
            scale,
            fraction or 0,
            charset if kind != "json" else None,
            collation if kind != "json" else None,
            binary_json=kind == "json",
            counts=counts,
        )
        not_null = nullable == "NO"
        required = not_null and default is None and not counts and not computed
        columns.append(Column(column, type_, required, not_null, computed))
    return tuple(columns)


def _indexes(
    ask: Ask, name: TableName
) -> tuple[tuple[UniqueIndex, ...], tuple[str, ...], list[str]]:
    """Unique indexes over columns, the names of all, and the names of those over expressions."""
    rows = ask(
        "SELECT index_name, column_name, sub_part FROM information_schema.statistics"
        f" WHERE {_where(name)} AND non_unique = 0 ORDER BY index_name, seq_in_index"
    )
    parts: dict[str, list[tuple[str | None, int | None]]] = {}
    for index, column, length in rows:
        parts.setdefault(index, []).append((column, length))
    odd = [index for index, found in parts.items() if any(column is None for column, _ in found)]
    plain = [
        UniqueIndex(
            index,
            tuple(column for column, _ in found if column is not None),
            tuple(length for _, length in found),
        )
        for index, found in parts.items()
        if index not in odd
    ]
    return tuple(plain), tuple(parts), odd


def _checks(ask: Ask, name: TableName) -> dict[str, str]:
    """The conditions that rows have to meet, by name."""
    known = ask(
        "SELECT column_name FROM information_schema.columns WHERE table_schema ="
        " 'information_schema' AND table_name = 'CHECK_CONSTRAINTS'"
    )
    names = {column.lower() for (column,) in known}
    if not names:
        return {}  # such a server knows none
    if "table_name" in names:  # MariaDB
        rows = ask(
            "SELECT constraint_name, check_clause FROM information_schema.check_constraints"
            f" WHERE constraint_schema = {literal(name.schema)}"
            f" AND table_name = {literal(name.table)}"
        )
    else:
        rows = ask(
            "SELECT c.constraint_name, c.check_clause FROM information_schema.check_constraints c"
            " JOIN information_schema.table_constraints t ON"
            " t.constraint_schema = c.constraint_schema AND t.constraint_name = c.constraint_name"
            f" WHERE t.table_schema = {literal(name.schema)}"
            f" AND t.table_name = {literal(name.table)} AND t.constraint_type = 'CHECK'"
        )
    return dict(rows)


def _document(clause: str) -> str | None:
    """The column of which a condition only says that it is JSON."""
    match = re.fullmatch(r"json_valid\(`((?:[^`]|``)+)`\)", clause)
    return match[1].replace("``", "`") if match else None


def _triggers_and_references(ask: Ask, name: TableName) -> list[str]:
    triggers = ask(
        "SELECT trigger_name FROM information_schema.triggers WHERE event_object_schema ="
        f" {literal(name.schema)} AND event_object_table = {literal(name.table)}"
    )
    references = ask(
        "SELECT constraint_name FROM information_schema.table_constraints"
        f" WHERE {_where(name)} AND constraint_type = 'FOREIGN KEY'"
    )
    # Rows that others refer to cannot be removed.
    references += ask(
        "SELECT constraint_name FROM information_schema.referential_constraints"
        f" WHERE unique_constraint_schema = {literal(name.schema)}"
        f" AND referenced_table_name = {literal(name.table)}"
    )
    return [found for (found,) in triggers + references]
