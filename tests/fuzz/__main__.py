"""Coverage-guided fuzzing of every parser, for a bounded time: `make fuzz`.

Needs atheris, which is no part of the environment: pip install atheris. Each target runs in a
process of its own, because a run of atheris ends its process. What breaks a target is written
below `artifacts/fuzz`, and the command fails.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import subprocess
import sys
import tempfile
from pathlib import Path

_MISSING = "FUZZING WAS NOT DONE: atheris is not installed here (pip install atheris)"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", help="names of targets; all, if none is given")
    parser.add_argument("--seconds", type=int, default=10, help="for each target")
    parser.add_argument("--seed", type=int, default=1, help="the same seed, the same inputs")
    parser.add_argument("--artifacts", type=Path, default=Path("artifacts/fuzz"))
    parser.add_argument("--list", action="store_true", help="name the targets and end")
    parser.add_argument("--within", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.within:
        return _run(arguments.targets[0], Path(arguments.within), arguments)
    from tests.fuzz.targets import TARGETS

    known = [target.name for target in TARGETS]
    if arguments.list:
        print("\n".join(known))
        return 0
    if unknown := set(arguments.targets) - set(known):
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    if importlib.util.find_spec("atheris") is None:
        print(_MISSING, file=sys.stderr)
        return 0
    print(f"seed {arguments.seed}, {arguments.seconds} s for each target", flush=True)
    failed = [name for name in arguments.targets or known if not _start(name, arguments)]
    if failed:
        print(f"BROKEN: {', '.join(failed)}; inputs are in {arguments.artifacts}", file=sys.stderr)
    return 1 if failed else 0


def _start(name: str, arguments: argparse.Namespace) -> bool:
    """Run one target in a process of its own, and tell how it went."""
    arguments.artifacts.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="assent-fuzz-") as folder:
        command = [sys.executable, "-m", "tests.fuzz", name, "--within", folder]
        command += ["--seconds", str(arguments.seconds), "--seed", str(arguments.seed)]
        command += ["--artifacts", str(arguments.artifacts)]
        run = subprocess.run(command, capture_output=True, text=True, errors="replace")
    found = re.search(r"stat::number_of_executed_units: *(\d+)", run.stderr)
    executions = found[1] if found else "?"
    if run.returncode == 0 and found:
        print(f"{name}: {executions} executions", flush=True)
        return True
    said = f"{run.stdout[-4000:]}\n{run.stderr[-500:]}"
    print(f"{name}: BROKEN after {executions} executions\n{said}", file=sys.stderr)
    return False


def _run(name: str, folder: Path, arguments: argparse.Namespace) -> int:
    """Never returns, if all is well: atheris ends the process."""
    import atheris

    with atheris.instrument_imports(include=["assent", "json"]):
        from tests.fuzz.targets import TARGETS
    (target,) = (each for each in TARGETS if each.name == name)
    for number, seed in enumerate(target.seeds):
        (folder / f"seed-{number}").write_bytes(seed)

    def check(data: bytes) -> None:
        # Not silenced by a `python -O`, and shown as what it is.
        target.check(data)

    atheris.Setup(
        [
            name,
            str(folder),
            f"-max_total_time={arguments.seconds}",
            f"-seed={arguments.seed}",
            f"-artifact_prefix={arguments.artifacts}/{name}-",
            "-max_len=8192",
            "-print_final_stats=1",
            "-timeout=20",
            "-rss_limit_mb=4096",
        ],
        check,
    )
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
