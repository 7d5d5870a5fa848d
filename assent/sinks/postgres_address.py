"""Where a PostgreSQL is, from the URL that users of JDBC or of libpq write."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from assent.protocol.errors import ConfigurationError
from assent.sinks.url import parameters as url_parameters
from assent.sinks.url import read_host, unquote

DEFAULT_PORT = 5432

_FORM = "expected jdbc:postgresql://host:port/database or postgresql://host:port/database"

# As the JDBC driver calls what libpq knows under another name.
_JDBC = {
    "applicationname": "application_name",
    "connecttimeout": "connect_timeout",
    "logintimeout": "connect_timeout",
    "targetservertype": "target_session_attrs",
}
_JDBC_SERVER_TYPES = {"any": "any", "primary": "read-write", "master": "read-write"}
# What the JDBC driver takes, and what changes nothing about rows that are copied.
_WITHOUT_EFFECT = frozenset(
    {
        "assumeminserverversion",
        "autosave",
        "batchsize",
        "binarytransfer",
        "defaultrowfetchsize",
        "preparethreshold",
        "preparedstatementcachequeries",
        "preparedstatementcachesizemib",
        "preferquerymode",
        "rewritebatchedinserts",
        "sockettimeout",
        "stringtype",
        "tcpkeepalive",
    }
)
_DEFAULTS = {
    "application_name": "assent",
    "connect_timeout": "10",
    # A server that is gone without a word is missed within a minute.
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}


@dataclass(frozen=True)
class Address:
    """Host, port, database, and how to log in. Its repr shows no secrets."""

    host: str
    port: str
    database: str
    parameters: Mapping[str, str] = field(repr=False)
    """As libpq names them, `user` and `password` among them."""

    def __str__(self) -> str:
        """`host:port/database`; several hosts as they were given."""
        hosts, ports = self.host.split(","), self.port.split(",")
        pairs = (f"{host}:{port}" for host, port in zip(hosts, ports, strict=True))
        return f"{','.join(pairs)}/{self.database}"

    @classmethod
    def parse(cls, url: str, user: str | None = None, password: str | None = None) -> Address:
        """Read a URL. Errors show nothing of it, because it may hold a password."""
        text = url.strip()
        text = text[len("jdbc:") :] if text.lower().startswith("jdbc:") else text
        match = re.fullmatch(
            r"(?i:postgres(?:ql)?)://(?:(?P<login>[^/?@]*)@)?(?P<hosts>[^/?@]*)"
            r"/(?P<database>[^/?]*)(?:\?(?P<query>.*))?",
            text,
        )
        if match is None:
            raise ConfigurationError(f"option url is not the address of a PostgreSQL; {_FORM}")
        parameters = _parameters(match["query"] or "")
        login_user, _, login_password = (match["login"] or "").partition(":")
        for name, given in (("user", unquote(login_user)), ("password", unquote(login_password))):
            if given:
                parameters.setdefault(name, given)
        for name, option in (("user", user), ("password", password)):
            if option is None:
                continue
            if parameters.setdefault(name, option) != option:
                raise ConfigurationError(
                    f"option {name} and the {name} in option url differ; leave one of them out"
                )
        database = unquote(match["database"])
        if not database:
            raise ConfigurationError(f"option url names no database; {_FORM}")
        hosts, ports = zip(*map(_host, match["hosts"].split(",")), strict=True)
        if len(hosts) > 1:
            # Rows and commits have to reach the one server that takes writes.
            parameters.setdefault("target_session_attrs", "read-write")
        return cls(",".join(hosts), ",".join(ports), database, parameters)

    def conninfo(self) -> str:
        """What libpq connects by. Holds the password: never shown."""
        import psycopg
        from psycopg.conninfo import make_conninfo

        where = {"host": self.host, "port": self.port, "dbname": self.database}
        try:
            return make_conninfo(
                "", **{**_DEFAULTS, **self.parameters, **where, "client_encoding": "UTF8"}
            )
        except psycopg.ProgrammingError:
            known = _libpq_names()
            unknown = [name for name in self.parameters if name not in known]
            raise ConfigurationError(
                f"option url has parameters that PostgreSQL's client library does not know: "
                f"{', '.join(unknown)}"
            ) from None


def _libpq_names() -> set[str]:
    import psycopg

    return {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}


def _host(text: str) -> tuple[str, str]:
    host, port = read_host(text, DEFAULT_PORT, _FORM)
    if "," in host:  # behind a % sign; libpq would take it for several
        raise ConfigurationError(f"option url has a host that cannot be read; {_FORM}")
    return host, str(port)


def _parameters(query: str) -> dict[str, str]:
    parameters: dict[str, str] = {}
    for key, value in url_parameters(query):
        name = key.lower()
        if name in _WITHOUT_EFFECT:
            continue
        if name == "ssl":
            # The JDBC driver's own meaning of it.
            if value.lower() in ("", "true"):
                parameters.setdefault("sslmode", "verify-full")
        elif name == "currentschema":
            path = value.replace("\\", "\\\\").replace(" ", "\\ ")
            parameters["options"] = f"-c search_path={path}"
        elif name == "targetservertype" and value.lower() in _JDBC_SERVER_TYPES:
            parameters["target_session_attrs"] = _JDBC_SERVER_TYPES[value.lower()]
        else:
            parameters[_JDBC.get(name, name)] = value
    return parameters
