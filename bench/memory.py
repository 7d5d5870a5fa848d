"""Memory over a long run: `python -m bench.memory [--quick]`.

Resident memory of Spark's processes while a query with exactly_once into Kafka runs many small
epochs: in the second quarter of the run and in its last, and how much came on top in between.
"""

from __future__ import annotations

import argparse
import statistics
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from assent.testing.spark_kafka import connector_jars
from bench import command
from bench.broker import broker
from bench.kafka_sink import BUILT_IN, EXACTLY_ONCE, TASKS, contenders
from bench.query import generated, session
from bench.resident import KINDS, ResidentWatch
from bench.result import Measure, Result

FAIRNESS = (
    "Each contender runs alone in a process with a Spark and a broker of its own; the built-in "
    "sink, which has no Python processes, shows what Spark itself takes. Pages that processes "
    "share count in each of them."
)
SIZES = (
    command.Size("rows", 1000, 1000, "rows of an epoch"),
    command.Size("epochs", 3000, 10, "epochs of the run"),
    command.Size("every", 0.5, 0.1, "seconds between two samples"),
    command.Size("contenders", (BUILT_IN, EXACTLY_ONCE), (EXACTLY_ONCE,), "those that take part"),
)


def measure(options: argparse.Namespace) -> Result:
    measures: list[Measure] = []
    for name in options.contenders:
        command.say(f"  {name}")
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            watched = process.submit(watch, name, options.rows, options.epochs, options.every)
            measures += _quarters(name, watched.result())
    return Result("memory", "Memory over a long run", FAIRNESS, {}, tuple(measures))


def watch(name: str, rows: int, epochs: int, every: float) -> dict[str, list[float]]:
    """Run one contender; the samples of its processes, in MiB."""
    settings = {
        "spark.jars": ",".join(map(str, connector_jars())),
        # Reports of epochs that pile up are not what is measured.
        "spark.sql.streaming.numRecentProgressUpdates": "10",
    }
    with broker() as kafka, session(TASKS, settings) as spark:
        frame = generated(spark, rows, TASKS, "rpad(string(value), 100, 'x') AS value")
        [query] = [one for one in contenders(kafka, frame) if one.name == name]
        with ResidentWatch(every) as resident:
            query.run(epochs)
    return {kind: resident.samples[kind] for kind in KINDS if kind in resident.samples}


def _quarters(name: str, samples: dict[str, list[float]]) -> list[Measure]:
    """The first quarter, in which everything starts, is left out."""
    found = []
    for kind, sizes in samples.items():
        quarter = max(1, len(sizes) // 4)
        early = sizes[quarter : 2 * quarter] or sizes
        late = sizes[-quarter:]
        growth = statistics.median(late) - statistics.median(early)
        found += [
            Measure.of(f"{name}: {kind}", "second quarter", "MiB", early),
            Measure.of(f"{name}: {kind}", "last quarter", "MiB", late),
            Measure.of(f"{name}: {kind}", "growth between them", "MiB", [growth]),
        ]
    return found


if __name__ == "__main__":
    command.run(__doc__, SIZES, measure)
