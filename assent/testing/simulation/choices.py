"""The choices of a history: every one of them, so that a list of numbers replays it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")


class Choices:
    """Numbers from a list, and after its end from a seed, or zeros where there is no seed.

    Zero is always the harmless choice: a list that was cut off ends in a quiet history.
    """

    def __init__(self, given: Sequence[int] = (), seed: int | None = None) -> None:
        self.made: list[int] = []
        self._given = given
        self._random = None if seed is None else random.Random(seed).random

    def pick(self, count: int) -> int:
        """A number from 0 to count - 1."""
        position = len(self.made)
        if position < len(self._given):
            choice = self._given[position] % count
        elif self._random is not None:
            choice = int(self._random() * count)
        else:
            choice = 0
        self.made.append(choice)
        return choice

    def one_of(self, items: Sequence[Item]) -> Item:
        """One of these; the first is the harmless one."""
        return items[self.pick(len(items))]
