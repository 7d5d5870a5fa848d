"""A store with prepared transactions; with witness rows, or one that forgets how each ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from assent.protocol.errors import RetriableError
from assent.protocol.handle import Handle
from assent.protocol.name import TransactionName, prefix
from assent.protocol.pending import Pending
from assent.protocol.sink import Sink
from assent.protocol.verdict import Verdict
from assent.testing.simulation.network import Network
from assent.testing.simulation.scheduler import Actor
from assent.testing.simulation.witness import Transaction, Witness


class Database:
    """What survives the death of every client: prepared transactions and witness rows.

    A session, and what it has not prepared, ends with the process that holds it, or when the
    server is started again.
    """

    def __init__(self, witness: Witness, keeps_witnesses: bool) -> None:
        self.prepared: dict[str, Transaction] = {}
        self.witnesses: set[str] = set()
        self.keeps_witnesses = keeps_witnesses
        self.starts = 0
        self._witness = witness

    def prepare(self, session: Session) -> None:
        transaction = session.transaction
        if session.start != self.starts or transaction.state is not Verdict.PENDING:
            raise RetriableError(f"{transaction.handle}: the session has ended")
        session.start = -1  # its connection has nothing open any more
        self._witness.saw_open(transaction)
        self.prepared[transaction.handle] = transaction

    def commit(self, gid: str) -> None:
        transaction = self.prepared.pop(gid, None)
        if transaction is None:
            raise RetriableError(f"there is no prepared transaction {gid}")
        if self.keeps_witnesses:
            self.witnesses.add(gid)
        self._witness.saw_commit(transaction)

    def roll_back(self, gid: str) -> None:
        transaction = self.prepared.pop(gid, None)
        if transaction is not None:
            transaction.state = Verdict.ABORTED

    def give_up(self, transaction: Transaction) -> None:
        """An administrator rolls a prepared transaction back."""
        self.roll_back(transaction.handle)

    def has_forgotten(self, transaction: Transaction) -> bool:
        """Whether nobody can learn from the store how the transaction ended."""
        return not self.keeps_witnesses and transaction.handle not in self.prepared

    def pass_time(self, now: float) -> None:
        """Prepared transactions do not age."""

    def restart(self) -> None:
        self.starts += 1


class Session:
    """A connection with an open transaction that is not prepared yet."""

    def __init__(self, transaction: Transaction, start: int) -> None:
        self.transaction = transaction
        self.start = start

    def __repr__(self) -> str:
        return f"Session({self.transaction.handle!r}, {self.start})"


class DatabaseSink(Sink[Session]):
    """Prepared transactions, the name being the gid; the verdict is by the gid, then the witness.

    The two are asked one after the other, and anything may happen in between. That is sound
    because a transaction that was prepared never comes back once its gid is gone.
    """

    kind = "database"

    def __init__(
        self,
        database: Database,
        network: Network,
        witness: Witness,
        position: int,
        actor: Callable[[], Actor | None],
    ) -> None:
        self._database = database
        self._network = network
        self._witness = witness
        self._position = position
        self._actor = actor

    @property
    def target(self) -> str:
        return f"database {self._position}"

    def begin(self, name: TransactionName, epoch: int) -> Session:
        self._witness.saw_begin(name)
        transaction = Transaction(str(name), name, self._position)
        return self._network.request(
            f"begin {name}", lambda: Session(transaction, self._database.starts), mutates=False
        )

    def write(self, transaction: Session, batch: object) -> None:
        # Nobody else sees it: no more than a step of its own.
        transaction.transaction.rows.extend(batch.column(0).to_pylist())  # type: ignore[attr-defined]

    def pre_commit(self, transaction: Session) -> Handle:
        gid = transaction.transaction.handle
        self._network.request(f"prepare {gid}", lambda: self._database.prepare(transaction))
        return Handle(self.kind, gid)

    def discard(self, transaction: Session) -> None:
        """The connection is closed; what it has sent before may still arrive."""

    def commit(self, handle: Handle) -> None:
        self._witness.saw_commit_asked(handle.name)
        try:
            self._network.request(
                f"commit {handle.name}", lambda: self._database.commit(handle.name)
            )
        except RetriableError:
            if self.verdict(handle) is not Verdict.COMMITTED:
                raise

    def abort(self, handle: Handle) -> None:
        actor = self._actor()
        self._witness.saw_abort_asked(handle.name, actor is not None and actor.kind == "task")
        self._network.request(
            f"roll back {handle.name}", lambda: self._database.roll_back(handle.name)
        )

    def verdict(self, handle: Handle) -> Verdict:
        gid = handle.name
        if self._is_prepared(gid):
            return Verdict.PENDING
        if not self._database.keeps_witnesses:
            return Verdict.UNKNOWN
        return Verdict.COMMITTED if self._has_witness(gid) else Verdict.ABORTED

    def _is_prepared(self, gid: str) -> bool:
        return self._network.request(
            f"is prepared {gid}", lambda: gid in self._database.prepared, mutates=False
        )

    def _has_witness(self, gid: str) -> bool:
        return self._network.request(
            f"has witness {gid}", lambda: gid in self._database.witnesses, mutates=False
        )

    def pending(self, identity: str) -> Iterable[Pending]:
        def effect() -> list[Pending]:
            return [
                Pending.named(Handle(self.kind, gid), transaction.name)
                for gid, transaction in self._database.prepared.items()
                if gid.startswith(prefix(identity))
            ]

        return self._network.request("list prepared", effect, mutates=False)
