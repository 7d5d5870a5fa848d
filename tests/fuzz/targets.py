"""Every parser of Assent, as a target: of handles, of the ledger, of options, of rows."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa

from assent.ledger.ledger import Ledger
from assent.ledger.listing import Listing, record_name
from assent.ledger.local import LocalStore
from assent.protocol.errors import AssentError, ConfigurationError, LedgerError
from assent.protocol.handle import Handle
from assent.protocol.json_value import MALFORMED, dump
from assent.protocol.name import TransactionName
from assent.protocol.record import RecordKey
from assent.protocol.verdict import Verdict
from assent.protocol.vote import Vote
from assent.sinks import mysql_address, mysql_table, option, postgres_address, postgres_table
from assent.sinks.destination import local_path
from assent.sinks.file_workspace import read_seal
from assent.sinks.files import FilesSink
from assent.sinks.hbase import HBaseSink
from assent.sinks.hbase_owner import Claim
from assent.sinks.kafka import KafkaSink
from assent.sinks.kafka_arguments import RowArguments
from assent.sinks.kafka_client import ProducerIdentity
from assent.sinks.kafka_connection import Address, ConnectionLost, decoded
from assent.sinks.kafka_id import TransactionalId
from assent.sinks.kafka_offsets import kafka_positions
from assent.sinks.kafka_rows import RowFormat
from assent.sinks.kafka_settings import producer_settings, take_timeout
from assent.sinks.kafka_verdict import Described, State, verdict
from assent.sinks.mark import mark
from assent.sinks.mysql import MySqlSink
from assent.sinks.postgres import PostgresSink
from assent.sinks.redis import RedisSink
from assent.sinks.redis_address import parse_addresses
from assent.sinks.sql_name import SqlName
from assent.spark.checkpoint import SparkCheckpoint
from assent.spark.settings import OPTIONS as SHARED
from assent.testing.crash import CrashPoint
from assent.testing.memory import MemoryStore
from tests.fuzz.target import Target, is_within, must_say, pairs_of, text_of

GOLDEN = Path(__file__).parent.parent / "golden"


def golden(*names: str, version: int = 1) -> tuple[bytes, ...]:
    return tuple((GOLDEN / f"{name}-{version}.json").read_bytes() for name in names)


# Names that are one text: what is read is written the same.


def check_handle(data: bytes) -> None:
    try:
        found = Handle.parse(text_of(data))
    except ValueError:
        return
    again = Handle.parse(str(found))
    assert (again, again.details) == (found, found.details)
    assert Handle.from_json(found.to_json()).details == found.details


def exact(parse: Callable[[str], object | None]) -> Callable[[bytes], None]:
    """Of parsers whose value has one text alone."""

    def check(data: bytes) -> None:
        text = text_of(data)
        try:
            found = parse(text)
        except ValueError:
            return
        assert found is None or str(found) == text, f"{text!r} was read as {found}"

    return check


def check_transactional_id(data: bytes) -> None:
    text = text_of(data)
    found = TransactionalId.parse(text)  # of anybody's ids: nothing may be raised
    assert found is None or str(found) == text


def check_crash_point(data: bytes) -> None:
    try:
        found = CrashPoint.parse(text_of(data))
    except ValueError:
        return
    assert CrashPoint.parse(str(found)) == found


def check_listing(data: bytes) -> None:
    names = text_of(data).split("/")
    try:
        listing = Listing.of(names)
    except ValueError as error:
        refused = str(error)
    else:
        found = listing.keys()
        assert [record_name(key) for key in found] == names
        return
    assert refused in names


def check_mark(data: bytes) -> None:
    assert len(mark(text_of(data))) == 8


# Records of the ledger, where a store holds them.


def stored(name: str, read: Callable[[Ledger], Any]) -> Callable[[bytes], None]:
    def check(data: bytes) -> None:
        ledger = Ledger(MemoryStore({name: data}))
        try:
            found = read(ledger)
        except LedgerError as error:
            must_say(error, name)
            return
        text = data.decode(json.detect_encoding(data))
        assert not pairs_of(text), "a key that is there twice was read"
        assert is_within(found.to_json(), json.loads(text)), f"{text!r} was read as {found}"
        dump(found.to_json())
        str(found)

    return check


def check_vote(data: bytes) -> None:
    text = text_of(data)
    try:
        found = Vote.parse(text)
    except ValueError:
        return
    assert not pairs_of(text)
    assert is_within(json.loads(str(found)), json.loads(text)), f"{text!r} was read as {found}"
    assert Vote.parse(str(found)) == found
    for prepared in found.share.prepared:
        assert Handle.parse(str(prepared.handle)) == prepared.handle


def check_claim(data: bytes) -> None:
    try:
        found = Claim.parse(data, "views")
    except AssentError as error:
        must_say(error, "views")
        return
    assert is_within(json.loads(bytes(found)), json.loads(data))


def check_seal(data: bytes) -> None:
    try:
        found = read_seal("/sealed/epoch=7", data)
    except LedgerError as error:
        must_say(error, "/sealed/epoch=7")
        return
    assert is_within(found, json.loads(data)["transactions"])


# What Spark writes into its checkpoint.


def check_offset_log(data: bytes) -> None:
    checkpoint = SparkCheckpoint(MemoryStore({"offsets/3": data}))
    try:
        sources = checkpoint.source_offsets(3)
    except ConfigurationError as error:
        must_say(error, "offsets/3")
        return
    for (topic, partition), offset in kafka_positions(sources).items():
        assert any(_offset(source, topic, partition) == offset for source in sources), (
            f"no source says {offset}"
        )
        assert 0 <= partition < 1 << 31
        assert -(1 << 63) <= offset < 1 << 63


def _offset(source: str, topic: str, partition: int) -> object:
    try:
        return json.loads(source)[topic][str(partition)]
    except (*MALFORMED, RecursionError):
        return None


def check_query_id(data: bytes) -> None:
    try:
        found = SparkCheckpoint(MemoryStore({"metadata": data})).query()
    except LedgerError as error:
        must_say(error, "metadata")
        return
    assert json.loads(data)["id"] == found


# Options.


def lines_of(data: bytes) -> dict[str, str]:
    pairs = (line.partition("=") for line in text_of(data).split("\n"))
    return {name: value for name, equals, value in pairs if equals}


def check_option(data: bytes) -> None:
    """Every parser of a single value."""
    text = text_of(data)
    for parser in (option.boolean, option.choice("a", "B"), option.columns, option.text):
        try:
            parser.read(text)
        except ValueError:
            pass
    numbers: tuple[option.Parser[float], ...] = (
        option.positive_integer,
        option.ratio,
        option.duration,
        option.timeout,
    )
    for number in numbers:
        try:
            found = number.read(text)
        except ValueError:
            continue
        assert 0 < found < math.inf
        # What is waited for is handed to sockets, brokers and databases, in 32 bits.
        assert number is not option.timeout or 1000 * found < 1 << 31


def sink_options(sink: Any) -> Callable[[bytes], None]:
    def check(data: bytes) -> None:
        try:
            values = option.read_options(lines_of(data), (*sink.OPTIONS, *SHARED), sink="assent")
            sink.from_options(values)
        except ConfigurationError as error:
            must_say(error, "")

    return check


def check_kafka_settings(data: bytes) -> None:
    given = lines_of(data)
    try:
        take_timeout(dict(given), None)
        producer_settings(given, transactional_id="assent")
        Address.parse_list(given.get("bootstrap.servers", ""))
    except ConfigurationError:
        return


def check_postgres_address(data: bytes) -> None:
    try:
        found = postgres_address.Address.parse(text_of(data))
        found.conninfo()
    except ConfigurationError:
        return
    for port in found.port.split(","):
        assert 0 < int(port) < 1 << 16
    assert found.database in str(found)


def check_mysql_address(data: bytes) -> None:
    try:
        found = mysql_address.Address.parse(text_of(data))
        found.connect_arguments()
    except ConfigurationError:
        return
    assert 0 < found.port < 1 << 16
    assert str(found).endswith(f"/{found.database}")


def check_redis_addresses(data: bytes) -> None:
    try:
        found = parse_addresses(text_of(data))
    except ConfigurationError:
        return
    assert found
    for address in found:
        assert isinstance(address.host, str)
        assert type(address.port) is int
        assert 0 < address.port < 1 << 16
        assert address.database >= 0


def check_postgres_table(data: bytes) -> None:
    try:
        found = postgres_table.TableName.parse(text_of(data))
    except ConfigurationError:
        return
    assert postgres_table.TableName.parse(str(found)) == found


def check_mysql_table(data: bytes) -> None:
    try:
        found = mysql_table.TableName.parse(text_of(data), "shop")
    except ConfigurationError:
        return
    assert mysql_table.TableName.parse(str(found), "") == found


def check_path(data: bytes) -> None:
    text = text_of(data)
    try:
        assert local_path(text, "path").is_absolute()
    except ConfigurationError:
        pass
    try:
        LocalStore(text)
    except ConfigurationError:
        pass


# Rows and what they are made of.

_COLUMNS = pa.record_batch(
    {
        "n": pa.array([1, None, -5], pa.int32()),
        "l": pa.array([1 << 40, 0, -1], pa.int64()),
        "f": pa.array([0.5, None, -1.0], pa.float32()),
        "d": pa.array([0.5, 1e300, -1.0], pa.float64()),
        "s": pa.array(["a", "", None]),
        "b": pa.array([b"\xff", None, b""]),
        "o": pa.array([True, None, False]),
        "t": pa.array([1, 2, None], pa.timestamp("us", "UTC")),
        "m": pa.array([Decimal("1.23"), Decimal("-999.99"), None], pa.decimal128(20, 2)),
        "r": pa.array([{"x": 1}, None, {"x": None}], pa.struct([("x", pa.int32())])),
        "a": pa.array([["p"], None, []], pa.list_(pa.string())),
    }
)


def check_avro(data: bytes) -> None:
    """A schema of the user's: refused, or what is written by it is read by another library."""
    text = text_of(data)
    rows = RowFormat("topic", value_format="avro", value_schema=text)
    try:
        rows.check(_COLUMNS.schema)
        (records,) = rows.records(_COLUMNS)
    except ConfigurationError:
        return
    schema = json.loads(text)
    try:
        parsed = fastavro.parse_schema(schema)
    except Exception:
        return  # stricter than this library is: not written for others to read
    for row, encoded in enumerate(records.values.to_pylist()):
        stream = io.BytesIO(encoded)
        found: Any = fastavro.schemaless_reader(stream, parsed, None)
        assert not stream.read()
        for field in schema["fields"]:
            given = _COLUMNS.column(field["name"])[row].as_py()
            assert _plain(found[field["name"]]) == _plain(given)


