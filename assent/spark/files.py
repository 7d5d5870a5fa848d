"""The format `assent-files`."""

from __future__ import annotations

from typing import Any

from assent.sinks.files import FilesSink
from assent.spark.source import AssentSource


class FilesSource(AssentSource):
    """Files of which an epoch's appear all at once."""

    sink_options = FilesSink.OPTIONS

    @classmethod
    def name(cls) -> str:
        return "assent-files"

    @classmethod
    def make_sink(cls, values: dict[str, Any]) -> FilesSink:
        return FilesSink.from_options(values)
