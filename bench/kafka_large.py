"""Kafka, large epochs: `python -m bench.kafka_large [--quick]`.

Rows per second of whole epochs, as Spark reports them, for rows of 100 bytes and of 1 KB, in
epochs of so many bytes that it is not the disk which is measured: Spark's built-in sink with its
defaults and with equal settings, and Assent's three guarantees; and exactly_once once more
without the settings of Spark that docs/tuning.md recommends.
"""

from __future__ import annotations

import argparse

from assent.testing.spark_kafka import connector_jars
from bench import command, target
from bench.broker import broker
from bench.kafka_sink import BUILT_IN, EQUAL, EXACTLY_ONCE, FAIRNESS, TASKS, contenders
from bench.query import generated, in_turns, rates, session
from bench.result import Result, ratio
from bench.target import Outcome

SIZES = (
    command.Size("megabytes", 100, 2, "of values in an epoch"),
    command.Size("bytes", (100, 1000), (100,), "bytes of a value"),
    command.Size("epochs", 4, 1, "epochs of a query, beside the first ones"),
    command.Size("rounds", 3, 1, "how often each contender has its turn"),
)


def measure(options: argparse.Namespace) -> Result:
    jars = ",".join(map(str, connector_jars()))
    measures, outcomes = [], []
    with broker() as kafka, session(TASKS, {"spark.jars": jars}) as spark:
        for size in options.bytes:
            rows = options.megabytes * 1_000_000 // size
            group = f"{rows:,} rows of {size} B"
            column = f"rpad(string(value), {size}, 'x') AS value"
            frame = generated(spark, rows, TASKS, column)
            sinks = contenders(kafka, frame)
            sinks += [sink.untuned() for sink in sinks if sink.name == EXACTLY_ONCE]
            found = in_turns(sinks, options.epochs, options.rounds, quick=options.quick)
            measures += rates(group, found)
            for goal, base in ((target.KAFKA_EQUAL, EQUAL), (target.KAFKA_DEFAULTS, BUILT_IN)):
                value = ratio(measures, group, EXACTLY_ONCE, base)
                outcomes.append(Outcome(goal, value, group))
    return Result(
        "kafka_large",
        "Kafka, large epochs",
        FAIRNESS,
        {},
        tuple(measures),
        tuple(outcomes),
    )


if __name__ == "__main__":
    command.run(__doc__, SIZES, measure)
