"""Page views per app, kept up to date in Redis.

Every epoch writes the new totals of the apps that it has seen, never an increment: so an epoch
that is written twice changes nothing. Without `--url` a Redis of its own is started::

    python examples/page_views_into_redis.py --folder views
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import redis
from pyspark.sql import SparkSession

import assent
from assent.testing.pageviews import PageViews
from assent.testing.redis import RedisServer

PREFIX = "views-per-app:"


def run(session: SparkSession, url: str, folder: Path) -> None:
    """Count until the topic is used up."""
    session.dataSource.register(PageViews)
    views = session.readStream.format("assent-pageviews").load()
    sink = assent.RedisSink(url, PREFIX, "string", key_columns=["app"], value_columns=["count"])
    query = (
        views.groupBy("app")
        .count()
        .writeStream.outputMode("update")
        .foreachBatch(assent.Epochs(sink))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def counts(url: str) -> dict[str, int]:
    """What a reader finds."""
    with redis.Redis.from_url(url, decode_responses=True) as client:
        keys = [str(key) for key in client.scan_iter(f"{PREFIX}*")]
        return {key.removeprefix(PREFIX): int(client.get(key) or 0) for key in keys}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the example."""
    parser = argparse.ArgumentParser(description="Page views per app, in Redis.")
    parser.add_argument("--folder", type=Path, required=True, help="for the checkpoint")
    parser.add_argument("--url", help="redis://host:port/db of a Redis with appendfsync always")
    parser.add_argument("--master", default="local[2]")
    options = parser.parse_args(arguments)
    session = (
        SparkSession.builder.master(options.master)
        .appName("page-views-into-redis")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    with ExitStack() as servers:
        servers.callback(session.stop)
        url = options.url or servers.enter_context(RedisServer()).url
        run(session, url, options.folder)
        found = counts(url)
    for app in sorted(found):
        print(f"{app:8} {found[app]:6}")
    print(f"{'all':8} {sum(found.values()):6}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
