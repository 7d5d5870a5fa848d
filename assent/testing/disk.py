"""A disk so small that it can be filled: a tmpfs of its own, mounted on a folder."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

_SIZE = "48m"
_CHUNK = 1 << 20


class SmallDisk:
    """Mounted while the `with` block lasts, if the system lets us (`mounted` tells)."""

    def __init__(self, folder: Path) -> None:
        self.mounted = False
        self._folder = folder
        self._filler = folder / "_filler"

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={_SIZE}", "assent", str(self._folder)]
        try:
            done = subprocess.run(command, capture_output=True, check=False)
        except FileNotFoundError:
            return self
        self.mounted = done.returncode == 0
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.mounted:
            subprocess.run(["umount", "--lazy", str(self._folder)], check=True)

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
        if os.path.exists(self._filler):
            self._filler.unlink()
