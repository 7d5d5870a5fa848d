"""What an operator does to a ledger by hand: settle a transaction, adopt a copy."""

from __future__ import annotations

from collections.abc import Sequence

from assent.ledger.identity import Identity, Owner
from assent.ledger.ledger import Ledger
from assent.ledger.store import AlreadyExistsError
from assent.protocol.checkpoint import Checkpoint
from assent.protocol.errors import ConfigurationError, FencedError
from assent.protocol.handle import Handle
from assent.protocol.name import nonce
from assent.protocol.record import Amendment, Author, DecidedEpoch, RecordKey, Settlement


def unfinished(ledger: Ledger, checkpoint: Checkpoint) -> list[DecidedEpoch]:
    """The decided epochs that are not known to be complete, oldest first."""
    term = ledger.newest_term()
    if term is None:
        return []
    tail = ledger.tail(term)
    through = -1 if tail.completed_through is None else tail.completed_through
    return [
        decided
        for decided in tail.decided
        if decided.epoch > through and not checkpoint.is_committed(decided.epoch)
    ]


def settle(
    ledger: Ledger, checkpoint: Checkpoint, handle: Handle, outcome: str, reason: str
) -> DecidedEpoch:
    """Record what became of a decided transaction that the store cannot tell about any more.

    Takes a term, so a driver that still runs the query stops at its next step. Returns the
    epoch with the new amendment.
    """
    waiting = unfinished(ledger, checkpoint)
    found = [
        (decided, part)
        for decided in waiting
        for part, prepared in decided.transactions().items()
        if prepared.handle == handle
    ]
    if not found:
        raise ConfigurationError(
            f"{handle} is in no unfinished epoch of the ledger at {ledger.location}; unfinished: "
            + (", ".join(str(decided.epoch) for decided in waiting) or "none")
        )
    tail = ledger.take(nonce())
    term = tail.term
    [(decided, (partition, sink))] = found
    amendment = Amendment(
        RecordKey(tail.next_place, term.number),
        Author(term.author.run, nonce()),
        decided.decision.key,
        decided.epoch,
        term.taken_at,
        decided.tasks,
        settlements=(Settlement(partition, sink, outcome, reason),),
    )
    if ledger.write(amendment).author != amendment.author:
        raise FencedError("a driver took the ledger over in the meantime; stop it and try again")
    return decided.with_amendment(amendment)


def adopt(ledger: Ledger, checkpoint: Checkpoint, sinks: Sequence[str] = ()) -> Identity:
    """Give the ledger of a copied or moved checkpoint, or of changed sinks, a new identity.

    Refused while anything is pending in it: those transactions bear the old name, and the
    original may still finish them. Takes a term, so a driver that still runs the query stops.
    """
    old = ledger.find()
    if old is None:
        raise ConfigurationError(f"there is no ledger at {ledger.location}: nothing to adopt")
    pending = unfinished(ledger, checkpoint)
    if pending:
        raise ConfigurationError(
            f"epoch {pending[0].epoch} in the ledger at {ledger.location} is not finished; run the "
            f"query once more where it was ({old.owner.location}), then copy the checkpoint again"
        )
    term = ledger.take(nonce()).term
    owner = Owner(ledger.location, checkpoint.query(), tuple(sinks) or old.owner.sinks)
    identity = Identity(nonce(), owner, term.taken_at, old.generation + 1)
    try:
        ledger.create_identity(identity)
    except AlreadyExistsError:
        raise FencedError("somebody else adopted the ledger in the meantime") from None
    return identity
