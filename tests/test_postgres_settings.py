"""Options, addresses, checks before the start, and errors; secrets appear nowhere."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg import errors as psycopg_errors

import assent
from assent.protocol.errors import AssentError, ConfigurationError, RetriableError
from assent.protocol.guarantee import Guarantee
from assent.protocol.name import TransactionName
from assent.protocol.verdict import Verdict
from assent.sinks.option import read_options
from assent.sinks.postgres import PostgresSink
from assent.sinks.postgres_address import Address
from assent.sinks.postgres_errors import sqlstate, translate
from assent.sinks.postgres_session import Sessions, asking
from assent.sinks.postgres_table import Table, TableName, literal, quote
from assent.sinks.sql_mode import CommitMode, WriteMode, choose
from assent.sinks.sql_name import SqlName
from assent.sinks.sql_witness import Found, State, verdict
from assent.testing.postgres import Postgres
from tests.postgres_stage import PostgresStage
from tests.sql_query import batch

SECRET = "hunter2/and@more"
URL = "jdbc:postgresql://db.example:6543/shop"


def from_options(**given: str) -> PostgresSink:
    options = {"url": URL, "dbtable": "views", **given}
    return PostgresSink.from_options(
        read_options(options, PostgresSink.OPTIONS, sink="assent-postgres")
    )


# Addresses


@pytest.mark.parametrize(
    ("url", "shown", "parameters"),
    [
        ("jdbc:postgresql://db/shop", "db:5432/shop", {}),
        ("JDBC:postgresql://db:6543/shop", "db:6543/shop", {}),
        ("postgresql://me:a%2Fb@db/shop", "db:5432/shop", {"user": "me", "password": "a/b"}),
        ("postgres://db/shop?user=me&password=x", "db:5432/shop", {"user": "me", "password": "x"}),
        ("postgresql:///shop", "localhost:5432/shop", {}),
        ("jdbc:postgresql://[::1]:1/shop", "::1:1/shop", {}),
        (
            "jdbc:postgresql://a:1,b/shop",
            "a:1,b:5432/shop",
            {"target_session_attrs": "read-write"},
        ),
        ("jdbc:postgresql://db/shop?ssl=true", "db:5432/shop", {"sslmode": "verify-full"}),
        ("jdbc:postgresql://db/shop?sslmode=require", "db:5432/shop", {"sslmode": "require"}),
        (
            "jdbc:postgresql://db/shop?reWriteBatchedInserts=true&ApplicationName=x",
            "db:5432/shop",
            {"application_name": "x"},
        ),
        (
            "jdbc:postgresql://db/shop?currentSchema=a%20b",
            "db:5432/shop",
            {"options": r"-c search_path=a\ b"},
        ),
    ],
)
def test_urls(url: str, shown: str, parameters: dict[str, str]) -> None:
    address = Address.parse(url)
    assert str(address) == shown
    assert dict(address.parameters) == parameters
    found = psycopg.conninfo.conninfo_to_dict(address.conninfo())
    assert found["dbname"] == "shop"
    assert found["client_encoding"] == "UTF8"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "db/shop",
        "jdbc:mysql://db/shop",
        f"postgresql://me:{SECRET}@db/",
        "postgresql://a:b:c/d",
    ],
)
def test_urls_that_cannot_be_read_are_not_shown(url: str) -> None:
    with pytest.raises(ConfigurationError, match="option url") as caught:
        Address.parse(url)
    assert "hunter2" not in str(caught.value)


def test_unknown_parameters_are_named_and_their_values_are_not() -> None:
    with pytest.raises(ConfigurationError, match="does not know: secretthing") as caught:
        from_options(url=f"{URL}?secretThing=hunter2")
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_user_given_twice_has_to_be_the_same() -> None:
    Address.parse("postgresql://me@db/shop", "me")
    with pytest.raises(ConfigurationError, match="option user and the user in option url differ"):
        Address.parse("postgresql://me@db/shop", "you")


@given(
    password=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)
)
def test_any_password_reaches_the_client_library(password: str) -> None:
    address = Address.parse(URL, "me", password)
    assert psycopg.conninfo.conninfo_to_dict(address.conninfo())["password"] == password


# Options


def test_options_become_settings() -> None:
    sink = from_options(
        user="me",
        password=SECRET,
        dbtable="Shop.views",
        WRITEMODE="upsert",
        keyColumns="a, b",
        orderColumn="seq",
        deleteColumn="gone",
        commitMode="staged",
        createTable="true",
        lockTimeout="5s",
        retainedWitnesses="7",
        driver="org.postgresql.Driver",
        batchsize="1000",
        isolationLevel="NONE",
        numPartitions="4",
    )
    assert sink.table == TableName("shop", "views")
    assert sink.write_mode == WriteMode("upsert", ("a", "b"), "seq", "gone")
    assert (sink.commit_mode, sink.create_table) == ("staged", True)
    assert (sink.lock_timeout, sink.retained_witnesses) == (5.0, 7)
    assert sink.target == 'db.example:6543/shop "shop"."views"'
    assert pickle.loads(pickle.dumps(sink)).target == sink.target
    for shown in (repr(sink), str(sink), repr(sink.address), sink.target):
        assert "hunter2" not in shown


def test_defaults_of_options_and_arguments_agree() -> None:
    made, read = PostgresSink(URL, "views"), from_options()
    assert {**made.__dict__} == {**read.__dict__}
    assert assent.PostgresSink is PostgresSink


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"dbtable": "a.b.c"}, "expected table or schema.table"),
        ({"dbtable": "(select 1) as x"}, "expected table or schema.table"),
        ({"dbtable": "a."}, "expected table or schema.table"),
        ({"dbtable": "1a"}, "expected table or schema.table"),
        ({"writeMode": "merge"}, "one of append, upsert, overwrite"),
        ({"commitMode": "two"}, "one of auto, prepared, staged"),
        ({"writeMode": "upsert"}, "needs option keyColumns"),
        ({"keyColumns": "a"}, "writeMode is append; set writeMode to upsert"),
        ({"orderColumn": "a"}, "option orderColumn is set"),
        ({"lockTimeout": "soon"}, "lockTimeout"),
        ({"retainedWitnesses": "0"}, "retainedWitnesses"),
        ({"tabel": "x"}, "unknown option tabel"),
        ({"url": "hunter2"}, "option url is not the address"),
    ],
)
def test_options_that_cannot_work(given: dict[str, str], match: str) -> None:
    with pytest.raises(ConfigurationError, match=match) as caught:
        from_options(**given)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("views", TableName(None, "views")),
        ("Shop.Views", TableName("shop", "views")),
        ('"Shop"."My ""Views"""', TableName("Shop", 'My "Views"')),
        (' a . "B" ', TableName("a", "B")),
        ('"a.b"', TableName(None, "a.b")),
    ],
)
def test_names_of_tables(text: str, name: TableName) -> None:
    assert TableName.parse(text) == name
    assert TableName.parse(str(name)) == name


