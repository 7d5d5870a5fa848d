"""Many rows of one task go by several COPY statements, in its one transaction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from assent.protocol.errors import AssentError
from assent.protocol.sink import Sink
from assent.sinks import postgres_copy
from assent.sinks.postgres_session import close_idle
from assent.testing.postgres import Postgres
from tests.plugins.postgres import require_postgres
from tests.postgres_stage import PostgresStage
from tests.sql_query import Row, batch

pytestmark = pytest.mark.postgres

KEYED = "id bigint PRIMARY KEY, page text"
FIVE_ROWS = 5 * (40 + postgres_copy._ROW_BYTES)


@pytest.fixture(scope="module", params=["newest", "before"])
def roomy(request: pytest.FixtureRequest) -> Iterator[Postgres]:
    """A server with as many buffers as PostgreSQL lends to one COPY at the most, and more."""
    with require_postgres(request.param, {"shared_buffers": "256MB"}) as server:
        yield server


@pytest.fixture
def short_statements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of some five rows each."""
    monkeypatch.setattr(postgres_copy, "_RING_BYTES", FIVE_ROWS)


def begin(stage: PostgresStage) -> tuple[Sink[Any], Any]:
    sink = stage.sink()
    sink.check(batch().schema)
    return sink, sink.begin(stage.name(), 0)


def small(first: int, *, count: int = 3) -> list[Row]:
    return [(key, "page") for key in range(first, first + count)]


@pytest.mark.parametrize("whole", [False, True])
def test_buffers_are_left_to_the_server_and_not_used_again(
    roomy: Postgres, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    """To use one again, a task would have to write it out, and to wait for the log before.

    The control: one statement for all of it does just that.
    """
    if whole:
        monkeypatch.setattr(postgres_copy, "_RING_BYTES", 2**40)
    roomy.run("SELECT pg_stat_reset_shared('io')")
    stage = PostgresStage(roomy, commit_mode="prepared")
    sink, transaction = begin(stage)
    text = "p" * 500
    for first in range(0, 100_000, 10_000):
        rows = [(key, text) for key in range(first, first + 10_000)]
        sink.write(transaction, batch(*rows))
    handle = sink.pre_commit(transaction)
    close_idle()  # a session tells what it did at its end at the latest
    sink.commit(handle)
    sink.publish(0, [handle])
    assert roomy.rows(f"SELECT count(*) FROM {stage.full}") == [(100_000,)]
    used = (
        "SELECT sum(extends)::int8, sum(reuses)::int8 FROM pg_stat_io WHERE context = 'bulkwrite'"
    )
    server = roomy._running_server()
    server.wait_until(lambda: roomy.rows(used)[0][0] > 0, "statistics were there", 30)
    [(_, reuses)] = roomy.rows(used)
    assert (reuses > 0) is whole


@pytest.mark.usefixtures("short_statements")
@pytest.mark.parametrize("mode", ["prepared", "staged"])
def test_all_statements_are_one_transaction(postgres: Postgres, mode: str) -> None:
    stage = PostgresStage(postgres, commit_mode=mode)
    sink, transaction = begin(stage)
    for first in range(0, 30, 3):
        sink.write(transaction, batch(*small(first)))
    assert stage.rows() == []
    handle = sink.pre_commit(transaction)
    assert stage.rows() == []
    sink.commit(handle)
    sink.publish(0, [handle])
    assert stage.rows() == small(0, count=30)
    assert (stage.prepared(), stage.staged()) == ([], [])


@pytest.mark.usefixtures("short_statements")
def test_a_fault_in_any_statement_leaves_nothing(postgres: Postgres) -> None:
    stage = PostgresStage(postgres, KEYED, commit_mode="prepared")
    sink, transaction = begin(stage)
    sink.write(transaction, batch(*small(0)))
    sink.write(transaction, batch(*small(2)))  # one key again; told at the end of this statement
    with pytest.raises(AssentError, match="duplicate key"):
        sink.write(transaction, batch(*small(10)))
    sink.discard(transaction)
    assert (stage.rows(), stage.prepared(), stage.staged()) == ([], [], [])


@pytest.mark.usefixtures("short_statements")
def test_a_task_can_be_given_up_between_statements(postgres: Postgres) -> None:
    stage = PostgresStage(postgres, KEYED, commit_mode="prepared")
    sink, transaction = begin(stage)
    for first in range(0, 30, 3):
        sink.write(transaction, batch(*small(first)))
    sink.discard(transaction)
    again = stage.prepare(*small(0))  # no key of it is taken any more
    sink.commit(again)
    sink.publish(0, [again])
    assert stage.rows() == small(0)
    assert (stage.prepared(), stage.staged()) == ([], [])
