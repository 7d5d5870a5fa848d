"""The stage of the MySQL sink: a real server, and a table for each trial."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from assent.testing.job import sink_argument
from assent.testing.mysql import MySql
from assent.testing.reader import Rows
from assent.testing.stage import Stage


class MySqlStage(Stage):
    """One server for all trials, each in a database of its own."""

    name = "mysql"

    def __init__(
        self,
        server: MySql | None = None,
        commit_mode: str = "auto",
        more: Mapping[str, str] | None = None,
    ) -> None:
        self._server = server or MySql()
        self._owned = server is None
        self._options = {"commitMode": commit_mode, "createTable": "true", **(more or {})}
        self.atomic = commit_mode == "staged"
        self.expires = commit_mode == "prepared"

    def start(self) -> None:
        if self._owned:
            self._server.start()

    def stop(self) -> None:
        if self._owned:
            self._server.close()

    def prepare(self, trial: str) -> Sequence[str]:
        self._server.run(f"CREATE DATABASE `{trial}`")
        options = self._server.options(f"`{trial}`.views", self._port(self._server.port))
        return sink_argument("mysql", {**options, **self._options})

    def rows(self, trial: str) -> Rows:
        if not self._tables(trial, "views"):
            return Counter()
        found = self._server.rows(f"SELECT `partition`, `offset` FROM `{trial}`.views")
        return Counter((partition, offset) for partition, offset in found)

    def pending(self, trial: str) -> list[str]:
        prepared = self._server.rows("XA RECOVER")
        staged = self._tables(trial, "assent\\_%", but="assent_witnesses")
        return [str(data) for *_, data in prepared] + staged

    def expire(self, trial: str) -> None:
        """By an administrator: the server itself never gives a transaction up."""
        self._server.roll_back_prepared()

    @property
    def servers(self) -> Sequence[MySql]:
        return [self._server]

    def _tables(self, schema: str, pattern: str, but: str = "") -> list[str]:
        found = self._server.rows(
            "SELECT table_name FROM information_schema.tables"
            f" WHERE table_schema = '{schema}' AND table_name LIKE '{pattern}'"
        )
        return [name for (name,) in found if name != but]
