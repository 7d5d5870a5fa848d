"""Copies one Kafka topic into another with Spark, for `bench.kafka_to_kafka`, until it is killed.

Its one argument is JSON: servers, source, target, source_options, jars, tasks, format,
options.
"""

from __future__ import annotations

import json
import sys
import tempfile

from bench.query import session


def main() -> None:
    wish = json.loads(sys.argv[1])
    with session(wish["tasks"], {"spark.jars": wish["jars"]}) as spark:
        query = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", wish["servers"])
            .option("subscribe", wish["source"])
            .option("startingOffsets", "earliest")
            .options(**wish["source_options"])
            .load()
            .select("value")
            .writeStream.format(wish["format"])
            .options(**wish["options"])
            .option("kafka.bootstrap.servers", wish["servers"])
            .option("topic", wish["target"])
            .option("checkpointLocation", tempfile.mkdtemp(prefix="checkpoint-"))
            .start()
        )
        query.awaitTermination()


if __name__ == "__main__":
    main()
