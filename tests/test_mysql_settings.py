"""Options, addresses, checks before the start, and errors; secrets appear nowhere."""

from __future__ import annotations

import logging
import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pymysql
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pymysql.constants import CR, ER

import assent
from assent.protocol.errors import AssentError, ConfigurationError, RetriableError
from assent.protocol.guarantee import Guarantee
from assent.protocol.name import TransactionName
from assent.sinks.mysql import MySqlSink
from assent.sinks.mysql_address import Address
from assent.sinks.mysql_errors import code, translate, translated
from assent.sinks.mysql_session import Session, Sessions, close_idle
from assent.sinks.mysql_table import TableName, literal, quote
from assent.sinks.mysql_xa import recoverable, xid
from assent.sinks.option import read_options
from assent.sinks.sql_mode import WriteMode
from assent.sinks.sql_name import SqlName
from assent.testing.mysql import MySql
from tests.mysql_stage import MySqlStage
from tests.sql_query import batch

SECRET = "hunter2/and@more"
URL = "jdbc:mysql://db.example:6543/shop"


def from_options(**given: str) -> MySqlSink:
    options = {"url": URL, "dbtable": "views", **given}
    return MySqlSink.from_options(read_options(options, MySqlSink.OPTIONS, sink="assent-mysql"))


# Addresses


@pytest.mark.parametrize(
    ("url", "shown", "arguments"),
    [
        ("jdbc:mysql://db/shop", "db:3306/shop", {}),
        ("JDBC:mariadb://db:6543/shop", "db:6543/shop", {}),
        ("mysql://me:a%2Fb@db/shop", "db:3306/shop", {"user": "me", "password": "a/b"}),
        ("mysql://db/shop?user=me&password=x", "db:3306/shop", {"user": "me", "password": "x"}),
        ("mysql:///shop", "localhost:3306/shop", {}),
        ("jdbc:mysql://[::1]:1/shop", "::1:1/shop", {}),
        ("jdbc:mysql://db/shop?useSSL=false", "db:3306/shop", {"ssl_disabled": True}),
        ("jdbc:mysql://db/shop?sslMode=PREFERRED", "db:3306/shop", {}),
        ("jdbc:mysql://db/shop?sslMode=DISABLED", "db:3306/shop", {"ssl_disabled": True}),
        ("jdbc:mariadb://db/shop?sslMode=disable", "db:3306/shop", {"ssl_disabled": True}),
        (
            "jdbc:mysql://db/shop?sslMode=VERIFY_IDENTITY&sslCa=/ca.pem",
            "db:3306/shop",
            {"ssl": {"verify_mode": "required", "check_hostname": True, "ca": "/ca.pem"}},
        ),
        (
            "jdbc:mysql://db/shop?rewriteBatchedStatements=true&serverTimezone=UTC",
            "db:3306/shop",
            {},
        ),
        ("jdbc:mysql://db/shop?connectTimeout=2500", "db:3306/shop", {"connect_timeout": 2.5}),
    ],
)
def test_urls(url: str, shown: str, arguments: dict[str, Any]) -> None:
    address = Address.parse(url)
    assert str(address) == shown
    assert dict(address.arguments) == arguments
    connecting = address.connect_arguments()
    assert (connecting["database"], connecting["charset"]) == ("shop", "utf8mb4")
    if "ssl" not in connecting:  # whose files it would read
        Session(**connecting, defer_connect=True)  # the client knows all of them


@pytest.mark.parametrize(
    "url",
    [
        "",
        "db/shop",
        "jdbc:postgresql://db/shop",
        f"mysql://me:{SECRET}@db/",
        "mysql://me:hunter2@db/",
        "mysql://a:b:c/d",
        "mysql://me:hunter2@a,b/shop",
        "mysql://db/shop?sslMode=hunter2",
        "mysql://db/shop?sessionVariables=hunter2",
        "mysql://db/shop?connectTimeout=hunter2",
    ],
)
def test_urls_that_cannot_be_read_are_not_shown(url: str) -> None:
    with pytest.raises(ConfigurationError, match="option url") as caught:
        Address.parse(url)
    assert "hunter2" not in str(caught.value)


