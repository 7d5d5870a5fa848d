"""The coordinator: the driver's side of the two-phase commit."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from assent.ledger.identity import Owner
from assent.protocol.assignment import Assignment, Decided, Torn
from assent.protocol.ballot import Ballot
from assent.protocol.checkpoint import Checkpoint
from assent.protocol.errors import (
    FencedError,
    InDoubtError,
    LossError,
    ReplayError,
    RetriableError,
    TornEpochError,
)
from assent.protocol.json_value import JsonValue
from assent.protocol.listener import EpochListener
from assent.protocol.name import nonce
from assent.protocol.parallel import AtOnce, Later, Parallel, in_threads
from assent.protocol.policy import OnTimeout, Policy
from assent.protocol.record import (
    Amendment,
    Author,
    DecidedEpoch,
    Decision,
    Record,
    RecordKey,
    Settlement,
    Void,
)
from assent.protocol.replay import Replay
from assent.protocol.settler import Settler
from assent.protocol.sink import Sink
from assent.protocol.step import Moment, Step, Trace, When, no_trace
from assent.protocol.sweeper import Sweeper
from assent.protocol.tenure import Tenure
from assent.protocol.vote import Vote

if TYPE_CHECKING:
    from assent.ledger.identity import Identity
    from assent.ledger.ledger import Ledger
    from assent.ledger.tail import Tail

logger = logging.getLogger("assent")


@dataclass
class Coordinator:
    """Prepare everywhere, decide once, commit everywhere.

    0. Recover (`plan`, before an epoch runs): close the older term and take one's own if need
       be; finish every unfinished decision; under a new term, sweep what is dead.
    1. Begin, 2. Write, 3. Pre-commit: in the tasks, see `Participant`.
    4. Decide (`commit`): the decision is created, if none is there, and flushed. This instant is
       the commit point of the epoch.
    5. Commit: every handle, in parallel, idempotently, with retries.
    6. Complete: listeners run; the epoch counts as complete. Later, while nobody waits, what is
       dead is swept and readers are made sure to see the epoch: before the next is decided.
    7. Spark writes its own commit log, because `commit` has returned.

    `plan` and `commit` may run in different processes: all that `commit` needs of `plan` comes
    back with the votes. An object should live as long as its process, to remember its term.
    """

    ledger: Ledger
    sinks: Sequence[Sink[Any]]
    checkpoint: Checkpoint
    policy: Policy = field(default_factory=Policy)
    listeners: Sequence[EpochListener] = ()
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    trace: Trace = no_trace
    parallel: Parallel = in_threads
    later: Later = field(default_factory=AtOnce)

    _restored: str | None = field(default=None, init=False)
    _previous: dict[str, JsonValue] = field(default_factory=dict, init=False)
    _swept_term: int | None = field(default=None, init=False)
    _confirmed: RecordKey | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._settler = Settler(
            self.sinks, self.policy, self.clock, self.sleep, self.trace, self.parallel
        )
        self._sweeper = Sweeper(self.ledger, self.sinks, self.parallel)
        self._tenure = Tenure(self.ledger)
        self._replay = Replay(self.checkpoint, self.ledger.location)

    # The planning side

    def plan(self) -> Assignment:
        """0. Recover. Returns what the tasks of the next epoch have to know."""
        started = self.clock()
        self._reach(When.BEFORE, Step.RECOVER)
        identity = self.ledger.open(self._owner())
        tail = self._tenure.hold(identity)
        with self._tenure.holding(tail.term.number):
            return self._recover(identity, tail, started)

    def _recover(self, identity: Identity, tail: Tail, started: float) -> Assignment:
        """Finish what is decided, sweep what is dead, and say what comes next."""
        term = tail.term
        running = self._replay.running(tail)
        self._restore(identity.identity, tail.newest)
        key, torn, newest = tail.next_key, None, tail.newest
        for decided in tail.decided:
            if self._is_complete(decided, tail):
                continue
            self._reach(When.DURING, Step.RECOVER, decided.epoch)
            self.ledger.secure()
            newest, key, torn = self._finish(decided, key, term.author.run, recovering=True)
            if torn is None:
                self._complete(decided.epoch)
            elif decided is not tail.newest or self.checkpoint.newest_epoch() != decided.epoch:
                raise LossError(
                    f"Spark will not replay epoch {decided.epoch}, of which the store gave up "
                    f"decided transactions:\n{_list_parts(decided, torn.parts)}\nSay what is to "
                    "become of each: assent settle CHECKPOINT HANDLE committed|lost"
                )
        if self._swept_term != term.number:  # later, each epoch sweeps when it is done
            contexts = tail.newest.decision.contexts if tail.newest else ()
            self._sweeper.sweep(identity.identity, key, contexts)
            self._swept_term = term.number
        self.ledger.prune(tail, self.policy.retained_epochs)
        self._reach(When.AFTER, Step.RECOVER)
        replayed = newest is not None and torn is None and newest.epoch == running
        self._tenure.assigned = None if replayed else key  # nothing is opened in such a replay
        return Assignment(
            identity.identity,
            key,
            term.author.run,
            _completed_through(tail, torn),
            _describe(newest, torn),
            self.clock() - started,
        )

    def _owner(self) -> Owner:
        names = tuple(f"{sink.kind} {sink.target}" for sink in self.sinks)
        return Owner(self.ledger.location, self.checkpoint.query(), names)

    def _is_complete(self, decided: DecidedEpoch, tail: Tail) -> bool:
        """Known from a later decision, or from Spark's commit log: no store has to be asked."""
        through = tail.completed_through
        if through is not None and decided.epoch <= through:
            return True
        return self.checkpoint.is_committed(decided.epoch)

    # The committing side

    def commit(self, votes: Sequence[Vote], epoch: int) -> None:
        """4. Decide, 5. commit, 6. complete. Returns only when every handle is committed."""
        # The last epoch's sweep may know a place only modulo a number: no other may follow before.
        self.later.wait()
        ballot = Ballot.count(votes, epoch)
        assignment = ballot.assignment
        with self._tenure.holding(assignment.key.term):
            decided = self._load(assignment.decided)
        self._restore(assignment.identity, decided)
        if decided is not None and epoch == decided.epoch:
            self._replay.refuse_other_input(decided.decision)
            if assignment.decided is not None and assignment.decided.torn is None:
                return  # finished when it was planned: Spark may now write its commit log
        self._confirm(decided if decided is not None and decided.epoch < epoch else None)
        started = self.clock()
        self._reach(When.BEFORE, Step.DECIDE, epoch)
        decided = self._decide(ballot, decided)
        self._reach(When.AFTER, Step.DECIDE, epoch)
        decided_at = self.clock()
        next_key = RecordKey(assignment.key.place + 1, assignment.key.term)
        self._reach(When.BEFORE, Step.COMMIT, epoch)
        decided, next_key, torn = self._finish(decided, next_key, assignment.run, recovering=False)
        if torn is not None:
            raise TornEpochError(
                f"the store gave up transactions of epoch {epoch} before they could be committed:\n"
                f"{_list_parts(decided, torn.parts)}\nNothing is lost: start the query again, and "
                "they are written again from Spark's replay"
            )
        self._reach(When.AFTER, Step.COMMIT, epoch)
        committed_at = self.clock()
        self._complete(epoch)
        self._previous = {
            "epoch": epoch,
            "decide": decided_at - started,
            "commit": committed_at - decided_at,
            "complete": self.clock() - committed_at,
        }
        self.later.start(partial(self._clean_up, assignment.identity, next_key, decided))

    def _confirm(self, before: DecidedEpoch | None) -> None:
        """Make sure that readers know how everything has ended that came before.

        A transaction of which they do not know may take up what its store is given next.
        """
        self._sweeper.finish()
        if before is not None and before.decision.key != self._confirmed:
            self._settler.confirm(before)  # whoever committed it may not have come to it

    def _clean_up(self, identity: str, next_key: RecordKey, decided: DecidedEpoch) -> None:
        """What may follow when Spark has gone on: no other epoch is decided before."""
        self._sweeper.sweep(identity, next_key, decided.decision.contexts)
        try:
            self._settler.confirm(decided)
        except Exception as error:
            logger.warning(
                "epoch %d is committed, but it is not sure that readers see it (%s: %s); the next "
                "epoch is not decided before",
                decided.epoch,
                type(error).__name__,
                error,
            )
        else:
            self._confirmed = decided.decision.key

    def abort(
        self, votes: Sequence[Vote], epoch: int, assignment: Assignment | None = None
    ) -> None:
        """Abort an epoch that failed, unless it was decided after all (rule 3).

        `assignment` is needed only where no vote has arrived. What tasks pre-commit after this is
        swept when the next epoch is planned: its term is closed.
        """
        assignment = votes[0].assignment if votes else assignment
        if assignment is None:
            return
        void = Void(assignment.key, Author(assignment.run, nonce()), self.clock())
        with self._tenure.holding(assignment.key.term):
            standing = self.ledger.write(void)
        if not isinstance(standing, Void):
            return
        self._abort_votes(votes)
        for listener in self.listeners:
            listener.on_epoch_aborted(epoch)
        # Not by way of the next term: another run may hold it, and be at work.
        self._sweeper.sweep(assignment.identity, assignment.key, closed=True)

    def _abort_votes(self, votes: Sequence[Vote], standing: Record | None = None) -> None:
        """Abort what no decision names, given the record that stands where theirs would be."""
        # A call that arrives twice finds the decision that its own votes made.
        shares = () if standing is None or isinstance(standing, Void) else standing.shares
        named = {prepared.handle for share in shares for prepared in share.prepared}
        for vote in votes:
            for prepared in vote.share.prepared:
                if prepared.handle in named:
                    continue
                self._sweeper.condemn(prepared.sink, prepared.handle)
        try:
            self._sweeper.finish()
        except Exception as error:
            logger.warning("what is aborted is left to the next sweep: %s", error)

    def _load(self, decided: Decided | None) -> DecidedEpoch | None:
        """The newest decided epoch, from the keys that the planning side found."""
        if decided is None:
            return None
        decision = self.ledger.read(decided.key)
        amendments = [self.ledger.read(key) for key in decided.amendments]
        assert isinstance(decision, Decision)
        return DecidedEpoch(
            decision, tuple(record for record in amendments if isinstance(record, Amendment))
        )

    def _decide(self, ballot: Ballot, decided: DecidedEpoch | None) -> DecidedEpoch:
        """4. Decide: a decision, or an amendment to the torn one."""
        epoch, assignment = ballot.epoch, ballot.assignment
        author = Author(assignment.run, nonce())
        record: Decision | Amendment
        if decided is not None and epoch == decided.epoch:
            try:
                record = ballot.amendment(author, decided, self.clock())
            except ReplayError:
                self.abort(ballot.votes, epoch)
                raise
            result = decided.with_amendment(record)
        else:
            snapshots = {listener.name: listener.snapshot(epoch) for listener in self.listeners}
            record = ballot.decision(
                author,
                self._replay.digest(epoch),
                self.clock(),
                contexts=tuple(sink.user_context(epoch) for sink in self.sinks),
                snapshots={name: state for name, state in snapshots.items() if state is not None},
                previous=self._previous,
            )
            result = DecidedEpoch(record)
        try:
            standing = self._write(record)
        except RetriableError:
            self._abort_votes(ballot.votes)
            raise
        if standing.author != author:
            self._abort_votes(ballot.votes, standing)
            raise FencedError(
                f"epoch {epoch} was not decided by this run: another run of this query has taken "
                f"over the ledger at {self.ledger.location} ({record.key}). This run has aborted "
                "what it wrote and stops. Make sure that only one driver runs the query"
            )
        self._abort_votes(ballot.votes, record)  # of two shares alike, one may be torn
        return result

    def _write(self, record: Record) -> Record:
        """Write a record for certain: whatever stands under its key now stands there for ever.

        A write whose answer was lost may still land. Only a void in its place makes sure that it
        will not.
        """
        try:
            return self.ledger.write(record)
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
        try:
            standing = self.ledger.write(Void(record.key, record.author, self.clock()))
        except Exception as error:
            raise InDoubtError(
                f"could not write to the ledger at {self.ledger.location} ({failure}), nor find "
                f"out whether the record arrived ({type(error).__name__}: {error}). Nothing was "
                f"committed. When the ledger can be written again, start the query: it will look"
            ) from error
        if isinstance(standing, Void) and standing.author == record.author:
            raise RetriableError(
                f"could not write to the ledger at {self.ledger.location} ({failure}). The epoch "
                "is not decided and nothing was committed; start the query again"
            )
        return standing

    # Both sides

    def _finish(
        self, decided: DecidedEpoch, next_key: RecordKey, run: str, *, recovering: bool
    ) -> tuple[DecidedEpoch, RecordKey, Torn | None]:
        """5. Commit. Returns the epoch as it now stands, the next free key, and what is torn."""
        aborted = self._settler.commit(decided, recovering=recovering)
        lost = self._losses(decided, aborted)
        if lost:
            amendment = Amendment(
                next_key,
                Author(run, nonce()),
                decided.decision.key,
                decided.epoch,
                self.clock(),
                decided.tasks,
                settlements=tuple(
                    Settlement(partition, sink, "lost", "given up after the store's timeout")
                    for partition, sink in lost
                ),
            )
            standing = self._write(amendment)
            if standing.author != amendment.author:
                raise FencedError(f"another run took over while epoch {decided.epoch} was settled")
            next_key = RecordKey(next_key.place + 1, next_key.term)
            decided = decided.with_amendment(amendment)
            logger.error(
                "DATA LOSS in epoch %d, ignored because of onTimeout=ignore:\n%s",
                decided.epoch,
                _list_parts(decided, lost),
            )
            aborted = [part for part in aborted if part not in lost]
        if aborted:
            whole = len(aborted) == len(decided.transactions())
            fingerprints = decided.fingerprints()
            parts = {part: fingerprints[part[0]] for part in aborted}
            return decided, next_key, Torn(whole, parts)
        self._settler.publish(decided)
        return decided, next_key, None

    def _losses(
        self, decided: DecidedEpoch, aborted: Sequence[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        """What of the aborted is given up for good, by the operator's own choice."""
        if aborted and self.policy.on_timeout is OnTimeout.FAIL:
            raise LossError(
                f"the store gave up decided transactions of epoch {decided.epoch}, and onTimeout "
                f"is 'fail':\n{_list_parts(decided, aborted)}\nStart with onTimeout=rewrite to "
                "write them again, or settle each: assent settle CHECKPOINT HANDLE committed|lost"
            )
        if self.policy.on_timeout is not OnTimeout.IGNORE:
            return []
        transactions, now = decided.transactions(), self.clock()
        lost = []
        for part in aborted:
            timeout = self.sinks[part[1]].transaction_timeout
            if timeout is not None and transactions[part].age(now) >= timeout:
                lost.append(part)
        return lost

    def _complete(self, epoch: int) -> None:
        """6. Complete."""
        self._reach(When.BEFORE, Step.COMPLETE, epoch)
        for listener in self.listeners:
            listener.on_epoch_complete(epoch)
        self._reach(When.AFTER, Step.COMPLETE, epoch)

    def _restore(self, identity: str, newest: DecidedEpoch | None) -> None:
        """Hand the newest snapshots back, once per query and process."""
        if self._restored == identity:
            return
        self._restored = identity
        snapshots = newest.decision.snapshots if newest else {}
        for listener in self.listeners:
            if newest is not None and listener.name in snapshots:
                listener.restore(newest.epoch, snapshots[listener.name])

    def _reach(self, when: When, step: Step, epoch: int | None = None) -> None:
        self.trace(Moment(when, step, epoch))


def _completed_through(tail: Tail, torn: Torn | None) -> int | None:
    if torn is not None:
        return tail.completed_through
    return tail.newest.epoch if tail.newest else None


def _describe(newest: DecidedEpoch | None, torn: Torn | None) -> Decided | None:
    if newest is None:
        return None
    amendments = tuple(amendment.key for amendment in newest.amendments)
    if torn is not None and torn.whole:
        torn = Torn(True)  # whatever was in it
    return Decided(newest.epoch, newest.decision.key, amendments, torn)


def _list_parts(decided: DecidedEpoch, parts: Iterable[tuple[int, int]]) -> str:
    transactions = decided.transactions()
    return "\n".join(
        f"  {transactions[part].handle} (partition {part[0]}, {transactions[part].rows} rows)"
        for part in parts
    )
