"""The term that a process holds, and what it means to have lost it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from assent.protocol.errors import FencedError, LedgerError, LossError
from assent.protocol.name import nonce
from assent.protocol.record import RecordKey

if TYPE_CHECKING:
    from assent.ledger.identity import Identity
    from assent.ledger.ledger import Ledger
    from assent.ledger.tail import Tail


@dataclass
class Tenure:
    """Keeps a process in the term that it took, until another run takes the next one."""

    ledger: Ledger
    assigned: RecordKey | None = field(default=None, init=False)
    """The key that tasks of the last plan may be at work under."""

    _identity: str | None = field(default=None, init=False)
    _tail: Tail | None = field(default=None, init=False)

    def hold(self, identity: Identity) -> Tail:
        """The tail of the term under which this process plans: its own, or else the next."""
        if self._identity != identity.identity:
            self._identity, self._tail = identity.identity, None
        if self._tail is not None:
            mine = self._tail.term
            known, self._tail = self._tail, None  # whoever is fenced starts anew if started again
            with self.holding(mine.number):
                tail = self.ledger.follow(known)
            if self.ledger.has_term(mine.number + 1) or (
                tail.closed_by is not None and tail.closed_by.run != mine.author.run
            ):
                raise self._fenced(mine.number)
            if tail.closed_by is None and self.assigned != tail.next_key:
                self._tail = tail
                return tail
            # Tasks of an earlier plan may still be at work under that key, and no abort has voided
            # it: a key is given to one plan only, so that no two attempts share a name.
        self._tail = self.ledger.take(nonce())
        return self._tail

    @contextmanager
    def holding(self, term: int) -> Iterator[None]:
        """What a run misses that has lost its term is no damage: the newer run moved on."""
        try:
            yield
        except (LedgerError, LossError) as error:
            if self.ledger.has_term(term + 1):
                raise self._fenced(term) from error
            raise

    def _fenced(self, term: int) -> FencedError:
        return FencedError(
            f"another run of this query has taken over the ledger at {self.ledger.location}: it "
            f"closed term {term}, which this run held. This run stops, and has committed nothing "
            "since. Make sure that only one driver runs the query"
        )
