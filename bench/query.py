"""Streaming queries side by side: the same rows into one sink after the other, in turns.

All run in one Spark session with Spark's own settings. What is measured is what Spark itself
reports of every epoch; the first epochs of a query, in which everything starts, do not count.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from assent.testing.session import start_session

WARM_UP = 2
_POLL_SECONDS = 0.02
_DEADLINE_SECONDS = 600.0


@dataclass(frozen=True)
class Variant:
    """A sink and its settings, by a name for the table."""

    name: str
    format: str
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Epoch:
    """One epoch as Spark reports it, in milliseconds."""

    rows: int
    whole: float
    parts: Mapping[str, float]


@contextmanager
def session(tasks: int, settings: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A session as a user would have it: nothing is tuned for the tests."""
    plain = {
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
        "spark.driver.extraJavaOptions": "",
        "spark.executor.extraJavaOptions": "",
        "spark.driver.memory": "2g",
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
        **(settings or {}),
    }
    started = start_session(f"local[{tasks}]", "bench", plain)
    try:
        yield started
    finally:
        started.stop()


def generated(spark: SparkSession, rows: int, tasks: int, value: str) -> DataFrame:
    """Epochs of so many rows, made in the JVM; `value` is an expression over the column `value`."""
    return (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", rows)
        .option("numPartitions", tasks)
        .load()
        .selectExpr(value)
    )


def run(frame: DataFrame, variant: Variant, epochs: int) -> list[Epoch]:
    """A query of so many epochs beside the first ones."""
    folder = Path(tempfile.mkdtemp(prefix="assent-bench-"))
    try:
        query = (
            frame.writeStream.format(variant.format)
            .options(**variant.options)
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(processingTime="0 seconds")
            .start()
        )
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while query.isActive and _newest(query.lastProgress) < WARM_UP + epochs:
            assert time.monotonic() < deadline, f"{variant.name} is too slow"
            time.sleep(_POLL_SECONDS)
        failure = query.exception()
        if failure is not None:
            raise failure
        found = [_epoch(progress) for progress in query.recentProgress]
        query.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return [epoch for epoch in found if epoch.rows][WARM_UP : WARM_UP + epochs]


def in_turns(
    frame: DataFrame, variants: Sequence[Variant], epochs: int, rounds: int
) -> dict[str, list[Epoch]]:
    """Every variant in every round; each round begins with another one."""
    found: dict[str, list[Epoch]] = {variant.name: [] for variant in variants}
    for turn in range(rounds):
        for step in range(len(variants)):
            variant = variants[(turn + step) % len(variants)]
            found[variant.name] += run(frame, variant, epochs)
    return found


def rates(found: Mapping[str, list[Epoch]], base: str) -> dict[str, dict[str, float]]:
    """Rows per second of each variant: median, quartiles, and the ratio to one of them."""
    speeds = {
        name: [1000 * one.rows / one.whole for one in epochs] for name, epochs in found.items()
    }
    middle = statistics.median(speeds[base])
    return {
        name: {
            "rowsPerSecond": round(statistics.median(values)),
            "lowerQuartile": round(statistics.quantiles(values, n=4)[0]),
            "upperQuartile": round(statistics.quantiles(values, n=4)[2]),
            "ratio": round(statistics.median(values) / middle, 3),
        }
        for name, values in speeds.items()
    }


def latencies(found: Mapping[str, list[Epoch]], base: str) -> dict[str, dict[str, float]]:
    """Milliseconds of whole epochs: p50 and p99, and what lies above one of them."""
    times = {name: sorted(one.whole for one in epochs) for name, epochs in found.items()}
    result = {}
    for name, values in times.items():
        p50, p99 = statistics.median(values), values[int(0.99 * (len(values) - 1))]
        result[name] = {
            "p50": p50,
            "p99": p99,
            "p50Above": p50 - statistics.median(times[base]),
            "p99Above": p99 - times[base][int(0.99 * (len(times[base]) - 1))],
            "addBatch": statistics.median(one.parts.get("addBatch", 0) for one in found[name]),
        }
    return result


def _newest(progress: Any) -> int:
    return -1 if progress is None else int(progress["batchId"])


def _epoch(progress: Any) -> Epoch:
    parts = {name: float(value) for name, value in progress["durationMs"].items()}
    return Epoch(int(progress["numInputRows"]), parts["triggerExecution"], parts)
