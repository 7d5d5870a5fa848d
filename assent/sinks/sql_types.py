"""Of Arrow's types and values, what every database has to ask."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from assent.protocol.errors import AssentError, ConfigurationError

_types = pa.types
# By which Spark marks structs that stand for types of their own.
_DISGUISED = frozenset({b"variant", b"geometry", b"geography"})

DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}
"""How many decimal digits an integer of so many bits may have."""


def is_text(kind: pa.DataType) -> bool:
    return bool(
        _types.is_string(kind) or _types.is_large_string(kind) or _types.is_string_view(kind)
    )


def is_binary(kind: pa.DataType) -> bool:
    return bool(
        _types.is_binary(kind)
        or _types.is_large_binary(kind)
        or _types.is_fixed_size_binary(kind)
        or _types.is_binary_view(kind)
    )


def is_list(kind: pa.DataType) -> bool:
    return bool(
        _types.is_list(kind) or _types.is_large_list(kind) or _types.is_fixed_size_list(kind)
    )


def check_document(path: str, kind: pa.DataType, has_form: Callable[[pa.DataType], bool]) -> None:
    """Refuse what has no form in JSON, by the path to it. `has_form` tells of plain types."""
    if _types.is_dictionary(kind):
        kind = kind.value_type
    if _types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        for field in fields:
            if field.metadata and _DISGUISED & field.metadata.keys():
                raise ConfigurationError(
                    f"column {path!r} is a variant or a shape, which cannot be written as it is; "
                    "turn it into a text in the query (to_json, st_astext)"
                )
        names = [field.name for field in fields]
        if len(set(names)) != len(names):
            raise ConfigurationError(f"column {path!r} has two fields of one name; rename one")
        for field in fields:
            check_document(f"{path}.{field.name}", field.type, has_form)
    elif _types.is_map(kind):
        if not is_text(kind.key_type):
            raise ConfigurationError(
                f"column {path!r} is a map with keys of type {kind.key_type}, and keys in JSON are "
                "texts; cast them in the query"
            )
        check_document(f"{path}.value", kind.item_type, has_form)
    elif is_list(kind):
        check_document(f"{path}.element", kind.value_type, has_form)
    elif not _types.is_null(kind) and not has_form(kind):
        raise ConfigurationError(
            f"column {path!r} has type {kind}, which has no form in JSON; cast it in the query"
        )


def refuse_finer(name: str, array: pa.Array, digits: int, shown: str) -> None:
    """Refuse times of which a column would keep only `digits` digits of a second."""
    unit = {"s": 0, "ms": 3, "us": 6, "ns": 9}[array.type.unit]
    if unit <= digits:
        return
    values = array.drop_null().cast(pa.int64()).to_numpy()
    if np.any(values % 10 ** (unit - digits)):
        raise AssentError(
            f"column {name!r} holds times that are finer than its column in the table, of type "
            f"{shown}, keeps; truncate them in the query (date_trunc), or change the table"
        )
