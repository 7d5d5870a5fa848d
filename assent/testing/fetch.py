"""Fetch what the tests' servers run from, all at once: `python -m assent.testing.fetch`.

Once: it is kept in the cache folder. What cannot be had is told of, and fails nothing here: the
tests that need it say so.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from assent.protocol.errors import AssentError
from assent.testing import hbase, kafka, mysql, spark_kafka

_PARTS: Mapping[str, Callable[[], object]] = {
    "HBase": hbase.server_jars,
    f"Kafka {kafka.KAFKA}": partial(kafka.broker_jars, kafka.KAFKA),
    f"Kafka {kafka.KAFKA_BEFORE}": partial(kafka.broker_jars, kafka.KAFKA_BEFORE),
    "Spark's Kafka connector": spark_kafka.connector_jars,
    mysql.MYSQL.name: partial(mysql.find_program, mysql.MYSQL),
    mysql.MYSQL_BEFORE.name: partial(mysql.find_program, mysql.MYSQL_BEFORE),
}


def fetch(parts: Mapping[str, Callable[[], object]] = _PARTS) -> dict[str, str]:
    """Fetch all of it, and say of each part that cannot be had why not."""
    with ThreadPoolExecutor(len(parts)) as pool:
        fetching = {name: pool.submit(part) for name, part in parts.items()}
    errors = {name: one.exception() for name, one in fetching.items()}
    for error in errors.values():
        if error is not None and not isinstance(error, AssentError):
            raise error
    return {name: str(error) for name, error in errors.items() if error is not None}


def main() -> None:
    for name, why in fetch().items():
        print(
            f"assent: {name} cannot be had; tests that need it will say so: {why}", file=sys.stderr
        )


if __name__ == "__main__":
    main()
