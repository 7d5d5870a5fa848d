"""The arguments of librdkafka's `produceva` for the rows of a batch, laid out by numpy."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from assent.sinks import kafka_library as c
from assent.sinks.kafka_bytes import Bytes
from assent.sinks.kafka_records import Records


class RowArguments:
    """One call per row: where its arguments lie in memory, and how many there are.

    For rows with headers or timestamps, which `produce_batch` does not carry. What the arguments
    point to lives as long as this object.
    """

    def __init__(self, topic: int, records: Records, partitions: npt.NDArray[np.int32]) -> None:
        rows = len(records)
        timed = records.timestamps is not None
        fixed = 6 if timed else 5
        self._values = Bytes.of(records.values)
        self._keys = None if records.keys is None else Bytes.of(records.keys)
        headers = _Headers(records.headers) if records.headers is not None else None
        self._headers = headers
        counts = np.full(rows, fixed, np.int64)
        if headers is not None:
            counts += headers.counts
        starts = np.cumsum(counts) - counts
        self._array = array = np.zeros(int(counts.sum()), c.ARGUMENT)
        array["type"][starts] = c.VTYPE_RKT
        array["first"][starts] = topic
        array["type"][starts + 1] = c.VTYPE_PARTITION
        array["first"][starts + 1] = partitions.view(np.uint32)
        array["type"][starts + 2] = c.VTYPE_MSGFLAGS
        array["first"][starts + 2] = c.MSG_F_COPY
        for place, kind, column in ((3, c.VTYPE_VALUE, self._values), (4, c.VTYPE_KEY, self._keys)):
            array["type"][starts + place] = kind
            if column is not None:
                array["first"][starts + place] = column.addresses
                array["second"][starts + place] = column.lengths
        if records.timestamps is not None:
            array["type"][starts + 5] = c.VTYPE_TIMESTAMP
            array["first"][starts + 5] = records.timestamps.view(np.uint64)
        if headers is not None:
            # The places that none of the fixed arguments has taken, in order.
            places = np.flatnonzero(array["type"] == 0)
            array["type"][places] = c.VTYPE_HEADER
            array["first"][places] = headers.names
            array["second"][places] = headers.values.addresses
            array["third"][places] = headers.values.lengths
        self.addresses = starts * c.ARGUMENT.itemsize + array.ctypes.data
        self.counts = counts


class _Headers:
    """Lists of headers: how many each row has, and all names and values, one after the other."""

    def __init__(self, lists: pa.Array) -> None:
        self.counts = np.asarray(pc.fill_null(pc.list_value_length(lists), 0)).astype(np.int64)
        pairs = lists.flatten()
        names = pairs.field(0).dictionary_encode()
        # C wants its strings ended by a zero; there are few different ones.
        self._texts = [
            ctypes.create_string_buffer(name.encode()) for name in names.dictionary.to_pylist()
        ]
        addresses = np.array([ctypes.addressof(text) for text in self._texts], np.uint64)
        self.names = addresses[names.indices.to_numpy(zero_copy_only=False)]
        self.values = Bytes.of(pairs.field(1))
