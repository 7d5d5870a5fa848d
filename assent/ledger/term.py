"""The term of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from assent.protocol.json_value import number, sequence, whole
from assent.protocol.record import Author, RecordKey

TERM_VERSION = 1


@dataclass(frozen=True)
class Term:
    """A run's claim to the ledger: every higher term ends it.

    `first_place` is where the predecessor was closed. `tail` names the records of earlier terms
    that a reader has to know: the newest decision, unfinished ones, and their amendments.
    """

    number: int
    author: Author
    taken_at: float
    first_place: int
    tail: tuple[RecordKey, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "term",
            "version": TERM_VERSION,
            "term": self.number,
            **self.author.to_json(),
            "takenAt": self.taken_at,
            "firstPlace": self.first_place,
            "tail": [key.to_json() for key in self.tail],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Term:
        version = value["version"]
        if value["kind"] != "term" or type(version) is not int:
            raise ValueError("not a term")
        if not 1 <= version <= TERM_VERSION:
            raise ValueError(f"version {version!r}; this release reads up to {TERM_VERSION}")
        return cls(
            whole(value, "term"),
            Author.from_json(value),
            number(value, "takenAt"),
            whole(value, "firstPlace"),
            tuple(RecordKey.from_json(key) for key in sequence(value, "tail")),
        )
