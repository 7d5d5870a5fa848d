"""Where the epochs of a scripted topic end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TypeAlias

from assent.protocol.errors import ConfigurationError

Boundaries: TypeAlias = tuple[tuple[int, ...], ...]
"""The end offset of every partition, for every epoch in turn."""

DEFAULT_BOUNDARIES: Boundaries = ((2500, 2500), (5000, 5000), (10000, 10002), (10000, 10005))
"""20,005 page views in two partitions, the last three of them in an epoch of their own."""


def parse_boundaries(text: str) -> Boundaries:
    """Read boundaries from JSON; a ConfigurationError says what is wrong with them."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise _bad_boundaries(text, f"it is not JSON ({error})") from None
    if not (isinstance(value, list) and value and all(map(_is_boundary, value))):
        raise _bad_boundaries(text, "it is not a list of lists of numbers from 0 on")
    boundaries = tuple(tuple(boundary) for boundary in value)
    if len(set(map(len, boundaries))) > 1:
        raise _bad_boundaries(text, "not every epoch names the same number of partitions")
    previous = (0,) * len(boundaries[0])
    for boundary in boundaries:
        if not passes(previous, boundary):
            raise _bad_boundaries(text, f"{list(boundary)} does not lie past {list(previous)}")
        previous = boundary
    return boundaries


def format_boundaries(boundaries: Boundaries) -> str:
    """The form that the option `boundaries` takes."""
    return json.dumps(boundaries, separators=(",", ":"))


def passes(position: Sequence[int], boundary: Sequence[int]) -> bool:
    """Whether the boundary lies past the position: further in one partition, behind in none."""
    pairs = list(zip(position, boundary, strict=True))
    return all(start <= end for start, end in pairs) and any(start < end for start, end in pairs)


def _is_boundary(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(n) is int and n >= 0 for n in value)


def _bad_boundaries(text: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"option boundaries of assent-pageviews: {why}, in {text!r}; "
        f"an example is {format_boundaries(DEFAULT_BOUNDARIES)}"
    )
