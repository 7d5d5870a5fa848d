"""Kafka's control plane: settles transactions by their handle, from any process.

The data of a transaction is written by librdkafka, which can end only its own transactions. The
requests here name a transaction by (transactional id, producer id, epoch), so they work after
the process that wrote it has died.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

import kafka.errors
from kafka.protocol.admin.transactions import DescribeTransactionsRequest, ListTransactionsRequest
from kafka.protocol.producer.transaction import EndTxnRequest

from assent.protocol.errors import AssentError, FencedError, InDoubtError, TornEpochError
from assent.protocol.verdict import Verdict
from assent.sinks.kafka_brokers import Brokers
from assent.sinks.kafka_client import ProducerIdentity, TokenFunction
from assent.sinks.kafka_connection import Address, Connection
from assent.sinks.kafka_coordinators import Coordinators, Patience, code_name
from assent.sinks.kafka_markers import Ended, Markers
from assent.sinks.kafka_verdict import (
    BUMPING_TRANSACTIONS,
    Answer,
    Described,
    State,
    verdict,
)

_LAST_VERSION_WITHOUT_BUMP = 4
_NOT_FOUND: int = kafka.errors.TransactionalIdNotFoundError.errno


class KafkaControl:
    """Commits, aborts and describes transactions. Safe to use from many threads.

    `settings` are librdkafka's, without the prefix `kafka.`; `token` is for OAUTHBEARER. Nothing
    is connected before the first call. `timeout` bounds each call, in seconds.
    """

    def __init__(
        self,
        settings: Mapping[str, str],
        token: TokenFunction | None = None,
        timeout: float = 30.0,
    ) -> None:
        self.brokers = Brokers(settings, token)
        self._coordinators = Coordinators(self.brokers)
        self._markers = Markers(self.brokers, self._describe)
        self._timeout = timeout

    def __repr__(self) -> str:
        return f"KafkaControl({self.brokers!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Calls under way finish."""
        self.brokers.close()

    def commit(self, transactional_id: str, producer_id: int, producer_epoch: int) -> None:
        """Commit. Returning means: it is committed, now or already before.

        TornEpochError: it was aborted. InDoubtError: nobody can tell. RetriableError: it is
        still open, or could not be asked for. ConfigurationError: this client may not.
        """
        producer = ProducerIdentity(producer_id, producer_epoch)
        end, said = self._end(transactional_id, producer, Verdict.COMMITTED)
        if end is not Verdict.COMMITTED:
            raise _not_committed(transactional_id, producer, end, said)

    def abort(self, transactional_id: str, producer_id: int, producer_epoch: int) -> None:
        """Abort. Returning means: it is not open any more, and can never be committed.

        FencedError: it was committed already. RetriableError and ConfigurationError as above.
        """
        producer = ProducerIdentity(producer_id, producer_epoch)
        # Asked first: from version 5 on, a broker lets a handle whose commit left the epoch as it
        # was be "aborted" after that commit, and from then on describes it as aborted.
        end = self.verdict(transactional_id, producer_id, producer_epoch)
        if end is Verdict.PENDING:
            end, _ = self._end(transactional_id, producer, Verdict.ABORTED)
        if end is Verdict.COMMITTED:
            raise FencedError(
                f"{_named(transactional_id, producer)} was to be aborted, but is committed: "
                "somebody else has decided on it"
            )

    def confirm(self, ended: Sequence[Ended]) -> None:
        """Make sure that ended transactions have ended for readers too: see `Markers`."""
        self._markers.confirm(ended, Patience(self._timeout))

    def verdict(self, transactional_id: str, producer_id: int, producer_epoch: int) -> Verdict:
        """What became of the transaction, by the table in docs/kafka-verdicts.md.

        RetriableError if the broker cannot be asked in time.
        """
        producer = ProducerIdentity(producer_id, producer_epoch)
        return self._verdict(transactional_id, producer, Patience(self._timeout))

    def describe(self, transactional_id: str) -> Described | None:
        """The id as its coordinator has it; None if it does not know the id."""
        return self._describe(transactional_id, Patience(self._timeout))[0]

    def transactions(
        self, prefix: str, states: Collection[State] = frozenset({State.ONGOING})
    ) -> list[Described]:
        """The transactions whose id begins so, in one of those states, of all brokers.

        Brokers leave out, without a word, what this user may not describe.
        """
        patience = Patience(self._timeout)
        found: dict[str, Described] = {}

        def attempt() -> str | None:
            # Asked for anew each time: what a lost broker led has passed to the others.
            addresses = self.brokers.all(patience.deadline).values()
            with ThreadPoolExecutor(len(addresses) or 1, "assent-list") as threads:
                parts = list(
                    threads.map(
                        lambda address: self._transactions_of(address, prefix, states, patience),
                        addresses,
                    )
                )
            for part in parts:
                if isinstance(part, str):
                    return part
                found.update((entry.transactional_id, entry) for entry in part)
            return None

        patience.until_done(attempt, f"the transactions {prefix}* could not be listed")
        return [found[name] for name in sorted(found)]

    def _end(
        self, transactional_id: str, producer: ProducerIdentity, wanted: Verdict
    ) -> tuple[Verdict, str]:
        """How the transaction ended, now or before, and what the broker answered."""
        patience = Patience(self._timeout)
        named = _named(transactional_id, producer)
        result: list[tuple[Verdict, str]] = []

        def make(connection: Connection) -> Any:
            # The version that raises the epoch where the cluster has agreed on it: it makes sure
            # that a request which was held up can never hit a later transaction of the id.
            highest = None if _bumps(connection) else _LAST_VERSION_WITHOUT_BUMP
            return EndTxnRequest(
                version=connection.version(EndTxnRequest, highest),
                transactional_id=transactional_id,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                committed=wanted is Verdict.COMMITTED,
            )

        def attempt() -> str | None:
            answer = self._coordinators.ask(transactional_id, make, patience)
            said = code_name(answer.error_code)
            meaning = self._coordinators.meaning(answer.error_code, transactional_id)
            end = wanted
            if meaning is Answer.ASK:
                end = self._verdict(transactional_id, producer, patience)
            elif meaning is not Answer.DONE:
                return said
            if end is Verdict.PENDING:
                return said
            result.append((end, said))
            return None

        patience.until_done(attempt, f"{named} could not be ended")
        return result[0]

    def _verdict(
        self, transactional_id: str, producer: ProducerIdentity, patience: Patience
    ) -> Verdict:
        described, version = self._describe(transactional_id, patience)
        return verdict(producer, described, version)

    def _describe(self, transactional_id: str, patience: Patience) -> tuple[Described | None, int]:
        """The description, and the cluster's `transaction.version`."""
        result: list[tuple[Described | None, int]] = []
        version = 0

        def make(connection: Connection) -> Any:
            nonlocal version
            version = connection.features.get("transaction.version", 0)
            return _describe_request(connection, [transactional_id])

        def attempt() -> str | None:
            answer = self._coordinators.ask(transactional_id, make, patience)
            (state,) = answer.transaction_states
            if state.error_code == _NOT_FOUND:
                result.append((None, version))
                return None
            if self._coordinators.meaning(state.error_code, transactional_id) is Answer.DONE:
                result.append((_described(state), version))
                return None
            return code_name(state.error_code)

        patience.until_done(attempt, f"{transactional_id!r} could not be described")
        return result[0]

    def _transactions_of(
        self, address: Address, prefix: str, states: Collection[State], patience: Patience
    ) -> list[Described] | str:
        """The transactions that one broker coordinates; or why it does not tell now."""

        def make(connection: Connection) -> Any:
            version = connection.version(ListTransactionsRequest)
            # Older brokers know no pattern: they list all, and the filter below does the work.
            pattern = {"transactional_id_pattern": _pattern(prefix)} if version >= 2 else {}
            return ListTransactionsRequest(
                version=version,
                state_filters=[state.value for state in states],
                producer_id_filters=[],
                **pattern,
            )

        answer = self.brokers.ask(address, make, patience.deadline)
        if self._coordinators.meaning(answer.error_code) is not Answer.DONE:
            return code_name(answer.error_code)
        listed = (entry.transactional_id for entry in answer.transaction_states)
        names = [name for name in listed if name.startswith(prefix)]
        if not names:
            return []
        answer = self.brokers.ask(
            address, lambda connection: _describe_request(connection, names), patience.deadline
        )
        # One that has moved or ended meanwhile is left out: who lists again will find it.
        entries = [_described(state) for state in answer.transaction_states if not state.error_code]
        return [entry for entry in entries if entry.state in states]


