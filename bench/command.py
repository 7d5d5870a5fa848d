"""The command line that all benchmarks have in common."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.machine import commit, machine
from bench.result import Measure, Result


@dataclass(frozen=True)
class Size:
    """An option that says how much is measured: in full, and in a reduced run."""

    name: str
    full: Any
    quick: Any
    help: str


Measurement = Callable[[argparse.Namespace], Result]


def run(document: str | None, sizes: Sequence[Size], measure: Measurement) -> None:
    """Read the options, measure, print a table; the JSON goes to a file if one is named."""
    parser = argparse.ArgumentParser(
        description=document, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="reduced: shows that it works, only")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result as JSON")
    for size in sizes:
        several = isinstance(size.full, tuple)
        parser.add_argument(
            f"--{size.name.replace('_', '-')}",
            type=type(size.full[0]) if several else type(size.full),
            nargs="+" if several else None,
            help=f"{size.help} ({_text(size.full)}; quick: {_text(size.quick)})",
        )
    options = parser.parse_args()
    for size in sizes:
        if getattr(options, size.name) is None:
            setattr(options, size.name, size.quick if options.quick else size.full)
    load, started = os.getloadavg()[0], time.monotonic()
    found = measure(options)
    result = replace(
        found,
        sizes={size.name: getattr(options, size.name) for size in sizes},
        seconds=time.monotonic() - started,
        load=load,
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        machine=machine(),
        commit=commit(),
    )
    if options.json is not None:
        options.json.write_text(json.dumps(result.to_json()))
    for line in table(result):
        print(line)


def table(result: Result) -> Iterator[str]:
    """The result for a terminal."""
    yield f"{result.bench}: {result.title} ({result.seconds:.0f} s, load {result.load:.1f})"
    width = max((len(_label(measure)) for measure in result.measures), default=0)
    for measure in result.measures:
        yield (
            f"  {_label(measure):{width}}  {number(measure.median):>12} {measure.unit:7}"
            f" {number(measure.lower)} to {number(measure.upper)}"
            f"  p99 {number(measure.p99)}  n {measure.n}"
        )
    for outcome in result.outcomes:
        target = outcome.target
        yield (
            f"  {target.what}{', ' + outcome.detail if outcome.detail else ''}: "
            f"{outcome.value:.3g} {target.unit} ({target.wording(target.bound)}, "
            f"aim {target.wording(target.aim)}): {outcome.verdict}"
        )
    for note in result.notes:
        yield f"  NOTE {note}"


def say(text: str) -> None:
    """Progress, for who waits."""
    print(text, file=sys.stderr, flush=True)


def number(value: float) -> str:
    """With as many digits as mean something."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 1 else f"{value:.2f}"


def _label(measure: Measure) -> str:
    return f"{measure.group}: {measure.name}"


def _text(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
