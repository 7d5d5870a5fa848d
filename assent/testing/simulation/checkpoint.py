"""The engine's checkpoint: which epochs have fixed input, and which are finished."""

from __future__ import annotations

from assent.testing.simulation.network import Network


class SparkCheckpoint:
    """Spark's offset log and commit log, as the protocol and the engine read them."""

    def __init__(self, network: Network) -> None:
        self.offsets: dict[int, str] = {}
        self.committed: set[int] = set()
        self._network = network

    def query(self) -> str:
        return "query"

    def newest_epoch(self) -> int | None:
        return self._network.request(
            "newest offsets", lambda: max(self.offsets, default=None), mutates=False
        )

    def digest(self, epoch: int) -> str | None:
        return self._network.request(
            f"offsets of {epoch}", lambda: self.offsets.get(epoch), mutates=False
        )

    def is_committed(self, epoch: int) -> bool:
        return self._network.request(
            f"is finished {epoch}", lambda: epoch in self.committed, mutates=False
        )

    def fix(self, epoch: int, input_of_it: str) -> bool:
        """Create the entry of the offset log; false if it is there, or an epoch is left out."""

        def effect() -> bool:
            if epoch in self.offsets or epoch - 1 not in {*self.committed, -1}:
                return False
            self.offsets[epoch] = input_of_it
            return True

        return self._network.request(f"fix offsets of {epoch}", effect)

    def finish(self, epoch: int) -> bool:
        """Create the entry of the commit log; false if it is there."""

        def effect() -> bool:
            if epoch in self.committed:
                return False
            self.committed.add(epoch)
            return True

        return self._network.request(f"finish {epoch}", effect)
