"""Whose a table is, and which timestamp an epoch has, kept in HBase itself."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from assent.protocol.errors import AssentError, ConfigurationError, FencedError
from assent.protocol.json_value import MALFORMED, dump, load_object, text, whole
from assent.protocol.verdict import Verdict
from assent.sinks.hbase_connection import HBaseConnection
from assent.sinks.ownership import UNGUARDED, described

logger = logging.getLogger("assent")

FORMAT = 1
FAMILY = "a"
COLUMN = b"a:owner"


@dataclass(frozen=True)
class Claim:
    """That an identity owns the table and writes an epoch with one timestamp, in milliseconds.

    `base` grows with every takeover, and the timestamp with every epoch; neither ever shrinks.
    """

    owner: str
    base: int
    epoch: int
    term: int
    timestamp: int

    def __bytes__(self) -> bytes:
        return dump({"format": FORMAT, **asdict(self)}).encode()

    @classmethod
    def parse(cls, content: bytes, table: str) -> Claim:
        """Read it back; an AssentError if it is not one of ours."""
        try:
            value = load_object(content)
            if whole(value, "format") != FORMAT:
                raise AssentError(
                    f"the owner of table {table} is noted in format {value['format']}, and this "
                    f"release reads {FORMAT}: use the release that wrote it, or a newer one"
                )
            numbers = (whole(value, name) for name in ("base", "epoch", "term", "timestamp"))
            return cls(text(value, "owner"), *numbers)
        except MALFORMED as error:
            raise AssentError(
                f"what the registry says of table {table} cannot be read ({error!r})"
            ) from error


class HBaseOwner:
    """One cell in the registry table, for each table that is written, changed by compare-and-set.

    Whoever begins an epoch first fixes its timestamp: that of the clock, but always after the
    last one, so that a clock that jumps back breaks nothing.
    """

    def __init__(
        self,
        connection: HBaseConnection,
        registry: str,
        table: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._connection = connection
        self._registry = registry
        self._table = table
        self._clock = clock

    def read(self) -> Claim | None:
        """Who owns the table now."""
        content = self._connection.read(self._registry, self._table.encode(), COLUMN)
        return None if content is None else Claim.parse(content, self._table)

    def claim(
        self,
        identity: str,
        epoch: int,
        term: int,
        take_over: str | None,
        lifetime: Callable[[], float | None],
    ) -> Claim:
        """Begin an epoch as the owner, or raise, before any row is written.

        `lifetime` tells how many seconds the table keeps cells; None for ever.
        """
        while True:
            held = self.read()
            wanted = self._successor(held, identity, epoch, term, take_over, lifetime)
            known = None if held is None else bytes(held)
            if wanted == held or self._connection.swap(
                self._registry, self._table.encode(), COLUMN, known, bytes(wanted)
            ):
                if held is not None and wanted.base != held.base:
                    logger.warning("took over table %s from %s", self._table, take_over)
                return wanted

    def require(self, claim: Claim) -> None:
        """FencedError if another run or query has gone on with the table."""
        if self.read() != claim:
            raise FencedError(
                f"another run or query has gone on with table {self._table} while a task of epoch "
                f"{claim.epoch} was writing; what the task wrote is older and does not show. Make "
                "sure that only one driver runs the query"
            )

    def verdict(self, identity: str, base: int, epoch: int) -> Verdict:
        """COMMITTED while the table is the identity's: HBase keeps what it has answered for."""
        held = self.read()
        if held is None or (held.owner, held.base) != (identity, base) or held.epoch < epoch:
            return Verdict.UNKNOWN  # another's by now, or emptied, or an older state of it
        return Verdict.COMMITTED

    def _successor(
        self,
        held: Claim | None,
        identity: str,
        epoch: int,
        term: int,
        take_over: str | None,
        lifetime: Callable[[], float | None],
    ) -> Claim:
        now = round(self._clock() * 1000)
        if held is None:
            return Claim(identity, 1, epoch, term, now)
        later = max(now, held.timestamp + 1)
        if take_over == f"{held.owner}-{held.base}":
            return Claim(identity, held.base + 1, epoch, term, later)
        if held.owner != identity:
            raise ConfigurationError(
                f"the table {self._table} at {self._connection} belongs to "
                f"{described(held.owner)}, which wrote it up to epoch {held.epoch}; nothing was "
                "written. Write to another table; or, if this query shall go on in its place "
                "(rows of equal keys are overwritten, the others stay), stop the other one and "
                "set option takeOver to "
                f"{held.owner}-{held.base}"
            )
        if identity == UNGUARDED:
            return replace(held, timestamp=later)
        if (epoch, term) < (held.epoch, held.term):
            raise FencedError(
                f"epoch {held.epoch} (run {held.term}) of this query has begun to write table "
                f"{self._table}, and this task is of epoch {epoch} (run {term}): it comes late, "
                "and has written nothing. If no newer run of the query is there, an older "
                "checkpoint was restored: what was written since stays, and option "
                f"takeOver={held.owner}-{held.base} goes on over it"
            )
        if epoch > held.epoch:
            return Claim(identity, held.base, epoch, term, later)
        if term > held.term:
            # A replay writes what is there already. But where cells expire, those of an epoch
            # that began long ago would be gone at once: it then counts from now.
            keeps = lifetime()
            if keeps is not None and now - held.timestamp > 500 * keeps:
                return replace(held, term=term, timestamp=later)
        return replace(held, term=term)
