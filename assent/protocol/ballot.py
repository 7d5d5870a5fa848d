"""The votes of an epoch, counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from assent.protocol.assignment import Assignment
from assent.protocol.errors import ReplayError
from assent.protocol.json_value import JsonValue
from assent.protocol.record import Amendment, Author, DecidedEpoch, Decision
from assent.protocol.share import Share
from assent.protocol.vote import Vote


@dataclass(frozen=True)
class Ballot:
    """All votes of one epoch: of one plan, one from each task."""

    epoch: int
    assignment: Assignment
    votes: tuple[Vote, ...]

    @classmethod
    def count(cls, votes: Sequence[Vote], epoch: int) -> Ballot:
        """Check that the votes belong together. Nothing is decided if they do not."""
        if not votes:
            raise ReplayError(f"epoch {epoch} has no votes at all; nothing was decided")
        first = votes[0].assignment
        for vote in votes:
            if vote.epoch != epoch or vote.assignment != first:
                raise ReplayError(
                    f"the votes of epoch {epoch} come from different plans (epoch {vote.epoch}, "
                    f"{vote.assignment.key}; {first.key}); nothing was decided"
                )
        partitions = [vote.share.partition for vote in votes]
        if len(set(partitions)) != len(partitions):
            raise ReplayError(f"epoch {epoch} has two votes of one partition; nothing was decided")
        decided = first.decided
        if decided is not None and epoch < decided.epoch:
            raise ReplayError(
                f"Spark ran epoch {epoch}, although epoch {decided.epoch} is decided already"
            )
        replayed = decided is not None and decided.epoch == epoch
        if not replayed and any(vote.skipped for vote in votes):
            raise ReplayError(f"tasks skipped epoch {epoch}, which no plan calls decided")
        return cls(epoch, first, tuple(votes))

    @property
    def shares(self) -> tuple[Share, ...]:
        """The shares that hold anything, by partition."""
        shares = [vote.share for vote in self.votes if vote.share.prepared]
        return tuple(sorted(shares, key=lambda share: share.partition))

    def decision(
        self,
        author: Author,
        digest: str,
        now: float,
        *,
        contexts: tuple[JsonValue, ...],
        snapshots: Mapping[str, JsonValue],
        previous: Mapping[str, JsonValue],
    ) -> Decision:
        """The decision that these votes make."""
        return Decision(
            self.assignment.key,
            author,
            self.epoch,
            digest,
            self.assignment.completed_through,
            now,
            len(self.votes),
            self.shares,
            contexts,
            snapshots,
            self._statistics(previous),
        )

    def amendment(self, author: Author, decided: DecidedEpoch, now: float) -> Amendment:
        """The amendment that these votes make to a torn decision."""
        torn = self.assignment.decided.torn if self.assignment.decided else None
        return Amendment(
            self.assignment.key,
            author,
            decided.decision.key,
            self.epoch,
            now,
            len(self.votes),
            whole=torn is not None and torn.whole,
            shares=self.shares,
        )

    def refuse_other_replay(self, decided: DecidedEpoch) -> None:
        """Raise unless these votes rewrite exactly what is torn, with the same content."""
        torn = self.assignment.decided.torn if self.assignment.decided else None
        if torn is not None and torn.whole:
            return  # nothing of the epoch is visible, so any replay of it will do
        wanted = set(torn.parts) if torn else set()
        committed = sorted(set(decided.transactions()) - wanted)
        state = (
            f"(partition, sink) committed: {committed}; not committed: {sorted(wanted)}. Nothing "
            "was written twice. Make the query deterministic, or settle the open ones: "
            "assent settle CHECKPOINT HANDLE committed|lost"
        )
        if len(self.votes) != decided.tasks:
            raise ReplayError(
                f"epoch {self.epoch} is torn, and its replay has {len(self.votes)} tasks instead "
                f"of {decided.tasks}: partitions cannot be matched. {state}"
            )
        found = {
            (share.partition, prepared.sink) for share in self.shares for prepared in share.prepared
        }
        fingerprints = decided.fingerprints()
        other = sorted(
            share.partition
            for share in self.shares
            if share.fingerprint != fingerprints[share.partition]
        )
        if found != wanted or other:
            raise ReplayError(
                f"epoch {self.epoch} is torn, and its replay gives other rows in partitions "
                f"{other or sorted(part for part, _ in found ^ wanted)}. {state}"
            )

    def _statistics(self, previous: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
        prepared = [entry for vote in self.votes for entry in vote.share.prepared]
        steps = sorted({step for vote in self.votes for step in vote.seconds})
        slowest = {step: max(vote.seconds.get(step, 0.0) for vote in self.votes) for step in steps}
        return {
            "rows": sum(entry.rows for entry in prepared),
            "bytes": sum(entry.bytes for entry in prepared),
            "transactions": len(prepared),
            "tasks": len(self.votes),
            "seconds": {"recover": self.assignment.recover_seconds, **slowest},
            "previous": dict(previous),
        }
