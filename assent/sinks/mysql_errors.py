"""What MySQL, MariaDB and their client raise, in the terms of the error tree."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from assent.protocol.errors import AssentError, ConfigurationError, RetriableError

NO_SUCH_XID = 1397
XA_REFUSED = 1401
TABLE_EXISTS = 1050
DUPLICATE = 1062

# The server's codes whose SQLSTATE says too little, or says something else.
_RETRIABLE = frozenset(
    {
        1021,  # disk full
        1030,  # the storage engine's
        1037,  # out of memory
        1040,  # too many connections
        1041,
        1051,  # a staging table that is not there: the verdict tells why
        1146,  # likewise
        1203,  # too many connections of the user
        1205,  # lock wait
        1226,  # the user's limits
        1290,  # read-only: a fail-over is under way
        1317,  # interrupted
        1412,  # somebody is changing the table
        1615,
        1836,  # read-only
        1927,  # connection killed
        1969,  # statement timeout
        3024,
        4031,  # idle for too long
    }
)
_CONFIGURATION = frozenset(
    {
        1071,  # key too long
        1118,  # row too large
        1129,  # host blocked
        1130,  # host not allowed
        1148,  # LOAD DATA LOCAL is off
        1227,  # privilege missing
        1235,  # not supported
        1251,
        1524,  # authentication plug-in
        1665,  # statement-based binary log
        1698,
        1820,  # password has expired
        1862,
        2026,  # TLS
        2049,
        2059,  # authentication plug-in
        2061,
        3118,  # account locked
        3750,  # a primary key is required
        3948,  # LOAD DATA LOCAL is off
        4091,  # temporary tables in a prepared transaction
        4166,
    }
)
_DATA = frozenset(
    {
        1153,  # a row that is larger than a packet
        1263,
        1265,
        1300,
        1364,
        1366,
        1411,
        1526,  # no partition for a value
        1644,  # raised by a trigger
        1690,
        1748,
        3819,  # CHECK
    }
)
_JSON = range(3140, 3160)
_HINTS = {
    1045: "check the options user and password",
    1153: "a row is larger than the server's max_allowed_packet; raise it",
    1205: "another transaction holds the lock for longer than option lockTimeout. If it is one of "
    "this query's own tasks, two tasks write the same key: set option commitMode to staged",
    1290: "the server takes no writes; name the one that does in option url",
    2026: "TLS failed: see sslMode in option url",
}


def code(error: BaseException) -> int | None:
    """The number of the server or of the client; None where there is none."""
    first = error.args[0] if error.args else None
    return first if isinstance(first, int) and first else None


def translate(error: Exception, what: str) -> AssentError:
    """The error of the tree that stands for one of the client library.

    What the server finds fault with in a row is a plain AssentError: neither trying again nor
    another option helps.
    """
    number = code(error)
    text = f"{what}: {_message(error)}"
    hint = _HINTS.get(number or 0)
    if hint is not None:
        text = f"{text}; {hint}"
    return _kind(number, getattr(error, "sqlstate", None) or "")(text)


def _kind(number: int | None, state: str) -> type[AssentError]:
    if number is None or number in _RETRIABLE:
        return RetriableError
    if number in _CONFIGURATION:
        return ConfigurationError
    if number in _DATA or number in _JSON:
        return AssentError
    # Client's numbers, from 2000 on, mean that the server was not reached or did not answer.
    if 2000 <= number < 3000 or state.startswith(("08", "40", "XA")):
        return RetriableError
    if state.startswith(("21", "22", "23", "45")):
        return AssentError
    if state.startswith(("0A", "28", "3D", "42", "44")):
        return ConfigurationError
    return RetriableError


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Every error of the client library becomes one of the tree; `what` begins its message."""
    import pymysql

    try:
        yield
    except pymysql.Error as error:
        raise translate(error, what) from error
    except (OSError, UnicodeError) as error:
        raise RetriableError(f"{what}: {type(error).__name__}: {error}") from error
    except RuntimeError as error:
        if "cryptography" not in str(error):
            raise
        raise ConfigurationError(
            f"{what}: this login needs TLS, or the library cryptography: pip install cryptography"
        ) from error


def refused_rows(what: str, warnings: list[tuple[str, int, str]]) -> AssentError:
    """LOAD DATA LOCAL and its like go on past bad rows, and only warn: here that is an error."""
    shown = "; ".join(f"{text} ({number})" for _, number, text in warnings[:3])
    number = int(warnings[0][1]) if warnings else 0
    kind = _kind(number, "") if number in _RETRIABLE else AssentError
    return kind(f"{what}: the server would not take rows as they are: {shown or 'it skipped some'}")


def _message(error: Exception) -> str:
    """The server's words, on one line. Neither server nor client put a password there."""
    number = code(error)
    words = error.args[1:] if number is not None else error.args
    text = " ".join(" ".join(str(word) for word in words).split()).rstrip(". ")
    return f"{text or type(error).__name__}" + (f" ({number})" if number else "")
