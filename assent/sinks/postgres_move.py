"""From staging tables into the target: the statements, all in one transaction of the caller's."""

from __future__ import annotations

from collections.abc import Sequence

from assent.sinks.postgres_session import Ask
from assent.sinks.postgres_table import Table, TableName, literal, quote
from assent.sinks.postgres_types import ColumnType
from assent.sinks.postgres_witness import Witnesses
from assent.sinks.sql_mode import APPEND, OVERWRITE, UPSERT, WriteMode
from assent.sinks.sql_name import SqlName
from assent.sinks.sql_table import Column, UniqueIndex, Wire
from assent.sinks.sql_witness import State

_COMMITTED = State.COMMITTED.value


def create_staging(
    ask: Ask,
    staging: TableName,
    target: Table,
    wires: Sequence[Wire[ColumnType]],
    extras: Sequence[tuple[str, str]],
    mode: WriteMode,
    *,
    durable: bool,
) -> None:
    """A table with the target's own types, for the columns that rows bring, and for `extras`.

    What the target would refuse is refused here as far as it can be: before the vote.
    """
    kind = "TABLE" if durable else "UNLOGGED TABLE"
    # A row that deletes need not be a whole row.
    constraints = "" if mode.delete else " INCLUDING CONSTRAINTS"
    ask(f"CREATE {kind} {staging} (LIKE {target.name}{constraints})")
    given = {wire.column.name: wire for wire in wires}
    changes = []
    for column in target.columns:
        if column.name not in given:
            changes.append(f"DROP COLUMN {quote(column.name)} CASCADE")
        elif mode.delete and column.not_null and not given[column.name].key:
            changes.append(f"ALTER COLUMN {quote(column.name)} DROP NOT NULL")
    changes += [f"ADD COLUMN {quote(name)} {kind}" for name, kind in extras]
    if changes:
        ask(f"ALTER TABLE {staging} {', '.join(changes)}")


def find_conflict(
    ask: Ask, staging: TableName, target: Table, wires: Sequence[Wire[ColumnType]], mode: WriteMode
) -> str | None:
    """What of a filled staging table the target would refuse, in words; None if nothing is found.

    Unique indexes are tried on the staging table itself, which raises. It finds what one task
    can see: not that another task brings the same key.
    """
    given = {wire.column.name for wire in wires}
    if mode.kind == UPSERT:
        if mode.order is None:
            keys = ", ".join(quote(wire.column.name) for wire in wires if wire.key)
            ask(f"CREATE UNIQUE INDEX ON {staging} ({keys})")
        return _find_null(ask, staging, target, given, mode)
    for index in target.unique:
        if not given.issuperset(index.columns):
            continue
        columns = ", ".join(map(quote, index.columns))
        ask(f"CREATE UNIQUE INDEX ON {staging} ({columns})")
        if mode.kind == APPEND and _meets(ask, staging, target, index):
            return (
                f"rows have the key of rows that are in table {target.name} already, against its "
                f"unique index {index.name} ({', '.join(index.columns)})"
            )
    return None


def _meets(ask: Ask, staging: TableName, target: Table, index: UniqueIndex) -> bool:
    same = " AND ".join(f"s.{quote(name)} = t.{quote(name)}" for name in index.columns)
    return bool(ask(f"SELECT 1 FROM {staging} s JOIN {target.name} t ON {same} LIMIT 1"))


def _find_null(
    ask: Ask, staging: TableName, target: Table, given: set[str], mode: WriteMode
) -> str | None:
    if mode.delete is None:
        return None
    columns = [one.name for one in target.columns if one.not_null and one.name in given]
    flag = _spelt(ask, staging, mode.delete)
    for column in columns:
        found = ask(
            f"SELECT 1 FROM {staging} WHERE {quote(column)} IS NULL"
            f" AND NOT coalesce({quote(flag)}, false) LIMIT 1"
        )
        if found:
            return f"rows have a null in column {column!r} of table {target.name}, which takes none"
    return None


