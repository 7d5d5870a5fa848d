"""The table of witnesses, beside the target: what was committed, what is staged, what is pruned."""

from __future__ import annotations

from dataclasses import dataclass

from assent.sinks.mysql_session import Ask
from assent.sinks.mysql_table import TableName, literal
from assent.sinks.mysql_xa import recoverable
from assent.sinks.sql_mode import CommitMode
from assent.sinks.sql_name import SqlName
from assent.sinks.sql_witness import Found, State

TABLE = "assent_witnesses"


@dataclass(frozen=True)
class Open:
    """A transaction that is neither committed nor aborted."""

    name: SqlName
    mode: CommitMode
    since: float | None


@dataclass(frozen=True)
class Witnesses:
    """Statements about witnesses, all over the session that `ask` speaks to."""

    schema: str
    mark: str

    @property
    def table(self) -> str:
        return str(TableName(self.schema, TABLE))

    @property
    def creation(self) -> str:
        """The statement that makes the table if need be."""
        return (
            f"CREATE TABLE IF NOT EXISTS {self.table} ("
            "name varchar(200) NOT NULL PRIMARY KEY, identity varchar(64) NOT NULL,"
            " mark char(8) NOT NULL, place bigint NOT NULL, epoch bigint NULL,"
            " state varchar(16) NOT NULL, staging varchar(64) NULL,"
            " written_at timestamp(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),"
            " KEY place (identity, mark, place)"
            ") ENGINE = InnoDB CHARACTER SET ascii COLLATE ascii_bin"
        )

    def exists(self, ask: Ask) -> bool:
        return bool(_tables(ask, self.schema, f"table_name = {literal(TABLE)}"))

    def insert(
        self, ask: Ask, name: SqlName, epoch: int, state: State, staging: TableName | None
    ) -> None:
        """The witness of the transaction in which this runs."""
        staged = "NULL" if staging is None else literal(staging.table)
        ask(
            f"INSERT INTO {self.table} (name, identity, mark, place, epoch, state, staging) VALUES"
            f" ({literal(str(name))}, {literal(name.name.identity)}, {literal(name.mark)},"
            f" {name.name.place}, {epoch}, {literal(state.value)}, {staged})"
        )

    def find(self, ask: Ask, name: SqlName, *, prepared: bool) -> Found:
        """In separate transactions, and in this order: first where it comes from.

        The other way round, one that is committed between the questions would look as if it had
        never been.
        """
        if prepared and name in recoverable(ask, name.name.identity):
            return Found(prepared=True, state=None)
        staging = staging_table(self.schema, name)
        there = bool(_tables(ask, self.schema, f"table_name = {literal(staging.table)}"))
        [(state, table, pruned)] = ask(
            "SELECT w.state, w.staging, p.place FROM (SELECT 1 AS one) AS one"
            f" LEFT JOIN {self.table} w ON w.name = {literal(str(name))}"
            f" LEFT JOIN {self.table} p ON p.name = {literal(self._pruned(name.name.identity))}"
        )
        return Found(False, None if state is None else State(state), there or table is None, pruned)

    def open(self, ask: Ask, identity: str, *, prepared: bool) -> list[Open]:
        """Everything of this identity and sink that is prepared, staged, or being staged."""
        found = []
        if prepared:
            found = [
                Open(name, CommitMode.PREPARED, None)
                for name in recoverable(ask, identity)
                if name.mark == self.mark
            ]
        # Before the witnesses, which tell of a table that it is committed and will be dropped.
        waiting = dict(self._staging_tables(ask, identity))
        known = ", ".join(literal(str(name)) for name in waiting)
        for text, state, staging, since in ask(
            f"SELECT name, state, staging, UNIX_TIMESTAMP(written_at) FROM {self.table} WHERE"
            f" identity = {literal(identity)} AND mark = {literal(self.mark)}"
            f" AND (state = {literal(State.STAGED.value)}{f' OR name IN ({known})' * bool(known)})"
        ):
            name = SqlName.parse(text)
            if state != State.STAGED.value:
                waiting.pop(name, None)
            elif name in waiting or staging is None:
                waiting[name] = float(since)
        found += [Open(name, CommitMode.STAGED, since) for name, since in waiting.items()]
        return sorted(found, key=lambda one: str(one.name))

    def seal(self, ask: Ask, name: SqlName) -> None:
        """Commit what is staged: from now on it cannot be aborted."""
        ask(
            f"UPDATE {self.table} SET state = {literal(State.SEALED.value)}"
            f" WHERE name = {literal(str(name))} AND state = {literal(State.STAGED.value)}"
        )

    def _staging_tables(self, ask: Ask, identity: str) -> list[tuple[SqlName, float | None]]:
        """By the comment that each was created with: without a witness, nobody else knows them."""
        names = literal(f"assent\\_{self.mark}\\_%")
        tables = []
        for _, comment, since in _tables(ask, self.schema, f"table_name LIKE {names}"):
            try:
                name = SqlName.parse(comment)
            except ValueError:
                continue
            if name.name.identity == identity and name.mark == self.mark:
                tables.append((name, None if since is None else float(since)))
        return tables

    def prune(self, ask: Ask, identity: str, place: int) -> None:
        """Remove the witnesses up to a place, and note it first, so that nobody is misled.

        Runs in a transaction of the caller's.
        """
        ask(
            f"INSERT INTO {self.table} (name, identity, mark, place, state) VALUES"
            f" ({literal(self._pruned(identity))}, {literal(identity)}, {literal(self.mark)},"
            f" {place}, {literal(State.PRUNED.value)}) ON DUPLICATE KEY UPDATE"
            f" place = GREATEST(place, {place}), written_at = CURRENT_TIMESTAMP(6)"
        )
        ask(
            f"DELETE FROM {self.table} WHERE identity = {literal(identity)}"
            f" AND mark = {literal(self.mark)} AND place <= {place}"
            f" AND state = {literal(State.COMMITTED.value)}"
        )

    def _pruned(self, identity: str) -> str:
        return f"pruned-{identity}.{self.mark}"


def staging_table(schema: str, name: SqlName) -> TableName:
    """The staging table of a transaction: short enough for an identifier, and its own."""
    one = name.name
    return TableName(schema, f"assent_{name.mark}_{one.nonce}_{one.partition}")


def _tables(ask: Ask, schema: str, condition: str) -> list[tuple[str, str, float | None]]:
    return [
        (table, comment, since)
        for table, comment, since in ask(
            "SELECT table_name, table_comment, UNIX_TIMESTAMP(create_time)"
            f" FROM information_schema.tables WHERE table_schema = {literal(schema)}"
            f" AND {condition}"
        )
    ]
