"""A prefix of a Redis, a sink for it, and what readers see."""

from __future__ import annotations

import pickle
from typing import Any

from assent.protocol.name import nonce
from assent.sinks.redis import RedisSink
from assent.testing.redis import RedisCluster, RedisServer
from tests.keyed_query import KeyedStage


def waits_for_disk(server: RedisServer) -> bool:
    """Whether the server can be asked to wait until rows are on disk: since 7.2."""
    major, minor, *_ = server.client().info("server")["redis_version"].split(".")
    return (int(major), int(minor)) >= (7, 2)


class RedisStage(KeyedStage):
    """A prefix that no other test has."""

    def __init__(self, server: RedisServer | RedisCluster) -> None:
        super().__init__()
        self.server = server
        self.prefix = f"{nonce()}:"

    def sink(self, **more: Any) -> RedisSink:
        more.setdefault("key_columns", ["key"])
        more.setdefault("structure", "string")
        more.setdefault("timeout", 10.0)
        more.setdefault("url", self.server.url)
        sink = RedisSink(key_prefix=self.prefix, **more)
        received: RedisSink = pickle.loads(pickle.dumps(sink))  # as it reaches a task
        return received

    def seen(self) -> dict[str, Any]:
        """What a reader finds below the prefix, whatever its type; read without the sink."""
        with self.server.client() as client:

            def members(key: str) -> dict[str, float]:
                return dict(client.zrange(key, 0, -1, withscores=True))

            read = {"string": client.get, "hash": client.hgetall, "zset": members}
            return {
                key.removeprefix(self.prefix): read[kind](key)
                for key in client.scan_iter(f"{self.prefix}*", count=1000)
                if (kind := client.type(key)) != "none"  # it has expired meanwhile
            }
