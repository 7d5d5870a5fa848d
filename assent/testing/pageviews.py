"""Page views from a topic that is scripted: the same rows at every reading, epochs cut to order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from assent.sinks.option import Option, Parser, positive_integer, read_options
from assent.testing.boundaries import DEFAULT_BOUNDARIES, Boundaries, parse_boundaries, passes

APPS = ("atlas", "beacon", "cinder", "delta")
PAGES = ("home", "search", "item", "basket", "checkout")
USERS = 997

SCHEMA = "partition int, offset long, app string, page string, user string, viewed_at timestamp"
_ARROW_SCHEMA = pa.schema(
    [
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("app", pa.string()),
        pa.field("page", pa.string()),
        pa.field("user", pa.string()),
        pa.field("viewed_at", pa.timestamp("us", tz="UTC")),
    ]
)
_FIRST_VIEW_MICROSECONDS = 1_704_067_200_000_000
_ROWS_PER_BATCH = 1000
_OPTIONS = [
    Option("boundaries", Parser("a JSON list of lists", parse_boundaries), DEFAULT_BOUNDARIES),
    Option("seed", positive_integer, 1),
]


class PageViews(DataSource):
    """The streaming source `assent-pageviews`.

    Options: `boundaries`, a JSON list with the end offsets of each epoch, such as
    ``[[2500,2500],[10000,10005]]`` for two partitions and two epochs; `seed`, a number from
    which, with partition and offset, every row follows.

    Each micro-batch ends at the next boundary and has one task per partition, in order. With
    `trigger(availableNow=True)` the query steps through all epochs and ends after the last.
    """

    @classmethod
    def name(cls) -> str:
        return "assent-pageviews"

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: StructType) -> PageViewsReader:
        values = read_options(self.options, _OPTIONS, sink=self.name())
        return PageViewsReader(values["boundaries"], values["seed"])


class PageViewsReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans one epoch per boundary. An offset of Spark's is {partition: next offset}."""

    def __init__(self, boundaries: Boundaries, seed: int) -> None:
        self.boundaries = boundaries
        self.seed = seed

    def initialOffset(self) -> dict[str, int]:
        return _to_spark((0,) * len(self.boundaries[0]))

    def prepareForTriggerAvailableNow(self) -> None:
        """Nothing to note down: the topic never grows."""

    def getDefaultReadLimit(self) -> ReadLimit:
        # Any limit but ReadAllAvailable, which by contract must read everything at once.
        return ReadMaxRows(1)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        if isinstance(limit, ReadAllAvailable):
            return _to_spark(self.boundaries[-1])
        position = _from_spark(start)
        for boundary in self.boundaries:
            if passes(position, boundary):
                return _to_spark(boundary)
        return start

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[PageViewsRange]:
        ranges = zip(_from_spark(start), _from_spark(end), strict=True)
        # A partition without new rows has a task too, so that task and partition numbers agree.
        every = [PageViewsRange(number, first, last) for number, (first, last) in enumerate(ranges)]
        return every if start != end else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, PageViewsRange)
        for first in range(partition.first, partition.end, _ROWS_PER_BATCH):
            end = min(first + _ROWS_PER_BATCH, partition.end)
            yield page_views(self.seed, partition.number, first, end)


@dataclass
class PageViewsRange(InputPartition):
    """The offsets of one partition within one epoch, `end` not included."""

    number: int
    first: int
    end: int


def page_views(seed: int, partition: int, first: int, end: int) -> pa.RecordBatch:
    """The rows at offsets `first` to `end` (not included) of a partition."""
    offsets = np.arange(first, end, dtype=np.int64)
    draws = _scramble(
        offsets.view(np.uint64) ^ _scramble(_word(seed) ^ _scramble(_word(partition)))
    )
    return pa.RecordBatch.from_arrays(
        [
            pa.array(np.full(len(offsets), partition, dtype=np.int32)),
            pa.array(offsets),
            _pick(APPS, draws),
            _pick(PAGES, draws >> np.uint64(8)),
            _pick([f"user-{number}" for number in range(USERS)], draws >> np.uint64(16)),
            pa.array(_FIRST_VIEW_MICROSECONDS + offsets * 1_000_000).cast(
                _ARROW_SCHEMA.field("viewed_at").type
            ),
        ],
        schema=_ARROW_SCHEMA,
    )


def _to_spark(boundary: Sequence[int]) -> dict[str, int]:
    return {str(partition): end for partition, end in enumerate(boundary)}


def _from_spark(offset: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(offset[str(partition)] for partition in range(len(offset)))


def _word(number: int) -> NDArray[np.uint64]:
    return np.array([number % 2**64], dtype=np.uint64)


def _scramble(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of SplitMix64: each bit of the result depends on every bit of the word."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _pick(choices: Sequence[str], draws: NDArray[np.uint64]) -> pa.Array:
    indices = (draws % np.uint64(len(choices))).astype(np.int64)
    return pa.array(choices, pa.string()).take(pa.array(indices))
