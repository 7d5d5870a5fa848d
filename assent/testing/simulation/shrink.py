"""Makes a failing history short: fewer and smaller choices that still fail in the same way."""

from __future__ import annotations

import re
from collections.abc import Sequence

from assent.testing.simulation.history import Outcome, run_history

MOST_RUNS = 1500


def kind_of(violation: str) -> str:
    """What a violation is about, whatever its names and numbers."""
    return re.sub(r"[0-9a-f]{12,}|\d+", "#", violation.splitlines()[0])[:60]


def shrink(failed: Outcome, runs: int = MOST_RUNS) -> Outcome:
    """The shortest history found within so many runs, with its trace."""
    wanted = kind_of(failed.violations[0])
    best = list(failed.choices)
    left = runs

    def still_fails(choices: Sequence[int]) -> bool:
        nonlocal left, best
        left -= 1
        outcome = run_history(given=choices)
        if not any(kind_of(violation) == wanted for violation in outcome.violations):
            return False
        best = _without_zeros(list(choices)[: len(outcome.choices)])
        return True

    still_fails(_without_zeros(best))
    width = max(len(best) // 2, 1)
    while left > 0:
        before = list(best)
        position = 0
        while position < len(best) and left > 0:
            end = position + width
            zeros = [0] * len(best[position:end])
            if still_fails([*best[:position], *best[end:]]):
                continue
            if not any(best[position:end]) or not still_fails(
                [*best[:position], *zeros, *best[end:]]
            ):
                position += width
        if width == 1:
            for position in range(len(best)):
                while position < len(best) and best[position] > 1 and left > 0:
                    lower = [*best[:position], best[position] // 2, *best[position + 1 :]]
                    if not still_fails(lower):
                        break
            if best == before:
                break
        width = max(width // 2, 1)
    return run_history(given=best, traced=True)


def _without_zeros(choices: list[int]) -> list[int]:
    """Choices past the end are zeros anyway."""
    while choices and not choices[-1]:
        choices = choices[:-1]
    return choices
