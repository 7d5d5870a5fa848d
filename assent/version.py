"""The version of this release: the only place where it is written."""

from __future__ import annotations

__version__ = "0.1.0"
