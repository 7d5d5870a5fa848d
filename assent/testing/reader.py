"""What a reader sees: counts and a watch over a folder, sharing no code with the sinks.

Rows are page views, known by (partition, offset). Like Spark and pyarrow, these readers pass over
files and folders whose names begin with `_` or `.`, and take everything else for data.
"""

from __future__ import annotations

import os
import re
import threading
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias

import pyarrow as pa
import pyarrow.dataset as pads

from assent.testing.boundaries import Boundaries

Row: TypeAlias = tuple[int, int]
Rows: TypeAlias = Counter[Row]

_EPOCH_FOLDER = re.compile(r"epoch=[0-9a-f]{8}-(\d{6,})")
_SECONDS_BETWEEN_LISTINGS = 0.005


@dataclass(frozen=True)
class Count:
    """What was found, against what should have been."""

    rows: int
    distinct: int
    lost: int
    duplicated: int
    unexpected: int

    @property
    def exact(self) -> bool:
        return not (self.lost or self.duplicated or self.unexpected)

    @classmethod
    def of(cls, found: Rows, expected: Rows) -> Count:
        return cls(
            rows=found.total(),
            distinct=len(found),
            lost=len(expected.keys() - found.keys()),
            duplicated=found.total() - len(found),
            unexpected=len(found.keys() - expected.keys()),
        )


def expected_rows(boundaries: Boundaries) -> dict[int, Rows]:
    """The rows of every epoch that those boundaries make."""
    epochs = {}
    previous = (0,) * len(boundaries[0])
    for epoch, boundary in enumerate(boundaries):
        ranges = enumerate(zip(previous, boundary, strict=True))
        epochs[epoch] = Counter(
            (partition, offset)
            for partition, (first, end) in ranges
            for offset in range(first, end)
        )
        previous = boundary
    return epochs


def count(folder: Path, boundaries: Boundaries) -> Count:
    """Read every parquet file below the folder, and count."""
    return Count.of(read_rows(data_files(folder)), _union(expected_rows(boundaries)))


def data_files(folder: Path) -> list[Path]:
    """Every file that a reader would take for data."""
    found = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(filter(_is_visible, folders))
        found += [Path(parent, name) for name in sorted(names) if _is_visible(name)]
    return found


def read_rows(files: list[Path]) -> Rows:
    """The page views in those parquet files, and how often each of them is there."""
    if not files:
        return Counter()
    # Found beside the files when the output is partitioned by one of the two columns.
    partitioning = pads.partitioning(flavor="hive")
    dataset = pads.dataset(
        [str(file) for file in files], format="parquet", partitioning=partitioning
    )
    table = dataset.to_table(columns=["partition", "offset"])
    return Counter(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))


class ListingReader:
    """Lists and reads a folder all the time, and notes whatever no reader should ever see.

    That is: a file outside of an `epoch=` folder, a file that cannot be read, an epoch that does
    not have exactly its rows (if `boundaries` are given), and an epoch that changes, or goes,
    after it was first seen. Use as a context manager; `violations` is complete after it.
    """

    def __init__(self, folder: Path, boundaries: Boundaries | None = None) -> None:
        self.folder = folder
        self.violations: list[str] = []
        self.listings = 0
        self._expected = None if boundaries is None else expected_rows(boundaries)
        self._files: dict[str, Mapping[Path, object]] = {}
        self._rows: dict[str, Rows] = {}
        self._stopped = threading.Event()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="listing-reader")
        self._running: Future[None] | None = None

    def __enter__(self) -> Self:
        self._running = self._executor.submit(self._run)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopped.set()
        self._executor.shutdown()
        if self._running is not None:
            self._running.result()  # a watch that died without a word would prove nothing
        # Once more, and trusting no file's time or size, so that the last state is judged too.
        self._files.clear()
        self.look()

    def look(self) -> None:
        """List the folder once, and read what is new in it or has changed."""
        epochs: dict[str, dict[Path, object]] = {}
        for file in data_files(self.folder):
            top = file.relative_to(self.folder).parts[0]
            if not _EPOCH_FOLDER.fullmatch(top) or top == file.name:
                self._note(f"{file} is visible outside of an epoch's folder")
            else:
                epochs.setdefault(top, {})[file] = _stamp(file)
        for gone in self._rows.keys() - epochs.keys():
            self._note(f"{gone} was visible and is gone")
        for name, files in epochs.items():
            if self._files.get(name) != files:
                self._read(name, files)
        self.listings += 1

    def _read(self, name: str, files: Mapping[Path, object]) -> None:
        try:
            rows = read_rows(list(files))
        except (OSError, pa.ArrowException) as error:
            self._note(f"{name} cannot be read: {error}")
            return
        if rows != self._rows.get(name, rows):
            self._note(
                f"{name} had {self._rows[name].total()} rows and now has {rows.total()}, or others"
            )
        match = _EPOCH_FOLDER.fullmatch(name)
        if self._expected is not None and match is not None:
            found = Count.of(rows, self._expected.get(int(match[1]), Counter()))
            if not found.exact:
                self._note(f"{name} is not its whole epoch: {found}")
        self._files[name] = files
        self._rows[name] = rows

    def _note(self, violation: str) -> None:
        if violation not in self.violations:
            self.violations.append(violation)

    def _run(self) -> None:
        while not self._stopped.wait(_SECONDS_BETWEEN_LISTINGS):
            self.look()


def _stamp(file: Path) -> object:
    try:
        status = file.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _is_visible(name: str) -> bool:
    return not name.startswith(("_", "."))


def _union(epochs: Mapping[int, Rows]) -> Rows:
    rows: Rows = Counter()
    for more in epochs.values():
        rows.update(more)
    return rows
