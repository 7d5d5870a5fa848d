"""A store, a ledger's disk and a checkpoint that live in memory and fail where a test says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from assent.ledger.store import AlreadyExistsError, MissingError
from assent.protocol.errors import RetriableError
from assent.protocol.handle import Handle
from assent.protocol.name import TransactionName, prefix
from assent.protocol.pending import Pending
from assent.protocol.sink import Sink
from assent.protocol.verdict import Verdict

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class MemoryTransaction:
    """A transaction as the store sees it; its rows are visible once it is committed."""

    name: TransactionName
    epoch: int
    rows: list[object] = field(default_factory=list)
    state: Verdict = Verdict.PENDING
    prepared: bool = False


@dataclass
class MemoryServer:
    """What survives the death of every client: transactions by name."""

    transactions: dict[str, MemoryTransaction] = field(default_factory=dict)

    def rows(self) -> list[object]:
        """The visible rows."""
        return [
            row
            for transaction in self.transactions.values()
            if transaction.state is Verdict.COMMITTED
            for row in transaction.rows
        ]

    def open(self) -> list[str]:
        """The names of the transactions that are still open."""
        return [
            name
            for name, transaction in self.transactions.items()
            if transaction.state is Verdict.PENDING
        ]

    def expire(self, names: Iterable[str] | None = None) -> None:
        """The store gives up open transactions: all, or those named."""
        for name in self.open() if names is None else names:
            if self.transactions[name].state is Verdict.PENDING:
                self.transactions[name].state = Verdict.ABORTED


class MemorySink(Sink[MemoryTransaction]):
    """Writes the first column of each batch into a `MemoryServer`.

    `interfere` is called with the name of each operation before and after it happens
    ("commit", "commit answered", …) and may raise, as a network would.
    """

    kind = "memory"

    def __init__(
        self,
        server: MemoryServer,
        name: str = "memory",
        interfere: Callable[[str], None] = lambda operation: None,
    ) -> None:
        self.server = server
        self.interfere = interfere
        self._name = name
        self.forgotten: set[str] = set()

    @property
    def target(self) -> str:
        return self._name

    def begin(self, name: TransactionName, epoch: int) -> MemoryTransaction:
        self.interfere("begin")
        transaction = MemoryTransaction(name, epoch)
        self.server.transactions[str(name)] = transaction
        return transaction

    def write(self, transaction: MemoryTransaction, batch: pa.RecordBatch) -> None:
        self.interfere("write")
        if transaction.state is not Verdict.PENDING:
            raise RetriableError(f"{transaction.name} is {transaction.state.value}")
        transaction.rows.extend(batch.column(0).to_pylist())

    def pre_commit(self, transaction: MemoryTransaction) -> Handle:
        self.interfere("pre_commit")
        if transaction.state is not Verdict.PENDING:
            raise RetriableError(f"{transaction.name} is {transaction.state.value}")
        transaction.prepared = True
        self.interfere("pre_commit answered")
        return Handle("memory", str(transaction.name))

    def discard(self, transaction: MemoryTransaction) -> None:
        self.abort(Handle("memory", str(transaction.name)))

    def commit(self, handle: Handle) -> None:
        self.interfere("commit")
        if handle.name in self.forgotten:
            raise RetriableError(f"{handle} is not known here")
        transaction = self.server.transactions[handle.name]
        if transaction.state is Verdict.PENDING:
            transaction.state = Verdict.COMMITTED
        self.interfere("commit answered")
        if transaction.state is not Verdict.COMMITTED:
            raise RetriableError(f"{handle} is {transaction.state.value}")

    def abort(self, handle: Handle) -> None:
        self.interfere("abort")
        transaction = self.server.transactions[handle.name]
        if transaction.state is Verdict.PENDING:
            transaction.state = Verdict.ABORTED
        self.interfere("abort answered")

    def verdict(self, handle: Handle) -> Verdict:
        self.interfere("verdict")
        if handle.name in self.forgotten:
            return Verdict.UNKNOWN
        return self.server.transactions[handle.name].state

    def pending(self, identity: str) -> Sequence[Pending]:
        self.interfere("pending")
        return [
            Pending.named(Handle("memory", name), self.server.transactions[name].name)
            for name in self.server.open()
            if name.startswith(prefix(identity))
        ]


@dataclass
class MemoryStore:
    """A ledger's disk in memory. `interfere` as in `MemorySink`."""

    files: dict[str, bytes] = field(default_factory=dict)
    location: str = "memory:ledger"
    interfere: Callable[[str], None] = lambda operation: None

    def create(self, name: str, content: bytes) -> None:
        self.interfere(f"create {name}")
        if name in self.files:
            raise AlreadyExistsError(name)
        self.files[name] = content
        self.interfere(f"create {name} answered")

    def read(self, name: str) -> bytes:
        self.interfere(f"read {name}")
        try:
            return self.files[name]
        except KeyError:
            raise MissingError(name) from None

    def list(self, folder: str) -> list[str]:
        self.interfere(f"list {folder}")
        start = folder + "/"
        return sorted(name[len(start) :] for name in self.files if name.startswith(start))

    def delete(self, name: str) -> None:
        self.interfere(f"delete {name}")
        self.files.pop(name, None)

    def recover(self) -> None:
        pass


@dataclass
class MemoryCheckpoint:
    """The engine's checkpoint: which epochs have fixed input, and which are finished."""

    offsets: dict[int, str] = field(default_factory=dict)
    committed: set[int] = field(default_factory=set)
    query_id: str = "query"

    def query(self) -> str:
        return self.query_id

    def newest_epoch(self) -> int | None:
        return max(self.offsets, default=None)

    def digest(self, epoch: int) -> str | None:
        return self.offsets.get(epoch)

    def is_committed(self, epoch: int) -> bool:
        return epoch in self.committed
