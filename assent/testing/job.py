"""The page-view job as a driver of its own: what the tests and the demo run, kill and restart.

``python -m assent.testing.job --front-end datasource --output … --checkpoint …`` ends with 0 when
every epoch of the scripted topic is processed, and can be started again after any crash.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
SINKS = ("files", "kafka", "postgres")
VALUE_COLUMNS = ("partition", "offset", "app", "page")
"""Of a page view, what becomes the value of a record."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job until everything is processed."""
    job = _parser().parse_args(arguments)
    if job.second_output is not None and job.front_end != "foreachbatch":
        _parser().error("--second-output needs --front-end foreachbatch")
    if job.sink == "files" and job.output is None:
        _parser().error("--sink files needs --output")
    if job.sink == "kafka" and not (job.bootstrap and job.topic):
        _parser().error("--sink kafka needs --bootstrap and --topic")
    if job.source == "kafka" and not (job.source_bootstrap and job.source_topic and job.per_epoch):
        _parser().error("--source kafka needs --source-bootstrap, --source-topic and --per-epoch")
    settings = dict(setting.split("=", 1) for setting in job.setting)
    if job.source == "kafka":
        settings["spark.jars"] = ",".join(map(str, connector_jars()))
    session = start_session(job.master, "page-views", settings)
    try:
        query = (
            _write(session, job)
            .option("checkpointLocation", str(job.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    finally:
        session.stop()
    return 0


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
        writer = views.writeStream.format(f"assent-{job.sink}")
        return writer.options(**_options(job), **common)
    return views.writeStream.foreachBatch(assent.Epochs(*_sinks(job), **common))


def _options(job: argparse.Namespace) -> dict[str, str]:
    if job.sink == "files":
        return {"path": str(job.output)}
    if job.sink != "kafka":
        return dict(job.option)
    return {
        "kafka.bootstrap.servers": job.bootstrap,
        "topic": job.topic,
        "valueFormat": "json",
        "keyColumns": "user",
        "valueColumns": ",".join(VALUE_COLUMNS),
        "transactionTimeout": job.transaction_timeout,
    }


def _sinks(job: argparse.Namespace) -> list[Sink[Any]]:
    if job.sink != "files":
        kind = assent.KafkaSink if job.sink == "kafka" else assent.PostgresSink
        values = read_options(_options(job), kind.OPTIONS, sink=f"assent-{job.sink}")
        return [kind.from_options(values)]
    outputs = [job.output] if job.second_output is None else [job.output, job.second_output]
    return [assent.FilesSink(str(output), file_format="parquet") for output in outputs]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m assent.testing.job", description=__doc__)
    parser.add_argument("--front-end", choices=FRONT_ENDS, required=True)
    parser.add_argument("--sink", choices=SINKS, default="files")
    parser.add_argument("--source", choices=SOURCES, default="pageviews")
    parser.add_argument("--source-bootstrap", help="kafka: host:port of its brokers")
    parser.add_argument("--source-topic", help="kafka: a topic of page views as JSON")
    parser.add_argument("--per-epoch", help="kafka: at most so many records an epoch")
    parser.add_argument("--commit-offsets", help="kafka: publish offsets to this consumer group")
    parser.add_argument("--setting", action="append", default=[], help="name=value, of Spark")
    parser.add_argument("--output", type=Path, help="files: the folder")
    parser.add_argument("--bootstrap", help="kafka: host:port of the brokers")
    parser.add_argument("--topic", help="kafka: the topic, with as many partitions as the source")
    parser.add_argument("--transaction-timeout", default="5m", help="kafka: option of that name")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        type=lambda text: tuple(text.split("=", 1)),
        help="postgres: name=value, as often as need be",
    )
    parser.add_argument("--second-output", type=Path, help="a second files sink, same epochs")
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument(
        "--guarantee",
        choices=[guarantee.value for guarantee in Guarantee],
        default=Guarantee.EXACTLY_ONCE.value,
    )
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--boundaries", default=format_boundaries(DEFAULT_BOUNDARIES))
    parser.add_argument("--seed", default="1")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