def _plain(value: Any) -> Any:
    return value.timestamp() if hasattr(value, "timestamp") else value


def _headers(data: bytes) -> pa.Array:
    """Headers with whatever bytes are in their keys, and nulls in every place."""
    names, lists = [], [0]
    for row in data.split(b"\n"):
        names += [part.partition(b"=") for part in row.split(b"&")] if row else []
        lists.append(len(names))
    keys = [None if key == b"~" else key for key, _, _ in names]
    values = [None if not equals else value for _, equals, value in names]
    texts = pa.array(keys, pa.binary()).view(pa.string())
    pairs = pa.StructArray.from_arrays(
        [texts, pa.array(values, pa.binary())],
        ["key", "value"],
        mask=pa.array([key == b"!" for key, _, _ in names], pa.bool_()),
    )
    return pa.ListArray.from_arrays(pa.array(lists, pa.int32()), pairs)


def check_headers(data: bytes) -> None:
    headers = _headers(data)
    batch = pa.record_batch({"value": pa.array(["v"] * len(headers)), "headers": headers})
    rows = RowFormat("topic")
    rows.check(batch.schema)
    try:
        (records,) = rows.records(batch)
    except AssentError:
        return
    assert len(RowArguments(1, records, np.zeros(len(records), np.int32)).counts) == len(headers)
    for row in headers.to_pylist():
        assert all("\0" not in pair["key"] for pair in row)