@given(st.text(st.characters(exclude_characters="\0"), min_size=1))
def test_quoted_names_are_read_back(name: str) -> None:
    assert TableName.parse(quote(name)) == TableName(None, name)


# What is common to databases


def test_names_carry_the_mark() -> None:
    name = SqlName(TransactionName("3f2a9c0d", 2, 17, 0, "5be1"), "0a1b2c3d")
    assert SqlName.parse(str(name)) == name
    for text in ("", "assent-3f2a9c0d-2-17-0-5be1", "x.0a1b2c3d", f"{name}0"):
        with pytest.raises(ValueError, match="not the name"):
            SqlName.parse(text)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (Found(True, None), Verdict.PENDING),
        (Found(False, State.COMMITTED), Verdict.COMMITTED),
        (Found(False, State.COMMITTED, pruned_through=9), Verdict.COMMITTED),
        (Found(False, State.STAGED, staging=True), Verdict.PENDING),
        (Found(False, State.STAGED, staging=False), Verdict.ABORTED),
        (Found(False, State.SEALED, staging=True), Verdict.COMMITTED),
        (Found(False, State.SEALED, staging=False), Verdict.ABORTED),
        (Found(False, None), Verdict.ABORTED),
        (Found(False, None, pruned_through=4), Verdict.ABORTED),
        (Found(False, None, pruned_through=5), Verdict.UNKNOWN),
    ],
)
def test_verdicts(found: Found, expected: Verdict) -> None:
    assert verdict(5, found) is expected


def test_commit_modes() -> None:
    append, upsert = WriteMode(), WriteMode("upsert", ("id",))
    assert choose("auto", append, (), True)[0] is CommitMode.PREPARED
    assert choose("auto", append, ("key",), True)[0] is CommitMode.STAGED
    assert choose("auto", append, (), False)[0] is CommitMode.STAGED
    assert choose("auto", upsert, ("key",), True)[0] is CommitMode.STAGED
    assert choose("prepared", upsert, ("key",), True)[0] is CommitMode.PREPARED


