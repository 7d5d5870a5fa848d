"""The Kafka sink beside Spark's own: the same rows on the same partitions, in bounded memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import kafka as client
import pytest

from assent.protocol.name import nonce
from assent.testing.kafka import KafkaCluster
from tests.memory_watch import LIMIT, WATCH_VARIABLE
from tests.plugins.kafka import require_kafka

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

_START = """
import sys
from assent.testing.session import start_session
from assent.testing.spark_kafka import connector_jars

servers, checkpoint, *topics = sys.argv[1:]
jars = ",".join(map(str, connector_jars()))
"""

# The built-in sink fills the first topic; from there Assent's fills the second.
_BOTH_SINKS = f"""{_START}
session = start_session("local[2]", "both", {{"spark.jars": jars}})
rows = [(f"key {{n}}".encode() if n % 3 else bytes([n % 256, n // 256]), b"x") for n in range(3000)]
rows += [(b"", b"x"), ("Grüße, 世界".encode(), b"x"), (b"x" * 1000, b"x")]
frame = session.createDataFrame(rows, "key binary, value binary")
where = {{"kafka.bootstrap.servers": servers}}
frame.write.format("kafka").options(**where, topic=topics[0]).save()
(
    session.readStream.format("kafka").options(**where, subscribe=topics[0])
    .option("startingOffsets", "earliest").load().select("key", "value")
    .writeStream.format("assent-kafka").options(**where, topic=topics[1])
    .option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    .awaitTermination()
)
session.stop()
"""

# One epoch with one partition of that many rows of 1,000 bytes.
_LARGE = f"""{_START}
session = start_session("local[1]", "large")
rows = int(topics[1])
query = (
    session.readStream.format("rate-micro-batch").option("rowsPerBatch", rows)
    .option("numPartitions", 1).load().selectExpr("repeat('v', 1000) AS value")
    .writeStream.format("assent-kafka").option("kafka.bootstrap.servers", servers)
    .option("topic", topics[0]).option("partitioner", "tests.memory_watch:place")
    .option("checkpointLocation", checkpoint).trigger(once=True).start()
)
query.awaitTermination()
session.stop()
"""


def run(script: str, *arguments: str, **environment: str) -> None:
    root = str(Path(__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "PYTHONPATH": root, **environment},
    )
    assert done.returncode == 0, done.stderr[-3000:]


def places(cluster: KafkaCluster, topic: str) -> dict[bytes, int]:
    """The partition on which each key lies, as far as it can be read."""
    consumer = client.KafkaConsumer(
        topic,
        bootstrap_servers=cluster.bootstrap_servers,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        consumer_timeout_ms=3000,
    )
    try:
        return {record.key: record.partition for record in consumer}
    finally:
        consumer.close()


def test_the_same_keys_lie_on_the_same_partitions_as_with_sparks_own_sink(
    kafka: KafkaCluster, tmp_path: Path
) -> None:
    topics = [f"built-in-{nonce()}", f"assent-{nonce()}"]
    for topic in topics:
        kafka.create_topic(topic, partitions=7)
    run(_BOTH_SINKS, kafka.bootstrap_servers, str(tmp_path / "checkpoint"), *topics)
    built_in, ours = (places(kafka, topic) for topic in topics)
    assert len(built_in) == 3003
    assert set(built_in.values()) == set(range(7))
    assert ours == built_in


@pytest.mark.faults
def test_a_partition_of_two_gigabytes_in_a_worker_of_half_a_gigabyte(tmp_path: Path) -> None:
    rows = 2**31 // 1000 + 1
    with require_kafka() as cluster:
        cluster.create_topic("large")
        run(
            _LARGE,
            *(cluster.bootstrap_servers, str(tmp_path / "checkpoint"), "large", str(rows)),
            **{WATCH_VARIABLE: str(tmp_path)},
        )
        consumer = client.KafkaConsumer(
            bootstrap_servers=cluster.bootstrap_servers, isolation_level="read_committed"
        )
        [place] = [client.TopicPartition("large", 0)]
        # Past all rows lies the marker of the commit.
        assert consumer.end_offsets([place])[place] == rows + 1
        consumer.close()
    [peak] = [int(path.read_text()) for path in tmp_path.iterdir() if path.name.isdigit()]
    assert peak < LIMIT
    print(f"{rows:,} rows of 1,000 bytes; the worker took {peak / 2**20:.0f} MiB at most")