def test_a_user_given_twice_has_to_be_the_same() -> None:
    Address.parse("mysql://me@db/shop", "me")
    with pytest.raises(ConfigurationError, match="option user and the user in option url differ"):
        Address.parse("mysql://me@db/shop", "you")


@given(password=st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_any_password_reaches_the_client_library(password: str) -> None:
    address = Address.parse(URL, "me", password)
    assert address.connect_arguments()["password"] == password.encode()


# Options


def test_options_become_settings() -> None:
    sink = from_options(
        user="me",
        password=SECRET,
        dbtable="Stock.views",
        WRITEMODE="upsert",
        keyColumns="a, b",
        orderColumn="seq",
        deleteColumn="gone",
        commitMode="staged",
        createTable="true",
        lockTimeout="5s",
        retainedWitnesses="7",
        driver="com.mysql.cj.jdbc.Driver",
        batchsize="1000",
        isolationLevel="NONE",
        numPartitions="4",
    )
    assert sink.table == TableName("Stock", "views")
    assert sink.write_mode == WriteMode("upsert", ("a", "b"), "seq", "gone")
    assert (sink.commit_mode, sink.create_table) == ("staged", True)
    assert (sink.lock_timeout, sink.retained_witnesses) == (5.0, 7)
    assert sink.target == "db.example:6543/shop `Stock`.`views`"
    assert pickle.loads(pickle.dumps(sink)).target == sink.target
    for shown in (repr(sink), str(sink), repr(sink.address), sink.target):
        assert "hunter2" not in shown


def test_defaults_of_options_and_arguments_agree() -> None:
    made, read = MySqlSink(URL, "views"), from_options()
    assert {**made.__dict__} == {**read.__dict__}
    assert assent.MySqlSink is MySqlSink


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"dbtable": "a.b.c"}, "expected table or database.table"),
        ({"dbtable": "(select 1) as x"}, "expected table or database.table"),
        ({"dbtable": "a."}, "expected table or database.table"),
        ({"dbtable": "a b"}, "expected table or database.table"),
        ({"writeMode": "merge"}, "one of append, upsert, overwrite"),
        ({"commitMode": "two"}, "one of auto, prepared, staged"),
        ({"writeMode": "upsert"}, "needs option keyColumns"),
        ({"keyColumns": "a"}, "writeMode is append; set writeMode to upsert"),
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
        ("views", TableName("shop", "views")),
        ("Stock.Views", TableName("Stock", "Views")),
        ("`my stock`.`a``b`", TableName("my stock", "a`b")),
        (" a . `B` ", TableName("a", "B")),
        ("`a.b`", TableName("shop", "a.b")),
    ],
)
def test_names_of_tables(text: str, name: TableName) -> None:
    assert TableName.parse(text, "shop") == name
    assert TableName.parse(str(name), "other") == name


@given(st.text(st.characters(exclude_characters="\0"), min_size=1))
def test_quoted_names_are_read_back(name: str) -> None:
    assert TableName.parse(quote(name), "shop") == TableName("shop", name)


def test_literals() -> None:
    assert literal("it's \\") == "'it\\'s \\\\'"


def test_names_of_transactions_fit_and_are_read_back() -> None:
    name = SqlName(TransactionName("3f2a9c0d" * 2, 2**31, 2**40, 9999, "5be1" * 4), "0a1b2c3d")
    task, attempt = (part.strip("'") for part in xid(name).split(", "))
    assert max(len(task), len(attempt)) <= 64
    row = (1, len(task), len(attempt), (task + attempt).encode())
    others = [(1, 3, 3, b"abcdef"), (1, 7, 1, b"assent-x"), (9, 2, 2, b"\xff\xfe\xfd\xfc")]
    assert recoverable(lambda _: [row, *others]) == [name]
    assert recoverable(lambda _: [row], "3f2a9c0d") == []
    with pytest.raises(ConfigurationError, match="too long"):
        xid(SqlName(TransactionName("a" * 64, 1, 1, 1, "5be1"), "0a1b2c3d"))


# Errors


