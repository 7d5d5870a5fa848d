"""A mark that tells the sinks of one query apart where they share a server."""

from __future__ import annotations

import hashlib


def mark(target: str) -> str:
    """The same for a sink after every restart, and another one for another sink."""
    return hashlib.sha256(target.encode(errors="surrogatepass")).hexdigest()[:8]
