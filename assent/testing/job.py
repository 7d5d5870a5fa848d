"""The page-view job as a driver of its own: what the tests and the demo run, kill and restart.

``python -m assent.testing.job --front-end datasource --sink … --checkpoint …`` ends with 0 when
every epoch of the scripted topic is processed, and can be started again after any crash.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import assent
from assent.protocol.guarantee import Guarantee
from assent.protocol.sink import Sink
from assent.sinks.option import read_options
from assent.testing.boundaries import DEFAULT_BOUNDARIES, format_boundaries
from assent.testing.pageviews import SCHEMA, PageViews
from assent.testing.session import start_session
from assent.testing.spark_kafka import connector_jars

FRONT_ENDS = ("datasource", "foreachbatch")
SOURCES = ("pageviews", "kafka")
SINKS = {
    "files": "FilesSink",
    "hbase": "HBaseSink",
    "kafka": "KafkaSink",
    "mysql": "MySqlSink",
    "postgres": "PostgresSink",
    "redis": "RedisSink",
}
"""The sinks by the name in their format, and their classes."""
BUILT_IN = "spark-kafka"
"""Spark's own Kafka sink, to compare with."""


def sink_argument(sink: str, options: Mapping[str, str]) -> list[str]:
    """What tells the job to write into a sink."""
    return ["--sink", json.dumps({"sink": sink, "options": dict(options)})]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job until everything is processed."""
    job = _parser().parse_args(arguments)
    if len(job.sink) > 1 and job.front_end != "foreachbatch":
        _parser().error("several sinks need --front-end foreachbatch")
    if job.source == "kafka" and not (job.source_bootstrap and job.source_topic and job.per_epoch):
        _parser().error("--source kafka needs --source-bootstrap, --source-topic and --per-epoch")
    settings = dict(setting.split("=", 1) for setting in job.setting)
    if job.source == "kafka":
        settings["spark.jars"] = ",".join(map(str, connector_jars()))
    session = start_session(job.master, "page-views", settings)
    try:
        _run(session, job, job.restarts)
    finally:
        session.stop()
    return 0


def _run(session: SparkSession, job: argparse.Namespace, restarts: int) -> None:
    """To the end; a query that fails is started again in the same driver, so often."""
    query = (
        _write(session, job)
        .option("checkpointLocation", str(job.checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        if not restarts:
            raise
        print(f"the query failed and is started again: {error}", file=sys.stderr)
        _run(session, job, restarts - 1)


def _read(session: SparkSession, job: argparse.Namespace) -> DataFrame:
    if job.source == "pageviews":
        session.dataSource.register(PageViews)
        return (
            session.readStream.format(PageViews.name())
            .option("boundaries", job.boundaries)
            .option("seed", job.seed)
            .load()
        )
    records = (
        session.readStream.format("kafka")
        .option("kafka.bootstrap.servers", job.source_bootstrap)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", job.source_topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", job.per_epoch)
        .load()
    )
    return records.selectExpr(f"from_json(string(value), '{SCHEMA}') AS view").select("view.*")


def _write(session: SparkSession, job: argparse.Namespace) -> DataStreamWriter:
    views = _read(session, job)
    common = {"deliveryGuarantee": job.guarantee}
    if job.commit_offsets is not None:
        common["commitOffsets"] = job.commit_offsets
        common["commitOffsets.kafka.bootstrap.servers"] = job.source_bootstrap
    if job.front_end == "datasource":
        [(sink, options)] = job.sink
        if sink == BUILT_IN:
            rows = views.selectExpr("user AS key", "to_json(struct(*)) AS value")
            return rows.writeStream.format("kafka").options(**options)
        return views.writeStream.format(f"assent-{sink}").options(**options, **common)
    sinks = [_sink(sink, options) for sink, options in job.sink]
    return views.writeStream.foreachBatch(assent.Epochs(*sinks, **common))


def _sink(sink: str, options: Mapping[str, str]) -> Sink[Any]:
    made = getattr(assent, SINKS[sink])
    found: Sink[Any] = made.from_options(read_options(options, made.OPTIONS, sink=f"assent-{sink}"))
    return found


def _read_sink(text: str) -> tuple[str, dict[str, str]]:
    value = json.loads(text)
    if value["sink"] not in (*SINKS, BUILT_IN):
        raise ValueError(value["sink"])
    return value["sink"], value["options"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m assent.testing.job", description=__doc__)
    parser.add_argument("--front-end", choices=FRONT_ENDS, required=True)
    parser.add_argument(
        "--sink",
        action="append",
        required=True,
        type=_read_sink,
        help='JSON, such as {"sink": "files", "options": {"path": "/data/views"}}; several at once '
        "with foreachbatch",
    )
    parser.add_argument("--source", choices=SOURCES, default="pageviews")
    parser.add_argument("--source-bootstrap", help="kafka: host:port of its brokers")
    parser.add_argument("--source-topic", help="kafka: a topic of page views as JSON")
    parser.add_argument("--per-epoch", help="kafka: at most so many records an epoch")
    parser.add_argument("--commit-offsets", help="kafka: publish offsets to this consumer group")
    parser.add_argument("--setting", action="append", default=[], help="name=value, of Spark")
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument(
        "--guarantee",
        choices=[guarantee.value for guarantee in Guarantee],
        default=Guarantee.EXACTLY_ONCE.value,
    )
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--boundaries", default=format_boundaries(DEFAULT_BOUNDARIES))
    parser.add_argument("--seed", default="1")
    parser.add_argument(
        "--restarts",
        type=int,
        default=0,
        help="so often a query that failed is started again in the same driver",
    )
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
