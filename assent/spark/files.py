"""The format `assent-files`."""

from __future__ import annotations

from assent.sinks.files import FilesSink
from assent.spark.source import AssentSource


class FilesSource(AssentSource):
    """Files of which an epoch's appear all at once."""

    sink_class = FilesSink
