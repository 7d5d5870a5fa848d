"""Kafka, small epochs: `python -m bench.kafka_small [--quick]`.

Milliseconds of whole triggers, as Spark reports them, and of each step: those of Spark, and those
that Assent notes in its ledger (of the newest epochs that the ledger keeps). Assent has its
defaults; the built-in sink runs with its own, and with Assent's; Assent is compared with whichever
of the two is faster.
"""

from __future__ import annotations

import argparse

from assent.testing.spark_kafka import connector_jars
from bench import command, target
from bench.broker import broker
from bench.kafka_sink import BUILT_IN, EQUAL, EXACTLY_ONCE, FAIRNESS, GUARANTEES, TASKS, contenders
from bench.query import Epoch, Found, generated, in_turns, session
from bench.result import Measure, Result, find
from bench.target import Outcome

WHOLE = "whole trigger"
STEPS = ("recover", "begin", "write", "preCommit", "decide", "commit", "complete")
SIZES = (
    command.Size("rows", 1000, 1000, "rows of an epoch"),
    command.Size("bytes", 100, 100, "bytes of a value"),
    command.Size("epochs", 100, 4, "epochs of a query, beside the first ones"),
    command.Size("rounds", 5, 1, "how often each contender has its turn"),
    command.Size("guarantees", GUARANTEES, ("exactly_once",), "those of Assent"),
)


def latencies(found: list[Found]) -> list[Measure]:
    """Whole triggers of all, the steps of Assent, and those of Spark for all."""
    measures = [
        Measure.of(
            WHOLE, contender.name, "ms", [epoch.whole for epoch in epochs], contender.settings
        )
        for contender, epochs in found
    ]
    for contender, epochs in found:
        for step in STEPS:
            if samples := _of(epochs, f"assent {step}"):
                measures.append(Measure.of(f"steps of {contender.name}", step, "ms", samples))
    for part in sorted({part for _, epochs in found for epoch in epochs for part in epoch.parts}):
        if part == "triggerExecution" or part.startswith("assent "):
            continue
        measures += [
            Measure.of(f"Spark's {part}", contender.name, "ms", samples)
            for contender, epochs in found
            if (samples := _of(epochs, part))
        ]
    return measures


def _of(epochs: list[Epoch], part: str) -> list[float]:
    return [epoch.parts[part] for epoch in epochs if part in epoch.parts]


def measure(options: argparse.Namespace) -> Result:
    jars = ",".join(map(str, connector_jars()))
    with broker() as kafka, session(TASKS, {"spark.jars": jars}) as spark:
        value = f"rpad(string(value), {options.bytes}, 'x') AS value"
        frame = generated(spark, options.rows, TASKS, value)
        found = in_turns(
            contenders(kafka, frame, options.guarantees),
            options.epochs,
            options.rounds,
            quick=options.quick,
        )
    measures = latencies(found)
    mine = find(measures, WHOLE, EXACTLY_ONCE)
    others = [find(measures, WHOLE, name) for name in (BUILT_IN, EQUAL)]
    p50 = mine.median - min(other.median for other in others)
    p99 = mine.p99 - min(other.p99 for other in others)
    return Result(
        "kafka_small",
        "Kafka, small epochs",
        f"{FAIRNESS} The differences are to the faster of the two built-in contenders.",
        {},
        tuple(measures),
        (Outcome(target.SMALL_P50, p50), Outcome(target.SMALL_P99, p99)),
    )


if __name__ == "__main__":
    command.run(__doc__, SIZES, measure)
