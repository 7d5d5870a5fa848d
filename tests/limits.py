"""A query without Spark that meets something it cannot write, and goes on when that is mended."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

from assent.protocol.coordinator import Coordinator
from assent.protocol.errors import AssentError
from assent.testing.query import BatchQuery


def texts(*values: bytes | None) -> pa.Array:
    """A column of texts that holds whatever bytes, as Spark's do."""
    return pa.array(values, pa.binary()).view(pa.string())


class Obstacle:
    """Epoch 0 is written; what follows meets an obstacle, until somebody takes it away.

    `seen` gives what a reader sees, `pending` what is open in the store.
    """

    def __init__(
        self,
        query: BatchQuery,
        seen: Callable[[], Any],
        pending: Callable[[], list[Any]],
        first: Sequence[Sequence[pa.RecordBatch]],
    ) -> None:
        self.query = query
        self.seen = seen
        self.pending = pending
        self._coordinator: Coordinator = query.start()
        query.run(self._coordinator, 0, first)
        self._before = seen()

    def refuses(
        self, tasks: Sequence[Sequence[pa.RecordBatch]], *words: str, visible: Any = None
    ) -> str:
        """Epoch 1 fails with an error of ours that says these; nothing of it is seen.

        Where a store shows what it is given at once (idempotent sinks), `visible` is that.
        """
        with pytest.raises(AssentError) as refused:
            self.query.run(self._coordinator, 1, tasks)
        message = str(refused.value)
        for word in words:
            assert re.search(word, message), message
        assert self.seen() == (self._before if visible is None else visible)
        return message

    def goes_on(self, tasks: Sequence[Sequence[pa.RecordBatch]], expected: Any) -> None:
        """Another driver writes epoch 1, and one more; nothing is left open."""
        coordinator = self.query.start()
        self.query.run(coordinator, 1, tasks)
        self.query.run(coordinator, 2, [[]])
        found = self.seen()
        assert found == expected, f"readers see {found!r:.1000}"
        assert self.pending() == []
