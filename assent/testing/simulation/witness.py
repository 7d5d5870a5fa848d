"""The witness: sees everything that happens, and holds it against the rules of the protocol."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from assent.protocol.json_value import load_object
from assent.protocol.name import TransactionName
from assent.protocol.policy import OnTimeout, Policy
from assent.protocol.record import (
    Amendment,
    DecidedEpoch,
    Decision,
    Record,
    RecordKey,
    Void,
    record_from_json,
)
from assent.protocol.share import Prepared
from assent.protocol.verdict import Verdict


@dataclass
class Transaction:
    """What truly became of a transaction, whatever its store can tell about it."""

    handle: str
    name: TransactionName
    sink: int
    rows: list[int] = field(default_factory=list)
    state: Verdict = Verdict.PENDING


class Witness:
    """The whole truth about ledger and stores; `violations` are what must not have happened.

    `rows_of` gives the rows of an epoch, `is_flushed` whether a file of the ledger survives a
    power cut.
    """

    def __init__(self, sinks: int, rows_of: Callable[[int], list[int]]) -> None:
        self.violations: list[str] = []
        self.records: dict[RecordKey, Record] = {}
        self.transactions: dict[str, Transaction] = {}
        self.visible: list[Counter[int]] = [Counter() for _ in range(sinks)]
        self.untold: set[str] = set()
        """Handles whose end readers do not know of."""
        self.is_flushed: Callable[[str], bool] = lambda name: True
        self.policy = Policy()
        self._rows_of = rows_of
        self._contents: dict[str, bytes] = {}
        self._names: set[TransactionName] = set()
        self._named: dict[str, RecordKey] = {}
        self._aborted_by_us: set[str] = set()
        self._lost: list[set[int]] = [set() for _ in range(sinks)]
        self._overrun: set[str] = set()
        self._operator_settled: set[str] = set()

    def violate(self, text: str) -> None:
        if text not in self.violations:
            self.violations.append(text)

    # What the ledger says, by all records that were ever written.

    def newest(self) -> DecidedEpoch | None:
        decisions = [record for record in self.records.values() if isinstance(record, Decision)]
        newest = max(decisions, key=lambda decision: decision.epoch, default=None)
        return None if newest is None else self.decided(newest)

    def decided(self, decision: Decision) -> DecidedEpoch:
        amendments = [
            record
            for record in self.records.values()
            if isinstance(record, Amendment) and record.amends == decision.key
        ]
        return DecidedEpoch(decision, tuple(sorted(amendments, key=lambda one: one.key)))

    def is_named(self, handle: str) -> bool:
        return handle in self._named

    def is_visible(self, epoch: int) -> bool:
        """Whether each row of the epoch is in each store once, but for what was given up."""
        return all(
            visible[row] == (row not in lost)
            for visible, lost in zip(self.visible, self._lost, strict=True)
            for row in self._rows_of(epoch)
        )

    # Transactions, as stores see them.

    def saw_begin(self, name: TransactionName) -> None:
        if name in self._names:
            self.violate(f"{name} is the name of two transactions")
        self._names.add(name)

    def saw_open(self, transaction: Transaction) -> None:
        """Rule 4: a handle names one transaction for ever."""
        if transaction.handle in self.transactions:
            self.violate(f"{transaction.handle} names a second transaction")
        self.transactions[transaction.handle] = transaction

    def saw_commit_asked(self, handle: str) -> None:
        """Rule 1: nothing is committed that no durable decision names."""
        key = self._named.get(handle)
        if key is None:
            self.violate(f"{handle} is committed, and no record names it")
        elif not self.is_flushed(_file_name(key)):
            self.violate(f"{handle} is committed, and the record that names it is not flushed")

    def saw_abort_asked(self, handle: str, by_task: bool) -> None:
        """Rules 3 and 6: only what can never be decided, and is not, is aborted."""
        transaction = self.transactions[handle]
        if handle in self._named and transaction.state is Verdict.PENDING:
            self.violate(f"{handle} is aborted, and a record names it")
        self._aborted_by_us.add(handle)
        if by_task:
            return  # its own, for which it has not voted
        name = transaction.name
        of_term = [record for key, record in self.records.items() if key.term == name.term]
        void = any(isinstance(record, Void) for record in of_term)
        past = any(
            not isinstance(record, Void) and record.key.place >= name.place for record in of_term
        )
        if not void and not past:
            self.violate(f"{handle} is aborted while it may still be decided")

    def was_overrun(self, handle: str) -> bool:
        """Whether the id was initialised by a straggler of an earlier place, or by a late copy."""
        return handle in self._overrun

    def saw_fencing(self, transaction: Transaction, by: TransactionName, *, is_open: bool) -> None:
        """Rule 5: the id of a transaction in an unfinished decision is not initialised."""
        if by.place < transaction.name.place or by == transaction.name:
            # A limit of ids that are used again; or a copy of the task's own request, which makes
            # the broker forget how a transaction ended if it comes later than that.
            self._overrun.add(transaction.handle)
        elif is_open and transaction.handle in self._named:
            self.violate(f"{transaction.handle} is fenced off, and a record names it")

    def saw_commit(self, transaction: Transaction) -> None:
        """No row is ever visible twice, and none that is not of the input."""
        transaction.state = Verdict.COMMITTED
        visible = self.visible[transaction.sink]
        for row in transaction.rows:
            visible[row] += 1
            if visible[row] > 1:
                self.violate(f"rows twice: {row} by {transaction.handle}")

    # The ledger, file by file.

    def saw_file(self, name: str, content: bytes) -> None:
        """Rule 2 and the rules on terms and places: called when a file has come to be."""
        folder, _, file = name.partition("/")
        before = self._contents.setdefault(name, content)
        if folder == "terms":
            self._saw_term(int(file[:8]))
        if folder != "records":
            if before != content:
                self.violate(f"{name} was written again with other content")
            return
        record = record_from_json(load_object(content))
        if self.records.get(record.key) == record:
            return  # a copy of its creation, which comes after it was pruned
        if before != content:
            self._saw_pruned_key(record)
        elif isinstance(record, Void):
            self.records[record.key] = record
        else:
            self._saw_record(record)

    def _saw_term(self, number: int) -> None:
        """Close, then take."""
        if number and not any(
            isinstance(record, Void) for key, record in self.records.items() if key.term < number
        ):
            self.violate(f"term {number} was taken, and the one before it has no void")

    def _saw_record(self, record: Decision | Amendment) -> None:
        for other in self.records.values():
            if other.key.place == record.key.place and not isinstance(other, Void):
                self.violate(f"two records at {record.key} and {other.key}")
            if other.key.term == record.key.term and isinstance(other, Void):
                self.violate(f"{record.key} was written although its term has a void")
            if isinstance(record, Decision) and isinstance(other, Decision):
                if other.epoch == record.epoch:
                    self.violate(f"epoch {record.epoch} was decided twice")
                if (other.key.place < record.key.place) != (other.epoch < record.epoch):
                    self.violate(f"epochs do not grow: {other.key} and {record.key}")
        if isinstance(record, Decision) and record.completed_through is not None:
            for epoch in range(record.completed_through + 1):
                if not self.is_visible(epoch):
                    self.violate(f"{record.key} calls epoch {epoch} complete, which it is not")
        if isinstance(record, Decision):
            for handle in self._untold_before(record):
                self.violate(f"{record.key} is decided before readers see {handle}")
        if isinstance(record, Amendment):
            self._saw_losses(record)
        for prepared in _prepared(record):
            handle = prepared.handle.name
            if handle in self._aborted_by_us:
                self.violate(f"{record.key} names {handle}, which we had aborted")
            if handle in self._named:
                self.violate(f"{handle} is named twice")
            self._named[handle] = record.key
        self.records[record.key] = record

    def _untold_before(self, decision: Decision) -> list[str]:
        """What is committed in earlier epochs, and readers do not see."""
        earlier = [
            self.decided(record)
            for record in self.records.values()
            if isinstance(record, Decision) and record.epoch < decision.epoch
        ]
        return [
            prepared.handle.name
            for decided in earlier
            for prepared in decided.transactions().values()
            if prepared.handle.name in self.untold
        ]

    def _saw_losses(self, amendment: Amendment) -> None:
        """Rows are given up only where the options or an operator say so, and if they are gone."""
        amended = self.records.get(amendment.amends)
        if not isinstance(amended, Decision):
            self.violate(f"{amendment.key} amends {amendment.amends}, where no decision is")
            return
        if amendment.shares and self.policy.on_timeout is OnTimeout.FAIL:
            self.violate(f"{amendment.key} writes again what onTimeout=fail has to stop at")
        transactions = self.decided(amended).transactions()
        for settlement in amendment.settlements:
            handle = transactions[settlement.partition, settlement.sink].handle.name
            transaction = self.transactions[handle]
            if settlement.outcome == "lost":
                allowed = self.policy.on_timeout is OnTimeout.IGNORE
                if not allowed and handle not in self._operator_settled:
                    self.violate(f"{handle} is given up, which nobody has allowed")
                if transaction.state is not Verdict.ABORTED:
                    self.violate(f"{handle} is given up, and is {transaction.state.value}")
                self._lost[settlement.sink].update(transaction.rows)
            elif transaction.state.value != settlement.outcome:
                self.violate(f"{handle} is settled as {settlement.outcome}, which it is not")

    def operator_settles(self, handle: str) -> None:
        self._operator_settled.add(handle)

    def _saw_pruned_key(self, record: Record) -> None:
        """Somebody slept longer than the ledger remembers: no harm if nothing of it is open."""
        if isinstance(self.records.get(record.key), Void) and not isinstance(record, Void):
            self.violate(f"{record.key} was void, and is decided now")
        for prepared in _prepared(record):
            handle = prepared.handle.name
            self._named[handle] = record.key
            if self.transactions[handle].state is Verdict.PENDING:
                self.violate(f"{record.key} was settled before, and now names open ones")

    def saw_power_cut(self, before: Iterable[str], after: dict[str, bytes]) -> None:
        """What was not flushed may be gone: then it never was, unless somebody acted on it."""
        for name in before:
            if name in after:
                continue
            self._contents.pop(name, None)
            for key in [key for key in self.records if _file_name(key) == name]:
                for prepared in _prepared(self.records.pop(key)):
                    if self.transactions[prepared.handle.name].state is not Verdict.COMMITTED:
                        self._named.pop(prepared.handle.name, None)

    # What has to hold at certain moments.

    def check_finished(self, epoch: int, who: str) -> None:
        if not self.is_visible(epoch):
            self.violate(f"{who} epoch {epoch}, and it is not all visible")

    def check_retention(self, names: Iterable[str], retained: int) -> None:
        """Called after a plan by the newest run (rule 9)."""
        kept = [name for name in names if name.startswith("records/")]
        records = [self.records.get(_key(name)) for name in kept]
        newest = self.newest()
        allowed = retained + retained // 4 + 1 + (len(newest.amendments) if newest else 0)
        lasting = [record for record in records if not isinstance(record, Void)]
        if len(lasting) > allowed:
            self.violate(f"{len(lasting)} records are kept, where {allowed} would do")
        # Two runs that close a term at once may both leave a void, for a while.
        past = max((_key(name).place for name in kept), default=0) - retained - retained // 4
        voids = Counter(
            record.key.term
            for record in records
            if isinstance(record, Void) and record.key.place < past
        )
        if voids and max(voids.values()) > 1:
            self.violate(f"more than one void in a term: {voids}")

    def check_end(self, epochs: int) -> None:
        """After quiet time: every epoch is visible once, and nothing is left open."""
        for epoch in range(epochs):
            if not self.is_visible(epoch):
                self.violate(f"epoch {epoch} is not visible")
        for transaction in self.transactions.values():
            if transaction.state is Verdict.PENDING:
                self.violate(f"left behind: {transaction.handle}")


def _prepared(record: Record) -> list[Prepared]:
    shares = () if isinstance(record, Void) else record.shares
    return [prepared for share in shares for prepared in share.prepared]


def _file_name(key: RecordKey) -> str:
    return f"records/{key.place:012d}-{key.term:08d}.json"


def _key(name: str) -> RecordKey:
    return RecordKey(int(name[8:20]), int(name[21:29]))
