"""Texts that are none: Spark hands over whatever bytes a string column holds."""

from __future__ import annotations

import pyarrow as pa

from assent.protocol.errors import AssentError


def check_texts(name: str, column: pa.Array) -> None:
    """AssentError, naming the column, if a text anywhere in it is not UTF-8."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        raise AssentError(
            f"column {name!r} holds a text that is not UTF-8 ({error}), and cannot be written as "
            "text; mend it, or cast the column to binary"
        ) from None
