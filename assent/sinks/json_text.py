"""Arrow arrays as JSON texts, by Spark's conventions, without a Python object per nested value."""

from __future__ import annotations

import base64
from itertools import islice
from json.encoder import encode_basestring

import pyarrow as pa
import pyarrow.compute as pc

from assent.protocol.errors import AssentError
from assent.sinks.utf8 import check_texts

_SPECIAL = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}

Texts = list[str | None]


def json_lines(batch: pa.RecordBatch) -> str:
    """One line per row. Null fields are left out, as Spark leaves them out."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        check_texts(name, column)
    columns = [json_texts(column) for column in batch.columns]
    return "".join(f"{line}\n" for line in _objects(batch.schema.names, columns))


def json_texts(array: pa.Array) -> Texts:
    """The JSON text of every value, None for null.

    Numbers keep every digit; times are ISO 8601, in UTC with a Z when they are instants; binary
    is base64; NaN and the infinities, which JSON has no number for, are strings.
    """
    kind = array.type
    if pa.types.is_dictionary(kind):
        return json_texts(array.cast(kind.value_type))
    if pa.types.is_struct(kind):
        fields = [json_texts(array.field(index)) for index in range(kind.num_fields)]
        rows = _objects([kind.field(index).name for index in range(kind.num_fields)], fields)
        valid = array.is_valid().to_pylist()
        return [row if there else None for row, there in zip(rows, valid, strict=True)]
    if pa.types.is_map(kind):
        entry = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
        entries = array.cast(pa.list_(entry))
        pairs = entries.flatten()
        keys, values = json_texts(pairs.field(0)), json_texts(pairs.field(1))
        members: Texts = [f"{k}:{v or 'null'}" for k, v in zip(keys, values, strict=True)]
        return _enclosed("{}", entries, members)
    if isinstance(array, (pa.ListArray, pa.LargeListArray, pa.FixedSizeListArray)):
        return _enclosed("[]", array, json_texts(array.flatten()))
    return _scalars(array)


def timestamp_texts(array: pa.Array, between: str = "T") -> pa.Array:
    """ISO 8601, in UTC and with a Z if the type has a time zone; at least three decimals."""
    # Through integers, because naming a zone needs a zone database, which may not be installed.
    instants = array.cast(pa.int64()).cast(pa.timestamp(array.type.unit))
    texts = pc.replace_substring(instants.cast(pa.string()), " ", between)
    for _ in range(2):
        texts = pc.replace_substring_regex(texts, r"(\.\d\d\d\d*)000$", r"\1")
    return texts if array.type.tz is None else pc.binary_join_element_wise(texts, "Z", "")


def _objects(names: list[str], columns: list[Texts]) -> list[str]:
    heads = [f"{encode_basestring(name)}:" for name in names]
    return [
        "{" + ",".join([h + text for h, text in zip(heads, row, strict=True) if text]) + "}"
        for row in zip(*columns, strict=True)
    ]


def _enclosed(brackets: str, lists: pa.Array, members: Texts) -> Texts:
    rest = iter(members)
    opening, closing = brackets[0], brackets[1]
    return [
        None
        if length is None
        else opening + ",".join([text or "null" for text in islice(rest, length)]) + closing
        for length in pc.list_value_length(lists).to_pylist()
    ]


def _scalars(array: pa.Array) -> Texts:
    kind = array.type
    if pa.types.is_timestamp(kind):
        return [text and f'"{text}"' for text in timestamp_texts(array).to_pylist()]
    if pa.types.is_floating(kind):
        texts: Texts = array.cast(pa.string()).to_pylist()
        return [text and _float(text) for text in texts]
    if pa.types.is_decimal(kind):
        return [None if value is None else format(value, "f") for value in array.to_pylist()]
    if _is_binary(kind):
        return [
            None if value is None else f'"{base64.b64encode(value).decode()}"'
            for value in array.to_pylist()
        ]
    try:
        plain: Texts = array.cast(pa.string()).to_pylist()
    except UnicodeDecodeError as error:
        raise AssentError(
            f"a text within a nested value is not UTF-8 ({error}), and JSON is; mend it, or cast "
            "it to binary"
        ) from None
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return plain
    return [None if text is None else encode_basestring(text) for text in plain]


def _is_binary(kind: pa.DataType) -> bool:
    tests = (
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_fixed_size_binary,
        pa.types.is_binary_view,
    )
    return any(test(kind) for test in tests)


def _float(text: str) -> str:
    if text in _SPECIAL:
        return _SPECIAL[text]
    # A whole number would be read back as an integer where types are inferred.
    return text if "." in text or "e" in text else f"{text}.0"
