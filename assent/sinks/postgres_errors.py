"""What PostgreSQL and its client raise, in the terms of the error tree."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from assent.protocol.errors import AssentError, ConfigurationError, RetriableError

LOCK_TIMEOUT = "55P03"
UNDEFINED_OBJECT = "42704"
UNDEFINED_TABLE = "42P01"
UNIQUE_VIOLATION = "23505"
CARDINALITY_VIOLATION = "21000"

_RETRIABLE = (
    "08",  # connection
    "25P02",  # an earlier statement of the transaction failed
    "25P03",  # idle in transaction for too long
    "25P04",  # transaction timeout
    "40",  # serialisation, deadlock
    "53100",  # disk full
    "53200",  # out of memory, or of prepared transactions
    "53300",  # too many connections
    "55006",  # in use
    "55P03",  # lock timeout
    "55P04",
    "55000",  # a prepared transaction that another session is just settling
    "57",  # cancelled, shut down, starting up
    "58",  # the server's disk
    "42704",  # a prepared transaction that is not there: the verdict tells why
    "42P01",  # a staging table that is not there: the verdict tells why
    "XX",
)
_CONFIGURATION = (
    "0A",  # not supported, such as preparing what has touched a temporary table
    "0L",
    "0P",
    "28",  # login
    "3D",  # no such database
    "3F",  # no such schema
    "42",  # privileges, names, types
    "44",
    "55P02",
    "F0",
)
_HINTS = {
    LOCK_TIMEOUT: "another transaction holds the lock for longer than option lockTimeout. If it is "
    "one of this query's own tasks, two tasks write the same key: repartition the rows by the key "
    "columns, or set option commitMode to staged",
    "22021": "texts in PostgreSQL hold no NUL character (\\u0000): replace it in the query",
    "22P05": "values in jsonb hold no NUL character (\\u0000): replace it in the query",
    "0A000": "if the table has triggers that use temporary tables or notifications, set option "
    "commitMode to staged",
    "28P01": "check the options user and password",
    CARDINALITY_VIOLATION: "two rows of the epoch have the same key: set option orderColumn, which "
    "says the last of them, and start the query again",
}


def sqlstate(error: BaseException) -> str | None:
    """The server's code; None where the server was not reached or did not answer."""
    code = getattr(error, "sqlstate", None)
    return code if isinstance(code, str) and len(code) == 5 else None


def translate(error: Exception, what: str) -> AssentError:
    """The error of the tree that stands for one of psycopg.

    What the server finds fault with in a row is a plain AssentError: neither trying again nor
    another option helps.
    """
    code = sqlstate(error)
    text = f"{what}: {_message(error)}"
    hint = _HINTS.get(code or "")
    if code == "53200" and "max_prepared_transactions" in text:
        hint = (
            "raise max_prepared_transactions above the number of tasks of an epoch, or set option "
            "commitMode to staged"
        )
    if hint is not None:
        text = f"{text}; {hint}"
    if code is None or code.startswith(_RETRIABLE):
        return RetriableError(text)
    if code.startswith(_CONFIGURATION):
        return ConfigurationError(text)
    if code.startswith(("21", "22", "23")):
        return AssentError(text)
    return RetriableError(text)


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Every error of psycopg becomes one of the tree; `what` begins its message."""
    import psycopg

    try:
        yield
    except psycopg.Error as error:
        raise translate(error, what) from error


def _message(error: Exception) -> str:
    """The server's words without the statement, on one line. They never have a password."""
    text = str(error)
    for severity in ("ERROR:", "FATAL:"):
        text = text.partition(severity)[2] or text
    lines = [line.strip() for line in text.splitlines() if line.strip(" .")]
    shown = [line for line in lines if not line.startswith(("LINE ", "^"))]
    code = sqlstate(error)
    return " ".join(shown).rstrip(". ") + (f" ({code})" if code else "")
