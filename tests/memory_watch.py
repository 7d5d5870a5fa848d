"""A partitioner that writes down how much memory its process has taken, and may take."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

WATCH_VARIABLE = "ASSENT_TEST_MEMORY"


def place(batch: pa.RecordBatch, partitions: int) -> npt.NDArray[np.int32]:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    allowed = resource.getrlimit(resource.RLIMIT_AS)[0] // 2**20
    Path(os.environ[WATCH_VARIABLE], str(os.getpid())).write_text(f"{peak} {allowed}")
    return np.zeros(batch.num_rows, np.int32)
