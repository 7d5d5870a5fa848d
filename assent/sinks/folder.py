"""Folders on a local disk: flushed, locked, walked, and told from those that promise less."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from assent.protocol.errors import RetriableError

LOCK_TIMEOUT = 60.0
"""Seconds to wait for a lock. Its holders only rename and flush, so this means one is stuck."""

_MOUNTS = Path("/proc/self/mountinfo")
_REMOTE = {"nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "afs", "ncpfs"}


def sync(path: Path) -> None:
    """Make a file's content, or a folder's entries, survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_all(paths: Iterable[Path]) -> None:
    """`sync` each path once, the deepest first, so that no entry precedes what it names."""
    for path in sorted(set(paths), key=lambda path: len(path.parts), reverse=True):
        sync(path)


def ancestors(path: Path, top: Path) -> list[Path]:
    """The folder and those above it, up to and with `top`."""
    if path == top:
        return [path]
    return [path, *(parent for parent in path.parents if parent.is_relative_to(top))]


def folders_below(top: Path) -> list[Path]:
    """The folder and all folders in it; none if it does not exist."""
    return [Path(folder) for folder, _, _ in os.walk(top)]


def files_below(top: Path) -> list[Path]:
    """All files in the folder, at any depth, relative to it; none if it does not exist."""
    return [
        Path(folder, file).relative_to(top) for folder, _, files in os.walk(top) for file in files
    ]


def make_folders(path: Path) -> None:
    """Create the folder and those above it, although others may be removing empty ones."""
    deadline = time.monotonic() + 10
    while True:
        try:
            path.mkdir(parents=True, exist_ok=True)
            return
        except (FileNotFoundError, FileExistsError):
            if time.monotonic() > deadline:
                raise


def remove_empty(folder: Path) -> None:
    """Remove the folder if it is there and empty."""
    with suppress(OSError):
        folder.rmdir()


def remove_tree(folder: Path) -> None:
    """Remove the folder with all it holds, although others may be doing the same."""
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def locked(folder: Path, *, exclusive: bool) -> Iterator[None]:
    """Hold the folder's lock, alone or together with others that do not want it alone.

    The lock belongs to this call, not to the process, and the system drops it when the process
    dies: threads and processes exclude each other, and no crash leaves it behind.
    """
    import fcntl

    kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
    deadline = time.monotonic() + LOCK_TIMEOUT
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        while True:
            try:
                fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise RetriableError(
                        f"another process has held the lock of {folder} for {LOCK_TIMEOUT:.0f} s; "
                        "find it (lsof shows who has the folder open) and end it"
                    ) from None
                time.sleep(0.002)
        try:
            yield
        finally:
            # Said aloud, because a forked child may have inherited the descriptor.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def can_rename(source: Path, destination: Path) -> bool:
    """Whether folders can be renamed from one folder into the other; changes nothing."""
    if source.stat().st_dev != destination.stat().st_dev:
        return False
    # One device may be mounted in two places, between which a rename fails all the same. The
    # system says so before it looks for the name, so a name that does not exist will do.
    absent = f".assent-{os.getpid()}-absent"
    try:
        os.rename(source / absent, destination / absent)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def remote_file_system(path: Path) -> str | None:
    """The type of the network or user-space file system that holds the path, if it is one."""
    try:
        lines = _MOUNTS.read_text().splitlines()
    except OSError:
        return None
    best, found = "", ""
    for line in lines:
        left, _, right = line.partition(" - ")
        point = left.split()[4].encode().decode("unicode_escape")
        # Later mounts cover earlier ones at the same point.
        if path.is_relative_to(point) and len(point) >= len(best):
            best, found = point, right.split()[0]
    fuse = found == "fuse" or found.startswith("fuse.")
    if found in _REMOTE or (fuse and found != "fuse.fuse-overlayfs"):
        return found
    return None
