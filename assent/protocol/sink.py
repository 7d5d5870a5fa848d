"""The contract between the protocol and a store: what users subclass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from assent.protocol.guarantee import Guarantee
from assent.protocol.handle import Handle
from assent.protocol.json_value import JsonValue
from assent.protocol.name import TransactionName
from assent.protocol.pending import Pending
from assent.protocol.verdict import Verdict

if TYPE_CHECKING:
    import pyarrow as pa

Transaction = TypeVar("Transaction")


class Sink(ABC, Generic[Transaction]):
    """A store that takes part in the two-phase commit.

    A sink object is made on the driver, pickled into the tasks, and made again in the process
    that commits: it holds settings, never connections. Whatever a method needs, it opens.

    =================  ==============  =====================================================
    method             runs in         promise
    =================  ==============  =====================================================
    check              driver          raises ConfigurationError for what cannot work
    begin              task            opens a transaction under a name nobody else has
    write              task            takes in one Arrow batch and keeps memory bounded
    pre_commit         task            everything is durable, invisible, and can be committed
                                       or aborted by the handle, by anyone, from anywhere
    discard            task            gives up an open transaction, as well as it can
    commit             driver          returns only if the transaction is committed; may be
                                       called again, by several processes at once
    publish            driver          the last act of an epoch: all its handles are committed
    confirm            driver          readers know how these transactions ended; idempotent
    abort              driver          the transaction will never be committed; idempotent
    recover_and_*      driver          the same after a restart, with the saved user context
    verdict            any             what became of the handle; never guesses
    pending            driver          every transaction of an identity that is still open
    =================  ==============  =====================================================

    Any exception out of `commit` makes the coordinator ask for the `verdict`; so `commit` need
    not tell one failure from another. An exception out of `verdict` means "could not ask now".
    """

    kind: ClassVar[str]
    """Short name of the store, as in the format `assent-<kind>`."""

    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    """Set by the front-end before anything else is called."""

    overwrite: bool = False
    """True in Spark's complete mode, where an epoch replaces all earlier ones. Set likewise."""

    transaction_timeout: float | None = None
    """Seconds after which the store gives an open transaction up by itself; None for never."""

    @property
    @abstractmethod
    def target(self) -> str:
        """Where rows go: the same text after every restart, and no secrets in it.

        The ledger records it; a query whose target has changed is refused.
        """

    @property
    def distribution(self) -> Sequence[str]:
        """Columns by which rows must be given to tasks: those that agree in them, to one task.

        Asked for after `check`. Only a front-end that sees the whole frame can do so.
        """
        return ()

    @property
    def replaces(self) -> bool:
        """Whether an epoch replaces all earlier ones, so that one without rows is written too."""
        return False

    def check(self, schema: pa.Schema, overwrite: bool = False) -> None:
        """Raise ConfigurationError, before any row is written, for what this sink cannot do.

        `overwrite` is true in Spark's complete mode, where an epoch replaces all earlier ones.
        """

    # In the tasks.

    @abstractmethod
    def begin(self, name: TransactionName, epoch: int) -> Transaction:
        """Open a transaction. Called only once there is a row to write."""

    @abstractmethod
    def write(self, transaction: Transaction, batch: pa.RecordBatch) -> None:
        """Write the rows of one batch into the transaction."""

    @abstractmethod
    def pre_commit(self, transaction: Transaction) -> Handle:
        """Make everything written durable, leave the transaction open, and name it."""

    def discard(self, transaction: Transaction) -> None:
        """Give up a transaction that was not pre-committed. What stays behind is swept later."""

    # On the driver, or wherever an operator is.

    @abstractmethod
    def commit(self, handle: Handle) -> None:
        """Commit. Returning means: it is committed, now or already before."""

    @abstractmethod
    def abort(self, handle: Handle) -> None:
        """Abort. Returning means: it is not open any more. Never called for a decided handle."""

    def recover_and_commit(self, handle: Handle, context: JsonValue) -> None:
        """Commit after a restart. `context` is what `user_context` gave when it was decided."""
        self.commit(handle)

    def recover_and_abort(self, handle: Handle, context: JsonValue) -> None:
        """Abort a dead transaction of an earlier run. `context` is that of the newest decision."""
        self.abort(handle)

    def publish(self, epoch: int, handles: Sequence[Handle]) -> None:
        """Called when every handle of the epoch is committed; idempotent.

        For stores that can show a whole epoch by one act, such as the renaming of a folder.
        """

    def confirm(self, handles: Sequence[Handle], end: Verdict) -> None:
        """Make sure that readers know of the end of transactions, COMMITTED or ABORTED; idempotent.

        For stores that make an end durable first and show it later. Called when nobody waits; no
        other epoch is decided before it has succeeded for the one before.
        """

    @abstractmethod
    def verdict(self, handle: Handle) -> Verdict:
        """Ask the store what became of the handle."""

    @abstractmethod
    def pending(self, identity: str) -> Iterable[Pending]:
        """The transactions of this identity that are neither committed nor aborted."""

    def user_context(self, epoch: int) -> JsonValue:
        """A JSON value to be saved with the epoch's decision and handed back on recovery."""
        return None
