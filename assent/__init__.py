"""Assent: end-to-end exactly-once for Spark Structured Streaming, from Python.

Importing it registers the formats with a running Spark session; Spark finds them without an
import too.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from assent.protocol.errors import (
    AssentError,
    ConfigurationError,
    FencedError,
    IdentityError,
    InDoubtError,
    LedgerError,
    LossError,
    ReplayError,
    RetriableError,
    TornEpochError,
)
from assent.protocol.guarantee import Guarantee
from assent.protocol.handle import Handle
from assent.protocol.listener import EpochListener
from assent.protocol.name import TransactionName
from assent.protocol.pending import Pending
from assent.protocol.sink import Sink
from assent.protocol.verdict import Verdict
from assent.sinks.files import FilesSink
from assent.spark.epochs import Epochs
from assent.version import __version__

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from assent.sinks.hbase import HBaseSink
    from assent.sinks.kafka import KafkaSink
    from assent.sinks.mysql import MySqlSink
    from assent.sinks.postgres import PostgresSink
    from assent.sinks.redis import RedisSink

__all__ = [
    "AssentError",
    "ConfigurationError",
    "EpochListener",
    "Epochs",
    "FencedError",
    "FilesSink",
    "Guarantee",
    "HBaseSink",
    "Handle",
    "IdentityError",
    "InDoubtError",
    "KafkaSink",
    "LedgerError",
    "LossError",
    "MySqlSink",
    "Pending",
    "PostgresSink",
    "RedisSink",
    "ReplayError",
    "RetriableError",
    "Sink",
    "TornEpochError",
    "TransactionName",
    "Verdict",
    "__version__",
    "register",
]


def register(spark: SparkSession) -> None:
    """Make the formats `assent-…` known to a session that did not find them by itself."""
    from assent.spark.files import FilesSource
    from assent.spark.hbase import HBaseSource
    from assent.spark.kafka import KafkaSource
    from assent.spark.mysql import MySqlSource
    from assent.spark.postgres import PostgresSource
    from assent.spark.redis import RedisSource

    sources = (FilesSource, HBaseSource, KafkaSource, MySqlSource, PostgresSource, RedisSource)
    for source in sources:
        spark.dataSource.register(source)


def __getattr__(name: str) -> object:
    # Sinks of extras are loaded when they are asked for.
    if name == "HBaseSink":
        from assent.sinks.hbase import HBaseSink

        return HBaseSink
    if name == "KafkaSink":
        from assent.sinks.kafka import KafkaSink

        return KafkaSink
    if name == "MySqlSink":
        from assent.sinks.mysql import MySqlSink

        return MySqlSink
    if name == "PostgresSink":
        from assent.sinks.postgres import PostgresSink

        return PostgresSink
    if name == "RedisSink":
        from assent.sinks.redis import RedisSink

        return RedisSink
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _register_active() -> None:
    """Register with the running session, if there is one: pyspark is not loaded for this alone."""
    pyspark = sys.modules.get("pyspark.sql")
    session = pyspark.SparkSession.getActiveSession() if pyspark else None
    if session is not None:
        register(session)


_register_active()