def check_rows(data: bytes) -> None:
    """Keys, values, topics and times of any kind."""
    parts = data.split(b"\n")
    texts = pa.array([part or None for part in parts], pa.binary()).view(pa.string())
    times = np.frombuffer(data.ljust(8 * len(parts), b"\1")[: 8 * len(parts)], np.float64)
    columns = {"key": texts, "value": texts, "topic": texts, "timestamp": pa.array(times)}
    for value_format in ("raw", "json", "avro"):
        rows = RowFormat(value_format=value_format)
        batch = pa.record_batch(columns)
        rows.check(batch.schema)
        try:
            found = list(rows.records(batch))
        except AssentError:
            continue
        assert sum(map(len, found)) == len(parts)
        if value_format == "json":
            for record in found:
                for text in record.values.to_pylist():
                    json.loads(text)


# What brokers answer.


def check_verdict(data: bytes) -> None:
    numbers = np.frombuffer(data.ljust(24, b"\0")[:24], ">i4").tolist()
    states = list(State)
    handle = ProducerIdentity(numbers[0] % 4, numbers[1] % 32768)
    described = Described(
        "id", states[numbers[2] % len(states)], ProducerIdentity(numbers[3] % 4, numbers[4] % 32768)
    )
    found = verdict(handle, described, numbers[5] % 3)
    settled = {
        Verdict.COMMITTED: ("PrepareCommit", "CompleteCommit"),
        Verdict.ABORTED: ("PrepareAbort", "CompleteAbort"),
        Verdict.PENDING: ("Ongoing",),
    }
    if found in settled:
        assert described.state.value in settled[found]
        # Of this transaction or of the one step that ends it, never of a later one.
        same = described.producer == handle
        next_epoch = described.producer == ProducerIdentity(handle.producer_id, handle.epoch + 1)
        rolled = handle.epoch == 32766 and described.producer.epoch == 0
        assert same or (found is not Verdict.PENDING and (next_epoch or rolled))


