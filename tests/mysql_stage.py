"""A table in a real MySQL or MariaDB, and what readers and the catalogue show of it."""

from __future__ import annotations

from typing import Any

from assent.protocol.name import nonce
from assent.sinks.mark import mark
from assent.sinks.mysql import MySqlSink
from assent.sinks.mysql_xa import xid
from assent.sinks.sql_name import SqlName
from assent.testing.mysql import USER, MySql
from tests.sql_query import Row, SqlStage

COLUMNS = "id bigint, page varchar(100)"


class MySqlStage(SqlStage):
    """Each in a database of its own, so that nothing of another test is seen."""

    def __init__(
        self, server: MySql, columns: str = COLUMNS, more: str = "", **options: Any
    ) -> None:
        super().__init__(**options)
        self.server = server
        self.schema = f"database_{nonce()}"
        server.run(f"CREATE DATABASE {self.schema} CHARACTER SET utf8mb4")
        if columns:
            server.run(f"CREATE TABLE {self.full} ({columns}{more})")

    @property
    def full(self) -> str:
        return f"{self.schema}.{self.table}"

    def make(self, **options: Any) -> MySqlSink:
        options.setdefault("lock_timeout", 10.0)
        return MySqlSink(
            **{
                "url": self.server.url,
                "dbtable": self.full,
                "user": USER,
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
        found = []
        for _, length, _, data in self.server.rows("XA RECOVER"):
            text = data.decode() if isinstance(data, bytes) else data
            if text.endswith(ends):
                found.append(f"{text[:length]}-{text[length:]}")
        return sorted(found)

    def staged(self) -> list[str]:
        found = self.server.rows(
            f"SELECT table_name FROM information_schema.tables WHERE table_schema = '{self.schema}'"
        )
        return sorted(name for (name,) in found if name not in (self.table, "assent_witnesses"))

    def take_back(self, waiting: str) -> None:
        if waiting in self.prepared():
            self.server.run(f"XA ROLLBACK {xid(SqlName.parse(waiting))}")
        else:
            self.server.run(f"DROP TABLE {self.schema}.{waiting}")

    def witnesses(self, state: str = "committed") -> int:
        [(count,)] = self.server.rows(
            f"SELECT count(*) FROM {self.schema}.assent_witnesses WHERE state = '{state}'"
        )
        return int(count)
