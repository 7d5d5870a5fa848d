"""Real Spark and a real Redis, by both front-ends."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import assent
from assent.testing.boundaries import DEFAULT_BOUNDARIES, Boundaries
from assent.testing.pageviews import APPS, page_views
from assent.testing.redis import RedisServer
from tests.redis_query import RedisStage

pytestmark = [pytest.mark.redis, pytest.mark.spark]


def views_per_app(boundaries: Boundaries = DEFAULT_BOUNDARIES) -> dict[str, int]:
    views: Counter[str] = Counter()
    for partition, end in enumerate(boundaries[-1]):
        views.update(page_views(1, partition, 0, end).column("app").to_pylist())
    return dict(views)


def test_the_format_is_found_and_complete_mode_counts(
    session: SparkSession, redis_server: RedisServer, tmp_path: Path
) -> None:
    stage = RedisStage(redis_server)
    counts = session.readStream.format("assent-pageviews").load().groupBy("app").count()
    writer = (
        counts.writeStream.outputMode("complete")
        .format("assent-redis")
        .option("url", redis_server.url)
        .option("keyPrefix", stage.prefix)
        .option("structure", "string")
        .option("keyColumns", "app")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
    )
    with pytest.raises(StreamingQueryException, match="allowComplete"):
        writer.start().awaitTermination()
    assert stage.seen() == {}
    writer.option("allowComplete", "true").start().awaitTermination()
    found = {app: int(number) for app, number in stage.seen().items()}
    assert found == views_per_app()
    assert sum(found.values()) == 20_005
    assert sorted(found) == sorted(APPS)


def test_foreach_batch_with_two_sinks_in_one_epoch(
    session: SparkSession, redis_server: RedisServer, tmp_path: Path
) -> None:
    stage = RedisStage(redis_server)
    frame = session.readStream.format("assent-pageviews").load().groupBy("app").count()
    sink = assent.RedisSink(
        redis_server.url, stage.prefix, "sortedSet", member_column="app", score_column="count"
    )
    epochs = assent.Epochs(sink, assent.FilesSink(str(tmp_path / "files"), file_format="json"))
    query = frame.writeStream.outputMode("update").foreachBatch(epochs)
    query = query.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()
    assert stage.seen() == {"": {app: float(n) for app, n in views_per_app().items()}}
    assert len(list((tmp_path / "files").glob("epoch=*"))) == len(DEFAULT_BOUNDARIES)


def test_a_new_checkpoint_on_old_data_stops_the_query(
    session: SparkSession, redis_server: RedisServer, tmp_path: Path
) -> None:
    stage = RedisStage(redis_server)
    frame = session.readStream.format("assent-pageviews").load()

    def run(checkpoint: str, **more: str) -> None:
        (
            frame.writeStream.format("assent-redis")
            .option("url", redis_server.url)
            .option("keyPrefix", stage.prefix)
            .option("keyColumns", "app")
            .options(**more)
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )

    run("first")
    seen = stage.seen()
    with pytest.raises(StreamingQueryException, match=r"belong to the query .*set option takeOver"):
        run("second")
    assert stage.seen() == seen
    owner = redis_server.client().hget(f"assent:owner:{stage.prefix}", "owner")
    run("third", takeOver=f"{owner}-1")
    assert redis_server.client().hget(f"assent:owner:{stage.prefix}", "base") == "2"
