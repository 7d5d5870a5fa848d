"""The stage of the Redis sink: a real server, and a prefix of keys for each trial."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from assent.testing.job import sink_argument
from assent.testing.reader import Rows
from assent.testing.redis import RedisServer
from assent.testing.stage import Stage


class RedisStage(Stage):
    """One server for all trials. A key is one page view, so none can be there twice."""

    name = "redis"

    def __init__(self, server: RedisServer | None = None) -> None:
        self._server = server or RedisServer()
        self._owned = server is None

    def start(self) -> None:
        if self._owned:
            self._server.__enter__()

    def stop(self) -> None:
        if self._owned:
            self._server.close()

    def prepare(self, trial: str) -> Sequence[str]:
        options = {
            "url": self._server.url_by(self._port(self._server.port)),
            "keyPrefix": f"{trial}:",
            "keyColumns": "partition,offset",
            "valueColumns": "app,page,user",
        }
        return sink_argument("redis", options)

    def rows(self, trial: str) -> Rows:
        prefix = f"{trial}:"
        found: Rows = Counter()
        # One command: a scan that spans a restart of the server would go on as if nothing had been.
        for key in self._server.client().keys(f"{prefix}*"):
            partition, offset = key.removeprefix(prefix).split(":")
            found[int(partition), int(offset)] += 1
        return found

    def pending(self, trial: str) -> list[str]:
        return []  # nothing ever is: writes are visible at once

    @property
    def servers(self) -> Sequence[RedisServer]:
        return [self._server]