@pytest.mark.parametrize(
    ("mode", "schema", "match"),
    [
        (WriteMode(), pa.schema([]), "no columns"),
        (WriteMode(), pa.schema([("a", pa.int64()), ("A", pa.int64())]), "two columns are named"),
        (WriteMode("upsert", ("x",)), batch().schema, "keyColumns names 'x'"),
        (WriteMode("upsert", ("id", "ID")), batch().schema, "names 'ID' twice"),
        (WriteMode("upsert", ("id",), "x"), batch().schema, "orderColumn names 'x'"),
        (WriteMode("upsert", ("id",), None, "page"), batch().schema, "has to be a boolean"),
    ],
)
def test_columns_that_do_not_fit_the_mode(mode: WriteMode, schema: pa.Schema, match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        mode.check(schema)


WITHOUT = """
import sys
sys.modules["psycopg"] = None
import pyspark_assent, pyspark_assent_postgres, assent
assert pyspark_assent_postgres.DefaultSource.name() == "assent-postgres"
for make in (
    lambda: assent.PostgresSink("postgresql://a/b", "t"),
    lambda: pyspark_assent_postgres.DefaultSource({"url": "postgresql://a/b", "dbtable": "t"}),
):
    try:
        make()
    except ImportError as error:
        print(error)
"""


def test_without_the_extra_discovery_works_and_the_sink_names_the_remedy() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent.parent,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("pip install 'assent[postgres]'") == 2


# Errors


class _Error(Exception):
    def __init__(self, code: str | None) -> None:
        super().__init__("it said so")
        self.sqlstate = code


def test_every_error_of_the_server_maps_to_one_of_the_tree() -> None:
    """All codes that psycopg knows, by what they call for."""
    codes = {
        one.sqlstate
        for one in vars(psycopg_errors).values()
        if isinstance(one, type) and issubclass(one, psycopg.Error) and one.sqlstate
    }
    assert len(codes) > 200
    for code in codes:
        error = translate(_Error(code), "table t")
        assert isinstance(error, AssentError)
        assert str(error).startswith("table t: it said so")
        assert code in str(error)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (None, RetriableError),
        ("08006", RetriableError),
        ("57P01", RetriableError),
        ("40P01", RetriableError),
        ("53300", RetriableError),
        ("55P03", RetriableError),
        ("42704", RetriableError),
        ("42P01", RetriableError),
        ("28P01", ConfigurationError),
        ("42501", ConfigurationError),
        ("42703", ConfigurationError),
        ("3D000", ConfigurationError),
        ("0A000", ConfigurationError),
        ("22001", AssentError),
        ("23505", AssentError),
        ("21000", AssentError),
        ("XX000", RetriableError),
        ("P0001", RetriableError),
    ],
)
def test_what_an_error_calls_for(code: str | None, kind: type[AssentError]) -> None:
    assert type(translate(_Error(code), "table t")) is kind


def test_the_client_says_the_code() -> None:
    assert sqlstate(psycopg_errors.AdminShutdown()) == "57P01"
    assert sqlstate(psycopg.OperationalError()) is None
    assert sqlstate(ValueError()) is None


# On a server


@pytest.mark.postgres
def test_a_wrong_password_is_a_configuration_error_without_it(postgres: Postgres) -> None:
    for act in ("check", "begin"):
        stage = PostgresStage(postgres, password="hunter2")
        sink = stage.sink()
        with pytest.raises((ConfigurationError, RetriableError)) as caught:
            sink.check(batch().schema) if act == "check" else sink.begin(stage.name(), 0)
        assert "hunter2" not in str(caught.value)
        assert "password authentication failed" in str(caught.value)


@pytest.mark.postgres
def test_nothing_secret_is_logged(postgres: Postgres, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    stage = PostgresStage(postgres)
    sink = stage.sink()
    sink.check(batch().schema)
    handle = stage.prepare((1, "a"), sink=sink)
    sink.abort(handle)
    assert postgres.password not in caplog.text
    assert postgres.password not in str(handle)
    assert postgres.password not in str(handle.to_json())
    [(count,)] = postgres.rows(
        f"SELECT count(*) FROM {stage.schema}.assent_witnesses w"
        f" WHERE w::text LIKE '%{postgres.password}%'"
    )
    assert count == 0


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("columns", "options", "schema", "match"),
    [
        ("", {}, None, "there is no table .*createTable"),
        ("id bigint", {}, None, "no column for 'page'; its columns are id"),
        ("id bigint, page text, x int NOT NULL", {}, None, "do not bring them: x"),
        (
            "id bigint, page text GENERATED ALWAYS AS ('x') STORED",
            {},
            None,
            "computed by the server",
        ),
        (
            "id bigint GENERATED ALWAYS AS IDENTITY, page text",
            {},
            None,
            "'id' of table .* is computed",
        ),
        (
            "id bigint, page text",
            {"write_mode": "upsert", "key_columns": ["id"]},
            None,
            "no unique index or primary key over exactly the key columns",
        ),
        (
            "id bigint PRIMARY KEY, page text",
            {"write_mode": "upsert", "key_columns": ["id", "page"]},
            None,
            "no unique index",
        ),
    ],
)
def test_a_table_that_does_not_fit(
    postgres: Postgres, columns: str, options: dict[str, Any], schema: None, match: str
) -> None:
    stage = PostgresStage(postgres, columns, **options)
    with pytest.raises(ConfigurationError, match=match):
        stage.sink().check(batch().schema)


