"""All benchmarks, one after the other: `python -m bench [--json]`.

Each is a command of its own, with options of its own: `python -m bench.ledger --help`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

BENCHES = ("fingerprint", "ledger")


def measure(name: str) -> dict[str, object]:
    """Run one benchmark in a process of its own, so that none warms another up."""
    print(f"bench.{name} runs …", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", f"bench.{name}", "--json"]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    found = json.loads(output.splitlines()[-1])
    assert isinstance(found, dict)
    return found


def rows(value: object, path: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    """A nested result as lines: what was measured, and its numbers."""
    if not isinstance(value, dict):
        return [(", ".join(path), str(value))]
    if value and not any(isinstance(part, dict) for part in value.values()):
        numbers = "  ".join(f"{name} {number:>12,}" for name, number in value.items())
        return [(", ".join(path), numbers)]
    return [row for name, part in value.items() for row in rows(part, (*path, name))]


def main() -> None:
    parser = argparse.ArgumentParser(description="Run all benchmarks and print a table.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    found = [measure(name) for name in BENCHES]
    if options.json:
        print(json.dumps({"benches": found}))
        return
    for result in found:
        print(f"\n{result['bench']}")
        lines = rows(result["results"])
        width = max(len(name) for name, _ in lines)
        for name, numbers in lines:
            print(f"  {name:{width}}  {numbers}")


if __name__ == "__main__":
    main()
