"""Where a Redis is, read from URLs that may hold a password."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from redis.connection import parse_url

from assent.protocol.errors import ConfigurationError

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
            if path and not path.isdecimal():
                raise ValueError
        except ValueError:
            raise ConfigurationError(
                f"{where} is not the address of a Redis (it is not shown: it may hold a "
                f"password); {_EXPECTED}"
            ) from None
        arguments.update(
            {name: value for name, value in (("username", user), ("password", password)) if value}
        )
        host, port = arguments.pop("host"), arguments.pop("port", 6379)
        address = RedisAddress(host, port, int(arguments.pop("db", 0)), arguments)
        found[str(address)] = address
    if len(found) > 1 and any(address.database for address in found.values()):
        raise ConfigurationError(
            "option url names several servers, as for a cluster, and a database; a cluster has "
            "database 0 alone"
        )
    return tuple(found[name] for name in sorted(found))
