"""Encrypted connections: to a server whose certificate is known, and to no other.

PostgreSQL is not among them: the server that comes from PyPI is built without. Kafka has tests of
its own.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from assent.protocol.errors import AssentError
from assent.testing.mysql import DATABASE, MySql
from assent.testing.redis import RedisServer
from assent.testing.server import free_ports
from tests.keyed_query import batch as keyed
from tests.mysql_stage import MySqlStage
from tests.plugins.mysql import require_mysql
from tests.plugins.redis import require_redis
from tests.redis_query import RedisStage
from tests.sql_query import batch


@dataclass(frozen=True)
class Certificate:
    """Signed by itself, for the loopback address."""

    certificate: Path
    key: Path

    @classmethod
    def make(cls, folder: Path, name: str) -> Certificate:
        made = cls(folder / f"{name}.pem", folder / f"{name}.key")
        command = [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
            *("-keyout", str(made.key), "-out", str(made.certificate)),
        ]
        subprocess.run(command, check=True, capture_output=True)
        for file in (folder, made.key, made.certificate):
            file.chmod(0o755)
        return made


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where servers that run as another user can read."""
    with tempfile.TemporaryDirectory(prefix="assent-certificates-") as made:
        yield Path(made)


@pytest.fixture
def server_certificate(folder: Path) -> Certificate:
    return Certificate.make(folder, "server")


@pytest.fixture
def other_certificate(folder: Path) -> Certificate:
    return Certificate.make(folder, "other")


@pytest.fixture
def encrypted_redis(server_certificate: Certificate) -> Iterator[tuple[RedisServer, int]]:
    [port] = free_ports(1)
    settings = {
        "tls-port": str(port),
        "tls-cert-file": str(server_certificate.certificate),
        "tls-key-file": str(server_certificate.key),
        "tls-ca-cert-file": str(server_certificate.certificate),
        "tls-auth-clients": "no",
    }
    with require_redis(lambda: RedisServer(settings)) as server:
        yield server, port


@pytest.mark.redis
def test_redis(
    encrypted_redis: tuple[RedisServer, int],
    server_certificate: Certificate,
    other_certificate: Certificate,
) -> None:
    server, port = encrypted_redis
    stage = RedisStage(server)
    url = f"rediss://localhost:{port}/0?ssl_ca_certs="
    with pytest.raises(AssentError, match=r"(?i)certificate"):
        stage.sink(url=f"{url}{other_certificate.certificate}").check(keyed({}).schema)
    stage.sink(url=f"{url}{server_certificate.certificate}").check(keyed({}).schema)
    stage.write(0, {"a": 1}, url=f"{url}{server_certificate.certificate}")
    assert set(stage.seen()) == {"a"}


@pytest.fixture
def encrypted_mariadb(server_certificate: Certificate) -> Iterator[MySql]:
    settings = {
        "ssl-cert": str(server_certificate.certificate),
        "ssl-key": str(server_certificate.key),
    }
    with require_mysql("mariadb", settings) as server:
        yield server


@pytest.mark.mysql
def test_mariadb(
    encrypted_mariadb: MySql, server_certificate: Certificate, other_certificate: Certificate
) -> None:
    stage = MySqlStage(encrypted_mariadb)
    address = f"jdbc:mysql://localhost:{encrypted_mariadb.port}/{DATABASE}"
    url = f"{address}?sslMode=VERIFY_IDENTITY&sslCa="
    with pytest.raises(AssentError, match=r"(?i)certificate"):
        stage.sink(url=f"{url}{other_certificate.certificate}").check(batch().schema)
    sink = stage.sink(url=f"{url}{server_certificate.certificate}")
    sink.check(batch().schema)
    handle = stage.prepare((1, "a"), sink=sink)
    sink.commit(handle)
    sink.publish(0, [handle])
    assert stage.rows() == [(1, "a")]