def move_epoch(
    ask: Ask, witnesses: Witnesses, names: Sequence[SqlName], target: Table, mode: WriteMode
) -> bool:
    """Move all that is staged under these names; False if a witness is missing.

    One publisher at a time: a second one waits here, and finds everything committed.
    """
    wanted = ", ".join(literal(str(name)) for name in names)
    found = ask(
        f"SELECT name, state, staging FROM {witnesses.table} WHERE name IN ({wanted})"
        " ORDER BY name FOR UPDATE"
    )
    if len(found) != len(names):
        return False
    waiting = [(name, staging) for name, state, staging in found if state != _COMMITTED]
    if waiting:
        stagings = [TableName.parse(staging) for _, staging in waiting if staging is not None]
        move(ask, stagings, target, mode)
        moved = ", ".join(literal(name) for name, _ in waiting)
        ask(
            f"UPDATE {witnesses.table} SET state = {literal(_COMMITTED)}, staging = NULL"
            f" WHERE name IN ({moved})"
        )
    return True


def drop_staging(ask: Ask, witnesses: Witnesses, name: SqlName) -> bool:
    """Drop what is staged under a name, if there is anything; False if it is committed."""
    which = f"WHERE name = {literal(str(name))}"
    found = ask(f"SELECT state, staging FROM {witnesses.table} {which} FOR UPDATE")
    for state, staging in found:
        if state != State.STAGED.value:
            return False
        if staging is not None:
            ask(f"DROP TABLE IF EXISTS {staging}")
        ask(f"DELETE FROM {witnesses.table} {which}")
    return True


def move(ask: Ask, stagings: Sequence[TableName], target: Table, mode: WriteMode) -> None:
    """Put the rows of all staging tables into the target, and drop the tables."""
    if mode.kind == OVERWRITE:
        ask(f"DELETE FROM {target.name}")
    if mode.kind == UPSERT:
        if stagings:
            _merge(ask, stagings, target, mode)
    else:
        for staging in stagings:
            columns = ", ".join(quote(one.name) for one in _shared(ask, staging, target))
            ask(f"INSERT INTO {target.name} ({columns}) SELECT {columns} FROM {staging}")
    for staging in stagings:
        ask(f"DROP TABLE {staging}")


def _merge(ask: Ask, stagings: Sequence[TableName], target: Table, mode: WriteMode) -> None:
    """The newest row of each key, of all tasks together."""
    columns = [column.name for column in _shared(ask, stagings[0], target)]
    keys = [name for name in columns if mode.is_key(name)]
    extras = [_spelt(ask, stagings[0], name) for name in (mode.order, mode.delete) if name]
    every = ", ".join(quote(name) for name in dict.fromkeys([*columns, *extras]))
    rows = " UNION ALL ".join(f"SELECT {every} FROM {staging}" for staging in stagings)
    key = ", ".join(map(quote, keys))
    newest = f"SELECT * FROM ({rows}) AS rows ORDER BY {key}"
    if mode.order:
        order = quote(extras[0])
        newest = (
            f"SELECT DISTINCT ON ({key}) * FROM ({rows}) AS rows"
            f" ORDER BY {key}, {order} DESC NULLS LAST"
        )
    given = ", ".join(map(quote, columns))
    changes = ", ".join(
        f"{quote(name)} = excluded.{quote(name)}" for name in columns if name not in keys
    )
    action = f"UPDATE SET {changes}" if changes else "NOTHING"
    deletion, kept = "", ""
    if mode.delete:
        flag = quote(extras[-1])
        same = " AND ".join(f"t.{quote(name)} = n.{quote(name)}" for name in keys)
        deletion = (
            f", gone AS (DELETE FROM {target.name} t USING newest n WHERE {same} AND n.{flag})"
        )
        kept = f" WHERE NOT coalesce({flag}, false)"
    ask(
        f"WITH newest AS MATERIALIZED ({newest}){deletion}"
        f" INSERT INTO {target.name} ({given}) SELECT {given} FROM newest{kept}"
        f" ON CONFLICT ({key}) DO {action}"
    )


def _shared(ask: Ask, staging: TableName, target: Table) -> list[Column[ColumnType]]:
    """The target's columns that a staging table holds."""
    found = _names(ask, staging)
    return [column for column in target.columns if column.name in found]


def _spelt(ask: Ask, staging: TableName, name: str) -> str:
    """An option's column as the staging table spells it."""
    return next(found for found in _names(ask, staging) if found.lower() == name.lower())


def _names(ask: Ask, staging: TableName) -> list[str]:
    found = Table.find(ask, staging)
    return [] if found is None else [column.name for column in found.columns]
