"""Real Spark and a real Redis: both front-ends, and drivers that are killed (SIGKILL)."""

from __future__ import annotations

import runpy
from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import assent
from assent.ledger.settlement import unfinished
from assent.protocol.name import nonce
from assent.spark.assembly import open_checkpoint
from assent.testing.boundaries import DEFAULT_BOUNDARIES, Boundaries, format_boundaries
from assent.testing.crash import CrashPoint
from assent.testing.pageviews import APPS, page_views
from assent.testing.process import DriverProcess
from assent.testing.reader import Count, expected_rows
from assent.testing.redis import RedisServer
from tests.kill_chain import SECONDS
from tests.redis_query import RedisStage

pytestmark = [pytest.mark.redis, pytest.mark.spark]

EXAMPLE = Path(__file__).parent.parent / "examples" / "page_views_into_redis.py"
BOUNDARIES: Boundaries = ((1500, 1500), (3000, 3005), (3000, 3008))
POINTS = ["during-write@1", "before-decide@1", "after-decide@1", "during-commit@1"]


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


def test_the_example(redis_server: RedisServer, tmp_path: Path) -> None:
    command = [str(EXAMPLE), "--folder", str(tmp_path / "example"), "--url", redis_server.url]
    with DriverProcess(command, tmp_path) as driver:
        driver.await_exit(SECONDS)
        assert "20005" in driver.tail()
    counts = runpy.run_path(str(EXAMPLE))["counts"]
    assert counts(redis_server.url) == views_per_app()


@pytest.mark.faults
@pytest.mark.parametrize("front_end", ["datasource", "foreachbatch"])
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_the_worst_instants(
    redis_server: RedisServer, front_end: str, point: str, tmp_path: Path
) -> None:
    prefix = f"{nonce()}:"
    checkpoint = tmp_path / "checkpoint"
    command = [
        *("-m", "assent.testing.job", "--front-end", front_end, "--sink", "redis"),
        *("--url", redis_server.url, "--key-prefix", prefix),
        *("--checkpoint", str(checkpoint), "--boundaries", format_boundaries(BOUNDARIES)),
    ]
    epochs = expected_rows(BOUNDARIES)

    def visible() -> Counter[tuple[int, int]]:
        found: Counter[tuple[int, int]] = Counter()
        for key in redis_server.client().scan_iter(f"{prefix}*", count=1000):
            partition, offset = key.removeprefix(prefix).split(":")
            found[int(partition), int(offset)] += 1
        return found

    with DriverProcess(command, tmp_path, crash=CrashPoint.parse(point)) as driver:
        driver.await_marker(SECONDS)
        driver.kill_all()
    # Rows of the epoch that was under way may be there, and none of a later one.
    assert not visible() - (epochs[0] + epochs[1])
    assert not epochs[0] - visible()
    with DriverProcess(command, tmp_path) as driver:
        driver.await_exit(SECONDS)
    found = Count.of(visible(), epochs[0] + epochs[1] + epochs[2])
    assert found.exact, found
    ledger, state = open_checkpoint(str(checkpoint))
    assert unfinished(ledger, state) == []


@pytest.mark.faults
def test_redis_is_killed_under_a_running_query(redis_server: RedisServer, tmp_path: Path) -> None:
    """SIGKILL of the server while a task writes; the query is started again when it is back."""
    with RedisServer() as server:
        prefix = "views:"
        command = [
            *("-m", "assent.testing.job", "--front-end", "datasource", "--sink", "redis"),
            *("--url", server.url, "--key-prefix", prefix),
            *("--checkpoint", str(tmp_path / "checkpoint")),
            *("--boundaries", format_boundaries(BOUNDARIES)),
        ]
        point = CrashPoint.parse("during-write@1/1")
        with DriverProcess(command, tmp_path, crash=point) as driver:
            driver.await_marker(SECONDS)
            server.kill()
            driver.kill_all()
        server.start()
        with DriverProcess(command, tmp_path) as driver:
            driver.await_exit(SECONDS)
        keys = list(server.client().scan_iter(f"{prefix}*", count=1000))
        assert len(keys) == sum(BOUNDARIES[-1])
