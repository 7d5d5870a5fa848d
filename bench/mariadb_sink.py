"""MariaDB: `python -m bench.mariadb_sink [--quick]`.

Rows per second of whole epochs, with two tasks: Assent against Spark's JDBC writer, with MariaDB's
driver and with MySQL's, each at its best settings.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from assent.testing.mysql import MARIADB, MySql
from bench import command, jdbc
from bench.orders import orders
from bench.query import Options, Query, in_turns, rates, session
from bench.result import Result

TASKS = 2
GROUP = "two tasks"
TABLE = "orders"
FAIRNESS = (
    "The same server for all, with InnoDB flushing its log at every commit and to the disk; the "
    "table has no index and is emptied before every run. Spark's JDBC writer has two "
    "partitions, and batches of its default size and of a larger one, with MariaDB's driver and "
    "its bulk protocol (useBulkStmts), and with MySQL's driver and rewriteBatchedStatements; it is "
    "at-least-once."
)
SIZES = (
    command.Size("rows", 500_000, 10_000, "rows of an epoch"),
    command.Size("epochs", 3, 1, "epochs of a query, beside the first ones"),
    command.Size("rounds", 5, 1, "how often each contender has its turn"),
    jdbc.BATCHES,
)

_SERVER = {
    "innodb-flush-method": "O_DIRECT",
    "innodb-flush-log-at-trx-commit": "1",
    "innodb-buffer-pool-size": "1G",
    "innodb-log-file-size": "2G",
    "max-allowed-packet": "64M",
}
_COLUMNS = "id bigint, customer varchar(32), price double, paid boolean, created timestamp(6) NULL"
# Spark quotes names as MySQL wants it only where the URL says mysql.
_DRIVERS = {
    "Spark JDBC, MariaDB's driver": (
        "org.mariadb.jdbc.Driver",
        "permitMysqlScheme&useBulkStmts=true&sslMode=disable",
    ),
    "Spark JDBC, MySQL's driver": (
        "com.mysql.cj.jdbc.Driver",
        "rewriteBatchedStatements=true&sslMode=DISABLED&connectionTimeZone=UTC"
        "&allowPublicKeyRetrieval=true",
    ),
}


def measure(options: argparse.Namespace) -> Result:
    settings = {"spark.jars": jdbc.jars(jdbc.MARIADB, jdbc.MYSQL)}
    with MySql(MARIADB, _SERVER) as server, session(TASKS, settings) as spark:
        server.run(f"CREATE TABLE {TABLE} ({_COLUMNS})")
        frame = orders(spark, options.rows, TASKS)
        contenders = [
            Query(
                f"{name}, batches of {size:,}",
                frame,
                {"driver": driver, "batchsize": str(size), "parameters": parameters},
                stage=_stage(server, parameters),
                save=jdbc.save,
            )
            for name, (driver, parameters) in _DRIVERS.items()
            for size in options.batches
        ]
        contenders += [
            Query(
                f"assent, {guarantee}",
                frame,
                {"deliveryGuarantee": guarantee},
                "assent-mysql",
                _stage(server),
            )
            for guarantee in ("exactly_once", "at_least_once")
        ]
        found = in_turns(contenders, options.epochs, options.rounds, quick=options.quick)
    return Result("mariadb_sink", "MariaDB", FAIRNESS, {}, tuple(rates(GROUP, found)))


def _stage(
    server: MySql, parameters: str | None = None
) -> Callable[[], AbstractContextManager[Options]]:
    @contextmanager
    def stage() -> Iterator[Options]:
        server.empty(TABLE)
        place = server.options(TABLE)
        if parameters is not None:
            url = place["url"].replace("jdbc:mariadb:", "jdbc:mysql:")
            place = {**place, "url": f"{url}?{parameters}"}
        yield place

    return stage


if __name__ == "__main__":
    command.run(__doc__, SIZES, measure)
