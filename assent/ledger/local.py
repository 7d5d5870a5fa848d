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

_LEFTOVER = ".tmp"


class LocalStore:
    """Creates by writing a hidden file, flushing it, linking it into place and flushing the folder.

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
        self._root = Path(local_path(location))

    @property
    def location(self) -> str:
        return canonical(str(self._root))

    def create(self, name: str, content: bytes) -> None:
        path = self._root / name
        with _reporting("write", path):
            _make_folder(path.parent)
            while not _create(path, content):
                pass

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
            for folder, _, files in os.walk(self._root):
                for name in files:
                    if name.startswith(".") and name.endswith(_LEFTOVER):
                        Path(folder, name).unlink(missing_ok=True)
                flush_folder(Path(folder))


@contextlib.contextmanager
def _reporting(act: str, path: Path) -> Iterator[None]:
    """What the disk refuses becomes an error of ours that names the file."""
    try:
        yield
    except OSError as error:
        raise RetriableError(
            f"cannot {act} {path}: {error}; start the query again when the disk lets it"
        ) from error


def _create(path: Path, content: bytes) -> bool:
    """False if another run's `recover` took the hidden file for a leftover and removed it."""
    hidden = path.with_name(f".{path.name}.{nonce()}{_LEFTOVER}")
    try:
        with open(hidden, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(hidden, path)
        except FileExistsError:
            flush_folder(path.parent)  # whoever made it may have died before flushing
            raise AlreadyExistsError(str(path)) from None
        except FileNotFoundError:
            return False
        flush_folder(path.parent)
        return True
    finally:
        hidden.unlink(missing_ok=True)


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
