"""A transaction that a store still holds open."""

from __future__ import annotations

from dataclasses import dataclass

from assent.protocol.handle import Handle
from assent.protocol.name import TransactionName


@dataclass(frozen=True)
class Pending:
    """An open or prepared transaction, as a store lists it.

    `modulus` is for stores whose names cannot carry the whole place (Kafka's transactional ids
    are few and reused): `place` is then known only modulo that number. Zero means exact.
    """

    handle: Handle
    term: int
    place: int
    started_at: float | None = None
    modulus: int = 0

    def may_belong_to(self, place: int) -> bool:
        """Whether the transaction may have been opened for that place of its term."""
        if self.modulus:
            return place % self.modulus == self.place % self.modulus
        return place == self.place

    def may_follow(self, place: int) -> bool:
        """Whether it may have been opened for the place right after, or a later one."""
        return self.may_belong_to(place + 1) if self.modulus else self.place > place

    @classmethod
    def named(
        cls, handle: Handle, name: TransactionName, started_at: float | None = None
    ) -> Pending:
        """A pending transaction whose full name is known."""
        return cls(handle, name.term, name.place, started_at)
