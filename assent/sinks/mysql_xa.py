"""XA transactions by the names of Assent."""

from __future__ import annotations

from assent.protocol.errors import ConfigurationError
from assent.protocol.name import prefix
from assent.sinks.mysql_session import Ask
from assent.sinks.mysql_table import literal
from assent.sinks.sql_name import SqlName

_MOST_BYTES = 64


def xid(name: SqlName) -> str:
    """A name as XA statements take it: which task, and which attempt of it by which sink."""
    task, _, nonce = str(name.name).rpartition("-")
    attempt = f"{nonce}.{name.mark}"
    if max(len(task), len(attempt)) > _MOST_BYTES:
        raise ConfigurationError(f"{name} is too long for the name of an XA transaction")
    return f"{literal(task)}, {literal(attempt)}"


def recoverable(ask: Ask, identity: str = "") -> list[SqlName]:
    """Prepared transactions of Assent, or of one ledger alone, as XA RECOVER lists them."""
    begins = prefix(identity) if identity else "assent-"
    names = []
    for _, length, _, data in ask("XA RECOVER"):
        text = data.decode("latin-1") if isinstance(data, bytes) else str(data)
        if not text.startswith(begins):
            continue
        try:
            names.append(SqlName.parse(f"{text[:length]}-{text[length:]}"))
        except ValueError:
            continue  # somebody else's, who likes the same word
    return sorted(names, key=str)


def earlier_attempts(ask: Ask, name: SqlName) -> list[SqlName]:
    """Prepared transactions of other attempts of the same task."""
    one = name.name
    return [
        found
        for found in recoverable(ask, one.identity)
        if found != name
        and found.mark == name.mark
        and (found.name.term, found.name.place, found.name.partition)
        == (one.term, one.place, one.partition)
    ]
