"""The page about a run: docs/reliability.md, in which no figure is typed in by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

Found: TypeAlias = Mapping[str, Any]
"""A result of one sink, as `Result.to_json` gives it."""

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


def render(results: Sequence[Found]) -> str:
    """The page, as Markdown."""
    faults = sum(result["faults"] for result in results)
    seeds = sorted({result["seed"] for result in results})
    verdict = "passed" if all(result["ok"] for result in results) else "**failed**"
    lines = [
        _HEAD,
        f"Last run: {max(result['date'] for result in results)}, "
        f"seed {', '.join(map(str, seeds))}, {faults:,} faults: {verdict}.",
        "",
        "| sink | date | faults | starts | rows | lost | twice | phantom | torn | left | "
        "recovery, median | p95 | minutes |",
        "|---" * 13 + "|",
        *map(_row, results),
        "",
        _LEGEND,
        "## Faults by kind and sink",
        "",
        *_table(results, "byKind"),
        "",
        "## Faults by step and sink",
        "",
        *_table(results, "byStep"),
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


def _row(result: Found) -> str:
    recovery = result["recoverySeconds"]
    gone = sum("gone" in violation for violation in result["violations"])
    cells = [
        *(result["sink"], result["date"]),
        *(f"{result[name]:,}" for name in ("faults", "starts", "rows")),
        *(result["lost"], result["duplicated"], result["phantom"] + gone, result["torn"]),
        len(result["pending"]) + len(result["unfinished"]),
        *(f"{recovery.get('median', '-')} s", f"{recovery.get('p95', '-')} s"),
        f"{result['seconds'] / 60:.0f}",
    ]
    return "| " + " | ".join(map(str, cells)) + " |"


def _table(results: Sequence[Found], counted: str) -> list[str]:
    names = sorted({name for result in results for name in result[counted]})
    rows = {name: [result[counted].get(name, 0) for result in results] for name in names}
    return [
        "| | " + " | ".join(result["sink"] for result in results) + " | all |",
        "|---" * (len(results) + 2) + "|",
        *(f"| {name} | {' | '.join(map(str, row))} | {sum(row)} |" for name, row in rows.items()),
    ]
