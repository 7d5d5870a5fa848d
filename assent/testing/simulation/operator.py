"""The operator: looks into the store, and says what became of what the store cannot tell."""

from __future__ import annotations

from assent.ledger.settlement import settle, unfinished
from assent.protocol.errors import AssentError
from assent.protocol.policy import OnTimeout
from assent.protocol.verdict import Verdict
from assent.testing.simulation.scheduler import Injected
from assent.testing.simulation.world import World


def settle_what_stands_still(world: World) -> bool:
    """Settle, by the truth, one transaction that keeps the query from going on; false if none."""
    ledger, witness = world.ledger(), world.witness
    forgotten = {handle.name for handle in world.forgotten()}
    try:
        for decided in unfinished(ledger, world.checkpoint):
            settled = decided.settlements()
            for part, prepared in decided.transactions().items():
                state = witness.transactions[prepared.handle.name].state
                outcome = state.value
                if state is Verdict.ABORTED and world.policy.on_timeout is OnTimeout.FAIL:
                    outcome = "lost"
                elif prepared.handle.name not in forgotten:
                    continue
                known = settled[part].outcome if part in settled else None
                if state is Verdict.PENDING or known in (outcome, "lost"):
                    continue
                witness.operator_settles(prepared.handle.name)
                settle(ledger, world.checkpoint, prepared.handle, outcome, "looked into the store")
                return True
    except (AssentError, Injected) as error:
        world.scheduler.note(f"the operator stops: {error}")
    return False
