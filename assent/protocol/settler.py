"""Step 5: every handle of a decided epoch, until each verdict is known."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from assent.protocol.errors import InDoubtError, RetriableError
from assent.protocol.handle import Handle
from assent.protocol.json_value import JsonValue
from assent.protocol.parallel import Parallel, in_threads
from assent.protocol.policy import Policy
from assent.protocol.record import DecidedEpoch
from assent.protocol.share import Prepared
from assent.protocol.sink import Sink
from assent.protocol.step import Moment, Step, Trace, When, no_trace
from assent.protocol.verdict import Verdict

logger = logging.getLogger("assent")

_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 2.0


@dataclass(frozen=True)
class Settler:
    """Commits handles, and asks for the verdict wherever a commit did not answer plainly."""

    sinks: Sequence[Sink[Any]]
    policy: Policy
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    trace: Trace = no_trace
    parallel: Parallel = in_threads

    def commit(self, decided: DecidedEpoch, *, recovering: bool) -> list[tuple[int, int]]:
        """Commit all that is not settled; returns the (partition, sink) that the store aborted.

        Returns only when the verdict of every handle is known. Otherwise it raises: InDoubtError
        where the store has forgotten, RetriableError where it could not be asked in time.
        """
        settled = decided.settlements()
        parts = [item for item in decided.transactions().items() if item[0] not in settled]
        deadline = self.clock() + self.policy.commit_timeout
        contexts = decided.decision.contexts

        def settle(item: tuple[tuple[int, int], Prepared]) -> tuple[Verdict, str]:
            (partition, _), prepared = item
            self._warn_of_age(decided.epoch, prepared)
            context = contexts[prepared.sink] if prepared.sink < len(contexts) else None
            outcome = self._settle(prepared, context, deadline, recovering=recovering)
            self.trace(Moment(When.DURING, Step.COMMIT, decided.epoch, partition))
            return outcome

        outcomes = self.parallel(settle, parts)
        self._refuse_doubt(decided.epoch, parts, outcomes)
        aborted = [
            part
            for (part, _), (verdict, _) in zip(parts, outcomes, strict=True)
            if verdict is Verdict.ABORTED
        ]
        for sink, handles in self._by_sink([entry for part, entry in parts if part in aborted]):
            sink.confirm(handles, Verdict.ABORTED)
        aborted += [part for part, how in settled.items() if how.outcome == "aborted"]
        return sorted(aborted)

    def publish(self, decided: DecidedEpoch) -> None:
        """The last act of each sink, when all its handles are committed."""
        deadline = self.clock() + self.policy.commit_timeout
        for sink, handles in self._by_sink(_committed(decided)):
            pause = _FIRST_PAUSE
            while True:
                try:
                    sink.publish(decided.epoch, handles)
                    break
                except RetriableError:
                    if self.clock() >= deadline:
                        raise
                self.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
            self.trace(Moment(When.DURING, Step.COMMIT, decided.epoch))

    def confirm(self, decided: DecidedEpoch) -> None:
        """Make sure that readers see all of a complete epoch; raises if that is not sure."""
        for sink, handles in self._by_sink(_committed(decided)):
            sink.confirm(handles, Verdict.COMMITTED)

    def _by_sink(self, entries: Sequence[Prepared]) -> Iterator[tuple[Sink[Any], list[Handle]]]:
        for position, sink in enumerate(self.sinks):
            handles = [entry.handle for entry in entries if entry.sink == position]
            if handles:
                yield sink, handles

    def _settle(
        self, prepared: Prepared, context: JsonValue, deadline: float, *, recovering: bool
    ) -> tuple[Verdict, str]:
        """The verdict of one handle, and the last error on the way to it."""
        sink, handle = self.sinks[prepared.sink], prepared.handle
        pause = _FIRST_PAUSE
        while True:
            try:
                if recovering:
                    sink.recover_and_commit(handle, context)
                else:
                    sink.commit(handle)
                return Verdict.COMMITTED, ""
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
            try:
                verdict = sink.verdict(handle)
            except Exception as error:
                verdict = Verdict.PENDING
                reason += f"; asked for its state: {type(error).__name__}: {error}"
            if verdict is not Verdict.PENDING or self.clock() >= deadline:
                return verdict, reason
            logger.info("commit of %s did not succeed yet (%s); trying again", handle, reason)
            self.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _refuse_doubt(
        self,
        epoch: int,
        parts: Sequence[tuple[tuple[int, int], Prepared]],
        outcomes: Sequence[tuple[Verdict, str]],
    ) -> None:
        unknown = _listed(parts, outcomes, Verdict.UNKNOWN)
        if unknown:
            raise InDoubtError(
                f"epoch {epoch} is decided, but the store no longer knows whether these "
                f"transactions were committed:\n{unknown}\nLook into the store, then say what you "
                "found: assent settle CHECKPOINT HANDLE committed|aborted|lost"
            )
        pending = _listed(parts, outcomes, Verdict.PENDING)
        if pending:
            raise RetriableError(
                f"epoch {epoch} is decided, but these transactions could not be committed within "
                f"commitTimeout ({self.policy.commit_timeout:g} s):\n{pending}\nNothing is lost: "
                "start the query again when the store answers, and they will be committed"
            )

    def _warn_of_age(self, epoch: int, prepared: Prepared) -> None:
        timeout = self.sinks[prepared.sink].transaction_timeout
        if timeout is None:
            return
        age = prepared.age(self.clock())
        if age >= timeout * self.policy.timeout_warning_ratio:
            logger.warning(
                "epoch %d: transaction %s is %.0f s old; the store gives it up after %.0f s. "
                "Raise its timeout, or make epochs shorter",
                epoch,
                prepared.handle,
                age,
                timeout,
            )


def _committed(decided: DecidedEpoch) -> list[Prepared]:
    """All of a complete epoch, but for what was given up."""
    settled = decided.settlements()
    lost = {part for part, how in settled.items() if how.outcome == "lost"}
    return [entry for part, entry in decided.transactions().items() if part not in lost]


def _listed(
    parts: Sequence[tuple[tuple[int, int], Prepared]],
    outcomes: Sequence[tuple[Verdict, str]],
    wanted: Verdict,
) -> str:
    return "\n".join(
        f"  {prepared.handle} (partition {partition}, {prepared.rows} rows): {reason}"
        for ((partition, _), prepared), (verdict, reason) in zip(parts, outcomes, strict=True)
        if verdict is wanted
    )
