"""Rows by the values of their partition columns, in the folder layout of Hive and Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from assent.sinks.json_text import timestamp_texts

NO_VALUE = "__HIVE_DEFAULT_PARTITION__"

# The characters that Spark escapes in the names of partition folders, and NUL.
_ESCAPED = {code: f"%{code:02X}" for code in (*range(0x20), *map(ord, "\"#%'*/:=?\\{[]^"), 0x7F)}


def escape(text: str) -> str:
    """The text as part of a folder's name.

    >>> escape("a/b=c d")
    'a%2Fb%3Dc d'
    """
    return text.translate(_ESCAPED)


def split(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The batch's rows by folder (`country=CH/day=2024-01-02`), without the partition columns.

    Rows keep their order within a folder. Without columns there is one folder, the empty text.
    """
    if not columns:
        yield "", batch
        return
    rows = batch.select([name for name in batch.schema.names if name not in columns])
    fragments = [_fragments(name, batch.column(name)) for name in columns]
    folders = pc.binary_join_element_wise(*fragments, "/").dictionary_encode()
    if len(folders.dictionary) == 1:
        yield folders.dictionary[0].as_py(), rows
        return
    counts = {
        entry["values"]: entry["counts"] for entry in pc.value_counts(folders.indices).to_pylist()
    }
    rows = rows.take(pc.sort_indices(folders.indices))
    start = 0
    for code, folder in enumerate(folders.dictionary.to_pylist()):
        yield folder, rows.slice(start, counts[code])
        start += counts[code]


def _fragments(name: str, column: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    values = column.dictionary_encode()
    head = escape(name)
    texts = [
        # Spark cannot read a folder whose value is empty, and writes an empty text as null.
        f"{head}={escape(text) if text else NO_VALUE}"
        for text in _texts(values.dictionary)
    ]
    named = pa.array([*texts, f"{head}={NO_VALUE}"], pa.string())
    return named.take(values.indices.fill_null(len(texts)))


def _texts(values: pa.Array) -> list[str | None]:
    if pa.types.is_timestamp(values.type):
        # As Spark writes it, with a space, and always in UTC: the sink knows no session zone.
        texts = timestamp_texts(values, " ").to_pylist()
        return [text and text.removesuffix("Z") for text in texts]
    if pa.types.is_decimal(values.type):
        return [None if value is None else format(value, "f") for value in values.to_pylist()]
    plain: list[str | None] = values.cast(pa.string()).to_pylist()
    return plain
