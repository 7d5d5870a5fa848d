"""Real MySQL and MariaDB servers for tests: started, killed, paused, left nowhere."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pymysql
import pytest

from assent.testing.jars import Artifact
from assent.testing.mysql import MARIADB, MySql, MySqlUnavailable, Release
from tests.plugins.mysql import require_mysql

pytestmark = pytest.mark.mysql


def test_a_killed_server_comes_back_with_its_data(own_mysql: MySql) -> None:
    server, port = own_mysql, own_mysql.port
    server.run("CREATE TABLE t (n int)", "INSERT INTO t VALUES (1)")
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in ("START 'kept'", "END 'kept'", "PREPARE 'kept'"):
            cursor.execute(f"XA {statement}")
            if statement.startswith("START"):
                cursor.execute("INSERT INTO t VALUES (2)")
    server.kill()
    assert not server.running
    with pytest.raises(pymysql.OperationalError):
        server.connect()
    server.start()
    assert server.port == port
    assert len(server.rows("XA RECOVER")) == 1
    assert server.rows("SELECT n FROM t") == [(1,)]
    server.run("XA COMMIT 'kept'")
    server.restart()
    assert server.rows("SELECT n FROM t ORDER BY n") == [(1,), (2,)]


def test_a_table_is_emptied_whoever_holds_it(own_mysql: MySql) -> None:
    server = own_mysql
    server.run("CREATE TABLE t (n int)", "INSERT INTO t VALUES (1)")
    server.run(
        "XA START 'left', 'b', 7",
        "INSERT INTO t VALUES (2)",
        "XA END 'left', 'b', 7",
        "XA PREPARE 'left', 'b', 7",
    )
    server.empty("t")
    assert server.rows("SELECT n FROM t") == []
    assert server.rows("XA RECOVER") == []


def test_a_paused_server_answers_nothing_until_it_is_resumed() -> None:
    with require_mysql() as server:
        server.pause()
        try:
            with pytest.raises(pymysql.OperationalError):
                server.connect(connect_timeout=1, read_timeout=1)
        finally:
            server.resume()
        assert server.rows("SELECT 1") == [(1,)]


def test_servers_that_start_at_once_leave_each_other_alone() -> None:
    """They would remove one another's temporary tables if they had one folder for them."""
    require_mysql()

    def start(number: int) -> int:
        with MySql() as server:
            return int(server.rows(f"SELECT {number}")[0][0])

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(start, range(9))) == list(range(9))


def test_no_process_is_left_when_the_process_that_started_it_is_killed() -> None:
    require_mysql()
    script = """
        import signal
        from assent.testing.mysql import MySql
        with MySql() as server:
            print(server._server.pid, server.log.parent, flush=True)
            signal.pause()
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent.parent,
    )
    assert process.stdout is not None
    with process.stdout as output:
        pid, folder = output.readline().split()
    process.send_signal(signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 20
    while os.path.exists(f"/proc/{pid}"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    shutil.rmtree(folder)  # the data are all that stay


def test_a_server_that_cannot_be_had_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ASSENT_CACHE", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(MySqlUnavailable, match="there is no `java`"):
        MySql(Release("MySQL 1", Artifact("org.example", "none", "1")))
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(MySqlUnavailable, match="apt-get install mariadb-server-core"):
        MySql(MARIADB)
