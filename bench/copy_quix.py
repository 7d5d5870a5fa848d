"""Copies one Kafka topic into another with Quix Streams, for `bench.kafka_to_kafka`.

One process; several of them share the partitions of the source. Run with a Python that has
quixstreams. Its one argument is JSON: servers, source, target, interval (seconds between
commits), producer (settings).
"""

from __future__ import annotations

import json
import sys
import tempfile

from quixstreams import Application


def main() -> None:
    wish = json.loads(sys.argv[1])
    application = Application(
        broker_address=wish["servers"],
        consumer_group=f"copy-{wish['target']}",
        auto_offset_reset="earliest",
        auto_create_topics=False,
        processing_guarantee="exactly-once",
        commit_interval=float(wish["interval"]),
        producer_extra_config=wish["producer"],
        state_dir=tempfile.mkdtemp(prefix="state-"),
        loglevel="WARNING",
    )
    raw = {"key_deserializer": "bytes", "value_deserializer": "bytes"}
    written = {"key_serializer": "bytes", "value_serializer": "bytes"}
    source = application.topic(wish["source"], **raw)
    target = application.topic(wish["target"], **written)
    application.dataframe(source).to_topic(target)
    application.run()


if __name__ == "__main__":
    main()
