"""One text for one place."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote, urlsplit

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


def scheme(location: str) -> str:
    """The scheme of a location, lower-cased; "file" for a plain path.

    >>> scheme("/data/checkpoint"), scheme("file:/data"), scheme("s3a://bucket/x")
    ('file', 'file', 's3a')
    """
    match = _SCHEME.match(location)
    return match.group(1).lower() if match else "file"


def local_path(location: str) -> str:
    """The path that a `file:` location or a plain path means, symbolic links resolved."""
    if _SCHEME.match(location):
        location = unquote(urlsplit(location).path)
    return os.path.realpath(location)


def canonical(location: str) -> str:
    """The same text for every way to write a place.

    `file:` and plain paths, symbolic links and trailing slashes make no difference, and neither
    do the several names of S3.

    >>> canonical("file:///") == canonical("/")
    True
    >>> canonical("s3a://bucket/checkpoint/") == canonical("s3://bucket/checkpoint")
    True
    """
    name = scheme(location)
    if name == "file":
        return "file:" + local_path(location)
    rest = location.split(":", 1)[1].rstrip("/")
    return f"{'s3' if name in ('s3', 's3a', 's3n') else name}:{rest}"
