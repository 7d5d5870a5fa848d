"""The conformance kit: what every sink has to do, as tests that run on yours.

    from assent.testing.conformance import SinkConformance
    from assent.testing.subject import Subject

    class TestMySink(SinkConformance):
        @pytest.fixture
        def subject(self, tmp_path: Path) -> Subject:
            return MySubject(tmp_path)

Each test gets a subject with an empty place to write to. See docs/conformance.md.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence

import pyarrow as pa
import pytest

from assent.protocol.errors import FencedError
from assent.protocol.handle import Handle
from assent.protocol.name import TransactionName, nonce
from assent.protocol.step import Step, When
from assent.protocol.verdict import Verdict
from assent.testing.moments import MOMENTS, WITHIN_RECOVERY
from assent.testing.query import BatchQuery
from assent.testing.subject import (
    SCHEMA,
    Row,
    Subject,
    batch,
    prepare,
    settle_elsewhere,
    writer_killed_after,
)


def _name(
    place: int = 0, partition: int = 0, identity: str | None = None, attempt: int = 0
) -> TransactionName:
    return TransactionName(identity or nonce(), 0, place, partition, nonce(), attempt)


_Tasks = Sequence[Sequence[pa.RecordBatch]]
"""The batches of an epoch, task by task."""


def _tasks(*tasks: Sequence[Row]) -> _Tasks:
    """Each row in a batch of its own."""
    return [[batch([row]) for row in rows] for rows in tasks]


def _handles(subject: Subject, identity: str) -> list[Handle]:
    return [pending.handle for pending in subject.sink().pending(identity)]


class SinkConformance:
    """Subclass it in your tests and give the fixture `subject`."""

    @pytest.fixture
    def subject(self) -> Subject:
        raise NotImplementedError("give the fixture `subject`, which makes a Subject")

    # A sink is settings, and can be sent anywhere

    def test_it_is_pickled_and_names_the_same_target(self, subject: Subject) -> None:
        sink = subject.sink()
        received = pickle.loads(pickle.dumps(sink))
        assert received.target == sink.target == subject.sink().target
        assert received.kind == sink.kind

    def test_check_takes_the_schema_and_writes_nothing(self, subject: Subject) -> None:
        subject.sink().check(SCHEMA)
        assert subject.visible() == []

    def test_the_user_context_is_a_json_value(self, subject: Subject) -> None:
        json.dumps(subject.sink().user_context(0))

    # One transaction

    def test_prepared_rows_are_invisible_until_they_are_committed(self, subject: Subject) -> None:
        sink, name = subject.sink(), _name()
        sink.check(SCHEMA)
        handle = prepare(sink, name, [(1, "a"), (2, "b")])
        if subject.transactional:
            assert subject.visible() == []
            assert sink.verdict(handle) is Verdict.PENDING
            assert _handles(subject, name.identity) == [handle]
        sink.commit(handle)
        sink.publish(0, [handle])
        assert sorted(subject.visible()) == [(1, "a"), (2, "b")]
        assert sink.verdict(handle) is Verdict.COMMITTED
        assert _handles(subject, name.identity) == []

    def test_a_handle_is_text_and_comes_back_the_same(self, subject: Subject) -> None:
        sink = subject.sink()
        sink.check(SCHEMA)
        handle = prepare(sink, _name(), [(1, "a")])
        assert Handle.parse(str(handle)) == handle
        sink.commit(Handle.parse(str(handle)))

    def test_commit_and_publish_may_be_repeated(self, subject: Subject) -> None:
        sink = subject.sink()
        sink.check(SCHEMA)
        handle = prepare(sink, _name(), [(1, "a")])
        for _ in range(3):
            subject.sink().commit(handle)
            subject.sink().publish(0, [handle])
        subject.sink().recover_and_commit(handle, None)
        assert subject.visible() == [(1, "a")]

    def test_several_batches_and_many_rows(self, subject: Subject) -> None:
        sink = subject.sink()
        sink.check(SCHEMA)
        transaction = sink.begin(_name(), 0)
        for first in range(0, 3000, 1000):
            sink.write(transaction, batch([(n, f"row {n}") for n in range(first, first + 1000)]))
        handle = sink.pre_commit(transaction)
        sink.commit(handle)
        sink.publish(0, [handle])
        assert sorted(subject.visible()) == [(n, f"row {n}") for n in range(3000)]

    def test_an_aborted_transaction_is_gone(self, subject: Subject) -> None:
        sink, name = subject.sink(), _name()
        sink.check(SCHEMA)
        handle = prepare(sink, name, [(1, "a")])
        sink.abort(handle)
        subject.sink().abort(handle)
        subject.sink().recover_and_abort(handle, None)
        assert _handles(subject, name.identity) == []
        if subject.transactional:
            assert sink.verdict(handle) is Verdict.ABORTED
            assert subject.visible() == []
            assert subject.leftovers() == []
            try:
                sink.commit(handle)
            except Exception:
                assert subject.visible() == []
            else:
                pytest.fail("commit returned, although the transaction was aborted")

    def test_a_discarded_transaction_is_gone(self, subject: Subject) -> None:
        sink, name = subject.sink(), _name()
        sink.check(SCHEMA)
        transaction = sink.begin(name, 0)
        sink.write(transaction, batch([(1, "a")]))
        sink.discard(transaction)
        for handle in _handles(subject, name.identity):
            sink.abort(handle)  # what stays behind is found and swept
        assert _handles(subject, name.identity) == []
        if subject.transactional:
            assert subject.visible() == []
            assert subject.leftovers() == []

    def test_attempts_of_one_task_do_not_get_in_each_others_way(self, subject: Subject) -> None:
        sink, name = subject.sink(), _name()
        sink.check(SCHEMA)
        loser = prepare(sink, name, [(1, "a")])
        second = _name(identity=name.identity, attempt=1)
        winner = prepare(sink, second, [(1, "a")])
        assert loser != winner
        sink.commit(winner)
        sink.publish(0, [winner])
        sink.abort(loser)
        assert subject.visible() == [(1, "a")]
        assert _handles(subject, name.identity) == []

    def test_pending_lists_those_of_the_identity_and_no_others(self, subject: Subject) -> None:
        if not subject.transactional:
            pytest.skip("in an idempotent store nothing is ever pending")
        sink = subject.sink()
        sink.check(SCHEMA)
        first, second = _name(), _name()
        ours = prepare(sink, first, [(1, "a")])
        theirs = prepare(sink, second, [(2, "b")])
        assert _handles(subject, first.identity) == [ours]
        assert _handles(subject, second.identity) == [theirs]
        [pending] = sink.pending(first.identity)
        assert pending.term == first.term
        assert pending.may_belong_to(first.place)
        assert _handles(subject, nonce()) == []
        sink.abort(ours)
        sink.abort(theirs)

    # Other processes

    def test_another_process_commits(self, subject: Subject) -> None:
        sink = subject.sink()
        sink.check(SCHEMA)
        handle = prepare(sink, _name(), [(1, "a")])
        # Where whole epochs are shown by one act, it is `publish` that commits.
        assert settle_elsewhere(sink, "commit", handle) in ("committed", "pending")
        subject.sink().publish(0, [handle])
        assert settle_elsewhere(sink, "verdict", handle) == "committed"
        assert subject.visible() == [(1, "a")]

    def test_a_writer_killed_before_it_was_done_leaves_what_is_swept(
        self, subject: Subject
    ) -> None:
        subject.sink().check(SCHEMA)
        identity = nonce()
        for step in ("begin", "write"):
            name = _name(identity=identity)
            with writer_killed_after(subject.sink(), name, [(1, "a")], step):
                for handle in _handles(subject, name.identity):
                    subject.sink().recover_and_abort(handle, None)
                assert _handles(subject, name.identity) == []
            if subject.transactional:
                assert subject.visible() == []

    def test_what_a_killed_writer_has_prepared_is_committed_by_others(
        self, subject: Subject
    ) -> None:
        subject.sink().check(SCHEMA)
        name = _name()
        with writer_killed_after(subject.sink(), name, [(1, "a")], "pre_commit") as handle:
            assert handle is not None
            subject.sink().recover_and_commit(handle, None)
            subject.sink().publish(0, [handle])
        assert subject.visible() == [(1, "a")]
        assert _handles(subject, name.identity) == []

    # Whole epochs

    @pytest.mark.parametrize(("when", "step"), MOMENTS, ids=lambda value: value.name.lower())
    def test_a_driver_that_dies_at_any_moment(
        self, subject: Subject, when: When, step: Step
    ) -> None:
        """Each row once, nothing pending and nothing left over, once the query has gone on."""
        query = BatchQuery(subject.sink)
        query.sink().check(SCHEMA)
        query.run(query.start(), 0, _tasks([(1, "a")], [(2, "b")]))
        second = _tasks([(3, "c"), (4, "d")], [(5, "e")])
        if (when, step) == WITHIN_RECOVERY:
            query.die(When.AFTER, Step.DECIDE, 1, second)
        query.die(when, step, 1, second)
        coordinator = query.start()
        query.run(coordinator, 1, second)
        assignment = query.run(coordinator, 2, _tasks([], [(6, "f")]))
        expected = [(n, "abcdef"[n - 1]) for n in range(1, 7)]
        assert sorted(subject.visible()) == expected
        assert _handles(subject, assignment.identity) == []
        assert subject.leftovers() == []

    def test_more_and_fewer_tasks_after_a_restart(self, subject: Subject) -> None:
        query = BatchQuery(subject.sink)
        query.sink().check(SCHEMA)
        expected: list[Row] = []
        assignment = None
        for epoch, tasks in enumerate((4, 1, 6)):
            rows = [[(10 * epoch + task, f"row {task}")] for task in range(tasks)]
            expected += [row for part in rows for row in part]
            # Tasks that nobody hears of again, as of a driver that died.
            lost = query.start()
            query.write(query.plan(lost, epoch), epoch, _tasks(*rows))
            assignment = query.run(query.start(), epoch, _tasks(*rows))
        assert sorted(subject.visible()) == expected
        assert assignment is not None
        assert _handles(subject, assignment.identity) == []
        assert subject.leftovers() == []

    def test_a_driver_thought_dead_changes_nothing(self, subject: Subject) -> None:
        query = BatchQuery(subject.sink)
        query.sink().check(SCHEMA)
        rows = _tasks([(1, "a")], [(2, "b")])
        zombie = query.start()
        late = query.write(query.plan(zombie, 0), 0, rows)
        assignment = query.run(query.start(), 0, rows)
        with pytest.raises(FencedError):
            zombie.commit(late, 0)
        zombie.abort(late, 0)
        assert sorted(subject.visible()) == [(1, "a"), (2, "b")]
        assert _handles(subject, assignment.identity) == []

    def test_a_part_that_the_store_gave_up_is_written_again(self, subject: Subject) -> None:
        if not subject.transactional:
            pytest.skip("an idempotent store gives nothing up")
        query = BatchQuery(subject.sink)
        query.sink().check(SCHEMA)
        rows = _tasks([(1, "a")], [(2, "b")])
        query.die(When.AFTER, Step.DECIDE, 0, rows)
        identity = query.start().ledger.find()
        assert identity is not None
        subject.give_up(_handles(subject, identity.identity)[0])
        query.run(query.start(), 0, rows)
        assert sorted(subject.visible()) == [(1, "a"), (2, "b")]
        assert _handles(subject, identity.identity) == []
        assert subject.leftovers() == []
