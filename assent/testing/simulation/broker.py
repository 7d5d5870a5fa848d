"""A Kafka-like store: transactional ids with producer ids and epochs, fencing and timeouts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from assent.protocol.errors import FencedError, RetriableError
from assent.protocol.handle import Handle
from assent.protocol.name import TransactionName, prefix
from assent.protocol.pending import Pending
from assent.protocol.sink import Sink
from assent.protocol.verdict import Verdict
from assent.sinks import kafka_verdict
from assent.sinks.kafka_client import ProducerIdentity
from assent.sinks.kafka_id import PLACES, TransactionalId
from assent.sinks.kafka_verdict import LAST_EPOCH, Answer, Described, State, classify
from assent.sinks.mark import mark
from assent.testing.simulation.network import Network
from assent.testing.simulation.scheduler import Actor
from assent.testing.simulation.witness import Transaction, Witness
from assent.testing.simulation.worker import Ahead, Worker, Workers

_NONE, _INVALID_STATE, _INVALID_MAPPING, _CONCURRENT, _FENCED = 0, 48, 49, 51, 90
_ENDS = {True: State.COMPLETE_COMMIT, False: State.COMPLETE_ABORT}
FORGETS_AFTER = 7 * 24 * 3600.0


@dataclass
class IdState:
    """A transactional id as its coordinator keeps it."""

    producer: ProducerIdentity
    used_at: float
    state: State = State.EMPTY
    started_at: float = 0.0
    transaction: Transaction | None = None
    """The one that is open, or was the last."""
    sequence: int = 0
    """How many requests of the producer were taken in: brokers know a copy by its number."""


class Broker:
    """What survives the death of every client. `version` is the cluster's `transaction.version`."""

    def __init__(
        self, witness: Witness, sink: int, version: int, timeout: float, first_epoch: int
    ) -> None:
        self.ids: dict[str, IdState] = {}
        self.version = version
        self.timeout = timeout
        self.busy = 0
        """So many answers will be that an earlier transaction is still being completed."""
        self.leaves_out = 0
        """So many transactions will end without a word to those who read."""
        self.leaves_aborts_out = True
        self._untold: dict[int, list[Transaction]] = {}
        """By producer id: what has ended, and readers take it for a part of what comes next."""
        self._witness = witness
        self._sink = sink
        self._first_epoch = first_epoch
        self._producers = 1000 * sink

    def initialise(self, name: TransactionName, wanted: str, now: float) -> ProducerIdentity:
        """Give the next epoch out, and abort what is open under the id."""
        known = self.ids.get(wanted)
        if known is None:
            self.ids[wanted] = IdState(self._new_producer(self._first_epoch), now)
            return self.ids[wanted].producer
        if self._is_busy(known):
            raise RetriableError(f"{wanted}: an earlier transaction is being completed")
        is_open = known.state is State.ONGOING
        if known.transaction is not None:
            self._witness.saw_fencing(known.transaction, name, is_open=is_open)
        if is_open:
            self._end(known, commit=False, raises=True)
        known.producer = self._raised(known.producer)
        known.state, known.used_at, known.sequence = State.EMPTY, now, 0
        return known.producer

    def produce(
        self,
        name: TransactionName,
        wanted: str,
        producer: ProducerIdentity,
        sequence: int,
        rows: list[int],
        now: float,
    ) -> None:
        """Rows into the transaction, which begins with the first of them."""
        known = self.ids.get(wanted)
        if known is None or known.producer != producer:
            raise RetriableError(f"{wanted}: fenced")
        if sequence < known.sequence:
            return
        if sequence > known.sequence:
            raise RetriableError(f"{wanted}: a request is missing")
        if self._is_busy(known):
            raise RetriableError(f"{wanted}: an earlier transaction is being completed")
        if known.state is not State.ONGOING:
            handle = f"{wanted}/{producer.producer_id}/{producer.epoch}"
            before = known.transaction
            if before is None or before.handle != handle:
                known.transaction = Transaction(handle, name, self._sink)
                self._witness.saw_open(known.transaction)
            elif before.state is Verdict.COMMITTED:
                self._witness.violate(f"{handle} is written to after it was committed")
            else:  # a straggler that was swept: brokers of the first version let it begin again
                before.state, before.rows = Verdict.PENDING, []
            known.state, known.started_at = State.ONGOING, now
        assert known.transaction is not None
        known.transaction.rows.extend(rows)
        known.used_at, known.sequence = now, sequence + 1

    def end(
        self,
        wanted: str,
        producer: ProducerIdentity,
        commit: bool,
        now: float,
        by_task: bool = False,
    ) -> int:
        """EndTxn: the answers are those of docs/kafka-verdicts.md."""
        known = self.ids.get(wanted)
        if known is None:
            return _INVALID_MAPPING
        bumps = self.version >= kafka_verdict.BUMPING_TRANSACTIONS
        if known.producer == producer:
            if self._is_busy(known):
                return _CONCURRENT
            if known.state is State.ONGOING:
                silent = commit or (self.leaves_aborts_out and not by_task)
                untold = self.leaves_out > 0 and silent
                self.leaves_out -= untold
                self._end(known, commit, raises=bumps, untold=untold)
                known.used_at = now
                return _NONE
            if known.state is State.EMPTY:
                return _NONE if bumps and not commit else _INVALID_STATE
            return _NONE if known.state is _ENDS[commit] else _INVALID_STATE
        if known.producer == self._raised(producer, known.producer.producer_id) and bumps:
            if known.state in _ENDS.values():
                return _NONE if known.state is _ENDS[commit] else _INVALID_STATE
            return _FENCED
        if known.producer.producer_id != producer.producer_id:
            return _INVALID_MAPPING
        return _FENCED

    def describe(self, wanted: str) -> Described | None:
        known = self.ids.get(wanted)
        if known is None:
            return None
        return Described(wanted, known.state, known.producer, known.started_at, self.timeout)

    def tell(self, handles: Iterable[str], end: Verdict) -> None:
        """Tell those who read, as far as they were not told. It has to have ended."""
        for handle in handles:
            if self._witness.transactions[handle].state is Verdict.PENDING:
                raise RetriableError(f"{handle} is open")
        for waiting in self._untold.values():
            for transaction in [one for one in waiting if one.handle in handles]:
                if transaction.state is not end:
                    self._witness.violate(f"{transaction.handle} is shown as {end.value}")
                waiting.remove(transaction)
                self._witness.untold.discard(transaction.handle)

    def give_up(self, transaction: Transaction) -> None:
        """The timeout of an open transaction."""
        for known in self.ids.values():
            if known.transaction is transaction and known.state is State.ONGOING:
                self._end(known, commit=False, raises=True)

    def has_forgotten(self, transaction: Transaction) -> bool:
        """Whether nobody can learn from the store how the transaction ended."""
        wanted = transaction.handle.partition("/")[0]
        return wanted not in self.ids or self._witness.was_overrun(transaction.handle)

    def pass_time(self, now: float) -> None:
        """Give up what is too old, and forget ids that nobody has used for long."""
        for wanted, known in list(self.ids.items()):
            if known.state is State.ONGOING and now - known.started_at > self.timeout:
                self._end(known, commit=False, raises=True)
            if known.state is not State.ONGOING and now - known.used_at > FORGETS_AFTER:
                del self.ids[wanted]

    def restart(self) -> None:
        """All that was acknowledged is on disk."""

    def _end(self, known: IdState, commit: bool, raises: bool, untold: bool = False) -> None:
        assert known.transaction is not None
        producer_id = known.producer.producer_id
        if raises:
            known.producer = self._raised(known.producer)
        known.state = _ENDS[commit]
        if commit:
            self._witness.saw_commit(known.transaction)
        else:
            known.transaction.state = Verdict.ABORTED
        if untold:
            self._untold.setdefault(producer_id, []).append(known.transaction)
            self._witness.untold.add(known.transaction.handle)
            return
        for before in self._untold.pop(producer_id, ()):
            self._witness.untold.discard(before.handle)
            if before.state is not known.transaction.state:
                self._witness.violate(
                    f"{before.handle} ends again, with {known.transaction.handle}, which is "
                    f"{known.transaction.state.value}"
                )

    def _is_busy(self, known: IdState) -> bool:
        if self.busy and known.state in _ENDS.values():
            self.busy -= 1
            return True
        return False

    def _new_producer(self, epoch: int) -> ProducerIdentity:
        self._producers += 1
        return ProducerIdentity(self._producers, epoch)

    def _raised(self, producer: ProducerIdentity, known: int | None = None) -> ProducerIdentity:
        """The next epoch; after the last one, another producer id."""
        if producer.epoch < LAST_EPOCH:
            return ProducerIdentity(producer.producer_id, producer.epoch + 1)
        return self._new_producer(0) if known is None else ProducerIdentity(known, 0)


