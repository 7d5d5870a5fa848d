"""What a query on any database has to live through, and what it is made to.

Whatever happens, in the end every row is there once, nothing is prepared, nothing is staged.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from assent.protocol.errors import AssentError, FencedError, RetriableError
from assent.protocol.step import Moment, Step, When
from assent.protocol.verdict import Verdict
from assent.testing.moments import IN_TASKS, MOMENTS, WITHIN_RECOVERY
from assent.testing.stage import StageServer
from tests.sql_query import Rows, SqlQuery, SqlStage, batch

FIRST: Rows = [[(1, "a"), (2, "b")], [(3, "c")]]
SECOND: Rows = [[(4, "d"), (5, "e")], [(6, "f")]]
THIRD: Rows = [[(7, "g")]]
MODES = ["prepared", "staged"]
Moments = list[tuple[When, Step]]

DRIVER_MOMENTS = [
    moment for moment in MOMENTS if moment[1] not in IN_TASKS and moment != WITHIN_RECOVERY
]
TASK_MOMENTS = [moment for moment in MOMENTS if moment[1] in IN_TASKS]


def named(moment: tuple[When, Step]) -> str:
    return f"{moment[0].value}-{moment[1].name.lower()}"


def expected(*epochs: Rows) -> list[tuple[int, str]]:
    return sorted(row for epoch in epochs for part in epoch for row in part)


def finish(query: SqlQuery, epoch: int, rows: Rows, *, attempts: int = 4) -> None:
    """Start drivers until one gets the epoch done, as an operator would."""
    for left in reversed(range(attempts)):
        try:
            query.run(query.start(), epoch, rows)
            return
        except AssentError:
            if not left:
                raise


def assert_clean(stage: SqlStage) -> None:
    assert stage.prepared() == []
    assert stage.staged() == []


class SqlFaults:
    """Drivers and publishers that meet. Subclass it and give the fixture `query`."""

    def test_epochs_follow_one_another(self, query: SqlQuery) -> None:
        coordinator = query.start()
        for epoch, rows in enumerate((FIRST, SECOND, [[], []], THIRD)):
            query.run(coordinator, epoch, rows)
            assert_clean(query.stage)
        assert query.stage.rows() == expected(FIRST, SECOND, THIRD)

    def test_a_decided_transaction_that_an_administrator_rolled_back_is_rewritten(
        self, query: SqlQuery
    ) -> None:
        stage = query.stage
        query.run(query.start(), 0, FIRST)
        query.die(When.AFTER, Step.DECIDE, 1, SECOND)
        stage.take_back((stage.prepared() + stage.staged())[0])
        coordinator = query.start()
        assignment = query.plan(coordinator, 1)
        assert assignment.decided is not None
        assert assignment.decided.torn is not None
        assert len(assignment.decided.torn.parts) == 1
        coordinator.commit(query.write(assignment, 1, SECOND), 1)
        query.checkpoint.committed.add(1)
        query.run(coordinator, 2, THIRD)
        assert_clean(stage)
        assert stage.rows() == expected(FIRST, SECOND, THIRD)

    def test_two_drivers_the_slow_one_stops_and_nothing_is_twice(self, query: SqlQuery) -> None:
        slow = query.start()
        query.run(slow, 0, FIRST)
        assignment = query.plan(slow, 1)
        late = query.write(assignment, 1, SECOND)
        fast = query.start()
        query.run(fast, 1, SECOND)
        assert query.stage.rows() == expected(FIRST, SECOND)
        with pytest.raises(FencedError):
            slow.commit(late, 1)
        query.run(fast, 2, THIRD)
        assert_clean(query.stage)
        assert query.stage.rows() == expected(FIRST, SECOND, THIRD)

    def test_two_publishers_at_once(self, query: SqlQuery) -> None:
        stage = query.stage
        stage.sink().check(batch().schema)
        handles = [stage.prepare((number, "x"), partition=number) for number in range(4)]
        barrier = threading.Barrier(4)
        failures: list[Exception] = []

        def publish() -> None:
            sink = stage.sink()
            barrier.wait()
            try:
                for handle in handles:
                    try:
                        sink.commit(handle)
                    except RetriableError:
                        assert sink.verdict(handle) in (Verdict.COMMITTED, Verdict.PENDING)
                sink.publish(0, handles)
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=publish) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert len(stage.rows()) == 4
        assert [stage.sink().verdict(handle) for handle in handles] == [Verdict.COMMITTED] * 4
        assert_clean(stage)

    def test_a_verdict_during_a_commit_is_never_aborted(self, query: SqlQuery) -> None:
        """Many commits, each beside somebody who asks all the time."""
        stage = query.stage
        sink = stage.sink()
        sink.check(batch().schema)
        for number in range(40):
            handle = stage.prepare((number, "x"), sink=sink)
            done = threading.Event()
            seen: list[Verdict] = []

            def ask(handle=handle, done=done, seen=seen) -> None:  # type: ignore[no-untyped-def]
                while not done.is_set():
                    seen.append(sink.verdict(handle))

            thread = threading.Thread(target=ask)
            thread.start()
            try:
                sink.commit(handle)
                sink.publish(0, [handle])
            finally:
                done.set()
                thread.join()
            assert set(seen) <= {Verdict.PENDING, Verdict.COMMITTED}
            assert sink.verdict(handle) is Verdict.COMMITTED
        assert len(stage.rows()) == 40


def kill_at_every_step(
    server: StageServer, stage: SqlStage, moments: Moments, folder: Path
) -> None:
    """A server that is killed once in each epoch, at another moment each time."""
    query = SqlQuery(stage, folder)
    everything: list[Rows] = []
    for epoch, moment in enumerate(moments):
        rows: Rows = [[(10 * epoch, "a"), (10 * epoch + 1, "b")], [(10 * epoch + 2, "c")]]
        everything.append(rows)
        killed = False

        def trace(reached: Moment, moment=moment) -> None:  # type: ignore[no-untyped-def]
            nonlocal killed
            if (reached.when, reached.step) == moment and not killed:
                killed = True
                server.kill()
                server.start()

        try:
            query.run(query.start(trace), epoch, rows, trace)
        except AssentError:
            finish(query, epoch, rows)
        assert killed, moment
        assert_clean(stage)
        assert stage.rows() == expected(*everything), named(moment)
