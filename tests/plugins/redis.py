"""Fixtures: real Redis servers, shared by the tests of a session.

Where they cannot be had, tests are skipped, and one line at the end says so; with CI set in the
environment they fail instead.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeVar

import pytest

if TYPE_CHECKING:
    # Only where they are used: this plugin is loaded for all tests.
    from assent.testing.redis import RedisCluster, RedisServer

    StartServer = Callable[[Mapping[str, str]], RedisServer]

Server = TypeVar("Server")

_missing: list[str] = []


def require_redis(make: Callable[[], Server]) -> Server:
    """A server that is not started yet, or no test: skipped, or failed where CI is set."""
    from assent.testing.redis import RedisUnavailable

    try:
        return make()
    except RedisUnavailable as error:
        reason = f"no Redis here: {error}"
    _missing.append(reason)
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """One server with the settings that the sink asks for."""
    from assent.testing.redis import RedisServer

    with require_redis(RedisServer) as server:
        yield server


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[RedisCluster]:
    """Three servers in cluster mode."""
    from assent.testing.redis import RedisCluster

    with require_redis(RedisCluster) as cluster:
        yield cluster


@pytest.fixture
def start_redis() -> Iterator[StartServer]:
    """Starts servers of a test's own, with settings over the usual ones."""
    from assent.testing.redis import RedisServer

    with ExitStack() as servers:
        yield lambda settings: servers.enter_context(require_redis(lambda: RedisServer(settings)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _missing:
        first = _missing[0].splitlines()[0]
        terminalreporter.write_line(f"REDIS WAS NOT TESTED: {first}", red=True, bold=True)
