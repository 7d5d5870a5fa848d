"""The files sink: no server needed, and an epoch's files appear all at once."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from assent.protocol.errors import ConfigurationError, InDoubtError, RetriableError
from assent.protocol.guarantee import Guarantee
from assent.protocol.handle import Handle
from assent.protocol.name import TransactionName
from assent.protocol.pending import Pending
from assent.protocol.sink import Sink
from assent.protocol.verdict import Verdict
from assent.sinks.destination import check_apart, check_folders, local_path
from assent.sinks.file_schema import check_schema
from assent.sinks.file_transaction import FileTransaction
from assent.sinks.file_workspace import Staged, Workspace
from assent.sinks.file_writer import COMPRESSIONS, PARQUET_CODECS, TEXT_SUFFIXES, FileFormat
from assent.sinks.folder import ancestors, remove_tree, sync_all
from assent.sinks.option import Option, Parser, boolean, choice, columns, text

if TYPE_CHECKING:
    import pyarrow as pa

_ATTEMPT = "attempt-"
_ATTEMPT_AGE = 24 * 3600.0


class FilesSink(Sink[FileTransaction]):
    """Parquet, JSON lines or CSV in a folder on a local disk.

    Every epoch is one folder, `epoch=<identity>-<number>`, which appears by one rename when the
    epoch is committed. Files wait outside the output folder: nobody who lists it sees one early.

    Parameters
    ----------
    path
        The output folder: a path, or a `file:` URI. Created if need be.
    file_format
        `parquet`, `json` (one object per line) or `csv`.
    partition_columns
        Columns whose values become folders (`country=CH/`) inside the epoch's folder.
    compression
        The codec; by default snappy for Parquet, none for the others.
    staging_path
        Where files wait. Must be on the same file system as the output, and outside of it. By
        default a hidden folder beside the output.
    header, separator
        For CSV: whether files begin with the names of the columns, and what stands between values.
    snapshots
        Allow Spark's complete mode: each epoch's folder then holds the whole result.
    epoch_column
        What the epoch's folder is called, left of the equals sign.
    """

    kind: ClassVar[str] = "files"

    OPTIONS: ClassVar[tuple[Option, ...]] = (
        Option("path", text, description="the output folder: a local path or a file: URI"),
        Option("fileFormat", choice(*COMPRESSIONS), "parquet", "format of the files"),
        Option("partitionColumns", columns, (), "columns whose values become folders"),
        Option(
            "compression",
            choice(*dict.fromkeys([*PARQUET_CODECS, *TEXT_SUFFIXES])),
            None,
            "codec; by default snappy for parquet, none for json and csv",
        ),
        Option("stagingPath", text, None, "where files wait; by default beside the output"),
        Option("header", boolean, False, "csv: begin files with the names of the columns"),
        Option("sep", Parser("one plain character or \\t", lambda value: value), ","),
        Option("snapshots", boolean, False, "allow complete mode: a whole result per epoch"),
        Option("epochColumn", text, "epoch", "left part of the name of an epoch's folder"),
    )

    def __init__(
        self,
        path: str | os.PathLike[str],
        file_format: str = "parquet",
        partition_columns: Sequence[str] = (),
        compression: str | None = None,
        staging_path: str | os.PathLike[str] | None = None,
        header: bool = False,
        separator: str = ",",
        snapshots: bool = False,
        epoch_column: str = "epoch",
    ) -> None:
        codecs = COMPRESSIONS.get(file_format, ("",))
        separator = "\t" if separator == "\\t" else separator
        self.file_format = FileFormat(file_format, compression or codecs[0], header, separator)
        self.output = local_path(os.fspath(path), "path")
        if self.output == self.output.parent:
            raise ConfigurationError(f"option path is {str(path)!r}; name a folder below the root")
        if staging_path is None:
            self.staging = self.output.parent / f".{self.output.name}.assent"
        else:
            # Below a folder of the output's own: several sinks may share a stagingPath.
            digest = hashlib.sha256(self.target.encode()).hexdigest()[:16]
            self.staging = local_path(os.fspath(staging_path), "stagingPath") / digest
        check_apart(self.output, self.staging)
        self.partition_columns = tuple(partition_columns)
        self.snapshots = snapshots
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,99}", epoch_column):
            raise ConfigurationError(
                f"option epochColumn is {epoch_column!r}; expected a letter, then letters, digits "
                "or underscores"
            )
        self.epoch_column = epoch_column

    @classmethod
    def from_options(cls, values: Mapping[str, Any]) -> FilesSink:
        """The sink for what `read_options` made of `OPTIONS`."""
        return cls(
            path=values["path"],
            file_format=values["fileFormat"],
            partition_columns=values["partitionColumns"],
            compression=values["compression"],
            staging_path=values["stagingPath"],
            header=values["header"],
            separator=values["sep"],
            snapshots=values["snapshots"],
            epoch_column=values["epochColumn"],
        )

    @property
    def target(self) -> str:
        return str(self.output)

    def check(self, schema: pa.Schema, overwrite: bool = False) -> None:
        """Refuse what cannot work; create the output and staging folders if they are missing."""
        if overwrite and not self.snapshots:
            raise ConfigurationError(
                "complete mode replaces the whole result, and a folder of files cannot be replaced "
                "in one act; set option snapshots to true (each epoch's folder then holds the "
                "whole result, and readers take the newest), or use another output mode"
            )
        check_schema(
            schema,
            file_format=self.file_format.name,
            partition_columns=self.partition_columns,
            epoch_column=self.epoch_column,
        )
        check_folders(self.output, self.staging)
        self._remove_abandoned()

    # In the tasks.

    def begin(self, name: TransactionName, epoch: int) -> FileTransaction:
        if not self.staging.is_dir():
            raise ConfigurationError(
                f"the staging folder {self.staging} does not exist where this task runs, although "
                "the driver has created it: driver and executors must share the disk; put option "
                "path on one that they share, or use a sink that is a server"
            )
        with self._reporting(name):
            folder = self._workspace(name.identity).begin(name)
        return FileTransaction(
            name, epoch, folder, self.file_format, self.partition_columns, self._durable
        )

    def write(self, transaction: FileTransaction, batch: pa.RecordBatch) -> None:
        with self._reporting(transaction.name):
            transaction.write(batch)

    def pre_commit(self, transaction: FileTransaction) -> Handle:
        with self._reporting(transaction.name):
            transaction.finish()
            if self._durable:
                sync_all(ancestors(transaction.folder.parent, self.staging.parent))
        return Handle(
            self.kind,
            str(transaction.name),
            {
                "epoch": str(transaction.epoch),
                "files": str(transaction.files),
                "path": self.target,
            },
        )

    def discard(self, transaction: FileTransaction) -> None:
        transaction.give_up()
        workspace = self._workspace(transaction.name.identity)
        workspace.discard(transaction.name)
        if not workspace.sealing:
            remove_tree(workspace.folder)

    # On the driver, or wherever an operator is.

    def commit(self, handle: Handle) -> None:
        """Gather the files beside those of their epoch; `publish` makes them visible."""
        staged = self._staged(handle)
        with self._reporting(staged.name):
            self._workspace(staged.name.identity).gather(staged)

    def publish(self, epoch: int, handles: Sequence[Handle]) -> None:
        staged = [self._staged(handle) for handle in handles]
        for identity in sorted({one.name.identity for one in staged}):
            ours = [one for one in staged if one.name.identity == identity]
            with self._reporting(ours[0].name):
                self._workspace(identity).publish(epoch, ours)

    def abort(self, handle: Handle) -> None:
        name = self._name(handle)
        self._workspace(name.identity).discard(name)

    def verdict(self, handle: Handle) -> Verdict:
        name = self._name(handle)
        workspace = self._workspace(name.identity)
        if "files" not in handle.details:
            # As `pending` lists it: only the folder's name is known.
            return Verdict.PENDING if (workspace.open / str(name)).is_dir() else Verdict.UNKNOWN
        return workspace.verdict(self._staged(handle))

    def pending(self, identity: str) -> Iterable[Pending]:
        return [
            Pending.named(Handle(self.kind, str(name), {"path": self.target}), name, since)
            for name, since in self._workspace(identity).names()
        ]

    # Inside.

    @contextlib.contextmanager
    def _reporting(self, name: TransactionName) -> Iterator[None]:
        """What the disk refuses becomes an error of ours: it may be full, or only be read."""
        try:
            yield
        except OSError as error:
            raise RetriableError(
                f"{name} cannot be written to {self.output} by way of {self.staging}: {error}. "
                "Nothing of it is seen; it is written when the disk lets it"
            ) from error

    @property
    def _durable(self) -> bool:
        return self.guarantee is not Guarantee.NONE

    def _workspace(self, identity: str) -> Workspace:
        # Without a ledger the identity is that of one attempt of one task, which nobody will ask
        # about again: its folder is marked, so that an abandoned one can be told and removed.
        exactly_once = self.guarantee is Guarantee.EXACTLY_ONCE
        folder = self.staging / (identity if exactly_once else f"{_ATTEMPT}{identity}")
        # Many attempts publish beside each other, so theirs must be unlikely to meet.
        shown = identity[:8] if exactly_once else identity
        prefix = f"{self.epoch_column}={shown}-"
        return Workspace(folder, self.output, prefix, self._durable, exactly_once)

    def _name(self, handle: Handle) -> TransactionName:
        path = handle.details.get("path", self.target)
        if handle.kind != self.kind or path != self.target:
            raise ConfigurationError(
                f"handle {handle} belongs to another sink than the files sink of {self.target}"
            )
        try:
            return TransactionName.parse(handle.name)
        except ValueError as error:
            raise ConfigurationError(f"handle {handle} does not name a transaction") from error

    def _staged(self, handle: Handle) -> Staged:
        try:
            details = handle.details
            return Staged(self._name(handle), int(details["epoch"]), int(details["files"]))
        except (KeyError, ValueError) as error:
            raise InDoubtError(
                f"handle {handle} does not say {error}; use the handle that the ledger holds"
            ) from error

    def _remove_abandoned(self) -> None:
        for folder in self.staging.glob(f"{_ATTEMPT}*"):
            try:
                age = time.time() - folder.stat().st_mtime
            except FileNotFoundError:
                continue
            if age > _ATTEMPT_AGE:
                remove_tree(folder)
