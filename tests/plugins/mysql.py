"""Fixtures: real MySQL and MariaDB servers, shared by the tests of a session.

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
    from assent.testing.mysql import MySql

_missing: list[str] = []


def require_mysql(release: str = "mariadb", settings: Mapping[str, str] | None = None) -> MySql:
    """A server that is not started yet, or no test: skipped, or failed where CI is set."""
    from assent.testing.mysql import MARIADB, MYSQL, MYSQL_BEFORE, MySql, MySqlUnavailable

    wanted = {"mariadb": MARIADB, "mysql": MYSQL, "mysql-before": MYSQL_BEFORE}[release]
    try:
        return MySql(wanted, settings)
    except MySqlUnavailable as error:
        reason = f"no {wanted} here: {error}"
    _missing.append(reason)
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MySql]:
    """MariaDB, which starts in a second."""
    with require_mysql() as server:
        yield server


@pytest.fixture(scope="session")
def mysql() -> Iterator[MySql]:
    """MySQL of a release that detaches what is prepared at once."""
    with require_mysql("mysql") as server:
        yield server


@pytest.fixture(scope="session")
def mysql_before() -> Iterator[MySql]:
    """MySQL of a release that does not."""
    with require_mysql("mysql-before") as server:
        yield server


@pytest.fixture(scope="session", params=["mariadb", "mysql"])
def mysql_kind(request: pytest.FixtureRequest) -> MySql:
    """A server, once of each kind."""
    server: MySql = request.getfixturevalue(request.param)
    return server


@pytest.fixture(params=["mariadb", "mysql"])
def own_mysql(request: pytest.FixtureRequest) -> Iterator[MySql]:
    """A server of the test's own, to be killed, once of each kind."""
    with require_mysql(request.param) as server:
        yield server


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for reason in dict.fromkeys(reason.splitlines()[0] for reason in _missing):
        terminalreporter.write_line(f"MYSQL WAS NOT TESTED: {reason}", red=True, bold=True)
