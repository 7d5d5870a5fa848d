"""The stage of the HBase sink: a real HBase, and a table for each trial."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from assent.testing.hbase import HBaseServer
from assent.testing.job import sink_argument
from assent.testing.reader import Rows
from assent.testing.stage import Stage


class HBaseStage(Stage):
    """One HBase for all trials. A row is one page view, so none can be there twice."""

    name = "hbase"

    def __init__(self, server: HBaseServer | None = None) -> None:
        self._server = server or HBaseServer()
        self._owned = server is None

    def start(self) -> None:
        if self._owned:
            self._server.__enter__()

    def stop(self) -> None:
        if self._owned:
            self._server.close()

    def prepare(self, trial: str) -> Sequence[str]:
        connection = self._server.connection()
        try:
            connection.create_table(trial, {"cf": {}})
        finally:
            connection.close()
        options = {
            "servers": f"127.0.0.1:{self._port(self._server.port)}",
            "table": trial,
            "keyColumns": "partition,offset",
            "valueColumns": "app,page,user",
        }
        return sink_argument("hbase", options)

    def rows(self, trial: str) -> Rows:
        connection = self._server.connection()
        try:
            found: Rows = Counter()
            for key, _ in connection.table(trial).scan(batch_size=1000):
                partition, offset = key.decode().split(":")
                found[int(partition), int(offset)] += 1
            return found
        finally:
            connection.close()

    def pending(self, trial: str) -> list[str]:
        return []  # nothing ever is: writes are visible at once

    @property
    def servers(self) -> Sequence[HBaseServer]:
        return [self._server]
