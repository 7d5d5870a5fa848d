"""The conformance kit on the sinks of the project, and on the example of a sink of one's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.dataset as dataset
import pytest

from assent.protocol.handle import Handle
from assent.protocol.name import nonce
from assent.protocol.sink import Sink
from assent.sinks.files import FilesSink
from assent.sinks.hbase import HBaseSink
from assent.sinks.kafka import KafkaSink
from assent.sinks.mysql_witness import staging_table
from assent.sinks.mysql_xa import xid
from assent.sinks.postgres import PostgresSink
from assent.sinks.postgres_witness import staging_name
from assent.sinks.redis import RedisSink
from assent.sinks.sql_name import SqlName
from assent.testing.conformance import SinkConformance
from assent.testing.hbase import HBaseServer
from assent.testing.kafka import KafkaCluster
from assent.testing.mysql import MySql
from assent.testing.postgres import Postgres
from assent.testing.reader import data_files
from assent.testing.redis import RedisServer
from assent.testing.subject import Row, Subject
from examples.custom_sink import LinesSink
from tests.kafka_kit import committed
from tests.mysql_stage import MySqlStage


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


class PostgresSubject(Subject):
    def __init__(self, server: Postgres, commit_mode: str) -> None:
        self._server = server
        self._commit_mode = commit_mode
        self._schema = f"conformance_{nonce()}"
        server.run(
            f"CREATE SCHEMA {self._schema}",
            f"CREATE TABLE {self._schema}.rows (id bigint, text text)",
        )

    def sink(self) -> Sink[Any]:
        return PostgresSink(
            self._server.url,
            f"{self._schema}.rows",
            "postgres",
            self._server.password,
            commit_mode=self._commit_mode,
        )

    def visible(self) -> list[Row]:
        return [
            (number, text)
            for number, text in self._server.rows(f"SELECT id, text FROM {self._schema}.rows")
        ]

    def give_up(self, handle: Handle) -> None:
        """As an administrator would."""
        name = SqlName.parse(handle.name)
        if handle.details["mode"] == "prepared":
            self._server.run(f"ROLLBACK PREPARED '{name}'")
        else:
            self._server.run(f"DROP TABLE {staging_name(self._schema, name.name, name.mark)}")

    def leftovers(self) -> list[str]:
        found = self._server.rows(
            "SELECT table_name FROM information_schema.tables"
            f" WHERE table_schema = '{self._schema}'"
        )
        return [name for (name,) in found if name not in ("rows", "assent_witnesses")]


@pytest.mark.postgres
@pytest.mark.parametrize("commit_mode", ["prepared", "staged"])
class TestPostgres(SinkConformance):
    @pytest.fixture
    def subject(self, postgres: Postgres, commit_mode: str) -> Subject:
        return PostgresSubject(postgres, commit_mode)


class RedisSubject(Subject):
    transactional = False

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._prefix = f"conformance-{nonce()}:"

    def sink(self) -> Sink[Any]:
        return RedisSink(
            self._server.url,
            key_prefix=self._prefix,
            structure="string",
            key_columns=["id"],
            value_columns=["text"],
        )

    def visible(self) -> list[Row]:
        client = self._server.client()
        return [
            (int(key.removeprefix(self._prefix)), client.get(key))
            for key in set(client.scan_iter(f"{self._prefix}*"))
        ]


class HBaseSubject(Subject):
    transactional = False

    def __init__(self, server: HBaseServer) -> None:
        self._server = server
        self._table = f"conformance-{nonce()}"
        connection = server.connection()
        connection.create_table(self._table, {"cf": {}})
        connection.close()

    def sink(self) -> Sink[Any]:
        return HBaseSink(
            self._server.address, self._table, key_columns=["id"], value_columns=["text"]
        )

    def visible(self) -> list[Row]:
        connection = self._server.connection()
        try:
            found = connection.table(self._table).scan()
            return [(int(key), cells[b"cf:text"].decode()) for key, cells in found]
        finally:
            connection.close()


@pytest.mark.hbase
class TestHBase(SinkConformance):
    @pytest.fixture
    def subject(self, hbase: HBaseServer) -> Subject:
        return HBaseSubject(hbase)


@pytest.mark.redis
class TestRedis(SinkConformance):
    @pytest.fixture
    def subject(self, redis_server: RedisServer) -> Subject:
        return RedisSubject(redis_server)


@pytest.mark.kafka
class TestKafka(SinkConformance):
    @pytest.fixture
    def subject(self, kafka_line: KafkaCluster) -> Subject:
        return KafkaSubject(kafka_line)


class MySqlSubject(Subject):
    def __init__(self, server: MySql, commit_mode: str) -> None:
        self._stage = MySqlStage(server, "id bigint, text text", commit_mode=commit_mode)

    def sink(self) -> Sink[Any]:
        return self._stage.make(commit_mode=self._stage.options["commit_mode"])

    def visible(self) -> list[Row]:
        return self._stage.select("id, text")

    def give_up(self, handle: Handle) -> None:
        """As an administrator would."""
        name = SqlName.parse(handle.name)
        if handle.details["mode"] == "prepared":
            self._stage.server.run(f"XA ROLLBACK {xid(name)}")
            return
        self._stage.server.run(f"DROP TABLE {staging_table(self._stage.schema, name)}")

    def leftovers(self) -> list[str]:
        return self._stage.prepared() + self._stage.staged()


@pytest.mark.mysql
class TestMySql(SinkConformance):
    @pytest.fixture(params=["prepared", "staged"])
    def subject(self, mysql_kind: MySql, request: pytest.FixtureRequest) -> Subject:
        return MySqlSubject(mysql_kind, request.param)