@dataclass(frozen=True)
class BrokerTransaction:
    """What a task has open."""

    name: TransactionName
    transactional_id: str
    producer: ProducerIdentity
    worker: Worker | None = None
    sent: list[int] = field(default_factory=list)


class BrokerSink(Sink[BrokerTransaction]):
    """The Kafka sink's way with handles, ids and verdicts, without its client."""

    kind = "kafka"

    def __init__(
        self,
        broker: Broker,
        network: Network,
        witness: Witness,
        position: int,
        now: Callable[[], float],
        actor: Callable[[], Actor | None],
        ahead: bool = False,
    ) -> None:
        self.workers = Workers(mark(f"broker {position}")) if ahead else None
        self.transaction_timeout = broker.timeout
        self._broker = broker
        self._network = network
        self._witness = witness
        self._position = position
        self._now = now
        self._actor = actor

    @property
    def target(self) -> str:
        return f"broker {self._position}"

    def begin(self, name: TransactionName, epoch: int) -> BrokerTransaction:
        self._witness.saw_begin(name)
        worker = None
        if self.workers is not None and not name.again:
            worker, ahead = self.workers.begin(name)
            if ahead is not None and ahead.producer is not None:
                return BrokerTransaction(name, ahead.transactional_id, ahead.producer, worker)
        wanted = Ahead(name, str(TransactionalId.of(name, mark(self.target))))
        return BrokerTransaction(name, wanted.transactional_id, self._initialise(wanted), worker)

    def _initialise(self, ahead: Ahead) -> ProducerIdentity:
        wanted = ahead.transactional_id
        return self._network.request(
            f"initialise {wanted}", lambda: self._broker.initialise(ahead.name, wanted, self._now())
        )

    def write(self, transaction: BrokerTransaction, batch: object) -> None:
        rows = batch.column(0).to_pylist()  # type: ignore[attr-defined]
        name, wanted = transaction.name, transaction.transactional_id
        producer, sequence = transaction.producer, len(transaction.sent)
        transaction.sent.append(sequence)
        self._network.request(
            f"produce {rows} into {wanted}/{producer.producer_id}/{producer.epoch}",
            lambda: self._broker.produce(name, wanted, producer, sequence, rows, self._now()),
        )

    def pre_commit(self, transaction: BrokerTransaction) -> Handle:
        if self.workers is not None and transaction.worker is not None:
            self.workers.end(transaction.worker, transaction.name, self._initialise)
        return self._handle(transaction)

    def _handle(self, transaction: BrokerTransaction) -> Handle:
        producer = transaction.producer
        name = f"{transaction.transactional_id}/{producer.producer_id}/{producer.epoch}"
        return Handle(self.kind, name)

    def discard(self, transaction: BrokerTransaction) -> None:
        if transaction.worker is not None:
            transaction.worker.is_free = True
        handle = self._handle(transaction)
        if handle.name in self._witness.transactions:
            self.abort(handle)

    def commit(self, handle: Handle) -> None:
        self._witness.saw_commit_asked(handle.name)
        wanted, producer = _parts(handle)
        code = self._network.request(
            f"commit {handle.name}",
            lambda: self._broker.end(wanted, producer, True, self._now()),
        )
        meaning = classify(code)
        if meaning is Answer.ASK and self.verdict(handle) is Verdict.COMMITTED:
            return
        if meaning is not Answer.DONE:
            raise RetriableError(f"{handle.name}: answer {code}")

    def abort(self, handle: Handle) -> None:
        actor = self._actor()
        by_task = actor is not None and actor.kind == "task"
        self._witness.saw_abort_asked(handle.name, by_task)
        wanted, producer = _parts(handle)
        end = self.verdict(handle)
        if end is Verdict.PENDING:
            code = self._network.request(
                f"abort {handle.name}",
                lambda: self._broker.end(wanted, producer, False, self._now(), by_task),
            )
            if classify(code) is Answer.DONE:
                return
            end = self.verdict(handle)
        if end is Verdict.COMMITTED:
            raise FencedError(f"{handle.name} was to be aborted, but is committed")
        if end is Verdict.PENDING:
            raise RetriableError(f"{handle.name} is still open")

    def confirm(self, handles: Sequence[Handle], end: Verdict) -> None:
        names = [handle.name for handle in handles]
        self._network.request(f"tell of {names}", lambda: self._broker.tell(names, end))

    def verdict(self, handle: Handle) -> Verdict:
        wanted, producer = _parts(handle)
        described = self._network.request(
            f"describe {handle.name}", lambda: self._broker.describe(wanted), mutates=False
        )
        return kafka_verdict.verdict(producer, described, self._broker.version)

    def pending(self, identity: str) -> Iterable[Pending]:
        return self._network.request("list open ids", lambda: self._open(identity), mutates=False)

    def _open(self, identity: str) -> list[Pending]:
        found = []
        for wanted, state in self._broker.ids.items():
            known = TransactionalId.parse(wanted)
            if state.state is not State.ONGOING or not wanted.startswith(prefix(identity)):
                continue
            assert known is not None
            name = f"{wanted}/{state.producer.producer_id}/{state.producer.epoch}"
            handle = Handle(self.kind, name)
            found.append(Pending(handle, known.term, known.place, state.started_at, PLACES))
        return found


def _parts(handle: Handle) -> tuple[str, ProducerIdentity]:
    wanted, producer, epoch = handle.name.split("/")
    return wanted, ProducerIdentity(int(producer), int(epoch))
