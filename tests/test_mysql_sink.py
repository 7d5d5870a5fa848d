"""The MySQL sink on real servers of both kinds, in both commit modes.

After each phase: what is prepared, what is staged, and what a reader sees.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pymysql
import pytest

from assent.ledger.ledger import Ledger
from assent.protocol.errors import (
    ConfigurationError,
    FencedError,
    RetriableError,
    TornEpochError,
)
from assent.protocol.guarantee import Guarantee
from assent.protocol.handle import Handle
from assent.protocol.record import RecordKey
from assent.protocol.sink import Sink
from assent.protocol.sweeper import Sweeper
from assent.protocol.verdict import Verdict
from assent.sinks.mark import mark
from assent.sinks.mysql_session import close_idle
from assent.sinks.mysql_xa import xid
from assent.sinks.sql_name import SqlName
from assent.testing.memory import MemoryStore
from assent.testing.mysql import USER, MySql
from tests.mysql_stage import MySqlStage
from tests.sql_query import batch

pytestmark = pytest.mark.mysql


@pytest.fixture(params=["prepared", "staged"])
def stage(request: pytest.FixtureRequest, mysql_kind: MySql) -> MySqlStage:
    stage = MySqlStage(mysql_kind, commit_mode=request.param)
    stage.sink().check(batch().schema)
    return stage


def waiting(stage: MySqlStage) -> int:
    """How many transactions wait, each in the one place that its commit mode has for it."""
    prepared, staged = len(stage.prepared()), len(stage.staged())
    assert not (prepared and staged)
    assert (staged if stage.options["commit_mode"] == "prepared" else prepared) == 0
    return prepared + staged


# One transaction


def test_begin_write_pre_commit_commit_publish(stage: MySqlStage) -> None:
    sink = stage.sink()
    transaction = sink.begin(stage.name(place=5, partition=3, term=4), 9)
    sink.write(transaction, batch((1, "a"), (2, "b")))
    sink.write(transaction, batch((3, "c")))
    # Staged: the table is there, and is found should the task die; it is nobody's vote yet.
    begun = stage.handles()
    assert (waiting(stage), len(begun), stage.rows()) == ((len(begun),) * 2 + ([],))
    assert len(begun) == (stage.options["commit_mode"] == "staged")
    assert [sink.verdict(handle) for handle in begun] == [Verdict.ABORTED] * len(begun)
    handle = sink.pre_commit(transaction)
    assert handle.name.startswith(f"assent-{stage.identity}-4-5-3-")
    assert handle.details["mode"] == stage.options["commit_mode"]
    assert stage.server.password not in str(handle) + repr(sink) + sink.target
    assert sink.verdict(handle) is Verdict.PENDING
    [found] = sink.pending(stage.identity)
    assert (found.handle, found.term, found.place, found.modulus) == (handle, 4, 5, 0)
    if stage.options["commit_mode"] == "staged":  # XA RECOVER tells no time
        assert found.started_at is not None
        assert abs(found.started_at - time.time()) < 60
    assert (waiting(stage), stage.rows()) == (1, [])
    sink.commit(handle)
    sink.publish(9, [handle])
    for _ in range(2):
        assert sink.verdict(handle) is Verdict.COMMITTED
        assert (waiting(stage), stage.handles()) == (0, [])
        assert stage.rows() == [(1, "a"), (2, "b"), (3, "c")]
        assert (stage.witnesses(), stage.witnesses("staged")) == (1, 0)
        sink.publish(9, [handle])
    with pytest.raises(FencedError):
        sink.abort(handle)
    assert stage.rows() == [(1, "a"), (2, "b"), (3, "c")]


def test_commit_may_be_repeated_and_cannot_be_undone(stage: MySqlStage) -> None:
    sink = stage.sink()
    handle = stage.prepare((1, "a"))
    for _ in range(2):
        for _ in range(2):
            sink.commit(handle)
            assert sink.verdict(handle) is Verdict.COMMITTED
            assert stage.handles() == []
            with pytest.raises(FencedError):
                sink.abort(handle)
        sink.publish(0, [handle])
    assert (waiting(stage), stage.rows()) == (0, [(1, "a")])


def test_abort(stage: MySqlStage) -> None:
    sink = stage.sink()
    handle = stage.prepare((1, "a"))
    assert waiting(stage) == 1
    for _ in range(2):
        sink.abort(handle)
        assert sink.verdict(handle) is Verdict.ABORTED
        assert (waiting(stage), stage.handles(), stage.rows()) == (0, [], [])
    with pytest.raises(TornEpochError, match="it is aborted"):
        sink.commit(handle)
    assert stage.rows() == []


def test_discard_leaves_nothing(stage: MySqlStage) -> None:
    sink = stage.sink()
    for rows in ([], [(1, "a")], [(number, "x") for number in range(5000)]):
        transaction = sink.begin(stage.name(), 0)
        if rows:
            sink.write(transaction, batch(*rows))
        sink.discard(transaction)
        assert (waiting(stage), stage.handles(), stage.rows()) == (0, [], [])


def test_recovery_from_another_process(stage: MySqlStage) -> None:
    """The process that wrote is killed; the text of its handle is all that is left."""
    script = textwrap.dedent(
        f"""
        import os, signal
        from tests.sql_query import batch
        from assent import MySqlSink, TransactionName
        sink = MySqlSink(
            {stage.server.url!r}, {stage.full!r}, {USER!r}, {stage.server.password!r},
            commit_mode={stage.options["commit_mode"]!r})
        transaction = sink.begin(TransactionName({stage.identity!r}, 0, 0, 0, "0000"), 0)
        sink.write(transaction, batch((1, "a"), (2, "b")))
        print(sink.pre_commit(transaction), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=Path(__file__).parent.parent,
    )
    assert done.returncode == -9, done.stderr
    handle = Handle.parse(done.stdout.strip())
    sink = stage.sink()
    assert stage.handles() == [handle]
    sink.recover_and_commit(handle, None)
    sink.publish(0, [handle])
    assert (waiting(stage), stage.rows()) == (0, [(1, "a"), (2, "b")])


