"""The vote: what a task returns after pre-commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from assent.protocol.assignment import Assignment
from assent.protocol.errors import AssentError
from assent.protocol.json_value import MALFORMED, dump, flag, load_object, members, number, whole
from assent.protocol.share import Share

VOTE_VERSION = 2


@dataclass(frozen=True)
class Vote:
    """A task's word that its share is durable and can be committed by anyone.

    `skipped` means that the task's part of the epoch was decided before: it opened nothing. Of an
    epoch that is torn it tells the fingerprint all the same. `seconds` are the times that the task
    spent in its steps.
    """

    epoch: int
    assignment: Assignment
    share: Share
    skipped: bool = False
    seconds: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        return dump(
            {
                "version": VOTE_VERSION,
                "epoch": self.epoch,
                "assignment": self.assignment.to_json(),
                "share": self.share.to_json(),
                "skipped": self.skipped,
                "seconds": dict(self.seconds),
            }
        )

    @classmethod
    def parse(cls, text: str) -> Vote:
        """Read the string form; a ValueError if driver and tasks run different releases."""
        value = load_object(text)
        version = value.get("version")
        if type(version) is not int or version != VOTE_VERSION:
            raise ValueError(
                f"a vote of version {version!r}, where {VOTE_VERSION} is expected: "
                "install the same release of assent on the driver and on all executors"
            )
        try:
            seconds = members(value, "seconds")
            return cls(
                whole(value, "epoch"),
                Assignment.from_json(value["assignment"]),
                Share.from_json(value["share"]),
                flag(value, "skipped"),
                {step: number(seconds, step) for step in seconds},
            )
        except MALFORMED as error:
            raise ValueError(f"not a vote: {error!r}") from error


def read_votes(texts: Iterable[str]) -> list[Vote]:
    """The votes of an epoch; an AssentError if one cannot be read: nothing is decided then."""
    try:
        return [Vote.parse(text) for text in texts]
    except ValueError as error:
        raise AssentError(f"{error}; nothing of the epoch was decided") from error
