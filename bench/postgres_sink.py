r"""PostgreSQL: `python -m bench.postgres_sink [--quick]`.

Rows per second of whole epochs. With two tasks: Assent against Spark's JDBC writer. With one task:
Assent against psql's `\copy` of a file that is there already.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from assent.testing.postgres import DATABASE, USER, Postgres
from bench import command, jdbc, target
from bench.orders import orders
from bench.query import Contender, Options, Program, Query, in_turns, rates, session
from bench.result import Result, fastest, ratio
from bench.target import Outcome

TASKS = 2
TWO, ONE = "two tasks", "one task"
EXACTLY_ONCE, JDBC, COPY = "assent, exactly_once", "Spark JDBC", "psql \\copy, text"
TABLE = "orders"
FAIRNESS = (
    "The same server for all, with fsync on and room for the log, so that no checkpoint falls into "
    "a run, and files of the log are used again, as on a server that has run for a while; the "
    "table has no index and is emptied before every run. Spark's JDBC writer has "
    "reWriteBatchedInserts, two partitions, and batches of its default size and of a larger one, "
    "of which the faster counts; it is at-least-once. psql reads a file that was made before and "
    "is not counted, while Assent's time includes that Spark makes the rows; psql runs with the "
    "format text, its default, and with binary. The limit in bytes of batches for Python is "
    "lifted, as docs/tuning.md says; JDBC has none."
)
SIZES = (
    command.Size("rows", 1_000_000, 10_000, "rows of an epoch"),
    command.Size("epochs", 3, 1, "epochs of a query, beside the first ones"),
    command.Size("rounds", 5, 1, "how often each contender has its turn"),
    jdbc.BATCHES,
)

_SERVER = {
    "fsync": "on",
    "shared_buffers": "512MB",
    "max_wal_size": "16GB",
    "min_wal_size": "4GB",
    "checkpoint_timeout": "1h",
}
_COLUMNS = (
    "id bigint, customer text, price double precision, paid boolean, created timestamp with time "
    "zone"
)
_ROWS = (
    "SELECT value AS id, 'customer-' || value % 1000000 AS customer, value * 0.25::float8 AS price,"
    " value % 2 = 0 AS paid, now() AS created FROM generate_series(0::bigint, {last}) AS value"
)


def measure(options: argparse.Namespace) -> Result:
    settings = {"spark.jars": jdbc.jars(jdbc.POSTGRES)}
    with (
        tempfile.TemporaryDirectory(prefix="assent-bench-") as folder,
        Postgres(settings=_SERVER) as server,
        session(TASKS, settings) as spark,
    ):
        server.run(f"CREATE TABLE {TABLE} ({_COLUMNS})")

        @contextmanager
        def stage() -> Iterator[Options]:
            _empty(server)
            yield server.options(TABLE)

        def assent(tasks: int, guarantee: str) -> Query:
            return Query(
                f"assent, {guarantee}",
                orders(spark, options.rows, tasks),
                {"deliveryGuarantee": guarantee},
                "assent-postgres",
                stage,
            )

        @contextmanager
        def jdbc_stage() -> Iterator[Options]:
            with stage() as place:
                yield {**place, "url": f"{place['url']}?reWriteBatchedInserts=true"}

        built_in = [
            Query(
                f"{JDBC}, batches of {size:,}",
                orders(spark, options.rows, TASKS),
                {
                    "driver": "org.postgresql.Driver",
                    "batchsize": str(size),
                    "reWriteBatchedInserts": "true",
                },
                stage=jdbc_stage,
                save=jdbc.save,
            )
            for size in options.batches
        ]
        two = in_turns(
            [*built_in, assent(TASKS, "exactly_once"), assent(TASKS, "at_least_once")],
            options.epochs,
            options.rounds,
            quick=options.quick,
        )
        alone: list[Contender] = [assent(1, "exactly_once")]
        notes = []
        if shutil.which("psql"):
            alone += [
                _copy(server, Path(folder), options.rows, kind) for kind in ("text", "binary")
            ]
        else:
            notes.append("psql's \\copy is left out: there is no psql on the PATH")
        one = in_turns(alone, options.epochs, options.rounds, quick=options.quick)
    measures = [*rates(TWO, two), *rates(ONE, one)]
    best = fastest(measures, TWO, JDBC)
    outcomes = [Outcome(target.POSTGRES_JDBC, ratio(measures, TWO, EXACTLY_ONCE, best))]
    if not notes:
        outcomes.append(Outcome(target.POSTGRES_COPY, ratio(measures, ONE, EXACTLY_ONCE, COPY)))
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
