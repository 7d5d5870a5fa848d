"""Rule 6: a transaction that no decision names, and that none can name any more, is aborted."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from assent.protocol.handle import Handle
from assent.protocol.json_value import JsonValue
from assent.protocol.parallel import Parallel, in_threads
from assent.protocol.pending import Pending
from assent.protocol.record import RecordKey, Void
from assent.protocol.sink import Sink
from assent.protocol.verdict import Verdict

if TYPE_CHECKING:
    from assent.ledger.ledger import Ledger

logger = logging.getLogger("assent")


@dataclass(frozen=True)
class Sweeper:
    """Aborts the dead: losers of speculation, failed attempts, what dead runs left behind.

    A transaction is dead if no record names it, and its term is closed or its place is past.
    That depends on the ledger alone, so anyone may sweep at any time.
    """

    ledger: Ledger
    sinks: Sequence[Sink[Any]]
    parallel: Parallel = in_threads
    unconfirmed: dict[int, list[Handle]] = field(default_factory=dict)
    """By sink: what was to be aborted, and readers may not know."""

    def sweep(
        self,
        identity: str,
        next_key: RecordKey,
        contexts: Sequence[JsonValue] = (),
        *,
        closed: bool = False,
    ) -> int:
        """Abort what is dead, given the key of the next decision; returns how many were.

        With `closed`, the term of that key has a void: there will be no such decision. What
        cannot be aborted now is swept again at the next epoch, so an error is a warning.
        """
        count = 0
        for position, sink in enumerate(self.sinks):
            context = contexts[position] if position < len(contexts) else None
            try:
                found = list(sink.pending(identity))
                dead = self.dead(found, position, next_key, closed)
                for pending in dead:
                    self.condemn(position, pending.handle)
                count += len(self.parallel(partial(_abort, sink, context), dead))
                self._confirm(position)
            except Exception as error:
                logger.warning(
                    "could not sweep %s of dead transactions (%s: %s); the next epoch tries again",
                    sink.target,
                    type(error).__name__,
                    error,
                )
        return count

    def condemn(self, sink: int, handle: Handle) -> None:
        """It will be aborted now, and readers have to know: `finish` makes sure of both."""
        waiting = self.unconfirmed.setdefault(sink, [])
        if handle not in waiting:
            waiting.append(handle)

    def finish(self) -> None:
        """Abort for certain what an abort did not answer for, and tell readers; or raise."""
        for position in list(self.unconfirmed):
            self.parallel(self.sinks[position].abort, self.unconfirmed[position])
            self._confirm(position)

    def _confirm(self, sink: int) -> None:
        if sink in self.unconfirmed:
            self.sinks[sink].confirm(self.unconfirmed[sink], Verdict.ABORTED)
            del self.unconfirmed[sink]

    def dead(
        self, found: Sequence[Pending], sink: int, next_key: RecordKey, closed: bool = False
    ) -> list[Pending]:
        """Those that no decision names, now or ever. What is found has to be older than the call.

        Only then does the ledger, read once for all of them, hold whatever might name them.
        """
        past = [pending for pending in found if _is_past(pending, next_key, closed)]
        if not past:
            return []
        named = self._named(past, sink)
        return [pending for pending in past if pending.handle not in named]

    def _named(self, found: Sequence[Pending], sink: int) -> set[Handle]:
        """The handles of that sink in all records that may name one of these."""
        named = set()
        for key in self.ledger.record_keys():
            if not any(one.term == key.term and one.may_belong_to(key.place) for one in found):
                continue
            record = self.ledger.find_record(key)
            if record is None or isinstance(record, Void):
                continue
            for share in record.shares:
                named |= {prepared.handle for prepared in share.prepared if prepared.sink == sink}
        return named


def _abort(sink: Sink[Any], context: JsonValue, pending: Pending) -> None:
    sink.recover_and_abort(pending.handle, context)
    logger.info("aborted %s, which belongs to no epoch", pending.handle)


def _is_past(pending: Pending, next_key: RecordKey, closed: bool) -> bool:
    """Whether no decision can name it any more that has not been made yet."""
    if pending.term > next_key.term:
        return False  # a newer run's
    running = pending.term == next_key.term and not closed
    # It may belong to the epoch that is being written.
    return not (running and pending.may_follow(next_key.place - 1))
