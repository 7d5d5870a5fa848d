"""The name of a transaction, from which everything else about it can be found again."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, field

NUMBER = r"(0|[1-9][0-9]{0,17})"
"""As names spell a number: in one way, so that a text names one transaction and is read back."""

_PATTERN = re.compile(rf"assent-([0-9a-z]{{4,64}})-{NUMBER}-{NUMBER}-{NUMBER}-([0-9a-f]{{4,32}})")


@dataclass(frozen=True, order=True)
class TransactionName:
    """Identity of the ledger, term, place, partition, and a nonce that no two attempts share.

    What is known while the task runs, and no part of the name, is for stores that need few ids
    rather than new ones: `attempt` is Spark's number of the task's attempt; `again`, that other
    parts of the same epoch are committed already, under names of an earlier place.

    >>> str(TransactionName("3f2a9c0d", term=2, place=17, partition=0, nonce="5be1"))
    'assent-3f2a9c0d-2-17-0-5be1'
    """

    identity: str
    term: int
    place: int
    partition: int
    nonce: str
    attempt: int = field(default=0, compare=False)
    again: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        return f"{prefix(self.identity)}{self.term}-{self.place}-{self.partition}-{self.nonce}"

    @classmethod
    def parse(cls, text: str) -> TransactionName:
        """Read the string form back; a ValueError if it is not one of ours."""
        match = _PATTERN.fullmatch(text)
        if match is None:
            raise ValueError(f"not the name of a transaction of Assent: {text!r}")
        identity, term, place, partition, nonce = match.groups()
        return cls(identity, int(term), int(place), int(partition), nonce)


def prefix(identity: str) -> str:
    """What every transaction name of a ledger begins with, and no other ledger's does."""
    return f"assent-{identity}-"


def nonce() -> str:
    """Sixteen hexadecimal digits that nobody else has drawn."""
    return secrets.token_hex(8)