@pytest.mark.postgres
def test_columns_that_rows_do_not_bring_get_their_defaults(postgres: Postgres) -> None:
    for mode in ("prepared", "staged"):
        stage = PostgresStage(
            postgres,
            'id bigint, "Page" text, n serial, at int NOT NULL DEFAULT 7, CHECK (at > id)',
            commit_mode=mode,
        )
        sink = stage.sink()
        sink.check(batch().schema)
        handle = stage.prepare((1, "a"), (2, "b"))
        sink.commit(handle)
        sink.publish(0, [handle])
        assert stage.select() == [(1, "a", 1, 7), (2, "b", 2, 7)]


@pytest.mark.postgres
def test_the_table_is_created_from_the_schema(postgres: Postgres) -> None:
    schema = pa.schema(
        [
            pa.field("Id", pa.int64(), nullable=False),
            pa.field("page", pa.string()),
            pa.field("gone", pa.bool_()),
        ]
    )
    stage = PostgresStage(
        postgres,
        "",
        create_table=True,
        write_mode="upsert",
        key_columns=["id"],
        delete_column="gone",
    )
    for _ in range(2):
        stage.sink().check(schema)
    with postgres.connect() as connection:
        table = Table.find(asking(connection), TableName.parse(stage.full))
    assert table is not None
    assert [(one.name, one.type.shown, one.not_null) for one in table.columns] == [
        ("Id", "bigint", True),
        ("page", "text", False),
    ]
    assert [index.columns for index in table.unique] == [("Id",)]


@pytest.mark.postgres
def test_what_is_no_table_or_is_not_durable_is_refused(postgres: Postgres) -> None:
    stage = PostgresStage(postgres)
    postgres.run(f"CREATE VIEW {stage.schema}.seen AS SELECT * FROM {stage.full}")
    with pytest.raises(ConfigurationError, match="is not a table"):
        stage.sink(dbtable=f"{stage.schema}.seen").check(batch().schema)
    postgres.run(f"ALTER TABLE {stage.full} SET UNLOGGED")
    with pytest.raises(ConfigurationError, match="is unlogged"):
        stage.sink().check(batch().schema)
    sink = stage.sink()
    sink.guarantee = Guarantee.AT_LEAST_ONCE
    sink.check(batch().schema)


@pytest.mark.postgres
def test_partitioned_tables(postgres: Postgres) -> None:
    for mode in ("prepared", "staged"):
        stage = PostgresStage(postgres, "", commit_mode=mode)
        postgres.run(
            f"CREATE TABLE {stage.full} (id bigint, page text) PARTITION BY RANGE (id)",
            f"CREATE TABLE {stage.full}_1 PARTITION OF {stage.full} FOR VALUES FROM (0) TO (10)",
            f"CREATE TABLE {stage.full}_2 PARTITION OF {stage.full} FOR VALUES FROM (10) TO (20)",
        )
        sink = stage.sink()
        sink.check(batch().schema)
        handle = stage.prepare((1, "a"), (11, "b"))
        sink.commit(handle)
        sink.publish(0, [handle])
        assert stage.rows() == [(1, "a"), (11, "b")]


