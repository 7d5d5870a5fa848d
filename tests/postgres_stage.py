"""A table in a real PostgreSQL, and what readers and the catalogue show of it."""

from __future__ import annotations

from typing import Any

from assent.protocol.name import nonce
from assent.sinks.mark import mark
from assent.sinks.postgres import PostgresSink
from assent.testing.postgres import Postgres
from tests.sql_query import Row, SqlStage

COLUMNS = "id bigint, page text"


class PostgresStage(SqlStage):
    """Each in a schema of its own, so that nothing of another test is seen."""

    def __init__(
        self, server: Postgres, columns: str = COLUMNS, more: str = "", **options: Any
    ) -> None:
        super().__init__(**options)
        self.server = server
        self.schema = f"schema_{nonce()}"
        server.run(f"CREATE SCHEMA {self.schema}")
        if columns:
            server.run(f"CREATE TABLE {self.full} ({columns}{more})")

    @property
    def full(self) -> str:
        return f"{self.schema}.{self.table}"

    def make(self, **options: Any) -> PostgresSink:
        options.setdefault("lock_timeout", 10.0)
        return PostgresSink(
            **{
                "url": self.server.url,
                "dbtable": self.full,
                "user": "postgres",
                "password": self.server.password,
                **options,
            }
        )

    def rows(self) -> list[Row]:
        return self.select("id, page")

    def select(self, columns: str = "*") -> list[Any]:
        return sorted(self.server.rows(f"SELECT {columns} FROM {self.full}"))

    def prepared(self) -> list[str]:
        ends = f".{mark(self.make().target)}"
        found = self.server.rows("SELECT gid FROM pg_prepared_xacts")
        return sorted(gid for (gid,) in found if gid.endswith(ends))

    def staged(self) -> list[str]:
        found = self.server.rows(
            "SELECT relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            f"WHERE nspname = '{self.schema}' AND relkind = 'r'"
        )
        return sorted(name for (name,) in found if name not in (self.table, "assent_witnesses"))

    def take_back(self, waiting: str) -> None:
        if waiting in self.prepared():
            self.server.run(f"ROLLBACK PREPARED '{waiting}'")
        else:
            self.server.run(f"DROP TABLE {self.schema}.{waiting}")

    def witnesses(self, state: str = "committed") -> int:
        [(count,)] = self.server.rows(
            f"SELECT count(*) FROM {self.schema}.assent_witnesses WHERE state = '{state}'"
        )
        return int(count)
