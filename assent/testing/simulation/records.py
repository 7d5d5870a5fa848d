"""The ledger's storage: an object store, or the real local store on a simulated disk."""

from __future__ import annotations

from assent.ledger.local import LocalStore
from assent.ledger.store import AlreadyExistsError, MissingError
from assent.testing.simulation.disk import ROOT, Disk
from assent.testing.simulation.network import Network
from assent.testing.simulation.witness import Witness


class ObjectStore:
    """Records behind a network: creations get lost, come late, and come twice."""

    location = "simulated:ledger"

    def __init__(self, network: Network, witness: Witness) -> None:
        self.files: dict[str, bytes] = {}
        self._network = network
        self._witness = witness

    def create(self, name: str, content: bytes) -> None:
        def effect() -> None:
            if name in self.files:
                raise AlreadyExistsError(name)
            self.files[name] = content
            self._witness.saw_file(name, content)

        self._network.request(f"create {name}", effect)

    def read(self, name: str) -> bytes:
        def effect() -> bytes:
            if name not in self.files:
                raise MissingError(name)
            return self.files[name]

        return self._network.request(f"read {name}", effect, mutates=False)

    def list(self, folder: str) -> list[str]:
        def effect() -> list[str]:
            start = folder + "/"
            return sorted(name[len(start) :] for name in self.files if name.startswith(start))

        return self._network.request(f"list {folder}", effect, mutates=False)

    def delete(self, name: str) -> None:
        self._network.request(f"delete {name}", lambda: self.files.pop(name, None) and None)

    def recover(self) -> None:
        pass


class DiskStore(LocalStore):
    """The real local store; what it calls durable is held against the disk."""

    def __init__(self, disk: Disk, witness: Witness) -> None:
        super().__init__(ROOT)
        self._disk = disk
        self._witness = witness

    def create(self, name: str, content: bytes) -> None:
        try:
            super().create(name, content)
        except AlreadyExistsError:
            self._check_flushed(name)
            raise
        self._check_flushed(name)

    def _check_flushed(self, name: str) -> None:
        path = f"{ROOT}/{name}"
        if self._disk.find(path) is not None and not self._disk.is_durable(path):
            self._witness.violate(f"{name} is called created, and is not flushed")
