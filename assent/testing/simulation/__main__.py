"""The command: random histories, one of them once more, or all of a small case.

Exit code 1 and a trace if a rule is broken.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import random
import sys
import time
from collections.abc import Sequence

from assent.testing.simulation.exhaustive import Search, replay, small_case
from assent.testing.simulation.history import Outcome, run_history
from assent.testing.simulation.shrink import shrink
from assent.testing.simulation.world import STORES


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m assent.testing.simulation", description=__doc__)
    parser.add_argument("--histories", type=int, help="how many; without it, until time is up")
    parser.add_argument("--minutes", type=float, default=10.0, help="at most so long")
    parser.add_argument("--seed", type=int, help="the first seed; without it, a fresh one")
    parser.add_argument("--replay", metavar="CHOICES", help="run these, with their trace")
    parser.add_argument("--exhaustive", action="store_true", help="all interleavings, small case")
    parser.add_argument("--crashes", type=int, default=2, help="of the exhaustive mode")
    parser.add_argument("--overtaken", action="store_true", help="a crash may be a slow driver")
    parser.add_argument(
        "--store", choices=sorted(set(STORES)), default="database", help="of the exhaustive mode"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object at the end")
    options = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)  # tens of thousands of expected warnings say nothing
    gc.freeze()  # what is loaded stays
    gc.set_threshold(50_000)
    if options.replay is not None:
        choices = [int(choice) for choice in options.replay.split(",") if choice.strip()]
        outcome = run_history(given=choices, traced=True)
        print_trace(outcome)
        return 1 if outcome.violations else 0
    if options.exhaustive:
        return run_exhaustively(options)
    return run_at_random(options)


def run_at_random(options: argparse.Namespace) -> int:
    first = options.seed if options.seed is not None else random.SystemRandom().randrange(10**9)
    print(f"seed {first}", flush=True)
    started, spent = time.monotonic(), time.process_time()
    histories = steps = 0
    failed = None
    while failed is None and time.monotonic() - started < 60 * options.minutes:
        if options.histories is not None and histories >= options.histories:
            break
        outcome = run_history(first + histories)
        histories += 1
        steps += outcome.steps
        if outcome.violations:
            failed = outcome
    seconds, busy = time.monotonic() - started, time.process_time() - spent
    summary = {
        "seed": first,
        "histories": histories,
        "operations": steps,
        "seconds": round(seconds, 1),
        "historiesPerSecond": round(histories / seconds, 1),
        "historiesPerSecondOfProcessor": round(histories / busy, 1),
        "violations": list(failed.violations) if failed else [],
    }
    if failed is not None:
        print(f"seed {first + histories - 1} breaks a rule; making it short", flush=True)
        print_trace(shrink(failed))
    report(summary, options.json)
    return 1 if failed is not None else 0


def run_exhaustively(options: argparse.Namespace) -> int:
    started = time.monotonic()
    search = Search(small_case(options.store), options.crashes, options.overtaken)
    search.run(lambda: time.monotonic() - started > 60 * options.minutes)
    if search.failed is not None:
        print_trace(replay(search))
    summary = {
        "store": options.store,
        "tasks": 2,
        "epochs": 2,
        "crashes": options.crashes,
        "overtaken": options.overtaken,
        "states": len(search.states),
        "interleavings": search.interleavings,
        "histories": search.histories,
        "seconds": round(time.monotonic() - started, 1),
        "complete": search.is_complete,
        "violations": list(search.failed.violations) if search.failed else [],
    }
    report(summary, options.json)
    return 0 if search.is_complete else 1


def print_trace(outcome: Outcome) -> None:
    for line in outcome.trace:
        if not line.endswith(" answered"):
            print(line)
    for violation in outcome.violations:
        print(f"BROKEN: {violation}")
    print(f"choices: {','.join(map(str, outcome.choices))}", flush=True)


def report(summary: dict[str, object], as_json: bool) -> None:
    if as_json:
        print(json.dumps(summary))
    else:
        print(", ".join(f"{name} {value}" for name, value in summary.items()))


if __name__ == "__main__":
    sys.exit(main())
