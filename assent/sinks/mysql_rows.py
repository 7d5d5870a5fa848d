"""Converted columns as what the server reads: the file of LOAD DATA, or rows of an INSERT."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from assent.sinks.mysql_table import TableName, quote
from assent.sinks.mysql_types import TEXT, ColumnType
from assent.sinks.sql_table import Column

_CHUNK_BYTES = 64 << 20

Columns = Sequence[Column[ColumnType]]


def slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Parts of a batch, none of them large unless a row is."""
    rows = max(1, batch.num_rows * _CHUNK_BYTES // max(batch.nbytes, _CHUNK_BYTES))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def load_statement(table: TableName, columns: Columns) -> str:
    """LOAD DATA for what `load_lines` gives."""
    targets, sets = [], []
    for number, column in enumerate(columns):
        if column.type.expression == "{}":
            targets.append(quote(column.name))
            continue
        variable = f"@assent_{number}"
        targets.append(variable)
        sets.append(f"{quote(column.name)} = {column.type.expression.format(variable)}")
    return (
        f"LOAD DATA LOCAL INFILE 'rows' INTO TABLE {table} CHARACTER SET utf8mb4"
        " FIELDS TERMINATED BY '\\t' ESCAPED BY '\\\\' LINES TERMINATED BY '\\n'"
        f" ({', '.join(targets)})" + (f" SET {', '.join(sets)}" if sets else "")
    )


def load_lines(texts: Sequence[pa.Array]) -> pa.Buffer:
    """One line per row, fields between tabs."""
    filled = [pc.fill_null(column, r"\N") for column in texts]
    filled[-1] = _joined(filled[-1], "\n")
    return _content(pc.binary_join_element_wise(*filled, pa.scalar("\t", TEXT)))


def insert_statements(
    table: TableName, columns: Columns, texts: Sequence[pa.Array], limit: int
) -> Iterator[tuple[str, int]]:
    """INSERTs of many rows each, and how many; none longer than `limit` bytes unless a row is."""
    values = []
    for column, array in zip(columns, texts, strict=True):
        opening, _, closing = column.type.expression.partition("{}")
        written = _joined(f"{opening}'", array, f"'{closing}")
        values.append(pc.fill_null(written, "NULL"))
    values[0], values[-1] = _joined("(", values[0]), _joined(values[-1], "),")
    rows = pc.binary_join_element_wise(*values, pa.scalar(",", TEXT))
    content = memoryview(_content(rows))
    ends = np.cumsum(pc.binary_length(rows).to_numpy())
    head = f"INSERT INTO {table} ({', '.join(quote(one.name) for one in columns)}) VALUES "
    first = start = 0
    while first < len(ends):
        after = max(first + 1, int(np.searchsorted(ends, start + limit, side="right")))
        end = int(ends[after - 1])
        yield head + bytes(content[start : end - 1]).decode(), after - first
        first, start = after, end


def _joined(*parts: pa.Array | str) -> pa.Array:
    scalars = [pa.scalar(part, TEXT) if isinstance(part, str) else part for part in parts]
    return pc.binary_join_element_wise(*scalars, pa.scalar("", TEXT))


def _content(texts: pa.Array) -> pa.Buffer:
    """All texts, one after the other, as they lie in memory."""
    _, offsets, data = texts.buffers()
    bounds = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return data.slice(int(bounds[0]), int(bounds[-1] - bounds[0]))
