"""A disk that is full until somebody makes room."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class LimitedDisk:
    """By a limit to the size of files, which any process can set for itself: EFBIG."""

    reason = "File too large"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def full(self) -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        # The interpreter ignores the signal, so that a write past it fails with an error.
        resource.setrlimit(resource.RLIMIT_FSIZE, (16, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class SmallDisk:
    """By a file system of its own that has no page left: ENOSPC. Needs the right to mount."""

    reason = "No space left on device"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> SmallDisk:
        _run("mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(self.folder))
        return self

    def __exit__(self, *_: object) -> None:
        _run("umount", str(self.folder))

    @contextmanager
    def full(self) -> Iterator[None]:
        filler = self.folder / "filler"
        with open(filler, "wb", buffering=0) as file:
            try:
                while file.write(b"x" * 4096):
                    pass
            except OSError:
                pass
        try:
            yield
        finally:
            filler.unlink()


class CannotMount(Exception):
    """This user may not."""


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise CannotMount(str(error)) from None
    if done.returncode:
        raise CannotMount(done.stderr.strip())
