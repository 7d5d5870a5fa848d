"""The votes of an epoch, counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from assent.protocol.assignment import Assignment, Torn
from assent.protocol.errors import ReplayError
from assent.protocol.fingerprint import NO_ROWS
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
        """The amendment that these votes make to a torn decision, or a ReplayError."""
        torn = self.assignment.decided.torn if self.assignment.decided else None
        assert torn is not None
        # Nothing of an epoch that is torn as a whole is visible, so any replay of it will do.
        shares = self.shares if torn.whole else self._replacements(decided, torn)
        return Amendment(
            self.assignment.key,
            author,
            decided.decision.key,
            self.epoch,
            now,
            len(self.votes),
            whole=torn.whole,
            shares=shares,
        )

    def _replacements(self, decided: DecidedEpoch, torn: Torn) -> tuple[Share, ...]:
        """The shares that take the places of what is torn, if all of the epoch is the same again.

        A share is known by its content, not by its partition: which task gets which part of the
        input is not part of Spark's promise. Its Kafka source, for one, may list the partitions
        of a topic in another order when an epoch is replayed.
        """
        found: dict[str, list[Share]] = {}
        for vote in self.votes:
            found.setdefault(vote.share.fingerprint, []).append(vote.share)
        missing, replacements = [], []
        for partition, fingerprint in sorted(decided.fingerprints().items()):
            if not found.get(fingerprint):
                missing.append(partition)
                continue
            share = found[fingerprint].pop()
            prepared = tuple(
                entry for entry in share.prepared if (partition, entry.sink) in torn.parts
            )
            if prepared:
                replacements.append(replace(share, partition=partition, prepared=prepared))
        rewritten = {
            (share.partition, entry.sink) for share in replacements for entry in share.prepared
        }
        missing = sorted({*missing, *(at for at, _ in torn.parts.keys() - rewritten)})
        found.pop(NO_ROWS, None)  # a task without rows has a share only where it replaces others
        other = sorted(share.partition for shares in found.values() for share in shares)
        if missing or other:
            committed = sorted(set(decided.transactions()) - set(torn.parts))
            raise ReplayError(
                f"epoch {self.epoch} is torn, and its replay gives other rows: none of its "
                f"{len(self.votes)} tasks has what partitions {missing} of {decided.tasks} had, "
                f"and no partition had what tasks {other} have. (partition, sink) committed: "
                f"{committed}; not committed: {sorted(torn.parts)}. Nothing was written twice. "
                "Make the query deterministic, or settle the open ones: assent settle CHECKPOINT "
                "HANDLE committed|lost"
            )
        return tuple(replacements)

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
