"""JSON values as types, and the two ways in which Assent reads and writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

JsonValue: TypeAlias = (
    "None | bool | int | float | str | Sequence[JsonValue] | Mapping[str, JsonValue]"
)
JsonObject: TypeAlias = Mapping[str, JsonValue]


def dump(value: JsonValue) -> str:
    """The canonical form: sorted keys, no spaces, one line, plain ASCII, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def load_object(text: str | bytes) -> dict[str, Any]:
    """Parse a JSON object; anything else is a ValueError."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, found {type(value).__name__}")
    return cast(dict[str, Any], value)


MALFORMED = (KeyError, TypeError, ValueError, AttributeError, OverflowError)
"""What reading JSON that is not of the expected form may raise: a number may be infinite."""
