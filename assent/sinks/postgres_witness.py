"""The table of witnesses, beside the target: what was committed, what is staged, what is pruned."""

from __future__ import annotations

from dataclasses import dataclass

from assent.protocol.name import TransactionName, prefix
from assent.sinks.postgres_session import Ask
from assent.sinks.postgres_table import TableName, literal, quote
from assent.sinks.sql_name import SqlName
from assent.sinks.sql_witness import Found, State

TABLE = "assent_witnesses"


@dataclass(frozen=True)
class Open:
    """A transaction that is neither committed nor aborted."""

    name: SqlName
    mode: str
    since: float


@dataclass(frozen=True)
class Witnesses:
    """Statements about witnesses, all over the session that `ask` speaks to."""

    schema: str
    mark: str

    @property
    def table(self) -> str:
        return str(TableName(self.schema, TABLE))

    def create(self, ask: Ask) -> None:
        """Make the table if need be. Two queries may do so at once, of which one fails."""
        ask(
            f"CREATE TABLE IF NOT EXISTS {self.table} ("
            "name text PRIMARY KEY, identity text NOT NULL, mark text NOT NULL,"
            " place bigint NOT NULL, epoch bigint, state text NOT NULL, staging text,"
            " written_at timestamptz NOT NULL DEFAULT clock_timestamp())"
        )
        ask(
            f"CREATE INDEX IF NOT EXISTS {quote(f'{TABLE}_place')} ON {self.table}"
            " (identity, mark, place)"
        )

    def exists(self, ask: Ask) -> bool:
        return ask(f"SELECT to_regclass({literal(self.table)}) IS NOT NULL")[0][0] is True

    def insert(
        self, ask: Ask, name: SqlName, epoch: int, state: State, staging: str | None
    ) -> None:
        """The witness of the transaction in which this runs."""
        staged = "NULL" if staging is None else literal(staging)
        ask(
            f"INSERT INTO {self.table} (name, identity, mark, place, epoch, state, staging) VALUES"
            f" ({literal(str(name))}, {literal(name.name.identity)}, {literal(name.mark)},"
            f" {name.name.place}, {epoch}, {literal(state.value)}, {staged})"
        )

    def find(self, ask: Ask, name: SqlName) -> Found:
        """In separate transactions, and in this order: first where it comes from.

        The other way round, or in one snapshot, one that is committed between the two questions
        would look as if it had never been.
        """
        staging = staging_name(self.schema, name.name, self.mark)
        [(prepared, staged)] = ask(
            "SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_prepared_xacts"
            f" WHERE gid = {literal(str(name))}), to_regclass({literal(str(staging))}) IS NOT NULL"
        )
        if prepared:
            return Found(prepared=True, state=None)
        [(state, empty, pruned)] = ask(
            "SELECT w.state, w.staging IS NULL, p.place"
            f" FROM (SELECT 1) AS one LEFT JOIN {self.table} w ON w.name = {literal(str(name))}"
            f" LEFT JOIN {self.table} p ON p.name = {literal(self._pruned(name.name.identity))}"
        )
        return Found(False, None if state is None else State(state), staged or empty, pruned)

    def open(self, ask: Ask, identity: str) -> list[Open]:
        """Everything of this identity and sink that is prepared or staged."""
        begins, ends = prefix(identity), f".{self.mark}"
        rows = ask(
            "SELECT gid, 'prepared', extract(epoch FROM prepared)::float8"
            " FROM pg_catalog.pg_prepared_xacts WHERE database = current_database()"
            f" AND starts_with(gid, {literal(begins)})"
            f" AND right(gid, {len(ends)}) = {literal(ends)}"
        )
        rows += ask(
            f"SELECT name, 'staged', extract(epoch FROM written_at)::float8 FROM {self.table}"
            f" WHERE identity = {literal(identity)} AND mark = {literal(self.mark)}"
            f" AND state = {literal(State.STAGED.value)}"
            " AND (staging IS NULL OR to_regclass(staging) IS NOT NULL)"
        )
        return [Open(SqlName.parse(name), mode, since) for name, mode, since in sorted(rows)]

    def prune(self, ask: Ask, identity: str, place: int) -> None:
        """Remove the witnesses up to a place, and note it first, so that nobody is misled.

        Runs in a transaction of the caller's.
        """
        ask(
            f"INSERT INTO {self.table} AS w (name, identity, mark, place, state) VALUES"
            f" ({literal(self._pruned(identity))}, {literal(identity)}, {literal(self.mark)},"
            f" {place}, {literal(State.PRUNED.value)}) ON CONFLICT (name) DO UPDATE"
            " SET place = greatest(w.place, excluded.place), written_at = clock_timestamp()"
        )
        ask(
            f"DELETE FROM {self.table} WHERE identity = {literal(identity)}"
            f" AND mark = {literal(self.mark)} AND place <= {place}"
            f" AND (state = {literal(State.COMMITTED.value)} OR to_regclass(staging) IS NULL)"
            f" AND state <> {literal(State.PRUNED.value)}"
        )

    def seal(self, ask: Ask, name: SqlName) -> None:
        """Commit what is staged: from now on it cannot be aborted."""
        ask(
            f"UPDATE {self.table} SET state = {literal(State.SEALED.value)}"
            f" WHERE name = {literal(str(name))} AND state = {literal(State.STAGED.value)}"
            " AND (staging IS NULL OR to_regclass(staging) IS NOT NULL)"
        )

    def _pruned(self, identity: str) -> str:
        return f"pruned-{identity}.{self.mark}"


def earlier_attempts(ask: Ask, name: SqlName) -> list[tuple[str, float]]:
    """Prepared transactions of other attempts of the same task, and how many seconds old."""
    one = name.name
    task = f"{prefix(one.identity)}{one.term}-{one.place}-{one.partition}-"
    return [
        (gid, age)
        for gid, age in ask(
            "SELECT gid, extract(epoch FROM clock_timestamp() - prepared)::float8"
            " FROM pg_catalog.pg_prepared_xacts WHERE database = current_database()"
            f" AND starts_with(gid, {literal(task)}) AND gid <> {literal(str(name))}"
        )
        if gid.endswith(f".{name.mark}")
    ]


def stuck(ask: Ask, seconds: float) -> list[tuple[str, float]]:
    """Prepared transactions of any query of Assent that are older than that, and their age."""
    return [
        (gid, age)
        for gid, age in ask(
            "SELECT gid, extract(epoch FROM clock_timestamp() - prepared)::float8"
            " FROM pg_catalog.pg_prepared_xacts WHERE database = current_database()"
            " AND starts_with(gid, 'assent-') ORDER BY prepared"
        )
        if age >= seconds
    ]


def staging_name(schema: str, name: TransactionName, mark: str) -> TableName:
    """The staging table of a transaction: short enough for an identifier, and its own."""
    return TableName(schema, f"assent_{mark}_{name.nonce}_{name.partition}")
