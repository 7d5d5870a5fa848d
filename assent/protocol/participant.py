"""The participant: a task that writes its part of an epoch."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from assent.protocol.aside import PutAside, in_memory
from assent.protocol.assignment import Assignment
from assent.protocol.errors import ReplayError
from assent.protocol.fingerprint import Fingerprint
from assent.protocol.guarantee import Guarantee
from assent.protocol.name import TransactionName, nonce
from assent.protocol.share import Prepared, Share
from assent.protocol.sink import Sink
from assent.protocol.step import Moment, Step, Trace, When, no_trace
from assent.protocol.vote import Vote

if TYPE_CHECKING:
    import pyarrow as pa


class Participant:
    """Carries one task through its steps.

    1. Begin: a transaction in each sink, once there is a row; or, when the epoch is decided
       already, a `skipped` vote without reading any input. If a store gave up a part of it, the
       input is read and put aside first: only the tasks whose rows are missing write them.
    2. Write: batch after batch, none of them kept.
    3. Pre-commit: everything is durable, the transactions stay open, the vote goes back.

    Without the guarantee `exactly_once` the task commits by itself after step 3, under an
    identity that no ledger knows.
    """

    def __init__(
        self,
        sinks: Sequence[Sink[Any]],
        assignment: Assignment,
        *,
        clock: Callable[[], float] = time.time,
        trace: Trace = no_trace,
        put_aside: PutAside = in_memory,
    ) -> None:
        self._sinks = sinks
        self._put_aside = put_aside
        self._exactly_once = all(sink.guarantee is Guarantee.EXACTLY_ONCE for sink in sinks)
        self._assignment = (
            assignment if self._exactly_once else replace(assignment, identity=nonce())
        )
        self._clock = clock
        self._trace = trace

    def vote(
        self, epoch: int, partition: int, attempt: int, batches: Iterable[pa.RecordBatch]
    ) -> Vote:
        """Write all batches and vote. An exception leaves nothing that could be committed."""
        decided = self._assignment.decided
        if decided is not None and epoch < decided.epoch:
            raise ReplayError(
                f"Spark runs epoch {epoch}, but epoch {decided.epoch} is decided already: an older "
                "state of the checkpoint was restored. Restore the checkpoint as a whole, with "
                "its _assent folder, or start with a new checkpointLocation"
            )
        if decided is None or not self._assignment.is_decided(epoch):
            return self._write(range(len(self._sinks)), epoch, partition, attempt, batches)
        if decided.torn is None:
            return self._skip(epoch, Share(partition, attempt, "", ()))
        # Which part of the epoch this is, and whether it is missing, shows when all of it is read.
        fingerprint = Fingerprint()
        with self._put_aside(fingerprint.watch(batches)) as aside:
            sinks = decided.torn.sinks_of(str(fingerprint))
            if not sinks:
                return self._skip(epoch, Share(partition, attempt, str(fingerprint), ()))
            return self._write(sinks, epoch, partition, attempt, aside)

    def _skip(self, epoch: int, share: Share) -> Vote:
        return Vote(epoch, self._assignment, share, skipped=True)

    def _write(
        self,
        sinks: Sequence[int],
        epoch: int,
        partition: int,
        attempt: int,
        batches: Iterable[pa.RecordBatch],
    ) -> Vote:
        work = _Work(
            self._sinks,
            sinks,
            self._assignment,
            epoch,
            partition,
            attempt,
            self._clock,
            self._trace,
        )
        try:
            for batch in batches:
                if batch.num_rows:
                    work.write(batch, fingerprint=self._exactly_once)
            if partition == 0 or self._assignment.is_decided(epoch):
                work.begin_replacement()
            share = work.pre_commit()
        except BaseException:
            work.give_up()
            raise
        if not self._exactly_once:
            for prepared in share.prepared:
                self._sinks[prepared.sink].commit(prepared.handle)
                self._sinks[prepared.sink].publish(epoch, [prepared.handle])
            self._trace(Moment(When.AFTER, Step.COMMIT, epoch, partition))
        return Vote(epoch, self._assignment, share, seconds=work.seconds)


class _Work:
    """The open transactions of one task."""

    def __init__(
        self,
        sinks: Sequence[Sink[Any]],
        positions: Sequence[int],
        assignment: Assignment,
        epoch: int,
        partition: int,
        attempt: int,
        clock: Callable[[], float],
        trace: Trace,
    ) -> None:
        self._sinks = {position: sinks[position] for position in positions}
        self._assignment = assignment
        self._epoch = epoch
        self._partition = partition
        self._attempt = attempt
        self._clock = clock
        self._trace = trace
        self._open: dict[int, Any] = {}
        self._prepared: list[Prepared] = []
        self._fingerprint = Fingerprint()
        self._started_at = 0.0
        self._rows = 0
        self._bytes = 0
        self.seconds: dict[str, float] = {"begin": 0.0, "write": 0.0, "preCommit": 0.0}

    def write(self, batch: pa.RecordBatch, *, fingerprint: bool) -> None:
        if not self._open:
            self._begin()
        started = self._clock()
        self._reach(When.DURING if self._rows else When.BEFORE, Step.WRITE)
        if fingerprint:
            self._fingerprint.update(batch)
        for position, sink in self._sinks.items():
            sink.write(self._open[position], batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        self.seconds["write"] += self._clock() - started

    def _begin(self) -> None:
        self._reach(When.BEFORE, Step.BEGIN)
        self._started_at = self._clock()
        key = self._assignment.key
        for position, sink in self._sinks.items():
            name = TransactionName(
                self._assignment.identity,
                key.term,
                key.place,
                self._partition,
                nonce(),
                self._attempt,
                self._assignment.is_decided(self._epoch),
            )
            self._open[position] = sink.begin(name, self._epoch)
        self.seconds["begin"] = self._clock() - self._started_at
        self._reach(When.AFTER, Step.BEGIN)

    def begin_replacement(self) -> None:
        """Where an epoch replaces all earlier ones, an empty one has to be written too."""
        if not self._open and any(sink.replaces for sink in self._sinks.values()):
            self._begin()

    def pre_commit(self) -> Share:
        started = self._clock()
        self._reach(When.BEFORE, Step.PRE_COMMIT)
        for position in list(self._open):
            handle = self._sinks[position].pre_commit(self._open[position])
            del self._open[position]
            self._prepared.append(
                Prepared(position, handle, self._rows, self._bytes, self._started_at)
            )
        self.seconds["preCommit"] = self._clock() - started
        self._reach(When.AFTER, Step.PRE_COMMIT)
        fingerprint = str(self._fingerprint)
        return Share(self._partition, self._attempt, fingerprint, tuple(self._prepared))

    def give_up(self) -> None:
        """Close what is open. Best effort: whatever stays behind is swept, being in no decision."""
        for position, transaction in self._open.items():
            with contextlib.suppress(Exception):
                self._sinks[position].discard(transaction)
        for prepared in self._prepared:
            with contextlib.suppress(Exception):
                self._sinks[prepared.sink].abort(prepared.handle)

    def _reach(self, when: When, step: Step) -> None:
        self._trace(Moment(when, step, self._epoch, self._partition))
