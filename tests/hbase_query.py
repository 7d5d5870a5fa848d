"""A table of an HBase, a sink for it, and what readers see."""

from __future__ import annotations

import pickle
from typing import Any

from assent.protocol.name import nonce
from assent.sinks.hbase import HBaseSink
from assent.testing.hbase import HBaseServer
from tests.keyed_query import KeyedStage


class HBaseStage(KeyedStage):
    """A table that no other test has, with the families `cf` and `other`."""

    def __init__(self, server: HBaseServer, **family: Any) -> None:
        super().__init__()
        self.server = server
        self.table = f"t{nonce()}"
        self.client = server.connection()
        self.client.create_table(self.table, {"cf": family, "other": {}})

    def sink(self, **more: Any) -> HBaseSink:
        more.setdefault("key_columns", ["key"])
        more.setdefault("timeout", 20.0)
        sink = HBaseSink(self.server.address, self.table, **more)
        received: HBaseSink = pickle.loads(pickle.dumps(sink))  # as it reaches a task
        return received

    def rows(self) -> dict[str, dict[str, str]]:
        """All cells that a reader finds; read without the sink."""
        return {
            key.decode(): {name.decode(): value.decode() for name, value in cells.items()}
            for key, cells in self.client.table(self.table).scan()
        }

    def seen(self) -> dict[str, str]:
        """The cell `cf:x` of every row."""
        return {key: cells["cf:x"] for key, cells in self.rows().items()}

    def compact(self) -> None:
        """Flush and compact everything, so that deletions and what they hide are forgotten."""
        self.client.disable_table(self.table)  # flushes
        self.client.enable_table(self.table)
        self.client.compact_table(self.table, major=True)
