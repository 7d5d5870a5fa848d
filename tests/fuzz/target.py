"""A parser under fire: what it is given, and what must never come of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Target:
    """One parser. `check` takes any bytes and raises only if the parser broke its promise.

    The promise: a value that reads back the same, or the error that the parser documents; never
    another exception, never another value than what was written. `seeds` are inputs that it
    takes, from which others are made.
    """

    name: str
    check: Callable[[bytes], None]
    seeds: tuple[bytes, ...]

    def __str__(self) -> str:
        return self.name


def text_of(data: bytes) -> str:
    """Any text: what is not UTF-8 becomes lone surrogates, as it does in Python's own calls."""
    return data.decode("utf-8", "surrogateescape")


def is_within(found: Any, given: Any) -> bool:
    """Whether everything that was found is what was given: a type, too, and no number rounded."""
    if isinstance(found, dict):
        return isinstance(given, dict) and all(
            key in given and is_within(value, given[key]) for key, value in found.items()
        )
    if isinstance(found, list | tuple):
        return (
            isinstance(given, list)
            and len(found) == len(given)
            and all(map(is_within, found, given))
        )
    if isinstance(found, bool) or isinstance(given, bool):
        return found is given
    if isinstance(found, float):
        return isinstance(given, int | float) and found == float(given)
    return type(found) is type(given) and bool(found == given)


def pairs_of(text: str) -> list[dict[str, Any]]:
    """All objects in a JSON text that name a key twice."""
    twice: list[dict[str, Any]] = []

    def note(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) != len(pairs):
            twice.append(value)
        return value

    json.loads(text, object_pairs_hook=note)
    return twice


def must_say(error: Exception, what: str) -> None:
    """An error names what it is about, and says something."""
    assert what in str(error)
    assert str(error)
