"""Fixtures: a real HBase, shared by the tests of a session.

Where it cannot be had, tests are skipped, and one line at the end says so; with CI set in the
environment they fail instead.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from assent.testing.jars import JarsUnavailable

if TYPE_CHECKING:
    # Only where it is used: this plugin is loaded for all tests.
    from assent.testing.hbase import HBaseServer

_missing: list[str] = []


def require_hbase() -> HBaseServer:
    """An HBase that is not started yet, or no test: skipped, or failed where CI is set."""
    from assent.testing.hbase import HBaseServer

    try:
        return HBaseServer()
    except JarsUnavailable as error:
        reason = f"no HBase here: {error}"
    _missing.append(reason)
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def hbase() -> Iterator[HBaseServer]:
    """One HBase, which tests leave running."""
    with require_hbase() as server:
        yield server


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _missing:
        first = _missing[0].splitlines()[0]
        terminalreporter.write_line(f"HBASE WAS NOT TESTED: {first}", red=True, bold=True)
