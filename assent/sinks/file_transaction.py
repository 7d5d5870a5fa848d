"""One task's part of an epoch on its way into staged files."""

from __future__ import annotations

import errno
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from assent.protocol.errors import ConfigurationError
from assent.protocol.name import TransactionName
from assent.sinks.file_partition import split
from assent.sinks.file_writer import FileFormat, FileWriter
from assent.sinks.folder import folders_below, sync, sync_all

OPEN_WRITERS = 64
"""Files open at a time; the one written to longest ago is closed for the next."""
KEPT_BYTES = 64 * 1024 * 1024
KEPT_ROWS = 1_000_000
"""What is gathered before it is written, so that row groups and files are not tiny."""


class FileTransaction:
    """Rows in, files out, in a folder of the transaction's own.

    Memory holds at most `KEPT_BYTES` of rows, and one batch, whatever the number of rows and of
    partition values. Rows of one folder are collected before they are written, because a file
    per value and batch would leave thousands of small ones.
    """

    def __init__(
        self,
        name: TransactionName,
        epoch: int,
        folder: Path,
        file_format: FileFormat,
        partition_columns: Sequence[str],
        durable: bool,
    ) -> None:
        self.name = name
        self.epoch = epoch
        self.folder = folder
        self.files = 0
        self._format = file_format
        self._partition_columns = tuple(partition_columns)
        self._durable = durable
        self._kept: dict[str, list[pa.RecordBatch]] = {}
        self._kept_bytes = 0
        self._kept_rows = 0
        self._writers: OrderedDict[str, FileWriter] = OrderedDict()

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        for folder, rows in split(batch, self._columns(batch)):
            self._kept.setdefault(folder, []).append(rows)
        # Slices keep the whole batch alive, so what counts is all that came in since the last
        # time that everything was written, not what one folder holds.
        self._kept_bytes += batch.nbytes
        self._kept_rows += batch.num_rows
        if self._kept_bytes >= KEPT_BYTES or self._kept_rows >= KEPT_ROWS:
            self._write_kept()

    def finish(self) -> None:
        """Write what is left, close all files and, if durable, flush files and folders."""
        self._write_kept()
        while self._writers:
            self._close(self._writers.popitem()[1])
        if self._durable:
            sync_all(folders_below(self.folder))

    def give_up(self) -> None:
        """Close all files, whatever is in them."""
        self._kept.clear()
        while self._writers:
            with suppress(OSError, pa.ArrowException):
                self._writers.popitem()[1].close()

    def _columns(self, batch: pa.RecordBatch) -> list[str]:
        names = {name.lower(): name for name in batch.schema.names}
        return [names[name.lower()] for name in self._partition_columns]

    def _write_kept(self) -> None:
        # Folders whose file is open come first, before others close it.
        for folder in sorted(self._kept, key=lambda folder: folder not in self._writers):
            batches = self._kept.pop(folder)
            self._writer(folder, batches[0].schema).write(batches)
        self._kept_bytes = self._kept_rows = 0

    def _writer(self, folder: str, schema: pa.Schema) -> FileWriter:
        writer = self._writers.get(folder)
        if writer is None:
            if len(self._writers) >= OPEN_WRITERS:
                self._close(self._writers.popitem(last=False)[1])
            number = f"-{self.files:05d}" if self._partition_columns else ""
            stem = f"part-{self.name.partition:05d}-{self.name.nonce}{number}"
            path = self.folder / folder / f"{stem}{self._format.extension}"
            self._make(path.parent)
            writer = self._writers[folder] = self._format.open(path, schema)
            self.files += 1
        self._writers.move_to_end(folder)
        return writer

    def _make(self, folder: Path) -> None:
        try:
            if folder != self.folder:
                # Not the transaction's own folder: if that is gone, somebody has aborted it.
                for parent in [*folder.relative_to(self.folder).parents][-2::-1]:
                    (self.folder / parent).mkdir(exist_ok=True)
                folder.mkdir(exist_ok=True)
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            raise ConfigurationError(
                f"a value of the partition columns ({', '.join(self._partition_columns)}) is too "
                "long for the name of a folder; partition by a shorter column, or by a hash of it"
            ) from error

    def _close(self, writer: FileWriter) -> None:
        writer.close()
        if self._durable:
            sync(writer.path)
