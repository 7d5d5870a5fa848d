"""Whose the keys under a prefix are, kept in Redis itself."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from assent.protocol.errors import AssentError, ConfigurationError, FencedError
from assent.protocol.verdict import Verdict
from assent.sinks.ownership import described
from assent.sinks.redis_nodes import RedisNodes, ScriptCall
from assent.sinks.redis_script import CLAIM, VOTE

logger = logging.getLogger("assent")

FORMAT = "1"


@dataclass(frozen=True)
class Claim:
    """That an identity owns the prefix. `base` grows with every takeover, and never shrinks."""

    identity: str
    base: int
    epoch: int


class RedisOwner:
    """The hash `assent:owner:<prefix>`.

    It holds the owner's identity, a base, the newest epoch and run that have begun, and the
    votes of that epoch. So a newer owner's rows have a higher version than any older one's, and
    a task that begins late is refused before it writes.
    """

    def __init__(self, nodes: RedisNodes, prefix: str) -> None:
        self._nodes = nodes
        self._prefix = prefix
        self.key = b"assent:owner:" + prefix.encode()

    def claim(self, identity: str, epoch: int, term: int, take_over: str | None) -> Claim:
        """Begin an epoch as the owner, or raise, before any row is written."""
        arguments = (FORMAT, identity, str(epoch), str(term), take_over or "")
        call = ScriptCall(CLAIM, [self.key], [text.encode() for text in arguments])
        outcome, *rest = [part.decode() for part in self._nodes.run(call)]
        if outcome in ("new", "taken", "held"):
            if outcome == "taken":
                logger.warning("took over %s* from %s", self._prefix, take_over)
            return Claim(identity, int(rest[0]), epoch)
        if outcome == "format":
            raise AssentError(
                f"the owner of {self._prefix}* is noted in format {rest[0]}, and this release "
                f"reads {FORMAT}: use the release that wrote it, or a newer one"
            )
        owner, base, newest, run = rest
        if outcome == "late":
            raise FencedError(
                f"epoch {newest} (run {run}) of this query has begun to write {self._prefix}*, and "
                f"this task is of epoch {epoch} (run {term}): it comes late, and has written "
                "nothing. If no newer run of the query is there, an older checkpoint was restored: "
                f"what was written since stays, and option takeOver={owner}-{base} goes on over it"
            )
        raise ConfigurationError(
            f"the keys {self._prefix}* at {self._nodes} belong to {described(owner)}, which wrote "
            f"them up to epoch {newest}; nothing was written. Choose another keyPrefix; or, if "
            "this query shall go on in its place (rows of equal keys are overwritten, the others "
            f"stay), stop the other one and set option takeOver to {owner}-{base}"
        )

    def vote(self, claim: Claim, name: str) -> None:
        """Note that a task has written all its rows; FencedError if it was overtaken."""
        arguments = (claim.identity, str(claim.base), str(claim.epoch), name)
        call = ScriptCall(VOTE, [self.key], [text.encode() for text in arguments])
        if self._nodes.run(call) != 1:
            raise FencedError(
                f"another run or query has gone on with {self._prefix}* while a task of epoch "
                f"{claim.epoch} was writing; what the task wrote last changed nothing. Make sure "
                "that only one driver runs the query"
            )

    def withdraw(self, name: str) -> None:
        """Forget the vote. What the task wrote stays until the epoch's next attempt."""
        self._nodes.ask_about(self.key, "HDEL", self.key, f"vote:{name}")

    def verdict(self, claim: Claim, name: str) -> Verdict:
        """COMMITTED while the vote is there: the rows were, when it was noted.

        A newer epoch of the owner begins only when every older one is complete. A vote that is
        missing from the newest epoch was lost with a crash of the server, and with it, maybe,
        rows: that is ABORTED, so they are written again.
        """
        fields = ("owner", "base", "epoch", f"vote:{name}")
        found = self._nodes.ask_about(self.key, "HMGET", self.key, *fields)
        owner, base, newest, vote = (None if part is None else part.decode() for part in found)
        if owner != claim.identity or base != str(claim.base) or newest is None:
            return Verdict.UNKNOWN  # another's by now, or emptied
        if vote is not None or int(newest) > claim.epoch:
            return Verdict.COMMITTED
        return Verdict.ABORTED

    def is_claimed(self) -> bool:
        """Whether anybody owns the prefix."""
        return bool(self._nodes.ask_about(self.key, "EXISTS", self.key))
