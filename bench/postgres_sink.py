r"""PostgreSQL: `python -m bench.postgres_sink [--quick]`.

Rows per second of whole epochs. With two tasks, and epochs of several sizes: Assent against Spark's
JDBC writer. With one task: Assent against psql's `\copy` of a file that is there already.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from assent.testing.postgres import DATABASE, USER, Postgres
from bench import command, jdbc, target
from bench.orders import orders
from bench.query import (
    BATCH_ROWS,
    BY_FILE_SYSTEM,
    CHECKPOINT_FILES,
    FOR_THROUGHPUT,
    JAVA_OPTIONS,
    Contender,
    Options,
    Program,
    Query,
    in_turns,
    rates,
    session,
)
from bench.result import Measure, Result, fastest, ratio
from bench.target import Outcome

TASKS = 2
EXACTLY_ONCE, JDBC, COPY = "assent, exactly_once", "Spark JDBC", "psql \\copy, text"
ROWS_ALONE = "Spark's noop sink"
TABLE = "orders"
FAIRNESS = (
    "The same server for all, with fsync on, with room for the log and without autovacuum, so that "
    "neither a checkpoint nor a vacuum falls into a run, and with buffers for all rows of a run. "
    "All buffers and files of the log have been used before, as on a server that has run for a "
    "while. The table has no index and is emptied before every run. Queries are stopped between "
    "two epochs, so the sessions of Assent's tasks live on, as they do in a query that runs for "
    "days; Spark's JDBC writer opens one for every task of every epoch, as it always does. An "
    "epoch has fixed costs, most of them Spark's own, which count for less the larger it is: hence "
    "several sizes. Spark's JDBC writer has reWriteBatchedInserts, two partitions, and batches of "
    "its default size and of a larger one, of which the faster counts; it is at-least-once. psql "
    "reads a file that was made before and is not counted, while Assent's time includes that Spark "
    "makes the rows; psql runs with the format text, its default, and with binary. Spark is set as "
    "docs/tuning.md says: batches for Python have 32,768 rows and no limit in bytes, JDBC has none "
    "of them; and the files of the checkpoint are written with fewer processes of the system, for "
    "JDBC too. Each has a contender with Spark's own settings beside it. Java's garbage collector "
    "is the parallel one, for all of them, since it is one for a whole Java. Spark's noop sink "
    "throws the rows away: it shows what making them takes, which is part of the time of both."
)
SIZES = (
    command.Size(
        "rows", (1_000_000, 4_000_000), (10_000,), "rows of an epoch; the first: one task"
    ),
    command.Size("epochs", 3, 1, "epochs of a query, beside the first ones"),
    command.Size("rounds", 5, 1, "how often each contender has its turn"),
    jdbc.BATCHES,
)

_SERVER = {
    "fsync": "on",
    "shared_buffers": "4GB",
    "max_wal_size": "16GB",
    "min_wal_size": "4GB",
    "checkpoint_timeout": "1h",
    "autovacuum": "off",
}
# Two kilobytes each, so many that they fill all buffers and as much of the log.
_FILLING = (
    "SELECT value, repeat('x', 1900), 1, true, now() FROM generate_series(1, {rows}) AS value"
)
_FILLING_ROWS = 2_100_000
_COLUMNS = (
    "id bigint, customer text, price double precision, paid boolean, created timestamp with time "
    "zone"
)
_ROWS = (
    "SELECT value AS id, 'customer-' || value % 1000000 AS customer, value * 0.25::float8 AS price,"
    " value % 2 = 0 AS paid, now() AS created FROM generate_series(0::bigint, {last}) AS value"
)


def measure(options: argparse.Namespace) -> Result:
    settings = {
        "spark.jars": jdbc.jars(jdbc.POSTGRES),
        BATCH_ROWS: "32768",
        CHECKPOINT_FILES: BY_FILE_SYSTEM,
        JAVA_OPTIONS: FOR_THROUGHPUT,
    }
    with (
        tempfile.TemporaryDirectory(prefix="assent-bench-") as folder,
        Postgres(settings=_SERVER) as server,
        session(TASKS, settings) as spark,
    ):
        server.run(f"CREATE TABLE {TABLE} ({_COLUMNS})")
        if not options.quick:
            server.run(f"INSERT INTO {TABLE} {_FILLING.format(rows=_FILLING_ROWS)}")

        @contextmanager
        def stage() -> Iterator[Options]:
            _empty(server)
            yield server.options(TABLE)

        @contextmanager
        def jdbc_stage() -> Iterator[Options]:
            with stage() as place:
                yield {**place, "url": f"{place['url']}?reWriteBatchedInserts=true"}

        def assent(rows: int, tasks: int, guarantee: str) -> Query:
            return Query(
                f"assent, {guarantee}",
                orders(spark, rows, tasks),
                {"deliveryGuarantee": guarantee},
                "assent-postgres",
                stage,
            )

        def built_in(rows: int, size: int) -> Query:
            return Query(
                f"{JDBC}, batches of {size:,}",
                orders(spark, rows, TASKS),
                {
                    "driver": "org.postgresql.Driver",
                    "batchsize": str(size),
                    "reWriteBatchedInserts": "true",
                },
                stage=jdbc_stage,
                save=jdbc.save,
            )

        measures: list[Measure] = []
        outcomes = []

        def compare(group: str, contenders: Sequence[Contender]) -> None:
            found = in_turns(contenders, options.epochs, options.rounds, quick=options.quick)
            measures.extend(rates(group, found))

        for rows in options.rows:
            group = f"two tasks, epochs of {rows:,} rows"
            writers = [built_in(rows, size) for size in options.batches]
            sinks = [assent(rows, TASKS, one) for one in ("exactly_once", "at_least_once")]
            noop = Query(ROWS_ALONE, orders(spark, rows, TASKS), {}, "noop")
            untuned = [one.untuned() for one in (writers[0], sinks[0])]
            compare(group, [*writers, *sinks, *untuned, noop])
            best = fastest(measures, group, JDBC)
            value = ratio(measures, group, EXACTLY_ONCE, best)
            outcomes.append(Outcome(target.POSTGRES_JDBC, value, f"epochs of {rows:,} rows"))
        rows = options.rows[0]
        alone: list[Contender] = [assent(rows, 1, "exactly_once")]
        notes = []
        if shutil.which("psql"):
            alone += [_copy(server, Path(folder), rows, kind) for kind in ("text", "binary")]
        else:
            notes.append("psql's \\copy is left out: there is no psql on the PATH")
        group = f"one task, epochs of {rows:,} rows"
        compare(group, alone)
        if not notes:
            value = ratio(measures, group, EXACTLY_ONCE, COPY)
            outcomes.append(Outcome(target.POSTGRES_COPY, value))
    return Result(
        "postgres_sink",
        "PostgreSQL",
        FAIRNESS,
        {},
        tuple(measures),
        tuple(outcomes),
        tuple(notes),
    )


def _empty(server: Postgres) -> None:
    server.empty(TABLE)
    server.run("CHECKPOINT")  # it belongs to nobody's time


def _copy(server: Postgres, folder: Path, rows: int, kind: str) -> Program:
    """psql, as a process of its own for each epoch."""
    file = folder / f"orders.{kind}"
    query = _ROWS.format(last=rows - 1)
    _psql(server, f"\\copy ({query}) TO '{file}' WITH (FORMAT {kind})")

    def once() -> int:
        _psql(server, f"\\copy {TABLE} FROM '{file}' WITH (FORMAT {kind})")
        return rows

    return Program(f"psql \\copy, {kind}", {"format": kind}, once, lambda: _empty(server))


def _psql(server: Postgres, statement: str) -> None:
    command_line = ["psql", "--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1"]
    command_line += ["--host", "127.0.0.1", "--port", str(server.port), "--username", USER]
    subprocess.run(
        [*command_line, "--dbname", DATABASE, "--command", statement],
        env={**os.environ, "PGPASSWORD": server.password},
        check=True,
        stdout=subprocess.DEVNULL,
    )


if __name__ == "__main__":
    command.run(__doc__, SIZES, measure)