def _bumps(connection: Connection) -> bool:
    return connection.features.get("transaction.version", 0) >= BUMPING_TRANSACTIONS


def _describe_request(connection: Connection, names: list[str]) -> Any:
    version = connection.version(DescribeTransactionsRequest)
    return DescribeTransactionsRequest(version=version, transactional_ids=names)


def _described(state: Any) -> Described:
    started = state.transaction_start_time_ms
    return Described(
        state.transactional_id,
        State(state.transaction_state),
        ProducerIdentity(state.producer_id, state.producer_epoch),
        started / 1000 if started >= 0 else None,
        state.transaction_timeout_ms / 1000,
        {topic.topic: tuple(sorted(topic.partitions)) for topic in state.topics},
    )


def _pattern(prefix: str) -> str:
    # RE2's way to quote: a backslash before whatever is not a word character.
    return re.sub(r"([^0-9A-Za-z_])", r"\\\1", prefix) + ".*"


def _named(transactional_id: str, producer: ProducerIdentity) -> str:
    return (
        f"transaction {transactional_id!r} (producer id {producer.producer_id}, "
        f"epoch {producer.epoch})"
    )


def _not_committed(
    transactional_id: str, producer: ProducerIdentity, end: Verdict, said: str
) -> AssentError:
    named = _named(transactional_id, producer)
    if end is Verdict.ABORTED:
        return TornEpochError(f"{named} was aborted, and cannot be committed any more ({said})")
    return InDoubtError(
        f"the broker can no longer tell whether {named} was committed ({said}); look for its rows "
        "in the topic"
    )
