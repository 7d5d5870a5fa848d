"""The demo: one job, killed at the worst instants, once at-least-once and once exactly-once."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

from assent.protocol.guarantee import Guarantee
from assent.testing.boundaries import DEFAULT_BOUNDARIES, format_boundaries
from assent.testing.crash import CrashPoint
from assent.testing.process import DriverProcess
from assent.testing.reader import Count, expected_rows
from assent.testing.stage import Stage, open_stage

EXPECTED = sum(DEFAULT_BOUNDARIES[-1])
TIMEOUT = 180.0

KILLS = {
    Guarantee.AT_LEAST_ONCE: {
        "after-pre-commit@3/1": "after pre-commit",
        "after-commit@3/1": "three rows past the boundary are written",
    },
    Guarantee.EXACTLY_ONCE: {
        "after-pre-commit@1/0": "after pre-commit",
        "after-decide@2": "after the decision",
        "during-commit@2": "between two commits, while recovering",
        "after-commit@3": "three rows past the boundary are committed",
    },
}


@dataclass
class Trial:
    """One job on its way: which guarantee, what was done to it, and what came of it."""

    guarantee: Guarantee
    kills: list[str] = field(default_factory=list)
    state: str = "waiting"
    result: Count | None = None
    seconds: float = 0.0


def run(sink: str = "files", *, as_json: bool, keep: bool) -> int:
    """Run both trials and print what they did; 1 if the exactly-once count is off."""
    console = Console(stderr=as_json)
    console.print(
        f"Page views from a topic of two partitions, up to offsets "
        f"{DEFAULT_BOUNDARIES[-1][0]:,} and {DEFAULT_BOUNDARIES[-1][1]:,}: "
        f"{EXPECTED:,} rows. Each job is killed (SIGKILL, the whole driver) and started again."
    )
    trials = [Trial(Guarantee.AT_LEAST_ONCE), Trial(Guarantee.EXACTLY_ONCE)]
    with (
        _folder(console, keep) as folder,
        _open(sink, folder, console) as stage,
        Live(console=console, get_renderable=lambda: _table(trials)),
        ThreadPoolExecutor(len(trials)) as pool,
    ):
        # Side by side: starting Spark again and again is what takes the time.
        for trial in pool.map(
            lambda trial: _try(trial, folder / trial.guarantee.value, stage), trials
        ):
            trial.state = f"done in {trial.seconds:.0f} s"
    good = trials[1].result is not None and trials[1].result.exact
    if good:
        console.print("Exactly once: nothing lost, nothing twice.")
    else:
        console.print("[bold red]The exactly-once count is off. Please report this.[/]")
    if as_json:
        print(json.dumps({"sink": sink, **_as_json(trials, good)}))
    return 0 if good else 1


@contextmanager
def _open(sink: str, folder: Path, console: Console) -> Iterator[Stage]:
    if sink != "files":
        console.print(f"Starting a server for {sink}; the first time, it is fetched.")
    with open_stage(sink, folder) as stage:
        yield stage


def _try(trial: Trial, folder: Path, stage: Stage) -> Trial:
    """Start, kill and restart the job, then count; the trial shows how far it is."""
    folder.mkdir(parents=True)
    started = time.monotonic()
    arguments = stage.prepare(f"{trial.guarantee.value}-output")
    for point, title in KILLS[trial.guarantee].items():
        trial.state = f"running, until {title}"
        with _driver(trial, folder, arguments, CrashPoint.parse(point)) as driver:
            driver.await_marker(TIMEOUT)
            driver.kill_all()
        trial.kills.append(title)
    trial.state = "running to the end"
    with _driver(trial, folder, arguments, None) as driver:
        driver.await_exit(TIMEOUT)
    expected = expected_rows(DEFAULT_BOUNDARIES).values()
    trial.result = Count.of(stage.rows(f"{trial.guarantee.value}-output"), sum(expected, Counter()))
    trial.seconds = time.monotonic() - started
    return trial


def _driver(
    trial: Trial, folder: Path, arguments: Sequence[str], crash: CrashPoint | None
) -> DriverProcess:
    command = [
        *("-m", "assent.testing.job", "--front-end", "datasource"),
        *("--checkpoint", str(folder / "checkpoint"), "--guarantee", trial.guarantee.value),
        *("--boundaries", format_boundaries(DEFAULT_BOUNDARIES), *arguments),
    ]
    return DriverProcess(command, folder, crash=crash)


def _table(trials: list[Trial]) -> Table:
    table = Table("guarantee", "expected", "counted", "lost", "duplicated", "killed")
    for column in table.columns[:-1]:
        column.no_wrap = True
    for trial in trials:
        result = trial.result
        colour = "" if result is None else "[green]" if result.exact else "[red]"
        table.add_row(
            trial.guarantee.value,
            f"{EXPECTED:,}",
            f"{colour}{result.rows:,}" if result else "",
            f"{colour}{result.lost:,}" if result else "",
            f"{colour}{result.duplicated:,}" if result else "",
            "\n".join([*trial.kills, f"[dim]{trial.state}[/]"]),
        )
    return table


def _as_json(trials: list[Trial], good: bool) -> dict[str, object]:
    return {
        "ok": good,
        "expected": EXPECTED,
        "trials": [
            {
                "guarantee": trial.guarantee.value,
                "kills": trial.kills,
                "counted": trial.result.rows if trial.result else None,
                "lost": trial.result.lost if trial.result else None,
                "duplicated": trial.result.duplicated if trial.result else None,
                "seconds": round(trial.seconds, 1),
            }
            for trial in trials
        ],
    }


@contextmanager
def _folder(console: Console, keep: bool) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="assent-demo-"))
    try:
        yield folder
    finally:
        if keep:
            console.print(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
