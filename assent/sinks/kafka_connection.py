"""Connections to Kafka brokers: one request at a time on each, several beside each other.

A broker answers the requests of one connection one after the other, so what shall go in parallel
goes over connections of its own. They are kept and used again.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import kafka.errors
from kafka.protocol.metadata import ApiVersionsRequest
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from assent.protocol.errors import ConfigurationError
from assent.sinks.kafka_security import KafkaSecurity
from assent.version import __version__

_API_VERSIONS_VERSION = 3  # since Kafka 2.4, and the first that tells features
_LARGEST_ANSWER = 100_000_000
_KEPT_IDLE = 32
_SESSION_SHARE = 0.8


class ConnectionLost(Exception):
    """A broker could not be reached, or did not answer. Whether it did what was asked is open."""


@dataclass(frozen=True, order=True)
class Address:
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @classmethod
    def parse_list(cls, text: str) -> list[Address]:
        """Read `bootstrap.servers`."""
        addresses = []
        for part in filter(None, (part.strip() for part in text.split(","))):
            host, colon, port = part.rpartition(":")
            if not (colon and host and port.isascii() and port.isdigit()):
                host, port = part, "9092"
            if len(port) > 5 or not 0 < int(port) < 1 << 16:
                raise ConfigurationError(
                    f"option kafka.bootstrap.servers names {host!r} with a port that is none; "
                    "expected a number from 1 to 65535"
                )
            addresses.append(cls(host.strip("[]"), int(port)))
        if not addresses:
            raise ConfigurationError("option kafka.bootstrap.servers names no broker")
        return addresses


class Connection:
    """An open, authenticated connection."""

    def __init__(
        self, address: Address, security: KafkaSecurity, client_id: str, timeout: float
    ) -> None:
        self.address = address
        self._client_id = client_id
        self._correlation = 0
        self._expires = float("inf")
        self._socket = _connect(address, security, timeout)
        try:
            self._introduce(timeout)
            if security.mechanism:
                self._authenticate(security, timeout)
        except BaseException:
            self.close()
            raise

    @property
    def usable(self) -> bool:
        """Whether nothing speaks against sending on it."""
        if time.monotonic() > self._expires:
            return False
        # Nothing is asked, so anything to read can only be the end.
        return not select.select([self._socket], [], [], 0)[0]

    def close(self) -> None:
        self._socket.close()

    def version(self, request: Any, highest: int | None = None) -> int:
        """The newest version of a request that both sides know."""
        lowest, offered = self._versions.get(request.API_KEY, (0, -1))
        newest: int = min(offered, request.max_version if highest is None else highest)
        if newest < lowest:
            raise ConfigurationError(
                f"the Kafka broker {self.address} does not know {request.name}, which is needed; "
                "Kafka 3.0 or later is"
            )
        return newest

    def ask(self, request: Any, timeout: float) -> Any:
        """Send one request, whose version is set, and wait for its answer."""
        self._correlation += 1
        # Not through kafka-python's own connection: that logs passwords at debug level.
        request.with_header(correlation_id=self._correlation, client_id=self._client_id)
        deadline = time.monotonic() + timeout
        try:
            self._socket.settimeout(timeout)
            self._socket.sendall(request.encode(framed=True, header=True))
            (size,) = struct.unpack(">i", self._read(4, deadline))
            if not 0 <= size <= _LARGEST_ANSWER:
                raise ConnectionLost(f"{self.address} does not speak Kafka's protocol")
            answer = self._read(size, deadline)
        except (OSError, ValueError) as error:
            raise ConnectionLost(
                f"{self.address} did not answer {request.name}: {_said(error)}"
            ) from None
        return decoded(request, self._correlation, answer, str(self.address))

    def _read(self, size: int, deadline: float) -> bytes:
        parts, left = [], size
        while left:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError("no answer in time")
            self._socket.settimeout(remaining)
            part = self._socket.recv(min(left, 1 << 16))
            if not part:
                raise ConnectionError("the connection was closed")
            parts.append(part)
            left -= len(part)
        return b"".join(parts)

    def _introduce(self, timeout: float) -> None:
        request = ApiVersionsRequest(
            version=_API_VERSIONS_VERSION,
            client_software_name="assent",
            client_software_version=__version__,
        )
        answer = self.ask(request, timeout)
        if answer.error_code:
            raise ConfigurationError(
                f"the Kafka broker {self.address} is older than 2.4 "
                f"({kafka.errors.for_code(answer.error_code).__name__}); 3.0 or later is needed"
            )
        self._versions = {
            offered.api_key: (offered.min_version, offered.max_version)
            for offered in answer.api_keys
        }
        self.features: dict[str, int] = {
            feature.name: feature.max_version_level for feature in answer.finalized_features or ()
        }

    def _authenticate(self, security: KafkaSecurity, timeout: float) -> None:
        shake = self.ask(SaslHandshakeRequest(version=1, mechanism=security.mechanism), timeout)
        if shake.error_code:
            raise ConfigurationError(
                f"the Kafka broker {self.address} does not offer "
                f"kafka.sasl.mechanism={security.mechanism}; it offers "
                f"{', '.join(shake.mechanisms) or 'none'}"
            )
        exchange = security.mechanism_for(self.address.host)
        version = self.version(SaslAuthenticateRequest)
        lifetime = 0
        while not exchange.is_done():
            request = SaslAuthenticateRequest(version=version, auth_bytes=exchange.auth_bytes())
            answer = self.ask(request, timeout)
            if answer.error_code:
                raise _refused(self.address, security, answer.error_message or "")
            try:
                exchange.receive(answer.auth_bytes)
            except (ValueError, KeyError):
                raise _refused(self.address, security, "its answer does not fit") from None
            lifetime = getattr(answer, "session_lifetime_ms", 0) or 0
        if not exchange.is_authenticated():
            raise _refused(self.address, security, "")
        if lifetime > 0:
            # The broker closes the connection when the session ends: part from it before.
            self._expires = time.monotonic() + lifetime / 1000 * _SESSION_SHARE


def decoded(request: Any, correlation: int, answer: bytes, address: str) -> Any:
    """The answer to a request; ConnectionLost if these bytes are none to it."""
    try:
        (found,) = struct.unpack_from(">i", answer)
        if found == correlation:
            return request.header.get_response_class().decode(answer, header=True)
    except Exception as error:  # whatever the library makes of bytes that are no answer
        raise ConnectionLost(
            f"{address} sent an answer to {request.name} that cannot be read ({error!r})"
        ) from None
    raise ConnectionLost(f"{address} answered another request than {request.name}")


def _connect(address: Address, security: KafkaSecurity, timeout: float) -> socket.socket:
    try:
        plain = socket.create_connection((address.host, address.port), timeout)
    except OSError as error:
        raise ConnectionLost(f"{address} cannot be reached: {_said(error)}") from None
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        context = security.tls()
        return context.wrap_socket(plain, server_hostname=address.host) if context else plain
    except ssl.SSLCertVerificationError as error:
        plain.close()
        raise ConfigurationError(
            f"the certificate of the Kafka broker {address} is not trusted: "
            f"{error.verify_message}; see kafka.ssl.ca.location"
        ) from None
    except OSError as error:
        plain.close()
        raise ConnectionLost(f"{address} broke off the TLS handshake: {_said(error)}") from None
    except BaseException:
        plain.close()
        raise


def _refused(address: Address, security: KafkaSecurity, reason: str) -> ConfigurationError:
    said = f": {reason}" if reason else ""
    return ConfigurationError(
        f"the Kafka broker {address} refused the login by {security.mechanism}{said}; check "
        "kafka.sasl.username and kafka.sasl.password, or the token function"
    )


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__


class ConnectionPool:
    """Connections by address. Safe to use from many threads; a fork starts with none."""

    def __init__(
        self, security: KafkaSecurity, client_id: str = "assent", connect_timeout: float = 10.0
    ) -> None:
        self._security = security
        self._client_id = client_id
        self._connect_timeout = connect_timeout
        self._idle: dict[Address, list[Connection]] = {}
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._closed = False

    def ask(self, address: Address, make: Callable[[Connection], Any], timeout: float) -> Any:
        """Send to the broker the request that `make` gives, and return its answer."""
        with self._leased(address) as connection:
            return connection.ask(make(connection), timeout)

    def close(self) -> None:
        """Close what is idle, and what is in use as soon as it is given back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, {}
        for connections in idle.values():
            for connection in connections:
                connection.close()

    @contextmanager
    def _leased(self, address: Address) -> Iterator[Connection]:
        connection = self._idle_connection(address) or Connection(
            address, self._security, self._client_id, self._connect_timeout
        )
        try:
            yield connection
        except BaseException:
            # An answer may still be on its way: nobody must take it for his own.
            connection.close()
            raise
        self._give_back(connection)

    def _idle_connection(self, address: Address) -> Connection | None:
        while True:
            with self._lock:
                if self._process != os.getpid():
                    # The sockets are the parent's; two processes must not talk over one.
                    self._process, self._idle = os.getpid(), {}
                idle = self._idle.get(address)
                if not idle:
                    return None
                connection = idle.pop()
            if connection.usable:
                return connection
            connection.close()

    def _give_back(self, connection: Connection) -> None:
        with self._lock:
            idle = self._idle.setdefault(connection.address, [])
            if not self._closed and len(idle) < _KEPT_IDLE:
                idle.append(connection)
                return
        connection.close()
