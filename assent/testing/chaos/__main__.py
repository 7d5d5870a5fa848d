"""Chaos on the real thing: `python -m assent.testing.chaos --sink kafka --faults 100 --seed 1`.

Kafka to Spark to a sink, with a backlog that never ends, while a nemesis kills (SIGKILL) drivers,
executors, Python workers and servers, pauses them, cuts connections, fills the disk of ledger and
checkpoint and lets transactions time out, at instants drawn from the seed, spread over all steps
of the protocol. What has died is started again. A reader watches all the time; in the end the
input is compared with the output, by code that the sinks do not share. Ends with 1 if anything
was lost, seen twice, made up, torn or left behind.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assent.protocol.guarantee import Guarantee
from assent.testing.chaos.report import render
from assent.testing.chaos.result import Result
from assent.testing.chaos.run import Chaos
from assent.testing.job import BUILT_IN
from assent.testing.kafka import KafkaCluster
from assent.testing.stage import VARIANTS, open_stage

ALL = "all"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def torment(sink: str, faults: int, seed: int, guarantee: str) -> Result:
    """So many faults on one sink, with servers of its own."""
    folder = Path(tempfile.mkdtemp(prefix="assent-chaos-"))
    try:
        with (
            KafkaCluster() as source,
            open_stage(sink, folder, hostile=True) as stage,
            Chaos(folder, stage, source, Result(sink, seed, guarantee)) as chaos,
        ):
            return chaos.run(faults, _say)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line."""
    options = _parser().parse_args(arguments)
    _say(f"seed {options.seed}")
    sinks = VARIANTS if options.sink == ALL else (options.sink,)
    results = []
    for number, sink in enumerate(sinks):
        share = options.faults * (number + 1) // len(sinks) - options.faults * number // len(sinks)
        kept = _Kept(options.results, f"{sink}-{options.guarantee}-{options.seed}-{share}")
        found = kept.read()
        if found is None:
            found = torment(sink, share, options.seed, options.guarantee).to_json()
            kept.write(found)
        _say(json.dumps(found))
        results.append(found)
    if options.report is not None:
        options.report.write_text(render(results))
    if options.json:
        print(json.dumps(results if options.sink == ALL else results[0]))
    else:
        for result in results:
            for name, value in result.items():
                print(f"{name:16} {value}")
            print()
    return 0 if all(result["ok"] for result in results) else 1


@dataclass(frozen=True)
class _Kept:
    """The result of a run that was done before, if results are kept."""

    folder: Path | None
    name: str

    def read(self) -> dict[str, Any] | None:
        if self.folder is None or not self._path.exists():
            return None
        found: dict[str, Any] = json.loads(self._path.read_text())
        return found

    def write(self, found: dict[str, Any]) -> None:
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._path.write_text(json.dumps(found, indent=2) + "\n")

    @property
    def _path(self) -> Path:
        assert self.folder is not None
        return self.folder / f"{self.name}.json"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m assent.testing.chaos", description=__doc__)
    parser.add_argument(
        "--sink",
        choices=[*VARIANTS, BUILT_IN, ALL],
        default="files",
        help=f"{BUILT_IN}: Spark's own, for comparison; {ALL}: one after the other",
    )
    parser.add_argument("--faults", type=int, default=50, help="in all; they are shared out")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument(
        "--guarantee",
        choices=[guarantee.value for guarantee in Guarantee],
        default=Guarantee.EXACTLY_ONCE.value,
        help="anything but exactly_once is a control: it should be caught",
    )
    parser.add_argument("--json", action="store_true", help="print the result as one line of JSON")
    parser.add_argument("--report", type=Path, help="write a page about the result")
    parser.add_argument(
        "--results",
        type=Path,
        help="a folder: the result of each sink is kept there, and what is there is not run again",
    )
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
