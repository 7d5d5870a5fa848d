"""Ways to do one thing to many items, and ways to do something later."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_AT_ONCE = 32


class Parallel(Protocol):
    """Applies a function to all items, several at once or one by one; results in order."""

    def __call__(
        self, function: Callable[[Item], Result], items: Sequence[Item], /
    ) -> list[Result]: ...


def in_threads(function: Callable[[Item], Result], items: Sequence[Item], /) -> list[Result]:
    """Several at once."""
    if len(items) < 2:
        return one_by_one(function, items)
    with ThreadPoolExecutor(min(len(items), _AT_ONCE), "assent") as pool:
        return list(pool.map(function, items))


def one_by_one(function: Callable[[Item], Result], items: Sequence[Item], /) -> list[Result]:
    """In order, in this thread."""
    return [function(item) for item in items]


class Later(Protocol):
    """Does something for which nobody waits now."""

    def start(self, function: Callable[[], object], /) -> None:
        """Have it done, when what was started before is done."""

    def wait(self) -> None:
        """Return when it is done."""


class AtOnce:
    """In this thread, before `start` returns."""

    def start(self, function: Callable[[], object], /) -> None:
        function()

    def wait(self) -> None:
        """It is done."""


class InBackground:
    """In a thread that ends with its process, if it has to."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def start(self, function: Callable[[], object], /) -> None:
        self.wait()
        self._thread = threading.Thread(target=function, name="assent-later", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
