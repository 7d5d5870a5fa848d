"""The partitions that a transaction has written to, as text that goes into its handle."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

Partitions = Mapping[str, tuple[int, ...]]
"""By topic, in ascending order."""

_FORM = re.compile(r"[A-Za-z0-9._-]+:[0-9]+(-[0-9]+)?(\.[0-9]+(-[0-9]+)?)*")


def format_partitions(partitions: Mapping[str, Iterable[int]]) -> str:
    """The text: short, also for many, and without a character that has to be quoted.

    >>> format_partitions({"views": [0, 1, 2, 7], "clicks": [3]})
    'clicks:3/views:0-2.7'
    """
    return "/".join(
        f"{topic}:{'.'.join(_ranges(sorted(numbers)))}"
        for topic, numbers in sorted(partitions.items())
        if numbers
    )


def parse_partitions(form: str) -> Partitions:
    """Read the text; a ValueError for what is none.

    >>> parse_partitions("clicks:3/views:0-2.7")
    {'clicks': (3,), 'views': (0, 1, 2, 7)}
    """
    found: dict[str, tuple[int, ...]] = {}
    for part in form.split("/") if form else ():
        if not _FORM.fullmatch(part):
            raise ValueError(f"not a list of partitions: {form!r} (expected topic:0-2.7/topic:0)")
        topic, _, ranges = part.partition(":")
        numbers: list[int] = []
        for each in ranges.split("."):
            first, _, last = each.partition("-")
            numbers.extend(range(int(first), int(last or first) + 1))
        found[topic] = tuple(numbers)
    return found


def _ranges(numbers: list[int]) -> Iterable[str]:
    first = last = None
    for number in [*numbers, None]:
        if last is not None and number == last + 1:
            last = number
            continue
        if last is not None:
            yield str(first) if first == last else f"{first}-{last}"
        first = last = number