def check_answer(data: bytes) -> None:
    from kafka.protocol.admin.transactions import DescribeTransactionsRequest

    request = DescribeTransactionsRequest(version=0, transactional_ids=["assent"])
    request.with_header(correlation_id=1, client_id="assent")
    try:
        decoded(request, 1, data, "broker:9092")
    except ConnectionLost as error:
        must_say(error, "broker:9092")


_URL = "user:secret@host:3306/shop?sslMode=DISABLED&connectTimeout=5"
_KAFKA = b"kafka.bootstrap.servers=a:1\ntopic=t\nkafka.acks=all\ntransactionTimeout=60s"
_OFFSETS = (
    b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}\n'
    b'{"views":{"0":10000,"1":10005}}\n-\n7\n'
)
_AVRO = json.dumps(
    {
        "type": "record",
        "name": "row",
        "fields": [
            {"name": "n", "type": ["null", "int"]},
            {"name": "l", "type": "long"},
            {"name": "s", "type": ["string", "null"]},
            {"name": "t", "type": [{"type": "long", "logicalType": "timestamp-micros"}, "null"]},
            {
                "name": "m",
                "type": [
                    "null",
                    {
                        "type": "fixed",
                        "name": "money",
                        "size": 9,
                        "logicalType": "decimal",
                        "precision": 20,
                        "scale": 2,
                    },
                ],
            },
            {
                "name": "r",
                "type": [
                    "null",
                    {
                        "type": "record",
                        "name": "inner",
                        "fields": [{"name": "x", "type": ["null", "int"]}],
                    },
                ],
            },
            {"name": "a", "type": ["null", {"type": "array", "items": ["string", "null"]}]},
        ],
    }
).encode()
_NAME = b"assent-3f2a9c0d-2-17-0-5be1"
_TRANSACTIONS: Mapping[str, tuple[Callable[[str], object | None], bytes]] = {
    "name": (TransactionName.parse, _NAME),
    "sql_name": (SqlName.parse, _NAME + b".0a1b2c3d"),
}

