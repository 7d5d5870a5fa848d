"""Kafka sinks side by side: `python -m bench.kafka_sink [--small] [--json]`.

Spark's built-in sink with its defaults, and with the batching that Assent has by default, against
Assent's three guarantees; the same rows, the same broker, in turns. Large epochs are measured in
rows per second, small ones (`--small`) in milliseconds per epoch.
"""

from __future__ import annotations

import argparse
import json

from assent.testing.kafka import KafkaCluster
from assent.testing.spark_kafka import connector_jars
from bench.query import Variant, generated, in_turns, latencies, rates, session

BATCHING = {"kafka.linger.ms": "5", "kafka.batch.size": "1000000"}
TASKS = 2
BUILT_IN, EQUAL = "built-in, defaults", "built-in, equal settings"


def variants(servers: str) -> list[Variant]:
    where = {"kafka.bootstrap.servers": servers, "topic": "rows"}
    return [
        Variant(BUILT_IN, "kafka", where),
        Variant(EQUAL, "kafka", where | BATCHING),
        *(
            Variant(
                f"assent, {guarantee}",
                "assent-kafka",
                where | BATCHING | {"deliveryGuarantee": guarantee},
            )
            for guarantee in ("exactly_once", "at_least_once", "none")
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="epochs of 1,000 rows, in latencies")
    parser.add_argument("--rows", type=int, help="rows of an epoch")
    parser.add_argument("--size", type=int, default=100, help="bytes of a value")
    parser.add_argument("--epochs", type=int, help="epochs of a query, beside the first ones")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    rows = options.rows or (1000 if options.small else 1_000_000)
    epochs = options.epochs or (40 if options.small else 4)
    jars = ",".join(map(str, connector_jars()))
    with KafkaCluster(heap="1g") as kafka, session(TASKS, {"spark.jars": jars}) as spark:
        kafka.create_topic("rows", partitions=4)
        value = f"rpad(string(value), {options.size}, 'x') AS value"
        frame = generated(spark, rows, TASKS, value)
        found = in_turns(frame, variants(kafka.bootstrap_servers), epochs, options.rounds)
    results = latencies(found, EQUAL) if options.small else rates(found, EQUAL)
    if options.json:
        made = {"rows": rows, "size": options.size, "epochs": epochs, "rounds": options.rounds}
        print(json.dumps({"bench": "kafka_sink", **made, "results": results}))
        return
    print(f"{rows:,} rows of {options.size} bytes an epoch, {TASKS} tasks")
    for name, numbers in results.items():
        print(
            f"  {name:28}" + "  ".join(f"{key} {number:>12,.2f}" for key, number in numbers.items())
        )


if __name__ == "__main__":
    main()
