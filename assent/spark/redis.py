"""The format `assent-redis`."""

from __future__ import annotations

from assent.sinks.redis import RedisSink
from assent.spark.source import AssentSource


class RedisSource(AssentSource):
    """Rows by key in Redis, written directly and guarded by epoch."""

    sink_class = RedisSink
