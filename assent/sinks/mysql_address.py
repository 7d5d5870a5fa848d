"""Where a MySQL or MariaDB is, from the URL that users of JDBC write."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from assent.protocol.errors import ConfigurationError
from assent.sinks.url import parameters, read_host, unquote

DEFAULT_PORT = 3306

_FORM = (
    "expected jdbc:mysql://host:port/database, jdbc:mariadb://host:port/database, or the same "
    "without jdbc:"
)
_CONNECT_SECONDS = 10.0
# What the JDBC drivers take, and what changes nothing about rows that are loaded.
_WITHOUT_EFFECT = frozenset(
    {
        "allowloadlocalinfile",
        "allowlocalinfile",
        "allowmultiqueries",
        "allowpublickeyretrieval",
        "autoreconnect",
        "cacheprepstmts",
        "cacheserverconfiguration",
        "characterencoding",
        "connectioncollation",
        "connectiontimezone",
        "forceconnectiontimezonetosession",
        "maintaintimestats",
        "noaccesstoprocedurebodies",
        "prepstmtcachesize",
        "prepstmtcachesqllimit",
        "rewritebatchedstatements",
        "servertimezone",
        "sockettimeout",
        "tcpkeepalive",
        "tcpnodelay",
        "timezone",
        "tinyint1isbit",
        "usebulkstmts",
        "usecompression",
        "usecursorfetch",
        "useserverprepstmts",
        "useunicode",
        "yearisdatetype",
        "zerodatetimebehavior",
    }
)
# Of both JDBC drivers. None: as the client does by itself, with TLS where the server has it.
_TLS_MODES: dict[str, dict[str, Any] | None] = {
    "disabled": {"ssl_disabled": True},
    "disable": {"ssl_disabled": True},
    "preferred": None,
    "required": {"ssl": {"verify_mode": "none"}},
    "trust": {"ssl": {"verify_mode": "none"}},
    "verify_ca": {"ssl": {"verify_mode": "required", "check_hostname": False}},
    "verify-ca": {"ssl": {"verify_mode": "required", "check_hostname": False}},
    "verify_identity": {"ssl": {"verify_mode": "required", "check_hostname": True}},
    "verify-full": {"ssl": {"verify_mode": "required", "check_hostname": True}},
}
_TLS_FILES = {"sslca": "ca", "serversslcert": "ca", "sslcert": "cert", "sslkey": "key"}


@dataclass(frozen=True)
class Address:
    """Host, port, database, and how to log in. Its repr shows no secrets."""

    host: str
    port: int
    database: str
    arguments: Mapping[str, Any] = field(repr=False)
    """Of the client library, `user` and `password` among them."""

    def __str__(self) -> str:
        return f"{self.host}:{self.port}/{self.database}"

    @classmethod
    def parse(cls, url: str, user: str | None = None, password: str | None = None) -> Address:
        """Read a URL. Errors show nothing of it, because it may hold a password."""
        text = url.strip()
        text = text[len("jdbc:") :] if text.lower().startswith("jdbc:") else text
        match = re.fullmatch(
            r"(?i:mysql|mariadb)://(?:(?P<login>[^/?@]*)@)?(?P<host>[^/?@]*)"
            r"/(?P<database>[^/?]*)(?:\?(?P<query>.*))?",
            text,
        )
        if match is None:
            raise ConfigurationError(f"option url is not the address of a MySQL; {_FORM}")
        given, arguments = _arguments(match["query"] or "")
        login_user, _, login_password = (match["login"] or "").partition(":")
        for name, part in (("user", login_user), ("password", login_password)):
            if part:
                given.setdefault(name, unquote(part))
        for name, option in (("user", user), ("password", password)):
            if option is not None and given.setdefault(name, option) != option:
                raise ConfigurationError(
                    f"option {name} and the {name} in option url differ; leave one of them out"
                )
        database = unquote(match["database"])
        if not database:
            raise ConfigurationError(f"option url names no database; {_FORM}")
        host, port = _host(match["host"])
        return cls(host, port, database, {**arguments, **given})

    def connect_arguments(self) -> dict[str, Any]:
        """What the client library connects by. Holds the password: never shown."""
        arguments = {"connect_timeout": _CONNECT_SECONDS, **self.arguments}
        # As it is: the client would take it for Latin-1.
        arguments["password"] = str(arguments.get("password", "")).encode()
        where = {"host": self.host, "port": self.port, "database": self.database}
        return {**arguments, **where, "charset": "utf8mb4", "autocommit": True}


def _host(text: str) -> tuple[str, int]:
    if "," in text:
        raise ConfigurationError(
            "option url names several hosts; rows and commits have to reach the one server that "
            "takes writes: name that one"
        )
    return read_host(text, DEFAULT_PORT, _FORM)


def _arguments(query: str) -> tuple[dict[str, str], dict[str, Any]]:
    """User and password, and what else the client library has to know."""
    login: dict[str, str] = {}
    arguments: dict[str, Any] = {}
    tls: dict[str, Any] | None = None
    files: dict[str, str] = {}
    unknown = []
    for key, value in parameters(query):
        name = key.lower()
        if name in _WITHOUT_EFFECT:
            continue
        if name in ("user", "password"):
            login[name] = value
        elif name == "connecttimeout":
            # In milliseconds, as both JDBC drivers have it.
            arguments["connect_timeout"] = _milliseconds(value)
        elif name == "sslmode" and value.lower() in _TLS_MODES:
            tls = _TLS_MODES[value.lower()]
        elif name == "usessl":
            tls = _TLS_MODES["disabled" if value.lower() == "false" else "required"]
        elif name in _TLS_FILES:
            files[_TLS_FILES[name]] = value
        else:
            unknown.append(key)
    if unknown:
        raise ConfigurationError(
            f"option url has parameters that mean nothing here, or values of them that do not: "
            f"{', '.join(unknown)}; leave them out"
        )
    arguments.update(tls or {})
    if files:
        if "ssl_disabled" in arguments:
            raise ConfigurationError("option url turns TLS off and names files for it")
        arguments["ssl"] = {**arguments.get("ssl", {"verify_mode": "required"}), **files}
    return login, arguments


def _milliseconds(value: str) -> float:
    if not re.fullmatch(r"[0-9]{1,9}", value):
        raise ConfigurationError("option url: connectTimeout is not a number of milliseconds")
    return int(value) / 1000 or _CONNECT_SECONDS
