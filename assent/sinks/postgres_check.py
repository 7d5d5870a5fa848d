"""What is asked of a PostgreSQL before a query starts."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from assent.protocol.errors import ConfigurationError, RetriableError
from assent.sinks.postgres_errors import sqlstate
from assent.sinks.postgres_session import Ask
from assent.sinks.postgres_table import Table, TableName, literal, quote
from assent.sinks.postgres_types import column_type
from assent.sinks.postgres_witness import TABLE, Witnesses, stuck
from assent.sinks.sql_mode import APPEND, OVERWRITE, UPSERT, CommitMode, WriteMode, choose

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger("assent")

STUCK_SECONDS = 900.0
"""From this age on, a prepared transaction is reported."""

_OLDEST = 120000


@dataclass(frozen=True)
class Wish:
    """What the options ask for."""

    target: TableName
    mode: WriteMode
    commit_mode: str | None
    """None without `exactly_once`."""
    create: bool
    mark: str


def check_server(ask: Ask, wish: Wish, schema: pa.Schema) -> CommitMode | None:
    """ConfigurationError for what cannot work; returns how epochs will be committed."""
    _check_release(ask)
    wish.mode.check(schema)
    table = Table.find(ask, wish.target)
    if table is None:
        if not wish.create:
            raise ConfigurationError(
                f"there is no table {wish.target}; create it, or set option createTable to true"
            )
        _create(ask, wish, schema)
        table = Table.find(ask, wish.target)
        assert table is not None
    _check_kind(table, wish)
    table.fit(schema, wish.mode)
    chosen = _choose(ask, wish, table)
    _check_rights(ask, table, wish, chosen)
    if chosen is not None:
        _prepare_witnesses(ask, table, wish)
        report_stuck(ask)
    return chosen


def report_stuck(ask: Ask) -> None:
    """Warn of prepared transactions that are old, whosever they are."""
    for gid, age in stuck(ask, STUCK_SECONDS):
        logger.warning(
            "prepared transaction %s is %.0f s old: it holds its locks and keeps vacuum from "
            "removing old rows. Start its query again, which settles it; or look into its ledger, "
            "and settle it by COMMIT PREPARED or ROLLBACK PREPARED",
            gid,
            age,
        )


def _check_release(ask: Ask) -> None:
    [(number, version, standby)] = ask(
        "SELECT current_setting('server_version_num')::int4, current_setting('server_version'),"
        " pg_is_in_recovery()"
    )
    if number < _OLDEST:
        raise ConfigurationError(f"this is PostgreSQL {version}; 12 or later is needed")
    if standby:
        raise ConfigurationError(
            "this PostgreSQL is a standby, which takes no writes; name the primary in option url"
        )


def _check_kind(table: Table, wish: Wish) -> None:
    if table.kind not in ("r", "p"):
        raise ConfigurationError(
            f"{table.name} is not a table (pg_class.relkind {table.kind!r}); rows go into tables"
        )
    if wish.commit_mode is not None and not table.durable:
        raise ConfigurationError(
            f"table {table.name} is unlogged: a crash of the server empties it. For exactly_once "
            f"it has to be an ordinary one: ALTER TABLE {table.name} SET LOGGED"
        )


def _choose(ask: Ask, wish: Wish, table: Table) -> CommitMode | None:
    if wish.commit_mode is None:
        if wish.mode.kind == OVERWRITE:
            raise ConfigurationError(
                "an epoch replaces all rows (complete mode, or writeMode overwrite), which tasks "
                "that commit on their own cannot do; set deliveryGuarantee to exactly_once"
            )
        return None
    [(limit,)] = ask("SELECT current_setting('max_prepared_transactions')::int4")
    chosen, reason = choose(wish.commit_mode, wish.mode, table.constrained, limit > 0)
    if chosen is CommitMode.PREPARED:
        if limit == 0:
            raise ConfigurationError(
                "option commitMode is prepared, and the server has max_prepared_transactions = 0; "
                "raise it to at least the number of tasks and restart the server, or set "
                "commitMode to staged or auto"
            )
        if wish.mode.kind == OVERWRITE:
            raise ConfigurationError(
                "an epoch replaces all rows (complete mode, or writeMode overwrite), and "
                "transactions that are prepared one by one cannot do that in one act; set option "
                "commitMode to staged or auto"
            )
    logger.info("commitMode %s for table %s: %s", chosen.value, table.name, reason)
    return chosen


def _check_rights(ask: Ask, table: Table, wish: Wish, chosen: CommitMode | None) -> None:
    name = literal(str(table.name))
    wanted = ["INSERT"]
    if chosen is CommitMode.STAGED or wish.mode.kind != APPEND:
        wanted.append("SELECT")  # for the staging table, and for what is in conflict
    if wish.mode.kind == UPSERT:
        wanted.append("UPDATE")
    if wish.mode.kind == OVERWRITE or wish.mode.delete is not None:
        wanted.append("DELETE")
    for right in wanted:
        if not ask(f"SELECT has_table_privilege({name}, {literal(right)})")[0][0]:
            raise ConfigurationError(
                f"this user lacks the right {right} on table {table.name}: "
                f"GRANT {right} ON {table.name} TO …"
            )
    schema = table.name.schema or ""
    needs_tables = chosen is CommitMode.STAGED or wish.mode.kind != APPEND
    if chosen is not None and not Witnesses(schema, wish.mark).exists(ask):
        needs_tables = True
    if needs_tables and not ask(f"SELECT has_schema_privilege({literal(schema)}, 'CREATE')")[0][0]:
        raise ConfigurationError(
            f"this user may not create tables in schema {schema}, where staging tables and "
            f"{TABLE} go: GRANT CREATE ON SCHEMA {quote(schema)} TO …"
        )


def _prepare_witnesses(ask: Ask, table: Table, wish: Wish) -> None:
    witnesses = Witnesses(table.name.schema or "", wish.mark)
    if witnesses.exists(ask):
        return
    try:
        witnesses.create(ask)
    except Exception as error:
        # Somebody else was creating it at the same instant.
        if sqlstate(error) not in ("23505", "42P07", "42710"):
            raise
        if not witnesses.exists(ask):
            raise RetriableError(f"{TABLE} could not be created; start the query again") from error


def _create(ask: Ask, wish: Wish, schema: pa.Schema) -> None:
    columns = []
    for field in schema:
        if wish.mode.delete is not None and field.name.lower() == wish.mode.delete.lower():
            continue
        required = "" if field.nullable else " NOT NULL"
        columns.append(f"{quote(field.name)} {column_type(field.name, field.type)}{required}")
    if wish.mode.kind == UPSERT:
        names = {field.name.lower(): field.name for field in schema}
        keys = ", ".join(quote(names[key.lower()]) for key in wish.mode.keys)
        columns.append(f"PRIMARY KEY ({keys})")
    ask(f"CREATE TABLE IF NOT EXISTS {wish.target} ({', '.join(columns)})")
    logger.info("created table %s", wish.target)