def test_every_error_of_the_client_maps_to_one_of_the_tree() -> None:
    numbers = {
        number
        for constants in (ER, CR)
        for name, number in vars(constants).items()
        if isinstance(number, int) and not name.startswith("_")
    }
    assert len(numbers) > 400
    for number in numbers:
        error = translate(pymysql.OperationalError(number, "it said so"), "table t")
        assert isinstance(error, AssentError)
        assert str(error).startswith(f"table t: it said so ({number})")


@pytest.mark.parametrize(
    ("number", "state", "kind"),
    [
        (2003, None, RetriableError),
        (2006, None, RetriableError),
        (2013, None, RetriableError),
        (1205, "HY000", RetriableError),
        (1213, "40001", RetriableError),
        (1040, "08004", RetriableError),
        (1203, "42000", RetriableError),
        (1053, "08S01", RetriableError),
        (1397, "XAE04", RetriableError),
        (1146, "42S02", RetriableError),
        (1290, "HY000", RetriableError),
        (1999, "HY000", RetriableError),
        (1045, "28000", ConfigurationError),
        (1044, "42000", ConfigurationError),
        (1142, "42000", ConfigurationError),
        (1049, "42000", ConfigurationError),
        (1054, "42S22", ConfigurationError),
        (1227, "42000", ConfigurationError),
        (2026, None, ConfigurationError),
        (3948, "42000", ConfigurationError),
        (1062, "23000", AssentError),
        (1048, "23000", AssentError),
        (1406, "22001", AssentError),
        (1366, "HY000", AssentError),
        (1452, "23000", AssentError),
        (3140, "22032", AssentError),
        (3819, "HY000", AssentError),
        (4025, "23000", AssentError),
        (1644, "45000", AssentError),
        (1153, "08S01", AssentError),
    ],
)
def test_what_an_error_calls_for(number: int, state: str | None, kind: type[AssentError]) -> None:
    error = pymysql.OperationalError(number, "x")
    error.sqlstate = state
    assert type(translate(error, "table t")) is kind


def test_what_is_not_an_error_of_the_server() -> None:
    for error in (pymysql.InterfaceError(0, ""), pymysql.Error("Already closed")):
        assert type(translate(error, "table t")) is RetriableError
        assert code(error) is None
    for raised, kind in (
        (ConnectionResetError("x"), RetriableError),
        (RuntimeError("'cryptography' package is required"), ConfigurationError),
        (RuntimeError("x"), RuntimeError),
    ):
        with pytest.raises(kind), translated("table t"):
            raise raised


# On a server


@pytest.mark.mysql
def test_a_wrong_password_is_a_configuration_error_without_it(mysql_kind: MySql) -> None:
    stage = MySqlStage(mysql_kind, password="hunter2")
    sink = stage.sink()
    for act in (lambda: sink.check(batch().schema), lambda: sink.begin(stage.name(), 0)):
        with pytest.raises(ConfigurationError, match=r"Access denied.*check the options") as caught:
            act()
        assert "hunter2" not in str(caught.value)


