"""The three file formats: how each is named and how batches get into a file of it."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from assent.protocol.errors import ConfigurationError
from assent.sinks.json_text import json_lines, timestamp_texts

if TYPE_CHECKING:
    import pyarrow.csv as csv
    import pyarrow.parquet as parquet

TEXT_SUFFIXES = {"none": "", "gzip": ".gz", "bzip2": ".bz2", "zstd": ".zst"}
PARQUET_CODECS = ("snappy", "none", "gzip", "zstd", "lz4", "brotli")
COMPRESSIONS = {
    "parquet": PARQUET_CODECS,
    "json": tuple(TEXT_SUFFIXES),
    "csv": tuple(TEXT_SUFFIXES),
}
"""What each format can be compressed with, its default first."""

_ROWS_AT_A_TIME = 10_000


@dataclass(frozen=True)
class FileFormat:
    """What a file is to look like."""

    name: str
    compression: str
    header: bool = False
    separator: str = ","

    def __post_init__(self) -> None:
        if self.name not in COMPRESSIONS:
            raise ConfigurationError(
                f"option fileFormat is {self.name!r}; expected one of {', '.join(COMPRESSIONS)}"
            )
        if self.compression not in COMPRESSIONS[self.name]:
            raise ConfigurationError(
                f"option compression is {self.compression!r}, which {self.name} files do not have; "
                f"expected one of {', '.join(COMPRESSIONS[self.name])}"
            )
        if not re.fullmatch(r"[ !#-~\t]", self.separator):
            raise ConfigurationError(
                f"option sep is {self.separator!r}; expected one plain character, or a tab, but "
                "not the quote"
            )

    @property
    def extension(self) -> str:
        if self.name == "parquet":
            return ".parquet"
        return f".{self.name}{TEXT_SUFFIXES[self.compression]}"

    def open(self, path: Path, schema: pa.Schema) -> FileWriter:
        writers: dict[str, type[ParquetWriter | JsonWriter | CsvWriter]]
        writers = {"parquet": ParquetWriter, "json": JsonWriter, "csv": CsvWriter}
        return writers[self.name](self, path, schema)


class FileWriter(ABC):
    """One file being written. `close` hands everything to the system; flushing is the caller's."""

    def __init__(self, file_format: FileFormat, path: Path, schema: pa.Schema) -> None:
        self.path = path

    @abstractmethod
    def write(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Write the batches through, keeping none."""

    @abstractmethod
    def close(self) -> None: ...


class ParquetWriter(FileWriter):
    """Each `write` becomes one row group, or several when it is very large."""

    def __init__(self, file_format: FileFormat, path: Path, schema: pa.Schema) -> None:
        import pyarrow.parquet as parquet

        super().__init__(file_format, path, schema)
        self._file = pa.OSFile(str(path), "wb")
        with _closing_on_failure(self._file):  # Parquet has a beginning, which may not fit
            self._writer: parquet.ParquetWriter = parquet.ParquetWriter(
                self._file, schema, compression=file_format.compression
            )

    def write(self, batches: Sequence[pa.RecordBatch]) -> None:
        self._writer.write_table(pa.Table.from_batches(batches))

    def close(self) -> None:
        with self._file:  # closed also when the disk does not take the end of it
            self._writer.close()


class JsonWriter(FileWriter):
    """JSON lines."""

    def __init__(self, file_format: FileFormat, path: Path, schema: pa.Schema) -> None:
        super().__init__(file_format, path, schema)
        self._file = pa.OSFile(str(path), "wb")
        self._stream = _stream(self._file, file_format.compression)

    def write(self, batches: Sequence[pa.RecordBatch]) -> None:
        for batch in _in_pieces(batches):
            self._stream.write(json_lines(batch).encode())

    def close(self) -> None:
        with self._file:
            self._stream.close()


class CsvWriter(FileWriter):
    """Texts always in quotes, so that an empty text and a null differ."""

    def __init__(self, file_format: FileFormat, path: Path, schema: pa.Schema) -> None:
        import pyarrow.csv as csv

        super().__init__(file_format, path, schema)
        self._file = pa.OSFile(str(path), "wb")
        self._stream = _stream(self._file, file_format.compression)
        options = csv.WriteOptions(
            include_header=file_format.header, delimiter=file_format.separator
        )
        self._schema = _as_text(pa.RecordBatch.from_pylist([], schema)).schema
        with _closing_on_failure(self._file):
            self._writer: csv.CSVWriter = csv.CSVWriter(
                self._stream, self._schema, write_options=options
            )

    def write(self, batches: Sequence[pa.RecordBatch]) -> None:
        for batch in batches:
            self._writer.write_batch(_as_text(batch))

    def close(self) -> None:
        with self._file:
            self._writer.close()
            self._stream.close()


def _as_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Times as in JSON, and no line that could be taken for an empty one."""
    columns = [_csv_column(column) for column in batch.columns]
    if len(columns) == 1:
        # The line of a lonely null would be empty, and readers skip empty lines.
        columns = [columns[0].cast(pa.string()).fill_null("")]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _csv_column(column: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(column.type):
        return timestamp_texts(column)
    if pa.types.is_string_view(column.type):
        return column.cast(pa.string())
    return column


@contextmanager
def _closing_on_failure(file: pa.NativeFile) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with suppress(OSError):
            file.close()
        raise


def _stream(file: pa.NativeFile, compression: str) -> pa.NativeFile:
    if compression == "none":
        return file
    return pa.CompressedOutputStream(file, "bz2" if compression == "bzip2" else compression)


def _in_pieces(batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for start in range(0, batch.num_rows, _ROWS_AT_A_TIME):
            yield batch.slice(start, _ROWS_AT_A_TIME)
