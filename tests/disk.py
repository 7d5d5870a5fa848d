"""A disk that is full until somebody makes room, without the right to mount one."""

from __future__ import annotations

import resource
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
