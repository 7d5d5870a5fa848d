"""Rule 6: a transaction that no decision names, and that none can name any more, is aborted."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from assent.protocol.json_value import JsonValue
from assent.protocol.pending import Pending
from assent.protocol.record import RecordKey, Void
from assent.protocol.sink import Sink

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
                for pending in list(sink.pending(identity)):
                    if self.is_dead(pending, position, next_key, closed):
                        sink.recover_and_abort(pending.handle, context)
                        logger.info("aborted %s, which belongs to no epoch", pending.handle)
                        count += 1
            except Exception as error:
                logger.warning(
                    "could not sweep %s of dead transactions (%s: %s); the next epoch tries again",
                    sink.target,
                    type(error).__name__,
                    error,
                )
        return count

    def is_dead(
        self, pending: Pending, sink: int, next_key: RecordKey, closed: bool = False
    ) -> bool:
        """Whether no decision names the transaction, now or ever."""
        if pending.term > next_key.term:
            return False  # a newer run's
        running = pending.term == next_key.term and not closed
        if running and pending.may_follow(next_key.place - 1):
            return False  # it may belong to the epoch that is being written
        return not self._is_named(pending, sink)

    def _is_named(self, pending: Pending, sink: int) -> bool:
        for key in self.ledger.record_keys():
            if key.term != pending.term or not pending.may_belong_to(key.place):
                continue
            record = self.ledger.find_record(key)
            if record is None or isinstance(record, Void):
                continue
            for share in record.shares:
                for prepared in share.prepared:
                    if prepared.sink == sink and prepared.handle == pending.handle:
                        return True
        return False
