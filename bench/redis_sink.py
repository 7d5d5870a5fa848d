"""Redis: `python -m bench.redis_sink [--quick]`.

Rows per second of whole epochs, with two tasks: Assent against pipelines of redis-py in the tasks
of the same query, which is what one would write by hand.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
from pyspark.sql import DataFrame

from assent.testing.redis import RedisServer
from bench import command
from bench.query import Options, Query, generated, in_turns, rates, session
from bench.result import Result

TASKS = 2
GROUP = "two tasks"
FAIRNESS = (
    "The same server for all, which has every write on disk before it answers (appendfsync "
    "always), emptied before every run; the same hashes under the same keys, but for a prefix of "
    "each run's own. redis-py writes pipelines of HSET without MULTI, of 1,000 and of 10,000 rows, "
    "straight from the Arrow batches of `mapInArrow`, over one connection per task; it guards "
    "against nothing."
)
SIZES = (
    command.Size("rows", 200_000, 5_000, "rows of an epoch"),
    command.Size("epochs", 3, 1, "epochs of a query, beside the first ones"),
    command.Size("rounds", 5, 1, "how often each contender has its turn"),
)
PIPELINES = (1_000, 10_000)

_COLUMNS = (
    "string(value) AS id",
    "concat('customer-', value % 1000000) AS customer",
    "string(value % 97) AS amount",
)


def measure(options: argparse.Namespace) -> Result:
    with RedisServer() as server, session(TASKS) as spark:
        numbers = itertools.count()

        @contextmanager
        def stage() -> Iterator[Options]:
            server.client().flushall()
            # Tasks of a query that was stopped may still write for a moment.
            prefix = f"orders-{next(numbers)}:"
            yield {"url": server.url, "keyPrefix": prefix, "keyColumns": "id"}

        frame = generated(spark, options.rows, TASKS, *_COLUMNS)
        contenders = [
            Query(
                f"redis-py, pipelines of {size:,}",
                frame,
                {"pipeline": str(size), "transaction": "False"},
                stage=stage,
                save=_save,
            )
            for size in PIPELINES
        ]
        contenders += [
            Query(
                f"assent, {guarantee}",
                frame,
                {"deliveryGuarantee": guarantee},
                "assent-redis",
                stage,
            )
            for guarantee in ("exactly_once", "at_least_once")
        ]
        found = in_turns(contenders, options.epochs, options.rounds, quick=options.quick)
    return Result("redis_sink", "Redis", FAIRNESS, {}, tuple(rates(GROUP, found)))


def _save(batch: DataFrame, options: Options) -> None:
    pipeline = _pipeline(options["url"], options["keyPrefix"], int(options["pipeline"]))
    batch.mapInArrow(pipeline, "written long").collect()


def _pipeline(
    url: str, prefix: str, size: int
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import redis

        with redis.Redis.from_url(url) as client:
            pipeline = client.pipeline(transaction=False)
            for batch in batches:
                columns = (batch.column(number).to_pylist() for number in range(3))
                for key, customer, amount in zip(*columns, strict=True):
                    fields = {"customer": customer, "amount": amount}
                    pipeline.hset(prefix + key, mapping=fields)
                    if len(pipeline) >= size:
                        pipeline.execute()
            pipeline.execute()
        yield pa.record_batch({"written": pa.array([], pa.int64())})

    return write


if __name__ == "__main__":
    command.run(__doc__, SIZES, measure)