@pytest.mark.postgres
def test_rights_are_checked_before_the_start(postgres: Postgres) -> None:
    stage = PostgresStage(postgres, "id bigint PRIMARY KEY, page text")
    user = f"user_{stage.identity}"
    postgres.run(
        f"CREATE ROLE {user} LOGIN PASSWORD '{postgres.password}'",
        f"GRANT USAGE ON SCHEMA {stage.schema} TO {user}",
    )
    stage.options = {"user": user}
    for right, needed in (
        ("INSERT ON", "lacks the right INSERT"),
        ("SELECT ON", "lacks the right SELECT"),
        ("", "may not create tables in schema"),
    ):
        with pytest.raises(ConfigurationError, match=needed):
            stage.sink().check(batch().schema)
        if right:
            postgres.run(f"GRANT {right} {stage.full} TO {user}")
    postgres.run(f"GRANT CREATE ON SCHEMA {stage.schema} TO {user}")
    sink = stage.sink()
    sink.check(batch().schema)
    handle = stage.prepare((1, "a"))
    sink.commit(handle)
    sink.publish(0, [handle])
    assert stage.rows() == [(1, "a")]
    with pytest.raises(ConfigurationError, match="lacks the right UPDATE"):
        stage.sink(write_mode="upsert", key_columns=["id"]).check(batch().schema)
    with pytest.raises(ConfigurationError, match="lacks the right DELETE"):
        stage.sink().check(batch().schema, overwrite=True)
    postgres.run(f"DROP OWNED BY {user}", f"DROP ROLE {user}")


@pytest.mark.postgres
def test_defaults_of_a_role_spoil_nothing(postgres: Postgres) -> None:
    stage = PostgresStage(postgres)
    user = f"user_{stage.identity}"
    postgres.run(f"CREATE ROLE {user} LOGIN SUPERUSER PASSWORD '{postgres.password}'")
    spoilers = {
        "synchronous_commit": "off",
        "default_transaction_read_only": "on",
        "default_transaction_isolation": "serializable",
        "statement_timeout": "900",
        "lock_timeout": "0",
        "idle_in_transaction_session_timeout": "900",
        "search_path": "nowhere",
        "client_encoding": "LATIN1",
        "TimeZone": "Asia/Tokyo",
    }
    for name, value in spoilers.items():
        postgres.run(f"ALTER ROLE {user} SET {name} = '{value}'")
    for mode in ("prepared", "staged"):
        sink = stage.sink(user=user, commit_mode=mode)
        sink.check(batch().schema)
        handle = stage.prepare((1, "é€"), sink=sink)
        sink.commit(handle)
        sink.publish(0, [handle])
    assert stage.rows() == [(1, "é€"), (1, "é€")]
    address = stage.make(user=user).address
    with Sessions(address, 5.0).control() as connection:
        shown = {
            name: connection.execute(f"SHOW {name}".encode()).fetchone()
            for name in ("synchronous_commit", "lock_timeout", "statement_timeout")
        }
    assert shown == {
        "synchronous_commit": ("on",),
        "lock_timeout": ("5s",),
        "statement_timeout": ("0",),
    }
    postgres.run(f"ALTER ROLE {user} SET synchronous_commit = 'remote_apply'")
    with Sessions(address, 6.0).control() as connection:
        assert connection.execute("SHOW synchronous_commit").fetchone() == ("remote_apply",)
    with Sessions(address, 7.0, durable=False).control() as connection:
        assert connection.execute("SHOW synchronous_commit").fetchone() == ("off",)


@pytest.mark.postgres
def test_a_table_found_along_the_search_path(postgres: Postgres) -> None:
    stage = PostgresStage(postgres)
    url = f"{postgres.url}?currentSchema={stage.schema}"
    sink = stage.sink(url=url, dbtable=stage.table)
    sink.check(batch().schema)
    handle = stage.prepare((1, "a"), sink=sink)
    sink.commit(handle)
    assert stage.rows() == [(1, "a")]


def test_literals_and_names_are_quoted() -> None:
    assert literal("it's") == "'it''s'"
    assert quote('a"b') == '"a""b"'


@pytest.mark.postgres
def test_a_type_that_changes_between_check_and_task_is_found(postgres: Postgres) -> None:
    stage = PostgresStage(postgres)
    sink = stage.sink()
    sink.check(batch().schema)
    postgres.run(f"ALTER TABLE {stage.full} ALTER COLUMN id TYPE double precision")
    with pytest.raises(ConfigurationError, match="'id' has type int64"):
        stage.prepare((1, "a"), sink=sink)
    assert stage.prepared() == []


@pytest.mark.postgres
def test_two_queries_create_the_witnesses_at_once(postgres: Postgres) -> None:
    stage = PostgresStage(postgres)
    failures: list[Exception] = []
    barrier = threading.Barrier(6)

    def check() -> None:
        sink = stage.sink()
        barrier.wait()
        try:
            sink.check(batch().schema)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=check) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    handle = stage.prepare((1, "a"))
    stage.sink().abort(handle)
