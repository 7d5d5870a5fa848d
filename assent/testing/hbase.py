"""A real HBase for tests: master, region server and ZooKeeper in one process, Thrift in another.

    with HBaseServer() as hbase:
        hbase.connection().create_table("views", {"cf": {}})

Started from Maven artifacts, on the loopback address, with ports and a data folder of its own.
Nothing is left behind, however the process that started it ends.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import happybase
from Hbase_thrift import AlreadyExists

from assent.testing.jars import Artifact, java, resolve
from assent.testing.server import Server, ServerFailure, free_ports

HBASE = "2.6.1"

_START_SECONDS = 180.0
_STARTS = 3
_PROBE = "assent_probe"
_OPENED = (
    *("java.lang", "java.lang.reflect", "java.nio", "java.util", "java.util.concurrent"),
    *("sun.nio.ch", "jdk.internal.ref", "jdk.internal.misc"),
)
_JAVA_OPTIONS = (
    "-Xms128m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
)
_LOGGING = """\
log4j.rootLogger=WARN, console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{HH:mm:ss.SSS} %p %c{1}: %m%n
"""


def server_jars() -> list[Path]:
    """What HBase and its Thrift server run from."""
    return resolve(Artifact("org.apache.hbase", "hbase-thrift", HBASE))


class HBaseServer:
    """One HBase. Its data outlive it until it is closed."""

    def __init__(self, heap: str = "512m") -> None:
        self._heap = heap
        self._jars = server_jars()
        self._folder: Path | None = None
        self._master: Server | None = None
        self._thrift: Server | None = None
        self.port = 0

    def __enter__(self) -> Self:
        for left in reversed(range(_STARTS)):
            self._folder = Path(tempfile.mkdtemp(prefix="assent-hbase-"))
            try:
                zookeeper, self.port = free_ports(2)
                self._write_settings(zookeeper)
                self.start()
                break
            except ServerFailure as error:
                self.close()
                # Between choosing a port and using it, somebody else may have taken it.
                if "Address already in use" not in str(error) or not left:
                    raise
            except BaseException:
                self.close()
                raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill it and remove all data."""
        for server in (self._thrift, self._master):
            if server is not None and server.running:
                server.kill()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._master, self._thrift, self._folder = None, None, None

    @property
    def address(self) -> str:
        """Host and port of the Thrift server."""
        return f"127.0.0.1:{self.port}"

    @property
    def master(self) -> Server:
        """The process that holds the data."""
        assert self._master is not None, "this HBase was not started"
        return self._master

    @property
    def thrift(self) -> Server:
        """The process that clients talk to; it holds nothing."""
        assert self._thrift is not None, "this HBase was not started"
        return self._thrift

    def connection(self) -> Any:
        """A plain client of the library, not of the sink."""
        return happybase.Connection("127.0.0.1", self.port, timeout=60_000)

    def start(self) -> None:
        """Start what does not run, with the data that are there; returns when it answers."""
        if self._master is None or not self._master.running:
            self._master = self._start("master", "org.apache.hadoop.hbase.master.HMaster")
        if self._thrift is None or not self._thrift.running:
            arguments = ("-p", str(self.port), "-b", "127.0.0.1")
            name = "org.apache.hadoop.hbase.thrift.ThriftServer"
            self._thrift = self._start("thrift", name, *arguments)
        self.thrift.wait_until(self._answers, "it was ready", _START_SECONDS)

    def kill(self) -> None:
        """SIGKILL of both processes."""
        self.thrift.kill()
        self.master.kill()

    def pause(self) -> None:
        """SIGSTOP of both."""
        self.thrift.pause()
        self.master.pause()

    def resume(self) -> None:
        """SIGCONT of both."""
        self.master.resume()
        self.thrift.resume()

    def _start(self, name: str, main: str, *arguments: str) -> Server:
        assert self._folder is not None, "this HBase is closed"
        path = os.pathsep.join(map(str, [self._folder / "conf", *self._jars]))
        command = [java(), f"-Xmx{self._heap}", *_JAVA_OPTIONS, "-cp", path, main]
        return Server([*command, *arguments, "start"], self._folder / f"{name}.log")

    def _answers(self) -> bool:
        if not self.master.running:
            raise self.master.failure("ended before it was ready")
        try:
            connection = happybase.Connection("127.0.0.1", self.port, timeout=20_000)
        except Exception:
            return False
        try:
            # A master that still initialises creates nothing; and regions take their time.
            with suppress(AlreadyExists):
                connection.create_table(_PROBE, {"f": {}})
            for table in connection.tables():
                next(connection.table(table.decode()).scan(limit=1), None)
            return True
        except Exception:
            return False
        finally:
            connection.close()

    def _write_settings(self, zookeeper: int) -> None:
        assert self._folder is not None
        settings = {
            "hbase.cluster.distributed": "false",
            "hbase.rootdir": f"file://{self._folder}/data",
            "hbase.tmp.dir": f"{self._folder}/tmp",
            "hbase.zookeeper.property.dataDir": f"{self._folder}/zookeeper",
            "hbase.zookeeper.property.clientPort": str(zookeeper),
            "hbase.zookeeper.quorum": "127.0.0.1",
            "hbase.unsafe.stream.capability.enforce": "false",
            "hbase.master.port": "0",
            "hbase.master.info.port": "-1",
            "hbase.regionserver.port": "0",
            "hbase.regionserver.info.port": "-1",
            "hbase.thrift.info.port": "-1",
            "hbase.master.hostname": "localhost",
            "hbase.regionserver.hostname": "localhost",
            "hbase.regionserver.handler.count": "5",
            # One file of the write-ahead log at a time, and few retries: failures show soon.
            "hbase.wal.provider": "filesystem",
            "hbase.client.retries.number": "5",
        }
        properties = "".join(
            f"<property><name>{name}</name><value>{value}</value></property>\n"
            for name, value in settings.items()
        )
        conf = self._folder / "conf"
        conf.mkdir()
        text = f"<configuration>\n{properties}</configuration>\n"
        (conf / "hbase-site.xml").write_text(text)
        (conf / "log4j.properties").write_text(_LOGGING)
