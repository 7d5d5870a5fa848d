"""Spark's own checkpoint, as far as the protocol has to read it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from assent.ledger.store import MissingError, RecordStore
from assent.protocol.errors import ConfigurationError, LedgerError
from assent.protocol.json_value import load_object


@dataclass(frozen=True)
class SparkCheckpoint:
    """The folders `offsets` and `commits` and the file `metadata` of a checkpoint location.

    Spark writes `offsets/N` before it runs epoch N and never changes it, and `commits/N` after
    the sink's commit has returned; a replay of N reads `offsets/N` again.
    """

    store: RecordStore

    def query(self) -> str:
        """Spark's id of the query, which lives as long as its checkpoint."""
        try:
            content = self.store.read("metadata")
        except MissingError:
            raise ConfigurationError(
                f"there is no Spark checkpoint at {self.store.location} (no file 'metadata' in "
                "it), as seen from the driver's Python. Give checkpointLocation as an absolute "
                "path, with file: if the cluster's default file system is another one"
            ) from None
        try:
            return str(load_object(content)["id"])
        except (KeyError, ValueError) as error:
            raise LedgerError(
                f"{self.store.location}/metadata is not what Spark writes there: {error!r}"
            ) from error

    def newest_epoch(self) -> int | None:
        numbers = [int(name) for name in self.store.list("offsets") if name.isdecimal()]
        return max(numbers, default=None)

    def digest(self, epoch: int) -> str | None:
        try:
            content = self.store.read(f"offsets/{epoch}")
        except MissingError:
            return None
        return hashlib.sha256(content).hexdigest()

    def is_committed(self, epoch: int) -> bool:
        try:
            self.store.read(f"commits/{epoch}")
        except MissingError:
            return False
        return True