def test_a_handle_of_another_sink_is_refused(stage: MySqlStage) -> None:
    handle = stage.prepare((1, "a"))
    other = MySqlStage(stage.server)
    for act in (other.sink().commit, other.sink().abort, other.sink().verdict):
        with pytest.raises(ConfigurationError, match="another sink"):
            act(handle)
    with pytest.raises(ConfigurationError, match="does not name"):
        stage.sink().commit(Handle("mysql", "assent-0-1"))
    stage.sink().abort(handle)


def test_an_epoch_appears_in_one_act(stage: MySqlStage) -> None:
    """Staged: all tasks at once. Prepared: one after the other."""
    sink = stage.sink()
    handles = [stage.prepare((number, "x"), partition=number) for number in range(3)]
    assert (waiting(stage), stage.rows()) == (3, [])
    seen = []
    for handle in handles:
        sink.commit(handle)
        seen.append(len(stage.rows()))
    sink.publish(0, handles)
    assert seen == ([1, 2, 3] if stage.options["commit_mode"] == "prepared" else [0, 0, 0])
    assert (waiting(stage), len(stage.rows())) == (0, 3)


def test_an_epoch_of_which_a_part_is_gone_is_not_moved_in_part(mariadb: MySql) -> None:
    stage = MySqlStage(mariadb, commit_mode="staged")
    sink = stage.sink()
    sink.check(batch().schema)
    handles = [stage.prepare((number, "x"), partition=number) for number in range(2)]
    sink.abort(handles[1])
    with pytest.raises(TornEpochError, match="epoch 7 cannot be moved"):
        sink.publish(7, handles)
    assert (len(stage.staged()), stage.rows()) == (1, [])
    sink.abort(handles[0])


