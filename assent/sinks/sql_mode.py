"""What becomes of rows in a table of a database: appended, merged by key, or put in place of all.

The same for every database that has tables and keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from assent.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

APPEND, UPSERT, OVERWRITE = WRITE_MODES = ("append", "upsert", "overwrite")


class CommitMode(Enum):
    """How the rows of an epoch become visible (option `commitMode`)."""

    PREPARED = "prepared"
    """Each task prepares its transaction; the driver commits one after the other."""
    STAGED = "staged"
    """Each task fills a table of its own; the driver moves all of them in one transaction."""


@dataclass(frozen=True)
class WriteMode:
    """The option `writeMode` and the columns that go with it."""

    kind: str = APPEND
    keys: tuple[str, ...] = ()
    order: str | None = None
    delete: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in WRITE_MODES:
            raise ConfigurationError(
                f"option writeMode is {self.kind!r}; expected one of {', '.join(WRITE_MODES)}"
            )
        if self.kind == UPSERT and not self.keys:
            raise ConfigurationError(
                "option writeMode is upsert, which needs option keyColumns: the columns by which "
                "a row replaces an earlier one"
            )
        if self.kind == UPSERT:
            return
        for option, given in (
            ("keyColumns", self.keys),
            ("orderColumn", self.order),
            ("deleteColumn", self.delete),
        ):
            if given:
                raise ConfigurationError(
                    f"option {option} is set, and writeMode is {self.kind}; set writeMode to "
                    f"upsert, or leave {option} out"
                )

    def check(self, schema: pa.Schema) -> None:
        """Refuse rows that lack one of the named columns, or whose flag is no flag."""
        import pyarrow as pa

        if not schema.names:
            raise ConfigurationError("the rows have no columns; select at least one")
        seen: dict[str, str] = {}
        for name in schema.names:
            if name.lower() in seen:
                raise ConfigurationError(
                    f"two columns are named {name!r} (names do not depend on case); rename one"
                )
            seen[name.lower()] = name
        named = [("keyColumns", key) for key in self.keys]
        named += [("orderColumn", self.order)] if self.order else []
        named += [("deleteColumn", self.delete)] if self.delete else []
        for option, name in named:
            if name.lower() not in seen:
                raise ConfigurationError(
                    f"option {option} names {name!r}, which is not a column; the columns are "
                    f"{', '.join(schema.names)}"
                )
        for name in self.keys[1:]:
            if [key.lower() for key in self.keys].count(name.lower()) > 1:
                raise ConfigurationError(f"option keyColumns names {name!r} twice; name it once")
        if self.delete is not None:
            kind = schema.field(seen[self.delete.lower()]).type
            if not pa.types.is_boolean(kind):
                raise ConfigurationError(
                    f"option deleteColumn names {self.delete!r}, which has type {kind}; it has to "
                    "be a boolean: true for rows that delete their key"
                )

    def is_extra(self, name: str) -> bool:
        """Whether a column may be missing in the table: it says what to do with its row."""
        return name.lower() in {extra.lower() for extra in (self.order, self.delete) if extra}

    def is_key(self, name: str) -> bool:
        return name.lower() in {key.lower() for key in self.keys}


def choose(
    wanted: str, mode: WriteMode, unique_indexes: Sequence[str], can_prepare: bool
) -> tuple[CommitMode, str]:
    """The commit mode, and the reason for it in words. `wanted` is the option `commitMode`."""
    if wanted != "auto":
        return CommitMode(wanted), f"option commitMode is {wanted}"
    if not can_prepare:
        return CommitMode.STAGED, "the server does not prepare transactions"
    if mode.kind != APPEND:
        return CommitMode.STAGED, f"writeMode is {mode.kind}"
    if unique_indexes:
        return CommitMode.STAGED, (
            f"the table has unique indexes ({', '.join(unique_indexes)}), by which prepared "
            "transactions would wait for one another"
        )
    return (
        CommitMode.PREPARED,
        "the server prepares transactions, and no unique index is in the way",
    )
