"""Page views per app from the Kafka topic `app-topic`, kept up to date in Redis and in PostgreSQL.

Every epoch writes the new totals of the apps that it has seen, never an increment: so an epoch
that is written twice changes nothing. Both stores take part in one decision. Without addresses,
servers of its own are started, and the topic is filled::

    python examples/app_topic.py --folder views
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import psycopg
import redis
from pyspark.sql import SparkSession

import assent
from assent.testing.kafka import KafkaCluster
from assent.testing.kafka_views import fill
from assent.testing.postgres import Postgres
from assent.testing.redis import RedisServer
from assent.testing.spark_kafka import connector_jars

TOPIC = "app-topic"
PREFIX = "views-per-app:"
TABLE = "views_per_app"


def run(
    session: SparkSession, brokers: str, topic: str, redis_url: str, postgres_url: str, folder: Path
) -> None:
    """Count until the topic is used up."""
    records = (
        session.readStream.format("kafka")
        .option("kafka.bootstrap.servers", brokers)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 5000)
        .load()
    )
    counts = (
        records.selectExpr("get_json_object(string(value), '$.app') AS app").groupBy("app").count()
    )
    epochs = assent.Epochs(
        assent.RedisSink(redis_url, PREFIX, "string", key_columns=["app"], value_columns=["count"]),
        assent.PostgresSink(
            postgres_url, TABLE, write_mode="upsert", key_columns=["app"], create_table=True
        ),
    )
    query = (
        counts.writeStream.outputMode("update")
        .foreachBatch(epochs)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def in_redis(url: str) -> dict[str, int]:
    """What a reader finds in Redis."""
    with redis.Redis.from_url(url, decode_responses=True) as client:
        keys = [str(key) for key in client.scan_iter(f"{PREFIX}*")]
        return {key.removeprefix(PREFIX): int(client.get(key) or 0) for key in keys}


def in_postgres(url: str) -> dict[str, int]:
    """What a reader finds in PostgreSQL."""
    with psycopg.connect(url) as connection:
        return dict(connection.execute(f"SELECT app, count FROM {TABLE}").fetchall())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the example."""
    parser = argparse.ArgumentParser(description="Page views per app, in two stores.")
    parser.add_argument("--folder", type=Path, required=True, help="for the checkpoint")
    parser.add_argument("--brokers", help="host:port of Kafka brokers with the topic")
    parser.add_argument("--topic", default=TOPIC)
    parser.add_argument("--redis", help="redis://host:port/db of a Redis with appendfsync always")
    parser.add_argument("--postgres", help="postgresql://user:password@host:port/database")
    parser.add_argument("--master", default="local[2]")
    options = parser.parse_args(arguments)
    with ExitStack() as servers:
        brokers, redis_url, postgres_url = options.brokers, options.redis, options.postgres
        if brokers is None:
            kafka = servers.enter_context(KafkaCluster())
            kafka.create_topic(options.topic, partitions=2)
            fill(kafka, options.topic, [10_000, 10_005])
            brokers = kafka.bootstrap_servers
        if redis_url is None:
            redis_url = servers.enter_context(RedisServer()).url
        if postgres_url is None:
            postgres_url = servers.enter_context(Postgres()).login_url
        session = (
            SparkSession.builder.master(options.master)
            .appName("app-topic")
            .config("spark.jars", ",".join(map(str, connector_jars())))
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .getOrCreate()
        )
        servers.callback(session.stop)
        run(session, brokers, options.topic, redis_url, postgres_url, options.folder)
        found = in_redis(redis_url)
        assert found == in_postgres(postgres_url)
    for app in sorted(found):
        print(f"{app:8} {found[app]:6}")
    print(f"{'all':8} {sum(found.values()):6}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
