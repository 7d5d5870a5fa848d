"""Whose ledger it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from assent.protocol.json_value import as_text, number, sequence, text, whole

IDENTITY_VERSION = 1


@dataclass(frozen=True)
class Owner:
    """For whom a ledger is opened: the place, Spark's query id, and the sinks in their order."""

    location: str
    query: str
    sinks: tuple[str, ...]


@dataclass(frozen=True)
class Identity:
    """The ledger's own name, created once, and its owner. Transactions are named after it.

    `generation` counts how often the ledger was adopted under a new name; the newest one counts.
    """

    identity: str
    owner: Owner
    created_at: float
    generation: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "identity",
            "version": IDENTITY_VERSION,
            "identity": self.identity,
            "location": self.owner.location,
            "query": self.owner.query,
            "sinks": list(self.owner.sinks),
            "createdAt": self.created_at,
            "generation": self.generation,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Identity:
        version = value["version"]
        if value["kind"] != "identity" or type(version) is not int:
            raise ValueError("not the identity of a ledger")
        if not 1 <= version <= IDENTITY_VERSION:
            raise ValueError(f"version {version!r}; this release reads up to {IDENTITY_VERSION}")
        sinks = tuple(as_text(sink, "sinks") for sink in sequence(value, "sinks"))
        owner = Owner(text(value, "location"), text(value, "query"), sinks)
        return cls(
            text(value, "identity"), owner, number(value, "createdAt"), whole(value, "generation")
        )