# Orphans


def test_orphans_are_found_by_identity_and_sink_and_only_those(stage: MySqlStage) -> None:
    other = MySqlStage(stage.server, **stage.options)
    other.sink().check(batch().schema)
    mine = [stage.prepare((place, "a"), place=place) for place in range(3)]
    theirs = other.prepare((1, "b"))
    # Another sink of the same query, into a table beside this one.
    second = MySqlStage(stage.server, "", **stage.options)
    second.identity, second.schema = stage.identity, stage.schema
    stage.server.run(f"CREATE TABLE {second.full} (id bigint, page text)")
    second.sink().check(batch().schema)
    seconds = second.prepare((1, "c"))
    assert sorted(map(str, stage.handles())) == sorted(map(str, mine))
    assert other.handles() == [theirs]
    assert second.handles() == [seconds]
    for handle in mine:
        stage.sink().abort(handle)
    assert second.sink().verdict(seconds) is Verdict.PENDING
    second.sink().abort(seconds)
    other.sink().abort(theirs)


def test_the_sweeper_spares_the_place_that_is_being_written(stage: MySqlStage) -> None:
    sink = stage.sink()
    dead = stage.prepare((1, "dead"), place=2)
    alive = stage.prepare((2, "alive"), place=3)
    sweeper = Sweeper(Ledger(MemoryStore()), [sink])
    assert sweeper.sweep(stage.identity, RecordKey(3, 0)) == 1
    assert sink.verdict(dead) is Verdict.ABORTED
    assert stage.handles() == [alive]
    assert sweeper.sweep(stage.identity, RecordKey(0, 1)) == 1  # a newer term
    assert (waiting(stage), stage.rows()) == (0, [])


# Verdicts


def test_what_an_administrator_does_is_seen(stage: MySqlStage) -> None:
    sink = stage.sink()
    given_up, carried_out = stage.prepare((1, "a")), stage.prepare((2, "b"), partition=1)
    if stage.options["commit_mode"] == "prepared":
        stage.server.run(f"XA ROLLBACK {xid(SqlName.parse(given_up.name))}")
        stage.server.run(f"XA COMMIT {xid(SqlName.parse(carried_out.name))}")
        assert sink.verdict(carried_out) is Verdict.COMMITTED
    else:
        for table in stage.staged():
            stage.server.run(f"DROP TABLE {stage.schema}.{table}")
        assert sink.verdict(carried_out) is Verdict.ABORTED
        sink.abort(carried_out)
    assert sink.verdict(given_up) is Verdict.ABORTED
    with pytest.raises(TornEpochError, match="it is aborted"):
        sink.commit(given_up)
    sink.abort(given_up)
    assert (waiting(stage), stage.handles()) == (0, [])


def test_pruned_witnesses_make_the_verdict_unknown_and_not_aborted(stage: MySqlStage) -> None:
    sink = stage.sink(retained_witnesses=5)
    handles = []
    for place in range(31):
        handle = stage.prepare((place, "x"), sink=sink, place=place)
        sink.commit(handle)
        sink.publish(place, [handle])
        handles.append(handle)
    # Pruned at places 10, 20 and 30, through 25.
    assert stage.witnesses() == 5
    verdicts = [sink.verdict(handle) for handle in handles]
    assert verdicts == [Verdict.UNKNOWN] * 26 + [Verdict.COMMITTED] * 5
    never = stage.prepare((99, "y"), place=30, partition=1)
    sink.abort(never)
    assert sink.verdict(never) is Verdict.ABORTED
    assert len(stage.rows()) == 31


def test_without_the_table_of_witnesses_nobody_knows(stage: MySqlStage) -> None:
    handle = stage.prepare((1, "a"))
    stage.sink().commit(handle)
    stage.server.run(f"DROP TABLE {stage.schema}.assent_witnesses")
    assert stage.sink().verdict(handle) is Verdict.UNKNOWN


# The other guarantees


