"""The page-view job as a driver of its own: what the tests and the demo run, kill and restart.

``python -m assent.testing.job --front-end datasource --output … --checkpoint …`` ends with 0 when
every epoch of the scripted topic is processed, and can be started again after any crash.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import assent
from assent.protocol.guarantee import Guarantee
from assent.testing.boundaries import DEFAULT_BOUNDARIES, format_boundaries
from assent.testing.pageviews import PageViews
from assent.testing.session import start_session

FRONT_ENDS = ("datasource", "foreachbatch")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job until everything is processed."""
    job = _parser().parse_args(arguments)
    if job.second_output is not None and job.front_end != "foreachbatch":
        _parser().error("--second-output needs --front-end foreachbatch")
    session = start_session(job.master, "page-views")
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


def _write(session: SparkSession, job: argparse.Namespace) -> DataStreamWriter:
    session.dataSource.register(PageViews)
    views = (
        session.readStream.format(PageViews.name())
        .option("boundaries", job.boundaries)
        .option("seed", job.seed)
        .load()
    )
    if job.front_end == "datasource":
        return (
            views.writeStream.format(f"assent-{job.sink}")
            .option("path", str(job.output))
            .option("deliveryGuarantee", job.guarantee)
        )
    outputs = [job.output] if job.second_output is None else [job.output, job.second_output]
    sinks = [assent.FilesSink(str(output), file_format="parquet") for output in outputs]
    return views.writeStream.foreachBatch(assent.Epochs(*sinks, deliveryGuarantee=job.guarantee))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m assent.testing.job", description=__doc__)
    parser.add_argument("--front-end", choices=FRONT_ENDS, required=True)
    parser.add_argument("--sink", choices=["files"], default="files")
    parser.add_argument("--output", type=Path, required=True)
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
