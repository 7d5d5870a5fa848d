"""From a query's columns to what one script call of Redis takes: keys, and arguments per row."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from assent.protocol.errors import AssentError, ConfigurationError
from assent.sinks.cell_text import (
    cells,
    check_cell,
    check_columns,
    check_key,
    check_no_duplicates,
    integers,
    is_ordered,
    keys,
)
from assent.sinks.json_text import json_texts

STRUCTURES = ("hash", "string", "json", "sortedSet")

_types = pa.types
# Redis' scores are doubles: a larger whole number would be rounded without a word.
_EXACT_SCORE = 1 << 53
_SMALLEST = -(1 << 63)


class Row(NamedTuple):
    """One row: its key, and what the script does with it.

    `arguments` are the fields and values of a hash, the value of a string, score and member of a
    sorted set. A deletion has none; out of a sorted set it has the member alone.
    """

    key: bytes
    arguments: Sequence[bytes]
    order: bytes = b""
    expire_at: bytes = b""

    @property
    def size(self) -> int:
        return len(self.key) + sum(map(len, self.arguments))

    @property
    def note(self) -> bytes:
        """What the script has to know of the row besides."""
        if self.order or self.expire_at:
            return b"%d:%b:%b" % (len(self.arguments), self.order, self.expire_at)
        return b"%d" % len(self.arguments)


@dataclass(frozen=True)
class RowFormat:
    """How rows become keys and values.

    ============  =======================================================================
    structure     a row is
    ============  =======================================================================
    `hash`        a hash: a field for each value column that is not null, replaced as a whole
    `string`      a string: the one value column
    `json`        a string: the value columns as a JSON object
    `sortedSet`   a member of the sorted set under its key, with an absolute score
    ============  =======================================================================
    """

    key_prefix: str
    structure: str = "hash"
    key_columns: tuple[str, ...] = ()
    value_columns: tuple[str, ...] = ()
    member_column: str | None = None
    score_column: str | None = None
    order_column: str | None = None
    delete_column: str | None = None
    expire_at_column: str | None = None

    def check(self, schema: pa.Schema) -> None:
        """ConfigurationError, naming column and type, for rows that cannot be written."""
        check_no_duplicates(schema)
        if not self.key_columns and self.structure != "sortedSet":
            raise ConfigurationError("option keyColumns is missing: which columns make the key?")
        check_key(schema, "keyColumns", self.key_columns)
        check_columns(schema, "valueColumns", self.value_columns)
        self._check_set(schema)
        for name in self._values(schema):
            check_cell(name, schema.field(name).type)
        if self.structure != "sortedSet" and not self._values(schema):
            raise ConfigurationError("no column is left for the value; set option valueColumns")
        if self.structure == "string" and len(self._values(schema)) != 1:
            raise ConfigurationError(
                "structure string takes one value column, and there are "
                f"{', '.join(self._values(schema))}: name one in option valueColumns, or set "
                "option structure to json or hash"
            )
        if self.order_column is not None:
            check_columns(schema, "orderColumn", [self.order_column])
            kind = schema.field(self.order_column).type
            if not is_ordered(kind):
                raise _wrong("orderColumn", self.order_column, kind, "a whole number or timestamp")
        if self.delete_column is not None:
            check_columns(schema, "deleteColumn", [self.delete_column])
            kind = schema.field(self.delete_column).type
            if not _types.is_boolean(kind):
                raise _wrong("deleteColumn", self.delete_column, kind, "boolean")
        if self.expire_at_column is not None:
            check_columns(schema, "expireAtColumn", [self.expire_at_column])
            kind = schema.field(self.expire_at_column).type
            if not _types.is_timestamp(kind) or kind.tz is None:
                raise _wrong("expireAtColumn", self.expire_at_column, kind, "timestamp")

    def rows(self, batch: pa.RecordBatch) -> Iterator[Row]:
        """The rows of a batch, in its order."""
        count = batch.num_rows
        prefix = self.key_prefix.encode()
        names = keys(batch, self.key_columns, prefix) if self.key_columns else [prefix] * count
        deletions = [False] * count
        if self.delete_column is not None:
            deletions = batch.column(self.delete_column).to_pylist()
        return map(
            Row,
            names,
            self._arguments(batch, [bool(deleted) for deleted in deletions]),
            self._orders(batch),
            self._expiries(batch),
        )

    # Inside.

    def _values(self, schema: pa.Schema) -> list[str]:
        if self.structure == "sortedSet":
            return []
        taken = {*self.key_columns, self.order_column, self.delete_column, self.expire_at_column}
        return list(self.value_columns) or [name for name in schema.names if name not in taken]

    def _check_set(self, schema: pa.Schema) -> None:
        options = {"memberColumn": self.member_column, "scoreColumn": self.score_column}
        for option, name in options.items():
            if self.structure != "sortedSet":
                if name is not None:
                    raise ConfigurationError(f"option {option} goes with structure=sortedSet alone")
                continue
            if name is None:
                raise ConfigurationError(f"structure sortedSet needs option {option}")
            check_columns(schema, option, [name])
        if self.structure != "sortedSet":
            return
        if self.value_columns or self.expire_at_column:
            raise ConfigurationError(
                "options valueColumns and expireAtColumn do not go with structure=sortedSet: a "
                "member is all there is, and only whole sets expire (option ttl)"
            )
        assert self.member_column is not None
        assert self.score_column is not None
        check_cell(self.member_column, schema.field(self.member_column).type)
        kind = schema.field(self.score_column).type
        if not (_types.is_integer(kind) or _types.is_floating(kind)):
            raise _wrong("scoreColumn", self.score_column, kind, "a whole number or a double")

    def _arguments(
        self, batch: pa.RecordBatch, deletions: Sequence[bool]
    ) -> Iterator[Sequence[bytes]]:
        if self.structure == "sortedSet":
            return self._members(batch, deletions)
        chosen = batch.select(self._values(batch.schema))
        if self.structure == "json":
            rows = pa.StructArray.from_arrays(chosen.columns, fields=list(chosen.schema))
            texts = [(text or "").encode() for text in json_texts(rows)]
            return (() if gone else (text,) for text, gone in zip(texts, deletions, strict=True))
        columns = [cells(column) for column in chosen.columns]
        if self.structure == "string":
            # There is no empty value to stand for null: the key is then gone.
            pairs = zip(columns[0], deletions, strict=True)
            return (() if gone or value is None else (value,) for value, gone in pairs)
        names = [name.encode() for name in chosen.schema.names]
        return (
            ()
            if gone
            else [
                part
                for name, value in zip(names, row, strict=True)
                if value is not None
                for part in (name, value)
            ]
            for row, gone in zip(zip(*columns, strict=True), deletions, strict=True)
        )

    def _members(
        self, batch: pa.RecordBatch, deletions: Sequence[bool]
    ) -> Iterator[Sequence[bytes]]:
        assert self.member_column is not None
        assert self.score_column is not None
        members = cells(batch.column(self.member_column))
        scores = batch.column(self.score_column).to_pylist()
        for member, score, gone in zip(members, scores, deletions, strict=True):
            if member is None:
                raise AssentError(f"a row has no member: its column {self.member_column!r} is null")
            if gone:
                yield (member,)
                continue
            if score is None or (isinstance(score, float) and math.isnan(score)):
                raise AssentError(
                    f"a row has no score: its column {self.score_column!r} is "
                    f"{'null' if score is None else 'NaN'}"
                )
            if isinstance(score, int) and abs(score) > _EXACT_SCORE:
                raise AssentError(
                    f"a row has the score {score} in column {self.score_column!r}; Redis keeps "
                    "scores as doubles, which hold whole numbers up to 2^53: scale it"
                )
            yield repr(score).encode(), member

    def _orders(self, batch: pa.RecordBatch) -> list[bytes]:
        """Digits of one length, so that they compare as texts. A null comes before all others."""
        if self.order_column is None:
            return [b""] * batch.num_rows
        numbers = integers(batch.column(self.order_column))
        return [b"%020d" % (0 if n is None else n - _SMALLEST + 1) for n in numbers]

    def _expiries(self, batch: pa.RecordBatch) -> list[bytes]:
        if self.expire_at_column is None:
            return [b""] * batch.num_rows
        column = batch.column(self.expire_at_column)
        instants = integers(column.cast(pa.timestamp("ms", column.type.tz), safe=False))
        return [b"" if instant is None else b"%d" % max(instant, 1) for instant in instants]


def _wrong(option: str, name: str, kind: pa.DataType, wanted: str) -> ConfigurationError:
    return ConfigurationError(
        f"option {option} names {name!r} of type {kind}; it has to be {wanted}"
    )
