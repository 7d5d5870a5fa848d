"""A disk so small that it can be filled: a tmpfs of its own, mounted on a folder."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

_CHUNK = 1 << 20


class SmallDisk:
    """Mounted while the `with` block lasts, if the system lets us; if not, `refusal` says why."""

    reason = "No space left on device"

    def __init__(self, folder: Path, size: str) -> None:
        self.folder = folder
        self.mounted = False
        self.refusal = ""
        self._size = size
        self._filler = folder / "_filler"

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={self._size}", "assent", str(self.folder)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            self.refusal = str(error)
        else:
            self.mounted, self.refusal = done.returncode == 0, done.stderr.strip()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.mounted:
            subprocess.run(["umount", "--lazy", str(self.folder)], check=True)

    def fill(self) -> None:
        """Not a byte is left."""
        assert self.mounted, "never on a disk of somebody else"
        with self._filler.open("ab", buffering=0) as filler:
            size = _CHUNK
            while size:
                try:
                    filler.write(b"\0" * size)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    size //= 2

    def clear(self) -> None:
        """Room again."""
        self._filler.unlink(missing_ok=True)

    @contextmanager
    def full(self) -> Iterator[None]:
        """Full while the block lasts."""
        self.fill()
        try:
            yield
        finally:
            self.clear()
