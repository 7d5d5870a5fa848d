"""Sessions of a server that are open and not in use, for whoever comes next in this process."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Session = TypeVar("Session")

_KEPT = 4
"""What stays open between two epochs. While one is committed, it is as many as are in use."""


@dataclass(frozen=True)
class SessionPool(Generic[Session]):
    """Lends each session to one at a time. A forked process leaves alone what its parent holds.

    `answers` tells whether a session still works, and is asked before it is lent again.
    """

    answers: Callable[[Session], bool]
    close: Callable[[Session], None]

    _idle: dict[tuple[int, Hashable], list[Session]] = field(default_factory=dict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def __post_init__(self) -> None:
        atexit.register(self.close_idle)

    def take(self, key: Hashable) -> Session | None:
        """One that was kept under that key and works, if there is one."""
        while True:
            with self._lock:
                idle = self._idle.get((os.getpid(), key))
                if not idle:
                    return None
                session = idle.pop()
            if self.answers(session):
                return session
            self.close(session)  # the server was restarted meanwhile

    def keep(self, key: Hashable, session: Session) -> None:
        """Leave a session that works, outside of any transaction, to the next one."""
        with self._lock:
            self._idle.setdefault((os.getpid(), key), []).append(session)

    def trim(self, key: Hashable) -> None:
        """Close all but a few: the epoch is done."""
        with self._lock:
            idle = self._idle.get((os.getpid(), key), [])
            excess, idle[:] = idle[_KEPT:], idle[:_KEPT]
        for session in excess:
            self.close(session)

    def close_idle(self) -> None:
        """Close all that this process keeps."""
        own = os.getpid()
        with self._lock:
            kept = [one for key in [*self._idle] if key[0] == own for one in self._idle.pop(key)]
        for session in kept:
            self.close(session)
