"""Fixtures: real PostgreSQL servers, shared by the tests of a session.

Where they cannot be had, tests are skipped, and one line at the end says so; with CI set in the
environment they fail instead.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    # Only where it is used: this plugin is loaded for all tests.
    from assent.testing.postgres import Postgres

_missing: list[str] = []


def require_postgres(line: str = "newest", settings: Mapping[str, str] | None = None) -> Postgres:
    """A server that is not started yet, or no test: skipped, or failed where CI is set."""
    from assent.testing.postgres import POSTGRES, POSTGRES_BEFORE, Postgres, PostgresUnavailable

    version = {"newest": POSTGRES, "before": POSTGRES_BEFORE}[line]
    try:
        return Postgres(version, settings)
    except PostgresUnavailable as error:
        reason = f"no PostgreSQL {version} here: {error}"
    _missing.append(reason)
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A server of the newest line, which prepares transactions."""
    with require_postgres() as server:
        yield server


@pytest.fixture(scope="session", params=["newest", "before"])
def postgres_line(request: pytest.FixtureRequest) -> Iterator[Postgres]:
    """A server, once of each line that is tested."""
    with require_postgres(request.param) as server:
        yield server


@pytest.fixture(scope="session")
def plain_postgres() -> Iterator[Postgres]:
    """A server as it is shipped, and as most managed ones are: it prepares nothing."""
    with require_postgres(settings={"max_prepared_transactions": "0"}) as server:
        yield server


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    """A server of the test's own, to be killed."""
    with require_postgres() as server:
        yield server


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _missing:
        first = _missing[0].splitlines()[0]
        terminalreporter.write_line(f"POSTGRESQL WAS NOT TESTED: {first}", red=True, bold=True)
