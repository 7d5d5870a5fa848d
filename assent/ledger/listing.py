"""The names of the records that a ledger keeps."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from assent.protocol.record import RecordKey

_NAME = re.compile(r"[0-9]{12}-[0-9]{8}\.json")
_ALL = re.compile(rf"(?:{_NAME.pattern}/)*")


def record_name(key: RecordKey) -> str:
    return f"{key.place:012d}-{key.term:08d}.json"


@dataclass(frozen=True)
class Listing:
    """Names of records at one instant, in order of place and term: their numbers have one width.

    Numbers are cut out of the names only where they are asked for: nearly all of it is history.
    """

    names: tuple[str, ...]

    @classmethod
    def of(cls, names: Sequence[str]) -> Listing:
        """The listing of sorted names; ValueError with the name that is none of a record."""
        if not _ALL.fullmatch("".join(f"{name}/" for name in names)):
            raise ValueError(next(name for name in names if not _NAME.fullmatch(name)))
        return cls(tuple(names))

    def keys(self) -> list[RecordKey]:
        return [RecordKey(int(name[:12]), int(name[13:21])) for name in self.names]

    def places(self, term: int) -> list[int]:
        """The places of a term's records."""
        ending = f"-{term:08d}.json"
        return [int(name[:12]) for name in self.names if name.endswith(ending)]
