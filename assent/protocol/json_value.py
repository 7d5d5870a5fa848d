"""JSON values as types, and the two ways in which Assent reads and writes them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

JsonValue: TypeAlias = (
    "None | bool | int | float | str | Sequence[JsonValue] | Mapping[str, JsonValue]"
)
JsonObject: TypeAlias = Mapping[str, JsonValue]

_SHOWN = 100


def dump(value: JsonValue) -> str:
    """The canonical form: sorted keys, no spaces, one line, plain ASCII, no NaN."""
    return _ENCODER.encode(value)


def load_object(text: str | bytes) -> dict[str, Any]:
    """Parse a JSON object; anything else is a ValueError.

    So is a name that is there twice, and a number that JSON does not have (NaN): of what is
    read nothing may be left out or guessed.
    """
    try:
        value = _DECODER.decode(text if isinstance(text, str) else text.decode())
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, found {type(value).__name__}")
    return cast(dict[str, Any], value)


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a JSON object that names a key twice")
    return members


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant}, which is no number of JSON")


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)
_DECODER = json.JSONDecoder(object_pairs_hook=_members, parse_constant=_refuse)


# Reading a member: of the right type, or an error that names it. Nothing is converted, because
# int(1.5), bool("false") and str(None) would be values that nobody wrote.


def whole(value: Mapping[str, Any], name: str) -> int:
    """A whole number from 0 on."""
    return as_whole(value[name], name)


def as_whole(found: object, name: str) -> int:
    if type(found) is not int or found < 0:
        raise ValueError(f"{name} is {_shown(found)}, not a whole number from 0 on")
    return found


def optional_whole(value: Mapping[str, Any], name: str) -> int | None:
    """A whole number from 0 on, or null."""
    return None if value[name] is None else whole(value, name)


def number(value: Mapping[str, Any], name: str) -> float:
    """A finite number."""
    found = value[name]
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise ValueError(f"{name} is {_shown(found)}, not a number")
    if not math.isfinite(found):  # an OverflowError if it is larger than any
        raise ValueError(f"{name} is {_shown(found)}, not a finite number")
    return float(found)


def text(value: Mapping[str, Any], name: str) -> str:
    """A text that every store and terminal takes: without half a surrogate pair."""
    return as_text(value[name], name)


def as_text(found: object, name: str) -> str:
    if not isinstance(found, str):
        raise ValueError(f"{name} is {_shown(found)}, not a text")
    found.encode()  # a ValueError for half a pair
    return found


def flag(value: Mapping[str, Any], name: str) -> bool:
    """True or false."""
    found = value[name]
    if not isinstance(found, bool):
        raise ValueError(f"{name} is {_shown(found)}, not true or false")
    return found


def sequence(value: Mapping[str, Any], name: str) -> list[Any]:
    """A list."""
    found = value[name]
    if not isinstance(found, list):
        raise ValueError(f"{name} is {_shown(found)}, not a list")
    return found


def members(value: Mapping[str, Any], name: str) -> dict[str, Any]:
    """An object."""
    found = value[name]
    if not isinstance(found, dict):
        raise ValueError(f"{name} is {_shown(found)}, not an object")
    return found


def _shown(found: object) -> str:
    shown = repr(found)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"


MALFORMED = (KeyError, TypeError, ValueError, AttributeError, OverflowError)
"""What reading JSON that is not of the expected form may raise: a number may be infinite."""
