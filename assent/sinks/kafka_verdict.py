"""What the answers of a Kafka broker about a transaction prove. Pure; docs/kafka-verdicts.md.

A handle is (transactional id, producer id, epoch). Its epoch was given out by initialising the id
for that one transaction (rule 4 of the protocol), and while a decision names it, nobody of ours
initialises the id again (rule 5). What a broker does to the epoch:

- Transactions of the first version: ending a transaction leaves it. A transaction that is given
  up (timeout, or the id initialised anew) has it raised by one before it is aborted.
- Of the second version (cluster feature `transaction.version` 2, EndTxn from version 5 on):
  ending a transaction raises it too, by one, together with the new state.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from assent.protocol.verdict import Verdict
from assent.sinks.kafka_client import ProducerIdentity
from assent.sinks.kafka_partitions import Partitions

BUMPING_TRANSACTIONS = 2
"""From this `transaction.version` on, ending a transaction raises the epoch."""
LAST_EPOCH = 32766
"""The highest epoch that is given out. After it comes another producer id, with epoch 0."""


class Answer(Enum):
    """What an error code of EndTxn, FindCoordinator or DescribeTransactions calls for."""

    DONE = "done"
    """As asked, and durable."""
    RETRY = "retry"
    """Not now; the same broker may do it in a moment."""
    MOVED = "moved"
    """Another broker is responsible: look it up again."""
    ASK = "ask"
    """The code alone proves nothing: describe the transaction."""
    REFUSED = "refused"
    """It will never do it for this client as it is set up."""


ANSWERS = {
    0: Answer.DONE,
    7: Answer.RETRY,  # REQUEST_TIMED_OUT
    13: Answer.RETRY,  # NETWORK_EXCEPTION
    14: Answer.RETRY,  # COORDINATOR_LOAD_IN_PROGRESS
    15: Answer.MOVED,  # COORDINATOR_NOT_AVAILABLE
    16: Answer.MOVED,  # NOT_COORDINATOR
    29: Answer.REFUSED,  # TOPIC_AUTHORIZATION_FAILED
    30: Answer.REFUSED,  # GROUP_AUTHORIZATION_FAILED
    31: Answer.REFUSED,  # CLUSTER_AUTHORIZATION_FAILED
    35: Answer.REFUSED,  # UNSUPPORTED_VERSION
    42: Answer.REFUSED,  # INVALID_REQUEST
    47: Answer.ASK,  # INVALID_PRODUCER_EPOCH
    48: Answer.ASK,  # INVALID_TXN_STATE
    49: Answer.ASK,  # INVALID_PRODUCER_ID_MAPPING
    51: Answer.ASK,  # CONCURRENT_TRANSACTIONS
    53: Answer.REFUSED,  # TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    58: Answer.REFUSED,  # SASL_AUTHENTICATION_FAILED
    89: Answer.RETRY,  # THROTTLING_QUOTA_EXCEEDED
    90: Answer.ASK,  # PRODUCER_FENCED
    105: Answer.ASK,  # TRANSACTIONAL_ID_NOT_FOUND
    120: Answer.ASK,  # TRANSACTION_ABORTABLE
}


def classify(error_code: int) -> Answer:
    """What to do about a code. One that is not in the table proves nothing."""
    return ANSWERS.get(error_code, Answer.ASK)


class State(Enum):
    """The states of a transactional id, as brokers spell them."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"
    OTHER = ""
    """One that this release does not know."""

    @classmethod
    def _missing_(cls, value: object) -> State:
        return cls.OTHER


_COMMITTED = frozenset({State.PREPARE_COMMIT, State.COMPLETE_COMMIT})
_ABORTED = frozenset({State.PREPARE_ABORT, State.COMPLETE_ABORT})


@dataclass(frozen=True)
class Described:
    """A transactional id as its coordinator describes it."""

    transactional_id: str
    state: State
    producer: ProducerIdentity
    started_at: float | None = None
    timeout: float | None = None
    partitions: Partitions = field(default_factory=dict)
    """What it has written to, as long as it is open."""


def verdict(handle: ProducerIdentity, described: Described | None, version: int) -> Verdict:
    """What became of the handle; UNKNOWN wherever the description leaves a doubt.

    `version` is the cluster's `transaction.version`; `described` is None if there is no such id.
    """
    if described is None:
        return Verdict.UNKNOWN
    if described.producer == handle:
        # The durable PrepareCommit is the broker's own point of no return.
        if described.state in _COMMITTED:
            return Verdict.COMMITTED
        if described.state in _ABORTED:
            return Verdict.ABORTED
        # Empty at this epoch: the broker knows of nothing that was written. It should.
        return Verdict.PENDING if described.state is State.ONGOING else Verdict.UNKNOWN
    if not _follows(described.producer, handle, version):
        return Verdict.UNKNOWN
    if described.state in _ABORTED:
        return Verdict.ABORTED
    if described.state in _COMMITTED and version >= BUMPING_TRANSACTIONS:
        return Verdict.COMMITTED
    return Verdict.UNKNOWN


def _follows(found: ProducerIdentity, handle: ProducerIdentity, version: int) -> bool:
    """Whether the end of the handle's transaction, and nothing else, leads to what was found."""
    if found.producer_id == handle.producer_id:
        return found.epoch == handle.epoch + 1
    # Ending the transaction of the last epoch turns to another producer id, in one step.
    return version >= BUMPING_TRANSACTIONS and handle.epoch == LAST_EPOCH and found.epoch == 0
