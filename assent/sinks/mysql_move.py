"""Staging tables: made before rows, moved into the target in one transaction, then dropped.

Whatever makes or drops a table commits by itself in MySQL, so it is never between the two.
"""

from __future__ import annotations

from collections.abc import Sequence

from assent.protocol.errors import AssentError
from assent.sinks.mysql_session import Ask
from assent.sinks.mysql_table import Table, TableName, literal, quote
from assent.sinks.mysql_types import ColumnType
from assent.sinks.sql_mode import APPEND, OVERWRITE, UPSERT, WriteMode
from assent.sinks.sql_table import UniqueIndex, Wire

Wires = Sequence[Wire[ColumnType]]

ROW = "assent_row"
"""A column of staging tables: some servers refuse tables without a primary key."""


def create_staging(
    ask: Ask,
    staging: TableName,
    target: Table,
    wires: Wires,
    mode: WriteMode,
    comment: str | None,
) -> None:
    """A table with the target's own types, for the columns that rows bring.

    What the target would refuse is refused here as far as it can be: before the vote. Without a
    comment it is one that ends with its session.
    """
    columns = [f"{quote(ROW)} bigint unsigned NOT NULL AUTO_INCREMENT PRIMARY KEY"]
    for wire in wires:
        # A row that deletes need not be a whole row.
        required = wire.column.not_null and (wire.key or not mode.delete)
        kind, name = wire.column.type, quote(wire.column.name)
        columns.append(f"{name} {kind.definition} {'NOT NULL' if required else 'NULL'}")
        if kind.name == "json" and not kind.binary_json:
            columns.append(f"CHECK (json_valid({name}))")
    columns += [f"UNIQUE KEY ({_parts(index)})" for index in _indexes(target, wires, mode)]
    what = "TABLE" if comment else "TEMPORARY TABLE"
    ask(
        f"CREATE {what} {staging} ({', '.join(columns)}) ENGINE = InnoDB"
        + (f" COMMENT = {literal(comment)}" if comment else "")
    )


def _indexes(target: Table, wires: Wires, mode: WriteMode) -> list[UniqueIndex]:
    given = {wire.column.name for wire in wires}
    if mode.kind != UPSERT:
        return [index for index in target.unique if given.issuperset(index.columns)]
    if mode.order is not None:
        return []  # rows of one key are what the order is for
    keys = {wire.column.name for wire in wires if wire.key}
    return [index for index in target.unique if set(index.columns) == keys][:1]


def _parts(index: UniqueIndex) -> str:
    pairs = zip(index.columns, index.lengths, strict=True)
    return ", ".join(quote(name) + (f"({length})" if length else "") for name, length in pairs)


def find_conflict(
    ask: Ask, staging: TableName, target: Table, wires: Wires, mode: WriteMode
) -> str | None:
    """What of a filled staging table the target would refuse, in words; None if nothing is found.

    It finds what one task can see: not that another task brings the same key. Where only writing
    shows it, the rows are written and taken back, which raises.
    """
    if mode.delete is not None and (column := _null_column(ask, staging, wires, mode)):
        return f"rows have a null in column {column!r} of table {target.name}, which takes none"
    if mode.kind == APPEND:
        for index in _indexes(target, wires, mode):
            if _meets(ask, staging, target, index):
                return (
                    f"rows have the key of rows that are in table {target.name} already, against "
                    f"its unique index {index.name} ({', '.join(index.columns)})"
                )
    if target.guarded:
        ask("SAVEPOINT assent")
        move(ask, [staging], target, mode)
        ask("ROLLBACK TO SAVEPOINT assent")
    return None


def _meets(ask: Ask, staging: TableName, target: Table, index: UniqueIndex) -> bool:
    same = []
    for name, length in zip(index.columns, index.lengths, strict=True):
        sides = [f"{table}.{quote(name)}" for table in "st"]
        same.append(" = ".join(f"LEFT({side}, {length})" if length else side for side in sides))
    return bool(
        ask(f"SELECT 1 FROM {staging} s JOIN {target.name} t ON {' AND '.join(same)} LIMIT 1")
    )


def _null_column(ask: Ask, staging: TableName, wires: Wires, mode: WriteMode) -> str | None:
    for wire in wires:
        if wire.column.not_null and ask(
            f"SELECT 1 FROM {staging} WHERE {quote(wire.column.name)} IS NULL"
            f" AND NOT COALESCE({quote(mode.delete or '')}, 0) LIMIT 1"
        ):
            return wire.column.name
    return None


def move(ask: Ask, stagings: Sequence[TableName], target: Table, mode: WriteMode) -> None:
    """Put the rows of all staging tables into the target, in a transaction of the caller's."""
    if mode.kind == OVERWRITE:
        ask(f"DELETE FROM {target.name}")
    if mode.kind == UPSERT:
        if stagings:
            _merge(ask, stagings, target, mode)
        return
    for staging in stagings:
        columns = ", ".join(map(quote, _shared(ask, staging, target)))
        ask(f"INSERT INTO {target.name} ({columns}) SELECT {columns} FROM {staging}")


def _merge(ask: Ask, stagings: Sequence[TableName], target: Table, mode: WriteMode) -> None:
    """The newest row of each key, of all tasks together."""
    columns = _shared(ask, stagings[0], target)
    keys = [name for name in columns if mode.is_key(name)]
    extras = [name for name in (mode.order, mode.delete) if name]
    known = {name.lower() for name in columns}
    every = ", ".join(map(quote, [*columns, *(one for one in extras if one.lower() not in known)]))
    rows = " UNION ALL ".join(f"SELECT {every} FROM {staging}" for staging in stagings)
    key = ", ".join(map(quote, keys))
    if mode.order:
        ranked = f"PARTITION BY {key} ORDER BY {quote(mode.order)} DESC"
        rows = f"SELECT every.*, ROW_NUMBER() OVER ({ranked}) AS assent_rank FROM ({rows}) AS every"
    else:
        _refuse_repeated(ask, rows, key)
    newest = "newest.assent_rank = 1" if mode.order else "TRUE"
    if mode.delete:
        flag = f"COALESCE(newest.{quote(mode.delete)}, 0)"
        same = " AND ".join(f"gone.{quote(name)} = newest.{quote(name)}" for name in keys)
        ask(
            f"DELETE gone FROM {target.name} AS gone JOIN ({rows}) AS newest ON {same}"
            f" WHERE {newest} AND {flag}"
        )
        newest = f"{newest} AND NOT {flag}"
    given = ", ".join(map(quote, columns))
    changed = [name for name in columns if name not in keys] or keys[:1]
    changes = ", ".join(f"{quote(name)} = newest.{quote(name)}" for name in changed)
    chosen = ", ".join(f"newest.{quote(name)}" for name in columns)
    ask(
        f"INSERT INTO {target.name} ({given}) SELECT {chosen} FROM ({rows}) AS newest"
        f" WHERE {newest} ON DUPLICATE KEY UPDATE {changes}"
    )


def _refuse_repeated(ask: Ask, rows: str, key: str) -> None:
    """Without an order nobody can tell the last of a key: the server would take any."""
    if ask(f"SELECT 1 FROM ({rows}) AS every GROUP BY {key} HAVING COUNT(*) > 1 LIMIT 1"):
        raise AssentError(
            "two rows of the epoch have the same key: set option orderColumn, which says the last "
            "of them, and start the query again"
        )


def _shared(ask: Ask, staging: TableName, target: Table) -> list[str]:
    """The target's columns that a staging table holds."""
    found = {row[0] for row in ask(f"SHOW COLUMNS FROM {staging}")}
    return [column.name for column in target.columns if column.name in found]
