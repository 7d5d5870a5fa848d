"""An Arrow column of texts or bytes as plain numpy arrays, without a copy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_NARROW = (pa.types.is_binary, pa.types.is_string)
_WIDE = (pa.types.is_large_binary, pa.types.is_large_string)
_NOTHING = np.zeros(1, np.uint8)


@dataclass(frozen=True)
class Bytes:
    """Where the bytes of every row lie: `data[starts[i] : starts[i] + lengths[i]]`.

    A null has the length 0 and is false in `valid`. The arrays look into the buffers of the
    Arrow column, which `owner` keeps alive.
    """

    data: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    valid: npt.NDArray[np.bool_] | None
    owner: Any

    @classmethod
    def of(cls, array: pa.Array) -> Bytes:
        """The bytes of a text or binary column of any of Arrow's layouts."""
        kind = array.type
        if not any(test(kind) for test in (*_NARROW, *_WIDE)):
            array = array.cast(pa.large_binary())
            kind = array.type
        width = np.int32 if any(test(kind) for test in _NARROW) else np.int64
        _, offsets_buffer, data_buffer = array.buffers()
        if offsets_buffer is None or offsets_buffer.size == 0:
            offsets = np.zeros(len(array) + 1, np.int64)
        else:
            offsets = np.frombuffer(offsets_buffer, width)
            offsets = offsets[array.offset : array.offset + len(array) + 1].astype(np.int64)
        if data_buffer is None or data_buffer.size == 0:
            data = _NOTHING
        else:
            data = np.frombuffer(data_buffer, np.uint8)
        lengths = offsets[1:] - offsets[:-1]
        valid = None
        if array.null_count:
            valid = array.is_valid().to_numpy(zero_copy_only=False)
            # Arrow leaves open what lies beneath a null.
            lengths = np.where(valid, lengths, 0)
        return cls(data, offsets[:-1], lengths, valid, array)

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def addresses(self) -> npt.NDArray[np.uint64]:
        """Where each row's bytes begin in memory; 0, C's NULL, for a null."""
        addresses = self.starts.astype(np.uint64) + np.uint64(self.data.ctypes.data)
        return addresses if self.valid is None else np.where(self.valid, addresses, np.uint64(0))

    def at(self, row: int) -> bytes | None:
        """The bytes of one row."""
        if self.valid is not None and not self.valid[row]:
            return None
        start = int(self.starts[row])
        return self.data[start : start + int(self.lengths[row])].tobytes()
