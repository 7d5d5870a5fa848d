"""The page about a run: docs/reliability.md, in which no figure is typed in by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from assent.testing.chaos.result import Result

_HEAD = """\
# Reliability

Written by `python -m assent.testing.chaos`; do not edit.

A pipeline from Kafka through Spark into a sink, under load, while a nemesis strikes at the steps
of the protocol and in between: it kills (SIGKILL) drivers, executors, Python workers and servers,
pauses them, starts a second driver beside a sleeping first one, cuts connections and loses answers
in a proxy, fills the disk of ledger and checkpoint, lets transactions time out. A reader watches
all the time. In the end the input is compared with the output by code that the sinks do not share.
"""

_LEGEND = """\
- *lost*: in the input, not in the output. *twice*: more than once in the output, at any time.
- *phantom*: seen, though it is not in the input; or seen, and gone later.
- *torn*: a part of an epoch was seen, where a sink promises whole epochs.
- *left*: transactions or staged data left pending, and epochs left unfinished, at the end.
- *recovery*: from a fault until a reader saw new rows again, a restart of Spark included.
"""


def render(results: Sequence[Result]) -> str:
    """The page, as Markdown."""
    faults = sum(result.faults for result in results)
    seeds = sorted({result.seed for result in results})
    verdict = "passed" if all(result.good for result in results) else "**failed**"
    lines = [
        _HEAD,
        f"Last run: {datetime.now(UTC):%Y-%m-%d}, seed {', '.join(map(str, seeds))}, "
        f"{faults:,} faults: {verdict}.",
        "",
        "| sink | faults | starts | rows | lost | twice | phantom | torn | left | "
        "recovery, median | p95 | minutes |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
        *map(_row, results),
        "",
        _LEGEND,
        "## Faults by kind and sink",
        "",
        *_table(results, lambda result: Counter(s.fault.value for _, s in result.strikes)),
        "",
        "## Faults by step and sink",
        "",
        *_table(results, lambda result: Counter(s.step for _, s in result.strikes)),
        "",
        "## Again",
        "",
        "```bash",
        f'make chaos ARGUMENTS="--sink all --faults {faults} --seed {seeds[0]}"',
        "```",
        "",
        "The seed fixes what happens at every start of a job, and at which step. How far a job "
        "gets before the next fault is up to the machine: two runs are alike, not equal.",
    ]
    return "\n".join(lines) + "\n"


def _row(result: Result) -> str:
    recovery = result.to_json()["recoverySeconds"]
    assert isinstance(recovery, dict)
    gone = sum("gone" in violation for violation in result.violations)
    cells = [
        *(result.sink, f"{result.faults:,}", f"{result.starts:,}", f"{result.rows:,}"),
        *(result.lost, result.duplicated, result.phantom + gone, result.torn),
        len(result.pending) + len(result.unfinished),
        *(f"{recovery.get('median', '-')} s", f"{recovery.get('p95', '-')} s"),
        f"{result.seconds / 60:.0f}",
    ]
    return "| " + " | ".join(map(str, cells)) + " |"


def _table(results: Sequence[Result], count: Callable[[Result], Counter[str]]) -> list[str]:
    counts = [count(result) for result in results]
    names = sorted(set().union(*counts))
    return [
        "| | " + " | ".join(result.sink for result in results) + " | all |",
        "|---" * (len(results) + 2) + "|",
        *(
            f"| {name} | "
            + " | ".join(str(found[name]) for found in counts)
            + f" | {sum(found[name] for found in counts)} |"
            for name in names
        ),
    ]
