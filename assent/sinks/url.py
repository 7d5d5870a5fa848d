"""Parts of a URL that a user wrote, as texts; what cannot be read is refused, and never shown."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl
from urllib.parse import unquote as unquote_any

from assent.protocol.errors import ConfigurationError

_HIGHEST_PORT = 65535


def unquote(text: str) -> str:
    """The text with its % escapes resolved; they have to be UTF-8, or a password would change."""
    try:
        return _plain(unquote_any(text, errors="strict"))
    except ValueError:
        raise _unreadable() from None


def parameters(query: str) -> list[tuple[str, str]]:
    """What follows the question mark, in its order."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, errors="strict")
        return [(_plain(name), _plain(value)) for name, value in pairs]
    except ValueError:
        raise _unreadable() from None


def read_host(text: str, default_port: int, form: str) -> tuple[str, int]:
    """A host and its port, `localhost` if there is none; `form` is what an error says to write."""
    match = re.fullmatch(r"(?:\[(?P<v6>[^\]]+)\]|(?P<name>[^:\[\]]*))(?::(?P<port>.*))?", text)
    if match is None:
        raise ConfigurationError(f"option url has a host that cannot be read; {form}")
    host = unquote(match["v6"] or match["name"] or "localhost")
    return host, _read_port(match["port"], default_port)


def _read_port(text: str | None, default: int) -> int:
    """A port: the default if there is none."""
    if not text:
        return default
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 0 < int(text) <= _HIGHEST_PORT:
        raise ConfigurationError(
            f"option url has a port that is none; expected a number from 1 to {_HIGHEST_PORT}"
        )
    return int(text)


def _plain(text: str) -> str:
    text.encode()  # a ValueError for half a surrogate pair
    if "\0" in text:
        raise ValueError
    return text


def _unreadable() -> ConfigurationError:
    return ConfigurationError(
        "option url holds a zero byte, or something that is not UTF-8, as it is or behind a % "
        "(it is not shown: it may be a password); write it in UTF-8, and a % itself as %25"
    )
