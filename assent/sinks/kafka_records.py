"""Rows on their way to one Kafka topic, column by column."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@dataclass(frozen=True)
class Records:
    """Rows of one topic: keys and values are texts or bytes in any of Arrow's layouts.

    `partitions` holds -1, and `timestamps` (milliseconds since 1970) holds 0, where a row leaves
    the choice open. `headers` are lists of (key, value). What is None is open for all rows.
    """

    topic: str
    values: pa.Array
    keys: pa.Array | None = None
    partitions: npt.NDArray[np.int32] | None = None
    timestamps: npt.NDArray[np.int64] | None = None
    headers: pa.Array | None = None

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: npt.NDArray[np.intp], topic: str | None = None) -> Records:
        """Some of the rows, in that order."""
        return Records(
            self.topic if topic is None else topic,
            self.values.take(pa.array(rows)),
            None if self.keys is None else self.keys.take(pa.array(rows)),
            None if self.partitions is None else self.partitions[rows],
            None if self.timestamps is None else self.timestamps[rows],
            None if self.headers is None else self.headers.take(pa.array(rows)),
        )


@dataclass(frozen=True)
class Refusal:
    """A row that cannot be sent, and why. `code` is Kafka's or librdkafka's name of the error."""

    row: int
    code: str
    reason: str
