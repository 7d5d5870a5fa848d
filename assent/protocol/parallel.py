"""Ways to do one thing to many items."""

from __future__ import annotations

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
