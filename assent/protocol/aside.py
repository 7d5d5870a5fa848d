"""Rows that wait until it is known what they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import pyarrow as pa

Batches: TypeAlias = "Iterable[pa.RecordBatch]"
PutAside: TypeAlias = Callable[[Batches], AbstractContextManager[Batches]]
"""Takes all batches, and gives them back once, in order, as long as the context lasts."""


@contextmanager
def in_memory(batches: Batches) -> Iterator[Batches]:
    """All of them: only where they are few."""
    yield list(batches)
