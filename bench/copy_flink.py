"""Copies one Kafka topic into another with Flink, for `bench.kafka_to_kafka`, until it is killed.

Flink's SQL: records pass from connector to connector inside one JVM, no Python touches them. Run
with a Python that has apache-flink. Its one argument is JSON: servers, source, target, tasks,
interval (seconds between checkpoints), jar (the connector), producer (settings).
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from pyflink.common import Configuration
from pyflink.table import EnvironmentSettings, TableEnvironment


def main() -> None:
    wish = json.loads(sys.argv[1])
    configuration = Configuration()
    for name, value in {
        "pipeline.jars": Path(wish["jar"]).as_uri(),
        "pipeline.object-reuse": "true",
        "parallelism.default": str(wish["tasks"]),
        "execution.checkpointing.interval": f"{round(1000 * wish['interval'])} ms",
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "execution.checkpointing.storage": "filesystem",
        "execution.checkpointing.dir": Path(tempfile.mkdtemp(prefix="checkpoint-")).as_uri(),
    }.items():
        configuration.set_string(name, value)
    settings = EnvironmentSettings.new_instance().in_streaming_mode()
    tables = TableEnvironment.create(settings.with_configuration(configuration).build())
    shared = {"connector": "kafka", "properties.bootstrap.servers": wish["servers"]}
    shared["format"] = "raw"
    _create(
        tables,
        "source",
        {**shared, "topic": wish["source"], "scan.startup.mode": "earliest-offset"},
    )
    _create(
        tables,
        "target",
        {
            **shared,
            "topic": wish["target"],
            "sink.delivery-guarantee": "exactly-once",
            "sink.transactional-id-prefix": wish["target"],
            "properties.transaction.timeout.ms": "600000",
            **{f"properties.{name}": value for name, value in wish["producer"].items()},
        },
    )
    tables.execute_sql("INSERT INTO target SELECT `value` FROM source").wait()


def _create(tables: TableEnvironment, name: str, options: dict[str, str]) -> None:
    listed = ", ".join(f"'{key}' = '{value}'" for key, value in options.items())
    tables.execute_sql(f"CREATE TABLE {name} (`value` BYTES) WITH ({listed})")


if __name__ == "__main__":
    main()