@pytest.mark.mysql
def test_nothing_secret_is_logged_or_stored(
    mysql_kind: MySql, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    password = mysql_kind.password
    for mode in ("prepared", "staged"):
        stage = MySqlStage(mysql_kind, commit_mode=mode)
        sink = stage.sink()
        sink.check(batch().schema)
        handle = stage.prepare((1, "a"), sink=sink)
        sink.commit(handle)
        sink.publish(0, [handle])
        assert password not in caplog.text + str(handle) + str(handle.to_json())
        witnesses = mysql_kind.rows(f"SELECT * FROM {stage.schema}.assent_witnesses")
        assert password not in str(witnesses)


@pytest.mark.mysql
def test_a_login_over_tls(mysql: MySql) -> None:
    """The newer plug-in, which sends no password in the clear, and refuses to without TLS."""
    stage = MySqlStage(mysql)
    password = "pä€ss'wörd"
    user = f"u{stage.identity}"
    mysql.run(
        f"CREATE USER {user}@localhost IDENTIFIED WITH caching_sha2_password"
        f" BY {literal(password)}",
        f"GRANT ALL ON *.* TO {user}@localhost",
    )
    sink = stage.sink(user=user, password=password)
    sink.check(batch().schema)
    with Sessions(stage.make(user=user, password=password).address, 5.0).control() as session:
        assert session.ask("SHOW STATUS LIKE 'Ssl_cipher'")[0][1]
    mysql.run(f"DROP USER {user}@localhost")


@pytest.mark.mysql
@pytest.mark.parametrize(
    ("columns", "options", "match"),
    [
        ("", {}, "there is no table .*createTable"),
        ("id bigint", {}, "no column for 'page'; its columns are id"),
        ("id bigint, page text, x int NOT NULL", {}, "do not bring them: x"),
        ("id bigint, page text AS ('x') STORED", {}, "computed by the server"),
        (
            "id bigint, page text",
            {"write_mode": "upsert", "key_columns": ["id"]},
            "no unique index or primary key over exactly the key columns",
        ),
        (
            "id bigint PRIMARY KEY, page text",
            {"write_mode": "upsert", "key_columns": ["id", "page"]},
            "no unique index",
        ),
    ],
)
def test_a_table_that_does_not_fit(
    mysql_kind: MySql, columns: str, options: dict[str, Any], match: str
) -> None:
    stage = MySqlStage(mysql_kind, columns, **options)
    with pytest.raises(ConfigurationError, match=match):
        stage.sink().check(batch().schema)


@pytest.mark.mysql
def test_columns_that_rows_do_not_bring_get_their_defaults(mysql_kind: MySql) -> None:
    for mode in ("prepared", "staged"):
        stage = MySqlStage(
            mysql_kind,
            "id bigint, `Page` text, n int AUTO_INCREMENT PRIMARY KEY, at int NOT NULL DEFAULT 7,"
            " twice bigint AS (id * 2) STORED",
            commit_mode=mode,
        )
        sink = stage.sink()
        sink.check(batch().schema)
        handle = stage.prepare((1, "a"), (2, "b"))
        sink.commit(handle)
        sink.publish(0, [handle])
        assert stage.select() == [(1, "a", 1, 7, 2), (2, "b", 2, 7, 4)]


@pytest.mark.mysql
def test_the_table_is_created_from_the_schema(mysql_kind: MySql) -> None:
    schema = pa.schema(
        [
            pa.field("Id", pa.string(), nullable=True),
            pa.field("page", pa.string()),
            pa.field("gone", pa.bool_()),
        ]
    )
    stage = MySqlStage(
        mysql_kind,
        "",
        create_table=True,
        write_mode="upsert",
        key_columns=["id"],
        delete_column="gone",
    )
    for _ in range(2):
        stage.sink().check(schema)
    found = mysql_kind.rows(
        "SELECT column_name, column_type, is_nullable, column_key FROM information_schema.columns"
        f" WHERE table_schema = '{stage.schema}' AND table_name = '{stage.table}'"
        " ORDER BY ordinal_position"
    )
    assert found == [("Id", "varchar(255)", "NO", "PRI"), ("page", "longtext", "YES", "")]


@pytest.mark.mysql
def test_what_is_no_table_or_has_no_transactions_is_refused(mysql_kind: MySql) -> None:
    stage = MySqlStage(mysql_kind)
    mysql_kind.run(f"CREATE VIEW {stage.schema}.seen AS SELECT * FROM {stage.full}")
    with pytest.raises(ConfigurationError, match="is not a table"):
        stage.sink(dbtable=f"{stage.schema}.seen").check(batch().schema)
    mysql_kind.run(f"ALTER TABLE {stage.full} ENGINE = MyISAM")
    with pytest.raises(ConfigurationError, match="kept by MyISAM, which has no transactions"):
        stage.sink().check(batch().schema)


@pytest.mark.mysql
def test_partitioned_tables(mysql_kind: MySql) -> None:
    for mode in ("prepared", "staged"):
        stage = MySqlStage(
            mysql_kind,
            more=") PARTITION BY RANGE (id) (PARTITION a VALUES LESS THAN (10),"
            " PARTITION b VALUES LESS THAN (20)",
            commit_mode=mode,
        )
        sink = stage.sink()
        sink.check(batch().schema)
        handle = stage.prepare((1, "a"), (11, "b"))
        sink.commit(handle)
        sink.publish(0, [handle])
        assert stage.rows() == [(1, "a"), (11, "b")]


# Rights and settings of the server


@contextmanager
def a_user(stage: MySqlStage) -> Iterator[str]:
    user = f"u{stage.identity}"
    stage.server.run(f"CREATE USER {user}@localhost IDENTIFIED BY '{stage.server.password}'")
    try:
        yield user
    finally:
        stage.server.run(f"DROP USER {user}@localhost")


@pytest.mark.mysql
@pytest.mark.parametrize("mode", ["prepared", "staged"])
def test_rights_are_checked_before_the_start(mysql_kind: MySql, mode: str) -> None:
    stage = MySqlStage(mysql_kind, "id bigint PRIMARY KEY, page text", commit_mode=mode)
    wanted = [(f"INSERT ON {stage.full}", "lacks the right INSERT")]
    if mode == "staged":
        wanted += [
            (f"SELECT ON {stage.full}", "lacks the right SELECT"),
            (f"CREATE ON {stage.schema}.*", "lacks the right CREATE"),
            (f"SELECT, INSERT, DROP ON {stage.schema}.*", "lacks the right CREATE, DROP"),
        ]
    else:
        wanted += [(f"CREATE ON {stage.schema}.*", "lacks the right CREATE")]
        if not mysql_kind.is_mariadb:
            wanted.insert(0, ("XA_RECOVER_ADMIN ON *.*", "may not list prepared transactions"))
    with a_user(stage) as user:
        stage.options["user"] = user
        stage.options["url"] = f"mysql://127.0.0.1:{mysql_kind.port}/{stage.schema}"
        # So that the table is seen at all.
        mysql_kind.run(f"GRANT REFERENCES ON {stage.full} TO {user}@localhost")
        for right, needed in wanted:
            with pytest.raises(ConfigurationError, match=needed):
                stage.sink().check(batch().schema)
            mysql_kind.run(f"GRANT {right} TO {user}@localhost")
            close_idle()
        witnesses = f"{stage.schema}.assent_witnesses"
        for right in ("INSERT", "SELECT", "UPDATE", "DELETE"):
            if mode == "staged" and right in ("INSERT", "SELECT"):
                continue
            with pytest.raises(ConfigurationError, match=f"lacks the right {right}"):
                stage.sink().check(batch().schema)
            mysql_kind.run(f"GRANT {right} ON {witnesses} TO {user}@localhost")
        if mode == "staged":
            mysql_kind.run(f"DROP TABLE IF EXISTS {', '.join(leftover(stage))}")
        sink = stage.sink()
        sink.check(batch().schema)
        handle = stage.prepare((1, "a"))
        sink.commit(handle)
        sink.publish(0, [handle])
        assert list(sink.pending(stage.identity)) == []
        assert stage.rows() == [(1, "a")]
        if mode == "staged":
            merging = stage.sink(write_mode="upsert", key_columns=["id"])
            with pytest.raises(ConfigurationError, match="lacks the right UPDATE"):
                merging.check(batch().schema)
            with pytest.raises(ConfigurationError, match="lacks the right DELETE"):
                stage.sink().check(batch().schema, overwrite=True)
        close_idle()


def leftover(stage: MySqlStage) -> list[str]:
    """Whoever may create tables and not drop them leaves the one by which that was found."""
    return [f"{stage.schema}.{table}" for table in stage.staged()] or [f"{stage.schema}.none"]


@contextmanager
def globally(server: MySql, name: str, value: str) -> Iterator[None]:
    [(before,)] = server.rows(f"SELECT @@global.{name}")
    server.run(f"SET GLOBAL {name} = {value}")
    try:
        yield
    finally:
        server.run(f"SET GLOBAL {name} = {before!r}")
        close_idle()


@pytest.mark.mysql
def test_settings_under_which_exactly_once_would_not_hold(
    mysql_kind: MySql, caplog: pytest.LogCaptureFixture
) -> None:
    sink = MySqlStage(mysql_kind).sink()
    with globally(mysql_kind, "innodb_flush_log_at_trx_commit", "0"):
        with pytest.raises(ConfigurationError, match="forgets what it said was committed"):
            sink.check(batch().schema)
        sink.guarantee = Guarantee.AT_LEAST_ONCE
        sink.check(batch().schema)
        sink.guarantee = Guarantee.EXACTLY_ONCE
    assert "loses power" not in caplog.text
    with globally(mysql_kind, "innodb_flush_log_at_trx_commit", "2"):
        sink.check(batch().schema)
    assert "innodb_flush_log_at_trx_commit = 2" in caplog.text
    if not mysql_kind.is_mariadb:
        caplog.clear()
        with globally(mysql_kind, "sync_binlog", "0"):
            sink.check(batch().schema)
        assert "sync_binlog = 0" in caplog.text
        mysql_kind.run("ALTER INSTANCE DISABLE INNODB REDO_LOG")
        try:
            with pytest.raises(ConfigurationError, match="redo log turned off"):
                sink.check(batch().schema)
        finally:
            mysql_kind.run("ALTER INSTANCE ENABLE INNODB REDO_LOG")
        with (
            globally(mysql_kind, "binlog_format", "'STATEMENT'"),
            pytest.raises(ConfigurationError, match="binlog_format = STATEMENT"),
        ):
            sink.check(batch().schema)
    with (
        globally(mysql_kind, "read_only", "1"),
        pytest.raises(ConfigurationError, match="read-only"),
    ):
        sink.check(batch().schema)
    sink.check(batch().schema)


@pytest.mark.mysql
def test_defaults_of_the_server_spoil_nothing(mysql_kind: MySql) -> None:
    spoilers = {
        "sql_mode": "'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT'",
        "autocommit": "0",
        "time_zone": "'+09:00'",
        "max_error_count": "0",
        "sql_notes": "0",
        "wait_timeout": "1000",
        "completion_type": "'CHAIN'",
        "innodb_lock_wait_timeout": "1",
    }
    names = ("sql_mode", "time_zone", "sql_notes", "innodb_lock_wait_timeout")
    rows = pa.record_batch(
        {
            "id": pa.array([1], pa.int64()),
            "page": ["é'\\"],
            "at": pa.array([10**15], pa.timestamp("us", "UTC")),
        }
    )
    before = {name: mysql_kind.rows(f"SELECT @@global.{name}")[0][0] for name in spoilers}
    stages = [
        MySqlStage(
            mysql_kind, commit_mode=mode, columns=f"id bigint, page {COLUMN}, at timestamp(6) NULL"
        )
        for mode in ("prepared", "staged")
    ]
    for name, value in spoilers.items():
        mysql_kind.run(f"SET GLOBAL {name} = {value}")
    close_idle()
    try:
        for stage in stages:
            sink = stage.sink()
            sink.check(rows.schema)
            transaction = sink.begin(stage.name(), 0)
            sink.write(transaction, rows)
            handle = sink.pre_commit(transaction)
            sink.commit(handle)
            sink.publish(0, [handle])
            with stage.make()._sessions().control() as session:
                shown = [session.ask(f"SELECT @@session.{name}")[0][0] for name in names]
            assert "STRICT_ALL_TABLES" in shown[0]
            assert shown[1:] == ["+00:00", 1, 10]
            # Counted, although the server keeps no words about it.
            transaction = sink.begin(stage.name(), 0)
            with pytest.raises(AssentError, match="would not take rows as they are"):
                sink.write(transaction, batch((1, "x" * 21)))
            sink.discard(transaction)
    finally:
        for name, value in before.items():
            mysql_kind.run(f"SET GLOBAL {name} = {value!r}")
        close_idle()
    for stage in stages:
        assert stage.select("id, page, UNIX_TIMESTAMP(at)") == [(1, "é'\\", 10**9)]


COLUMN = "varchar(20)"


@pytest.mark.mysql
def test_two_queries_create_the_witnesses_at_once(mysql_kind: MySql) -> None:
    stage = MySqlStage(mysql_kind)
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


@pytest.mark.mysql
def test_a_server_that_asks_for_a_file_gets_the_rows(mariadb: MySql) -> None:
    """A server may name any file in its answer to LOAD DATA LOCAL, and any time."""
    stage = MySqlStage(mariadb)
    with stage.make()._sessions().control() as session:
        session.load(
            f"LOAD DATA LOCAL INFILE '/etc/passwd' INTO TABLE {stage.full} (page)", None, 0, "x"
        )
    assert stage.rows() == []
