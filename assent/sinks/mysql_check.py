"""What is asked of a MySQL or MariaDB before a query starts."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pymysql

from assent.protocol.errors import ConfigurationError
from assent.protocol.name import nonce
from assent.sinks.mysql_errors import XA_REFUSED, code
from assent.sinks.mysql_session import Ask, Session
from assent.sinks.mysql_table import Table, TableName, quote
from assent.sinks.mysql_types import new_type
from assent.sinks.mysql_witness import TABLE, Witnesses
from assent.sinks.sql_mode import APPEND, OVERWRITE, UPSERT, CommitMode, WriteMode, choose

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger("assent")

_OLDEST_MYSQL = (8, 0)
_OLDEST_MARIADB = (10, 5)
# Since then, the binary log and prepared transactions agree after a crash.
_CRASH_SAFE_MYSQL = (8, 0, 30)
_COLLATIONS = ("utf8mb4_0900_bin", "utf8mb4_nopad_bin", "utf8mb4_bin")
_DENIED = (1044, 1142, 1143, 1227)


@dataclass(frozen=True)
class Wish:
    """What the options ask for."""

    target: TableName
    mode: WriteMode
    commit_mode: str | None
    """None without `exactly_once`."""
    create: bool
    mark: str


def check_server(session: Session, wish: Wish, schema: pa.Schema) -> CommitMode | None:
    """ConfigurationError for what cannot work; returns how epochs will be committed."""
    _check_release(session)
    _check_settings(session.ask, exactly_once=wish.commit_mode is not None)
    wish.mode.check(schema)
    table = Table.find(session.ask, wish.target)
    if table is None:
        if not wish.create:
            raise ConfigurationError(
                f"there is no table {wish.target}; create it, or set option createTable to true"
            )
        _create(session, wish, schema)
        table = Table.find(session.ask, wish.target)
        assert table is not None
    _check_kind(table)
    table.fit(schema, wish.mode)
    _warn_of_collations(table, wish.mode)
    chosen = _choose(session, wish, table)
    _check_rights(session.ask, table, wish, chosen)
    return chosen


def choose_mode(
    session: Session, wanted: str, mode: WriteMode, table: Table
) -> tuple[CommitMode, str]:
    """The commit mode, and the reason for it in words. `wanted` is the option `commitMode`."""
    obstacle = _obstacle(session) if wanted == "auto" else None
    reason = obstacle or (hazard(session) if wanted == "auto" else None)
    if reason is not None:
        return CommitMode.STAGED, reason
    return choose(wanted, mode, table.constrained, can_prepare=True)


def hazard(session: Session) -> str | None:
    """What a crash of this server may do to its replicas if transactions are prepared."""
    if not session.is_mariadb and session.release >= _CRASH_SAFE_MYSQL:
        return None
    if not session.ask("SELECT @@log_bin")[0][0]:
        return None
    return (
        "the server writes a binary log, and before MySQL 8.0.30, and in MariaDB, a crash in the "
        "middle of preparing or committing may leave the log, and so replicas, out of step with it"
    )


def collation(ask: Ask) -> str:
    """The one by which texts are the same only if they are."""
    wanted = ", ".join(f"'{name}'" for name in _COLLATIONS)
    rows = ask(
        "SELECT collation_name FROM information_schema.collations"
        f" WHERE collation_name IN ({wanted})"
    )
    found = {name for (name,) in rows}
    return next(name for name in _COLLATIONS if name in found)


def _check_release(session: Session) -> None:
    name = "MariaDB" if session.is_mariadb else "MySQL"
    oldest = _OLDEST_MARIADB if session.is_mariadb else _OLDEST_MYSQL
    if session.release < oldest:
        raise ConfigurationError(
            f"this is {name} {'.'.join(map(str, session.release))}; "
            f"{'.'.join(map(str, oldest))} or later is needed"
        )


def _check_settings(ask: Ask, *, exactly_once: bool) -> None:
    [(flush, log, sync, log_format, read_only, doublewrite)] = ask(
        "SELECT @@innodb_flush_log_at_trx_commit, @@log_bin, @@sync_binlog, @@binlog_format,"
        " @@global.read_only, @@innodb_doublewrite"
    )
    if read_only:
        raise ConfigurationError(
            "this server is read-only (a replica?); name the one that takes writes in option url"
        )
    if log and log_format == "STATEMENT":
        raise ConfigurationError(
            "the server has binlog_format = STATEMENT, which does not go with how rows are "
            "written; set it to ROW or MIXED"
        )
    if not exactly_once:
        return
    redo = ask("SHOW GLOBAL STATUS LIKE 'Innodb_redo_log_enabled'")
    if flush == 0 or [value for _, value in redo] == ["OFF"]:
        setting = "innodb_flush_log_at_trx_commit = 0" if flush == 0 else "its redo log turned off"
        raise ConfigurationError(
            f"the server has {setting}: when it crashes, it forgets what it said was committed, "
            "and exactly_once would not hold. Set innodb_flush_log_at_trx_commit to 1 (and ALTER "
            "INSTANCE ENABLE INNODB REDO_LOG), or deliveryGuarantee to at_least_once"
        )
    weak = []
    if flush == 2:
        weak.append("innodb_flush_log_at_trx_commit = 2 (1 is safe)")
    if log and sync != 1:
        weak.append(f"sync_binlog = {sync} (1 is safe)")
    if doublewrite in (0, "OFF"):
        weak.append("innodb_doublewrite = OFF")
    if weak:
        logger.warning(
            "the server has %s: nothing is lost when it crashes, but when its machine loses power, "
            "epochs that were complete may be gone",
            " and ".join(weak),
        )


def _check_kind(table: Table) -> None:
    if table.kind != "BASE TABLE":
        raise ConfigurationError(f"{table.name} is not a table ({table.kind}); rows go into tables")
    if table.engine.lower() != "innodb":
        raise ConfigurationError(
            f"table {table.name} is kept by {table.engine}, which has no transactions: "
            f"ALTER TABLE {table.name} ENGINE = InnoDB"
        )


def _warn_of_collations(table: Table, mode: WriteMode) -> None:
    for column in table.columns:
        order = column.type.collation
        if mode.kind == UPSERT and mode.is_key(column.name) and order and "_bin" not in order:
            logger.warning(
                "key column %s of table %s has collation %s: keys that differ only in case or "
                "accents are one key to the table",
                column.name,
                table.name,
                order,
            )


def _obstacle(session: Session) -> str | None:
    """Why this user of this server cannot prepare transactions; None if nothing is in the way."""
    if [value for _, value in session.ask("SHOW VARIABLES LIKE 'wsrep_on'")] == ["ON"]:
        return "the server is part of a Galera cluster, which has no XA transactions"
    try:
        session.ask("XA RECOVER")
    except pymysql.Error as error:
        if code(error) not in (XA_REFUSED, *_DENIED):
            raise
        return (
            "this user may not list prepared transactions, which finding lost ones needs: "
            "GRANT XA_RECOVER_ADMIN ON *.* TO …"
        )
    return None


def _choose(session: Session, wish: Wish, table: Table) -> CommitMode | None:
    if wish.commit_mode is None:
        if wish.mode.kind == OVERWRITE:
            raise ConfigurationError(
                "an epoch replaces all rows (complete mode, or writeMode overwrite), which tasks "
                "that commit on their own cannot do; set deliveryGuarantee to exactly_once"
            )
        return None
    chosen, reason = choose_mode(session, wish.commit_mode, wish.mode, table)
    if chosen is CommitMode.PREPARED:
        if wish.mode.kind != APPEND:
            raise ConfigurationError(
                f"rows are not only appended (writeMode {wish.mode.kind}, or complete mode), and "
                "what MySQL prepares cannot use the temporary tables that this takes; set option "
                "commitMode to staged or auto"
            )
        obstacle = _obstacle(session)
        if obstacle is not None:
            raise ConfigurationError(
                f"option commitMode is prepared, and {obstacle}; or set commitMode to staged or "
                "auto"
            )
        danger = hazard(session)
        if danger is not None:
            logger.warning("%s; option commitMode staged has no such weakness", danger)
    logger.info("commitMode %s for table %s: %s", chosen.value, table.name, reason)
    return chosen


def _check_rights(ask: Ask, table: Table, wish: Wish, chosen: CommitMode | None) -> None:
    """By statements that need the rights and do nothing."""
    name = table.name
    _probe(ask, f"EXPLAIN INSERT INTO {name} () VALUES ()", f"INSERT on {name}")
    if chosen is CommitMode.STAGED or wish.mode.kind != APPEND:
        _probe(ask, f"SELECT 1 FROM {name} LIMIT 0", f"SELECT on {name}")
    if wish.mode.kind == UPSERT:
        column = quote(table.columns[0].name)
        _probe(
            ask, f"EXPLAIN UPDATE {name} SET {column} = {column} WHERE FALSE", f"UPDATE on {name}"
        )
    if wish.mode.kind == OVERWRITE or wish.mode.delete is not None:
        _probe(ask, f"EXPLAIN DELETE FROM {name} WHERE FALSE", f"DELETE on {name}")
    scratch = TableName(name.schema, f"assent_{wish.mark}_probe_{nonce()}")
    if chosen is CommitMode.STAGED:
        right = f"CREATE, DROP, SELECT and INSERT on database {name.schema}"
        _probe(ask, f"CREATE TABLE {scratch} (a int PRIMARY KEY) ENGINE = InnoDB", right)
        try:
            _probe(ask, f"INSERT INTO {scratch} SELECT a FROM {scratch}", right)
        finally:
            _probe(ask, f"DROP TABLE {scratch}", right)
    elif wish.mode.kind != APPEND:
        right = f"CREATE TEMPORARY TABLES on database {name.schema}"
        _probe(ask, f"CREATE TEMPORARY TABLE {scratch} (a int PRIMARY KEY)", right)
        _probe(ask, f"DROP TEMPORARY TABLE {scratch}", right)
    if chosen is not None:
        _check_witnesses(ask, Witnesses(name.schema, wish.mark))


def _check_witnesses(ask: Ask, witnesses: Witnesses) -> None:
    table = witnesses.table
    if not witnesses.exists(ask):
        _probe(ask, witnesses.creation, f"CREATE on database {witnesses.schema}, for {TABLE}")
    for statement, right in (
        (f"EXPLAIN INSERT INTO {table} () VALUES ()", "INSERT"),
        (f"SELECT 1 FROM {table} LIMIT 0", "SELECT"),
        (f"EXPLAIN UPDATE {table} SET place = place WHERE FALSE", "UPDATE"),
        (f"EXPLAIN DELETE FROM {table} WHERE FALSE", "DELETE"),
    ):
        _probe(ask, statement, f"{right} on {table}")


def _probe(ask: Ask, statement: str, right: str) -> None:
    try:
        ask(statement)
    except pymysql.Error as error:
        if code(error) not in _DENIED:
            raise
        raise ConfigurationError(
            f"this user lacks the right {right}: GRANT {right} TO …"
        ) from error


def _create(session: Session, wish: Wish, schema: pa.Schema) -> None:
    order = collation(session.ask)
    columns = []
    for field in schema:
        if wish.mode.delete is not None and field.name.lower() == wish.mode.delete.lower():
            continue
        key = wish.mode.is_key(field.name)
        made = new_type(field.name, field.type, order, key=key, binary_json=not session.is_mariadb)
        required = "NULL" if field.nullable and not key else "NOT NULL"
        columns.append(f"{quote(field.name)} {made.definition} {required}")
    if wish.mode.kind == UPSERT:
        names = {field.name.lower(): field.name for field in schema}
        keys = ", ".join(quote(names[key.lower()]) for key in wish.mode.keys)
        columns.append(f"PRIMARY KEY ({keys})")
    session.ask(f"CREATE TABLE IF NOT EXISTS {wish.target} ({', '.join(columns)}) ENGINE = InnoDB")
    logger.info("created table %s", wish.target)
