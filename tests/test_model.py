"""The model of the protocol in models/assent.pml, checked by Spin; and that Spin can fail."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.faults

MODEL = Path(__file__).parent.parent / "models" / "assent.pml"

BROKEN = [
    "COMMIT_BEFORE_DECIDE",
    "ABORT_AFTER_DECIDE",
    "TAKE_WITHOUT_CLOSING",
    "SWEEP_TOO_EAGER",
    "NO_VOID_AFTER_LOST_ANSWER",
]


@pytest.fixture(autouse=True)
def spin() -> None:
    """Spin and a C compiler, or no test: skipped, or failed where CI is set."""
    missing = [program for program in ("spin", "cc") if shutil.which(program) is None]
    if not missing:
        return
    reason = f"THE MODEL WAS NOT CHECKED: no {' and no '.join(missing)} here (Debian: spin, gcc)"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def check(folder: Path, *definitions: str) -> str:
    """What the checker says about all states of the model."""
    flags = [f"-D{definition}" for definition in definitions]
    subprocess.run(["spin", *flags, "-a", MODEL], cwd=folder, check=True, capture_output=True)
    subprocess.run(
        ["cc", "-w", "-O2", "-DSAFETY", "-o", "pan", "pan.c"], cwd=folder, check=True, timeout=120
    )
    result = subprocess.run(
        ["./pan", "-m1000000"], cwd=folder, check=True, capture_output=True, text=True, timeout=600
    )
    assert "error: max search depth too small" not in result.stdout
    return result.stdout


@pytest.mark.parametrize(("runs", "epochs"), [(2, 2), (2, 3)])
def test_rules_hold_in_all_states(runs: int, epochs: int, tmp_path: Path) -> None:
    said = check(tmp_path, f"RUNS={runs}", f"EPOCHS={epochs}")
    assert "errors: 0" in said
    print(next(line for line in said.splitlines() if "states, stored" in line))


@pytest.mark.parametrize("broken", BROKEN)
def test_a_rule_that_is_left_out_is_missed(broken: str, tmp_path: Path) -> None:
    said = check(tmp_path, f"BROKEN_{broken}")
    assert "assertion violated" in said
