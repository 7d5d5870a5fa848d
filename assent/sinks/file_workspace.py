"""The staging folder of one identity: where files wait, and the renames that settle them.

::

    <staging>/<identity>/open/<transaction>/…        written by one task, pre-committed or not
    <staging>/<identity>/ready/<epoch folder>/…      gathered: committed, not yet visible
    <staging>/<identity>/sealed/<epoch folder>       the transactions that make up the epoch
    <output>/<epoch folder>/…                        published

A file only ever moves down this list. The seal is written when all is gathered, before the one
rename that shows the epoch; so a seal without a ready folder proves that the epoch was published,
even when somebody has since moved the published folder away.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from assent.protocol.errors import ConfigurationError, InDoubtError, LedgerError, TornEpochError
from assent.protocol.json_value import MALFORMED, as_text, dump, load_object, sequence, whole
from assent.protocol.name import TransactionName
from assent.protocol.verdict import Verdict
from assent.sinks.folder import (
    ancestors,
    files_below,
    folders_below,
    locked,
    make_folders,
    remove_empty,
    remove_tree,
    sync_all,
)

SEAL_VERSION = 1


@dataclass(frozen=True)
class Staged:
    """What a handle says: which transaction, of which epoch, and how many files it staged."""

    name: TransactionName
    epoch: int
    files: int


@dataclass(frozen=True)
class Workspace:
    """Every method may be called again after a crash anywhere, and by several processes at once.

    Gathering and asking share a lock; publishing takes it alone. `durable` flushes what is done;
    `sealing` keeps the proof of it, without which the whole workspace goes once it is published.
    """

    folder: Path
    output: Path
    epoch_prefix: str
    durable: bool = True
    sealing: bool = True

    @property
    def open(self) -> Path:
        return self.folder / "open"

    @property
    def ready(self) -> Path:
        return self.folder / "ready"

    @property
    def sealed(self) -> Path:
        return self.folder / "sealed"

    def epoch_folder(self, epoch: int) -> str:
        return f"{self.epoch_prefix}{epoch:06d}"

    def begin(self, name: TransactionName) -> Path:
        """The new, empty folder of a transaction."""
        folder = self.open / str(name)
        make_folders(folder)
        return folder

    def names(self) -> Iterator[tuple[TransactionName, float]]:
        """The transactions that are open, and since about when."""
        try:
            entries = sorted(os.scandir(self.open), key=lambda entry: entry.name)
        except FileNotFoundError:
            return
        for entry in entries:
            try:
                yield TransactionName.parse(entry.name), entry.stat().st_mtime
            except (ValueError, FileNotFoundError):
                continue  # Being removed, or not ours.

    def discard(self, name: TransactionName) -> None:
        """Remove an open transaction; what is gathered or published stays.

        The rename makes it one act: no half of a transaction is ever found, and a task that is
        still writing into it finds no folder any more.
        """
        folder = self.open / str(name)
        gone = self.open / f".{name}"
        try:
            os.rename(folder, gone)
        except FileNotFoundError:
            pass
        remove_tree(gone)
        remove_empty(self.open)

    def gather(self, staged: Staged) -> None:
        """Move the transaction's files beside those of its epoch. Returning means: all are."""
        if not self.folder.is_dir():
            self._require([staged])
            return
        with locked(self.folder, exclusive=False):
            files = files_below(self.open / str(staged.name))
            whole = len(files) == staged.files
            # All files still lie here, as almost always, or the rest of them does.
            if whole or self._verdict(staged) is Verdict.PENDING:
                self._move(staged, files)
            else:
                self._require([staged])
            self.discard(staged.name)

    def _move(self, staged: Staged, files: Sequence[Path]) -> None:
        if not staged.files:
            return
        source = self.open / str(staged.name)
        ready = self.ready / self.epoch_folder(staged.epoch)
        for file in files:
            make_folders((ready / file).parent)
            try:
                os.rename(source / file, ready / file)
            except FileNotFoundError:
                pass  # Another process was faster.
        if len(files) == staged.files:
            parents = {(ready / file).parent for file in files}
            touched = {folder for parent in parents for folder in ancestors(parent, ready)}
        else:
            # An earlier call moved the others, and may have died before it came to flush.
            touched = set(folders_below(ready))
        self._flush([*touched, self.ready, self.folder])

    def publish(self, epoch: int, staged: Sequence[Staged]) -> None:
        """Show the whole epoch by one rename."""
        staged = [one for one in staged if one.files]
        if not staged:
            return
        if not self.folder.is_dir():
            self._require(staged)
            return
        with locked(self.folder, exclusive=True):
            source = self.ready / self.epoch_folder(epoch)
            target = self.output / self.epoch_folder(epoch)
            if source.is_dir():
                self._check_ready(source, staged)
                if os.path.lexists(target):
                    raise ConfigurationError(
                        f"{target} exists, but is not of this query; nothing was overwritten, and "
                        "the epoch waits to be published: move that folder away and start again"
                    )
                if self.sealing:
                    self._seal(epoch, staged)
                make_folders(self.output)
                os.rename(source, target)
            else:
                self._require(staged)
            involved = (self.ready, self.output, self.output.parent)
            self._flush(folder for folder in involved if folder.is_dir())
            self._tidy(epoch)

    def verdict(self, staged: Staged) -> Verdict:
        if not self.folder.is_dir():
            return self._verdict(staged)
        with locked(self.folder, exclusive=False):
            return self._verdict(staged)

    def _verdict(self, staged: Staged) -> Verdict:
        """Looks in the order in which files move, so that none slips past."""
        source = self.open / str(staged.name)
        is_open = source.is_dir()
        opened = len(files_below(source))
        if staged.files == 0:
            return Verdict.PENDING if is_open else Verdict.COMMITTED
        ready = self.ready / self.epoch_folder(staged.epoch)
        is_ready = ready.is_dir()
        gathered = _nonces(ready)[staged.name.nonce]
        if gathered == staged.files and not opened:
            return Verdict.PENDING if is_open else Verdict.COMMITTED
        if opened + gathered >= staged.files:
            return Verdict.PENDING
        if gathered:
            return Verdict.UNKNOWN  # Some of its files are gone, and others would be published.
        if opened:
            return Verdict.ABORTED  # Some are gone, and none of the others can become visible.
        seals = self._seals()
        if staged.epoch in seals:
            sealed = str(staged.name) in _read(seals[staged.epoch])
            if sealed and is_ready:
                return Verdict.UNKNOWN  # Somebody has removed its files from the ready folder.
            return Verdict.COMMITTED if sealed else Verdict.ABORTED
        published = self.output / self.epoch_folder(staged.epoch)
        if _nonces(published)[staged.name.nonce] == staged.files:
            return Verdict.COMMITTED
        # No trace of it. Was it here once? The seal would know; it goes when a newer one comes.
        forgotten = any(epoch > staged.epoch for epoch in seals) or published.exists()
        if forgotten or not self.folder.is_dir():
            return Verdict.UNKNOWN
        return Verdict.ABORTED

    def _require(self, staged: Iterable[Staged]) -> None:
        """Raise unless all was committed, and so published, before."""
        for one in staged:
            verdict = self._verdict(one)
            if verdict is Verdict.ABORTED:
                raise TornEpochError(
                    f"epoch {one.epoch}: the files that {one.name} staged in {self.open} are gone; "
                    "nothing of them was published. Tasks on other machines must share this disk "
                    "with the driver; if they do, start the query again, and they are rewritten"
                )
            if verdict is not Verdict.COMMITTED:
                raise InDoubtError(
                    f"epoch {one.epoch}: {one.name} is {verdict.value}: not all of its {one.files} "
                    f"files are found where they should be, in {self.folder} or {self.output}, and "
                    "no seal says that they were published; look for them (their names contain "
                    f"{one.name.nonce}), then settle the transaction by hand"
                )

    def _check_ready(self, source: Path, staged: Sequence[Staged]) -> None:
        found = _nonces(source)
        wanted = Counter({one.name.nonce: one.files for one in staged})
        if found != wanted:
            strange = sorted((found - wanted) | (wanted - found))
            raise InDoubtError(
                f"{source} does not hold exactly the files that were decided (look for those "
                f"with {', '.join(strange)} in their names); the epoch was not published. Put "
                "back what is missing, or remove what does not belong there, and start again"
            )

    def _seal(self, epoch: int, staged: Sequence[Staged]) -> None:
        make_folders(self.sealed)
        names = sorted(str(one.name) for one in staged)
        content = dump({"version": SEAL_VERSION, "epoch": epoch, "transactions": names})
        partial = self.sealed / ".partial"
        partial.write_text(content)
        self._flush([partial])
        os.rename(partial, self.sealed / self.epoch_folder(epoch))
        self._flush([self.sealed, self.folder])

    def _seals(self) -> dict[int, Path]:
        found = self.sealed.glob(f"{self.epoch_prefix}[0-9]*")
        return {int(seal.name.removeprefix(self.epoch_prefix)): seal for seal in found}

    def _tidy(self, epoch: int) -> None:
        if not self.sealing:
            remove_tree(self.folder)
            return
        for older, seal in self._seals().items():
            if older < epoch and not (self.ready / seal.name).exists():
                seal.unlink(missing_ok=True)
        for gone in self.open.glob(".assent-*"):
            remove_tree(gone)
        remove_empty(self.open)
        remove_empty(self.ready)

    def _flush(self, paths: Iterable[Path]) -> None:
        if self.durable:
            sync_all(paths)


def _nonces(folder: Path) -> Counter[str]:
    """How many files of each transaction the folder holds, by nonce."""
    parts = (file.name.partition(".")[0].split("-") for file in files_below(folder))
    return Counter(words[2] for words in parts if len(words) >= 3 and words[0] == "part")


def _read(seal: Path) -> list[str]:
    return read_seal(str(seal), seal.read_bytes())


def read_seal(seal: str, content: bytes) -> list[str]:
    """The transactions that a seal names; LedgerError, with the seal's own name, if it is none."""
    try:
        value = load_object(content)
        if whole(value, "version") != SEAL_VERSION:
            raise ValueError(f"version {value['version']}")
        return [as_text(name, "transactions") for name in sequence(value, "transactions")]
    except MALFORMED as error:
        raise LedgerError(
            f"{seal} is not a seal that this release can read ({error}); restore it, or use "
            "the release that wrote it"
        ) from error
