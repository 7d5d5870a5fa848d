"""The conformance kit on the sinks of the project, and on the example of a sink of one's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.dataset as dataset
import pytest

from assent.protocol.name import nonce
from assent.protocol.sink import Sink
from assent.sinks.files import FilesSink
from assent.sinks.kafka import KafkaSink
from assent.testing.conformance import SinkConformance
from assent.testing.kafka import KafkaCluster
from assent.testing.reader import data_files
from assent.testing.subject import Row, Subject
from examples.custom_sink import LinesSink
from tests.kafka_kit import committed


class FilesSubject(Subject):
    def __init__(self, folder: Path) -> None:
        self.folder = folder / "output"

    def sink(self) -> Sink[Any]:
        return FilesSink(str(self.folder), file_format="parquet")

    def visible(self) -> list[Row]:
        files = [str(file) for file in data_files(self.folder)]
        if not files:
            return []
        table = dataset.dataset(files, format="parquet").to_table(columns=["id", "text"])
        return [(row["id"], row["text"]) for row in table.to_pylist()]

    def leftovers(self) -> list[str]:
        staging = self.folder.parent / f".{self.folder.name}.assent"
        files = [path for path in staging.rglob("*") if path.is_file()]
        return [str(path) for path in files if path.parent.name != "sealed"]


class TestFiles(SinkConformance):
    @pytest.fixture
    def subject(self, tmp_path: Path) -> Subject:
        return FilesSubject(tmp_path)


class LinesSubject(Subject):
    """The example in forty lines."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "output"

    def sink(self) -> Sink[Any]:
        return LinesSink(self.folder)

    def visible(self) -> list[Row]:
        lines = [
            json.loads(line)
            for path in (self.folder / "done").glob("*")
            for line in path.read_text().splitlines()
        ]
        return [(row["id"], row["text"]) for row in lines]

    def leftovers(self) -> list[str]:
        return [path.name for path in (self.folder / "open").glob("*")]


class TestTheExample(SinkConformance):
    @pytest.fixture
    def subject(self, tmp_path: Path) -> Subject:
        return LinesSubject(tmp_path)


class KafkaSubject(Subject):
    def __init__(self, kafka: KafkaCluster) -> None:
        self._kafka = kafka
        self._topic = f"conformance-{nonce()}"
        kafka.create_topic(self._topic, partitions=2)

    def sink(self) -> Sink[Any]:
        return KafkaSink(
            self._kafka.settings(),
            topic=self._topic,
            value_format="json",
            transaction_timeout=60.0,
        )

    def visible(self) -> list[Row]:
        rows = map(json.loads, committed(self._kafka.bootstrap_servers, self._topic))
        return [(row["id"], row["text"]) for row in rows]


@pytest.mark.kafka
class TestKafka(SinkConformance):
    @pytest.fixture
    def subject(self, kafka_line: KafkaCluster) -> Subject:
        return KafkaSubject(kafka_line)
