"""The handle: the name by which any process can settle one transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, quote, quote_plus, unquote

from assent.protocol.json_value import as_text, members, text

HANDLE_VERSION = 1


@dataclass(frozen=True)
class Handle:
    """Names one transaction of one store, for ever (rule 4).

    `kind` is the sink's kind ("files", "kafka", …), `name` identifies the transaction within
    the store, and `details` is whatever else the sink needs to settle it from another process:
    small, textual, and never a secret. Two handles are the same transaction when kind and name
    are equal.

    The string form (``files/1:name?key=value``) survives a shell and a log line:

    >>> handle = Handle("files", "3f-1-0", {"epoch": "7"})
    >>> str(handle)
    'files/1:3f-1-0?epoch=7'
    >>> Handle.parse(str(handle)) == handle
    True
    """

    kind: str
    name: str
    details: Mapping[str, str] = field(default_factory=dict, compare=False)
    version: int = HANDLE_VERSION

    def __str__(self) -> str:
        text = f"{quote(self.kind, safe='-')}/{self.version}:{quote(self.name, safe='-._~@=')}"
        query = "&".join(
            f"{quote_plus(key, safe='-._~@/:')}={quote_plus(detail, safe='-._~@=/:')}"
            for key, detail in sorted(self.details.items())
        )
        return f"{text}?{query}" if query else text

    @classmethod
    def parse(cls, form: str) -> Handle:
        """Read the string form; a ValueError says what is wrong with it."""
        head, _, query = form.partition("?")
        kind, slash, rest = head.partition("/")
        version, colon, name = rest.partition(":")
        if not (slash and colon and kind and name and version.isascii() and version.isdigit()):
            raise ValueError(f"not a handle: {form!r} (expected kind/version:name?details)")
        _check_version(int(version), form)
        form.encode()  # a ValueError for half a surrogate pair, which no store takes
        details = parse_qsl(
            query, keep_blank_values=True, strict_parsing=bool(query), errors="strict"
        )
        if len(dict(details)) != len(details):
            raise ValueError(f"not a handle: {form!r} (a detail is there twice)")
        kind, name = (unquote(part, errors="strict") for part in (kind, name))
        return cls(kind, name, dict(details), int(version))

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "version": self.version,
            "name": self.name,
            "details": dict(self.details),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Handle:
        _check_version(value["version"], value)
        given = members(value, "details")
        details = {as_text(key, "details"): text(given, key) for key in given}
        kind, name = text(value, "kind"), text(value, "name")
        if not (kind and name):
            raise ValueError("a handle without kind or name")
        return cls(kind, name, details, value["version"])


def _check_version(version: object, found: object) -> None:
    if type(version) is not int or not 1 <= version <= HANDLE_VERSION:
        raise ValueError(
            f"handle {found!r} has version {version!r}; this release reads up to {HANDLE_VERSION}"
        )