@pytest.mark.parametrize("guarantee", [Guarantee.AT_LEAST_ONCE, Guarantee.NONE])
def test_ordinary_commits(stage: MySqlStage, guarantee: Guarantee) -> None:
    sink = stage.sink()
    sink.guarantee = guarantee
    sink.check(batch().schema)
    handle = stage.prepare((1, "a"), (2, "b"), sink=sink)
    assert (waiting(stage), stage.rows()) == (0, [(1, "a"), (2, "b")])
    sink.commit(handle)
    sink.publish(0, [handle])
    sink.abort(handle)
    assert stage.handles() == []
    assert stage.witnesses() == 0
    assert stage.rows() == [(1, "a"), (2, "b")]


# Sessions and what they hold


@pytest.mark.parametrize("release", ["mariadb", "mysql", "mysql_before"])
def test_unknown_is_no_verdict(request: pytest.FixtureRequest, release: str) -> None:
    """While the session that prepared is open, some servers deny that there is a transaction."""
    server: MySql = request.getfixturevalue(release)
    stage = MySqlStage(server, commit_mode="prepared")
    sink = stage.sink()
    sink.check(batch().schema)
    name = SqlName(stage.name(), mark(sink.target))
    handle = Handle("mysql", str(name), {"mode": "prepared", "target": sink.target})
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in (
            f"XA START {xid(name)}",
            f"INSERT INTO {stage.full} VALUES (1, 'a')",
            f"INSERT INTO {stage.schema}.assent_witnesses (name, identity, mark, place, state)"
            f" VALUES ('{name}', '{stage.identity}', '{name.mark}', 0, 'committed')",
            f"XA END {xid(name)}",
            f"XA PREPARE {xid(name)}",
        ):
            cursor.execute(statement)
        assert stage.handles() == [handle]
        assert sink.verdict(handle) is Verdict.PENDING
        if release != "mysql":
            for act in (sink.commit, sink.abort):
                with pytest.raises(RetriableError, match="still held by the session"):
                    act(handle)
            assert (sink.verdict(handle), stage.rows()) == (Verdict.PENDING, [])
    wait_until_committed(sink, handle)
    assert sink.verdict(handle) is Verdict.COMMITTED
    assert (stage.prepared(), stage.rows()) == ([], [(1, "a")])


def wait_until_committed(sink: Sink[Any], handle: Handle) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            sink.commit(handle)
            return
        except RetriableError:
            assert time.monotonic() < deadline


def test_a_release_that_detaches_late_goes_through_all_phases(mysql_before: MySql) -> None:
    """Each commit comes right after the vote, as it would be too early for an open session."""
    stage = MySqlStage(mysql_before, commit_mode="prepared")
    sink = stage.sink()
    sink.check(batch().schema)
    for place in range(20):
        handle = stage.prepare((place, "x"), sink=sink, place=place)
        assert len(stage.prepared()) == 1
        sink.commit(handle)
        assert (stage.prepared(), len(stage.rows())) == ([], place + 1)


def test_sessions_are_kept_and_one_that_was_ended_is_replaced(stage: MySqlStage) -> None:
    close_idle()
    sink = stage.sink()
    before = sessions(stage)
    for place in range(5):
        handle = stage.prepare((place, "x"), sink=sink, place=place)
        sink.commit(handle)
        sink.publish(place, [handle])
    assert len(sessions(stage) - before) <= 4
    for number in sessions(stage) - before:
        with suppress(pymysql.OperationalError):  # it may just have ended by itself
            stage.server.run(f"KILL {number}")
    handle = stage.prepare((9, "x"), sink=sink, place=9)
    sink.abort(handle)
    assert len(stage.rows()) == 5
    close_idle()


def sessions(stage: MySqlStage) -> set[int]:
    rows = stage.server.rows(
        "SELECT id FROM information_schema.processlist"
        " WHERE id <> connection_id() AND user = 'root'"
    )
    return {number for (number,) in rows}
