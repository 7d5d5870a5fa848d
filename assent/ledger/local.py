"""Records on a local disk, or on a file system that behaves like one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from assent.ledger.location import canonical, local_path, scheme
from assent.ledger.store import AlreadyExistsError, MissingError
from assent.protocol.errors import ConfigurationError, RetriableError
from assent.protocol.name import nonce

_NEW = ".new"
"""The folder of files that are being written: apart from the records, which are many."""


class LocalStore:
    """Creates by writing a file apart, flushing it, linking it into place and flushing the folder.

    A link either appears, with the whole content, or does not, and never overwrites. Flushed
    means fsync of the file and of its folder.
    """

    def __init__(self, location: str) -> None:
        if scheme(location) != "file":
            raise ConfigurationError(
                f"the checkpoint location {location!r} has the scheme '{scheme(location)}:', on "
                "which the ledger cannot be kept yet; put checkpointLocation on a local or shared "
                "file system (a plain path or file:)"
            )
        try:
            self._root = Path(local_path(location))
        except ValueError as error:  # a zero byte, half a character, or no URI
            raise ConfigurationError(
                f"the checkpoint location {location!r} is not a path ({error})"
            ) from None
        self._flushed: set[str] = set()

    @property
    def location(self) -> str:
        return canonical(str(self._root))

    def create(self, name: str, content: bytes) -> None:
        path = self._root / name
        with _reporting("write", path):
            self._make_folder(path.parent)
            self._make_folder(self._root / _NEW)
            while not _create(path, self._root / _NEW / nonce(), content):
                pass

    def _make_folder(self, folder: Path) -> None:
        """Create a folder and its parents, each of them flushed into the one above.

        One that is there already is flushed too, once: whoever made it may have died before.
        """
        if str(folder) in self._flushed and folder.is_dir():
            return
        if folder == self._root:
            _make_folder(folder.parent)
        else:
            self._make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        flush_folder(folder.parent)
        self._flushed.add(str(folder))

    def read(self, name: str) -> bytes:
        path = self._root / name
        with _reporting("read", path):
            try:
                return path.read_bytes()
            except FileNotFoundError:
                raise MissingError(str(path)) from None

    def list(self, folder: str) -> list[str]:
        path = self._root / folder
        with _reporting("list", path):
            try:
                with os.scandir(path) as entries:
                    return sorted(entry.name for entry in entries if not entry.name.startswith("."))
            except FileNotFoundError:
                return []

    def delete(self, name: str) -> None:
        (self._root / name).unlink(missing_ok=True)

    def recover(self) -> None:
        with _reporting("write", self._root):
            if not self._root.is_dir():
                return
            for leftover in (self._root / _NEW).glob("*"):
                leftover.unlink(missing_ok=True)
            with os.scandir(self._root) as entries:
                kept = [Path(entry) for entry in entries if entry.is_dir() and entry.name != _NEW]
            for folder in (self._root, *kept):
                flush_folder(folder)


@contextlib.contextmanager
def _reporting(act: str, path: Path) -> Iterator[None]:
    """What the disk refuses becomes an error of ours that names the file."""
    try:
        yield
    except OSError as error:
        raise RetriableError(
            f"cannot {act} {path}: {error}; start the query again when the disk lets it"
        ) from error


def _create(path: Path, new: Path, content: bytes) -> bool:
    """False if another run's `recover` took the new file for a leftover and removed it."""
    try:
        with open(new, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(new, path)
        except FileExistsError:
            flush_folder(path.parent)  # whoever made it may have died before flushing
            raise AlreadyExistsError(str(path)) from None
        except FileNotFoundError:
            return False
        flush_folder(path.parent)
        return True
    finally:
        new.unlink(missing_ok=True)


def flush_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_folder(folder: Path) -> None:
    """Create a folder and its parents, each of them flushed into the one above."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    flush_folder(folder.parent)
