"""The options of a sink: one table per sink, read in one way, refused in one way."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Generic, TypeVar

from assent.protocol.errors import ConfigurationError

Value = TypeVar("Value", covariant=True)


class _Marker(Enum):
    REQUIRED = "required"


REQUIRED: Final = _Marker.REQUIRED
"""The default of an option that has none: leaving it out is an error."""


@dataclass(frozen=True)
class Parser(Generic[Value]):
    """Reads the text of an option; `allowed` completes the sentence "expected …".

    `read` raises ValueError for what is not allowed. Its message is never shown, because it may
    repeat the text, and the text may be a secret.
    """

    allowed: str
    read: Callable[[str], Value]


@dataclass(frozen=True)
class Option:
    """One option of a sink.

    With `prefix`, the option stands for every key that begins with its name and a dot: they are
    collected into a dict, without the prefix, under the option's name.
    """

    name: str
    parser: Parser[Any]
    default: Any = REQUIRED
    description: str = ""
    secret: bool = False
    prefix: bool = False

    def __str__(self) -> str:
        return f"{self.name}.*" if self.prefix else self.name


def read_options(given: Mapping[str, str], known: Sequence[Option], *, sink: str) -> dict[str, Any]:
    """The value of every known option by its camelCase name: the given one, or its default.

    Names match whatever their case, because Spark hands them over in lower case. An unknown
    name, a value that is not allowed and a missing required option are ConfigurationErrors.
    """
    plain = {option.name.lower(): option for option in known if not option.prefix}
    prefixes = {f"{option.name.lower()}.": option for option in known if option.prefix}
    values: dict[str, Any] = {}
    for key, text in given.items():
        lowered = key.lower()
        if option := plain.get(lowered):
            value = _parse(option, option.name, text, sink)
            if option.name in values and values[option.name] != value:
                raise ConfigurationError(
                    f"{sink}: option {option.name} is given twice, with different values; "
                    "names of options do not depend on case: remove one of the two"
                )
            values[option.name] = value
            continue
        prefix = next((prefix for prefix in prefixes if lowered.startswith(prefix)), None)
        if prefix is None or len(key) == len(prefix):
            raise _unknown(key, known, sink)
        option = prefixes[prefix]
        collected = values.setdefault(option.name, {})
        collected[key[len(prefix) :]] = _parse(option, key, text, sink)
    for option in known:
        if option.name not in values:
            if option.default is REQUIRED:
                raise _missing(option, sink)
            values[option.name] = option.default
    return values


def _parse(option: Option, name: str, text: str, sink: str) -> Any:
    try:
        return option.parser.read(text)
    except ValueError:
        shown = "a value that is not shown" if option.secret else repr(text)
        # Without the cause: the message of a ValueError may repeat the text.
        raise ConfigurationError(
            f"{sink}: option {name} is {shown}; expected {option.parser.allowed}"
        ) from None


def _unknown(key: str, known: Sequence[Option], sink: str) -> ConfigurationError:
    names = {option.name.lower(): str(option) for option in known}
    near = difflib.get_close_matches(key.lower(), names, n=1)
    hint = f"; did you mean {names[near[0]]}?" if near else ""
    valid = ", ".join(sorted(names.values(), key=str.lower))
    return ConfigurationError(f"{sink}: unknown option {key}{hint} (valid options: {valid})")


def _missing(option: Option, sink: str) -> ConfigurationError:
    name = f"{option.name}.<name>" if option.prefix else option.name
    about = f" ({option.description})" if option.description else ""
    return ConfigurationError(
        f"{sink}: option {name} is missing{about}; "
        f'set it with .option("{name}", …): expected {option.parser.allowed}'
    )


def _read_text(text: str) -> str:
    if not text:
        raise ValueError
    return text


def _read_boolean(text: str) -> bool:
    return {"true": True, "false": False}[_member(text, ("true", "false"))]


def _read_positive_integer(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text.strip()) or int(text) == 0:
        raise ValueError
    return int(text)


def _read_ratio(text: str) -> float:
    if not re.fullmatch(r"[0-9]*\.?[0-9]+([eE]-?[0-9]+)?", text.strip()):
        raise ValueError
    if not 0 < float(text) <= 1:
        raise ValueError
    return float(text)


_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


_LONGEST_DURATION = 36_500 * 86_400.0
# A longer one does not fit the 32 bits of milliseconds that sockets, brokers and databases have.
_LONGEST_TIMEOUT = (2**31 - 1) / 1000


def _read_duration(text: str) -> float:
    match = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*(ms|s|m|h|d|)", text.strip().lower())
    if match is None:
        raise ValueError
    seconds = float(match[1]) * _SECONDS[match[2]]
    if not 0 < seconds <= _LONGEST_DURATION:
        raise ValueError
    return seconds


def _read_timeout(text: str) -> float:
    seconds = _read_duration(text)
    if seconds > _LONGEST_TIMEOUT:
        raise ValueError
    return seconds


def _read_columns(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ValueError
    return names


def _member(text: str, values: Sequence[str]) -> str:
    for value in values:
        if value.lower() == text.strip().lower():
            return value
    raise ValueError


def choice(*values: str) -> Parser[str]:
    """One of these words, whatever its case; read as it is written here."""
    return Parser(f"one of {', '.join(values)}", lambda text: _member(text, values))


text = Parser("a text that is not empty", _read_text)
boolean = Parser("true or false", _read_boolean)
positive_integer = Parser("a whole number above 0", _read_positive_integer)
ratio = Parser("a number above 0 and up to 1", _read_ratio)
duration = Parser("a time above 0, such as 30s, 5m, 1h, or a number of seconds", _read_duration)
timeout = Parser(
    "a time above 0 and up to 24 days, such as 30s, 5m, 1h, or a number of seconds", _read_timeout
)
columns = Parser("names of columns, separated by commas", _read_columns)
