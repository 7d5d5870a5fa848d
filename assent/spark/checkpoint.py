"""Spark's own checkpoint, as far as the protocol has to read it."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from assent.ledger.store import MissingError, RecordStore
from assent.protocol.errors import ConfigurationError, LedgerError
from assent.protocol.json_value import load_object, text

_OFFSETS_VERSION = "v1"
_NUMBER = re.compile(r"0|[1-9][0-9]*")


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
            return text(load_object(content), "id")
        except (KeyError, ValueError) as error:
            raise LedgerError(
                f"{self.store.location}/metadata is not what Spark writes there: {error!r}"
            ) from error

    def newest_epoch(self) -> int | None:
        numbers = [int(name) for name in self.store.list("offsets") if _NUMBER.fullmatch(name)]
        return max(numbers, default=None)

    def digest(self, epoch: int) -> str | None:
        try:
            content = self.store.read(f"offsets/{epoch}")
        except MissingError:
            return None
        return hashlib.sha256(content).hexdigest()

    def source_offsets(self, epoch: int) -> list[str]:
        """Where the epoch ends in each source, as the source wrote it; none for `-`."""
        name = f"offsets/{epoch}"
        try:
            version, _, *sources = self.store.read(name).decode().split("\n")
        except MissingError:
            return []
        except ValueError:
            version, sources = "not what Spark writes", []
        if version != _OFFSETS_VERSION:
            raise ConfigurationError(
                f"{self.store.location}/{name} has version {version!r}, of which this release "
                f"cannot read offsets ({_OFFSETS_VERSION} only): remove the option commitOffsets"
            )
        return [source for source in sources if source not in ("", "-")]

    def is_committed(self, epoch: int) -> bool:
        try:
            self.store.read(f"commits/{epoch}")
        except MissingError:
            return False
        return True