TARGETS: tuple[Target, ...] = (
    Target("handle", check_handle, tuple((GOLDEN / "handles-1.txt").read_bytes().splitlines())),
    *(Target(name, exact(parse), (seed,)) for name, (parse, seed) in _TRANSACTIONS.items()),
    Target("transactional_id", check_transactional_id, (b"assent-3f2a9c0d-2-1-4-1-0a1b2c3d",)),
    Target("mark", check_mark, (b"cluster x topic y",)),
    Target("crash_point", check_crash_point, (b"after-pre-commit@1/0#2", b"before-recover@*")),
    Target("listing", check_listing, (b"000000000017-00000002.json/000000000018-00000002.json",)),
    Target(
        "record",
        stored("records/000000000017-00000002.json", lambda ledger: ledger.read(RecordKey(17, 2))),
        golden("decision", "void"),
    ),
    Target(
        "amendment",
        stored("records/000000000018-00000002.json", lambda ledger: ledger.read(RecordKey(18, 2))),
        golden("amendment_shares", "amendment_whole"),
    ),
    Target(
        "settlement",
        stored("records/000000000019-00000003.json", lambda ledger: ledger.read(RecordKey(19, 3))),
        golden("amendment_settlements"),
    ),
    Target("term", stored("terms/00000003.json", Ledger.newest_term), golden("term")),
    Target("identity", stored("identities/00000000.json", Ledger.find), golden("identity")),
    Target("vote", check_vote, golden("vote", version=2)),
    Target("claim", check_claim, (bytes(Claim("3f2a9c0d", 1, 7, 2, 1_750_000_000_000)),)),
    Target("seal", check_seal, (b'{"version":1,"transactions":["a","b"]}',)),
    Target("offset_log", check_offset_log, (_OFFSETS,)),
    Target("query_id", check_query_id, (b'{"id":"5f0c8f4e-6b55-4c3c-8f7a-6f2f0b6f0a11"}',)),
    Target("option", check_option, (b"30s", b"0.5", b"a, b", b"12", b"true", b"1.5e-3", b"2.5 d")),
    Target("files_options", sink_options(FilesSink), (b"path=/x\nfileFormat=json",)),
    Target("kafka_options", sink_options(KafkaSink), (_KAFKA,)),
    Target(
        "postgres_options",
        sink_options(PostgresSink),
        (b"url=jdbc:postgresql://h/d\ndbtable=t\nwriteMode=upsert\nkeyColumns=a,b",),
    ),
    Target(
        "mysql_options",
        sink_options(MySqlSink),
        (b"url=jdbc:mysql://h/d\ndbtable=t\nlockTimeout=5s",),
    ),
    Target(
        "redis_options",
        sink_options(RedisSink),
        (b"url=redis://h\nkeyColumns=a\nkeyPrefix=p:\nttl=1d",),
    ),
    Target(
        "hbase_options",
        sink_options(HBaseSink),
        (b"servers=h:9090\ntable=t\nkeyColumns=a\nfamily=f",),
    ),
    Target(
        "kafka_settings",
        check_kafka_settings,
        (b"bootstrap.servers=a:1,[::1]:9\nmessage.max.bytes=5000\ntransaction.timeout.ms=60000",),
    ),
    Target(
        "postgres_address",
        check_postgres_address,
        (b"jdbc:postgresql://u:p%40@h1:5432,[::1]:5433/d%20b?ssl=true&currentSchema=a b",),
    ),
    Target("mysql_address", check_mysql_address, (f"jdbc:mysql://{_URL}".encode(),)),
    Target(
        "redis_addresses",
        check_redis_addresses,
        (b"redis://u:p@h:6379/0,rediss://i", b"redis://h/3?socket_timeout=5"),
    ),
    Target("postgres_table", check_postgres_table, (b'public."My ""Views"', b" a . b ")),
    Target("mysql_table", check_mysql_table, (b"shop.`my ``views`", b" a . b ")),
    Target("path", check_path, (b"file:///tmp/a%20b", b"/tmp/x", b"s3://u:p@b/x")),
    Target("avro", check_avro, (_AVRO,)),
    Target("headers", check_headers, (b"a=1&b=\n\n~=1\n!\na\0b=2",)),
    Target("rows", check_rows, (b"one\ntwo\n\n\xff\n\0",)),
    Target(
        "verdict", check_verdict, (bytes(24), b"\0\0\0\1\0\0\0\5\0\0\0\4\0\0\0\1\0\0\0\6\0\0\0\2")
    ),
    Target(
        "answer",
        check_answer,
        (
            b"\0\0\0\1\0\0\0\0\0\2\0\0\7assent\x08Ongoing\0\0\xea\x60"
            b"\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\1\0\0\1\0\0",
        ),
    ),
)
