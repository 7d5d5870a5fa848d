"""Fixtures: real Kafka brokers, shared by the tests of a session.

Where they cannot be had, tests are skipped, and one line at the end says so; with CI set in the
environment they fail instead.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from assent.testing.jars import JarsUnavailable

if TYPE_CHECKING:
    # Only where it is used: this plugin is loaded for all tests, and takes its time.
    from assent.testing.kafka import KafkaCluster

# So that tests of timeouts are done in seconds.
_PROPERTIES = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}

_missing: list[str] = []


def require_kafka(line: str = "newest", **arguments: object) -> KafkaCluster:
    """A cluster that is not started yet, or no test: skipped, or failed where CI is set."""
    from assent.testing.kafka import KAFKA, KAFKA_BEFORE, KafkaCluster

    version = {"newest": KAFKA, "before": KAFKA_BEFORE}[line]
    try:
        return KafkaCluster(version, **arguments)  # type: ignore[arg-type]
    except JarsUnavailable as error:
        reason = f"no Kafka {version} here: {error}"
    _missing.append(reason)
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaCluster]:
    """One broker of the newest line."""
    with require_kafka(properties=_PROPERTIES) as cluster:
        yield cluster


@pytest.fixture(scope="session", params=["newest", "before"])
def kafka_line(request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    """One broker, once of each line that is supported."""
    with require_kafka(request.param, properties=_PROPERTIES) as cluster:
        yield cluster


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _missing:
        first = _missing[0].splitlines()[0]
        terminalreporter.write_line(f"KAFKA WAS NOT TESTED: {first}", red=True, bold=True)
