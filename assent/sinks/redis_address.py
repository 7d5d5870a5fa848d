"""Where a Redis is, read from URLs that may hold a password."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from redis.connection import parse_url

from assent.protocol.errors import ConfigurationError

# Of the client's parameters those that are texts or numbers and that nothing here depends on.
_PARAMETERS = (
    "client_name",
    "db",
    "health_check_interval",
    "password",
    "protocol",
    "socket_connect_timeout",
    "socket_keepalive",
    "socket_timeout",
    "ssl_ca_certs",
    "ssl_ca_data",
    "ssl_ca_path",
    "ssl_cert_reqs",
    "ssl_certfile",
    "ssl_check_hostname",
    "ssl_ciphers",
    "ssl_keyfile",
    "ssl_password",
    "username",
)
_EXPECTED = (
    "expected redis://host:port/db, or rediss://… for TLS; several, separated by commas, for a "
    "cluster"
)


@dataclass(frozen=True)
class RedisAddress:
    """One server. Its text shows no secret; `arguments`, for the client, are not shown at all."""

    host: str
    port: int
    database: int
    arguments: Mapping[str, Any] = field(repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}/{self.database}"


def parse_addresses(
    text: str, user: str | None = None, password: str | None = None
) -> tuple[RedisAddress, ...]:
    """Read option url, together with options user and password; sorted, each of them once.

    What is wrong is said without the text, which may hold a password.
    """
    found = {}
    for number, part in enumerate(part.strip() for part in text.split(",")):
        where = "option url" if number == 0 else f"option url, part {number + 1},"
        try:
            pieces = urlsplit(part)
            arguments = dict(parse_url(part))
            path = pieces.path.strip("/")
            if pieces.scheme not in ("redis", "rediss") or not pieces.hostname:
                raise ValueError
            if path and not re.fullmatch(r"[0-9]{1,9}", path):
                raise ValueError
            if pieces.port == 0 or "\0" in part:
                raise ValueError
            part.encode()
            for escaped in (pieces.netloc, pieces.query):
                unquote(escaped, errors="strict")
            unknown = sorted(set(parse_qs(pieces.query)) - set(_PARAMETERS))
        except ValueError:
            raise ConfigurationError(
                f"{where} is not the address of a Redis (it is not shown: it may hold a "
                f"password); {_EXPECTED}"
            ) from None
        if unknown:
            raise ConfigurationError(
                f"{where} has parameters that mean nothing here: {', '.join(unknown)}; possible "
                f"are {', '.join(_PARAMETERS)}"
            )
        arguments.update(
            {name: value for name, value in (("username", user), ("password", password)) if value}
        )
        database = arguments.pop("db", 0)
        if database < 0:
            raise ConfigurationError(f"{where} names database {database}; they count from 0")
        host, port = arguments.pop("host"), arguments.pop("port", 6379)
        address = RedisAddress(host, port, database, arguments)
        found[str(address)] = address
    if len(found) > 1 and any(address.database for address in found.values()):
        raise ConfigurationError(
            "option url names several servers, as for a cluster, and a database; a cluster has "
            "database 0 alone"
        )
    return tuple(found[name] for name in sorted(found))
