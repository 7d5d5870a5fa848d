"""Real Spark, real SIGKILL of the whole driver, at every numbered step, for both front-ends."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

from assent.testing.process import ProcessKind
from assent.testing.reader import count
from bench.query import BY_FILE_SYSTEM, CHECKPOINT_FILES
from tests.kill_chain import SECONDS, KillChain

pytestmark = pytest.mark.spark

TUNING = Path(__file__).parents[1] / "docs" / "tuning.md"


# One kill in each epoch, from epoch 1 on. Planning does not know the epoch: it is counted.
EVERY_STEP = [
    "before-recover@*#2",  # 0: epoch 1 is about to be planned
    "after-recover@*",  # 0: the restarted run has recovered
    "before-begin@1/0",  # 1
    "after-begin@2/1",
    "before-write@3/0",  # 2
    "during-write@4/0",
    "before-pre-commit@5/1",  # 3
    "after-pre-commit@6/0",
    "before-decide@7",  # 4
    "after-decide@8",
    "before-commit@9",  # 5
    "during-commit@10",  # between two commits
    "during-commit@10#2",  # again, while recovering: all gathered, nothing shown
    "after-commit@11",
    "before-complete@12",  # 6
    "after-complete@13",  # 7: Spark has not written its commit log
    "during-recover@13",  # 0: while a decided epoch is finished
]
# What foreachBatch does by itself: the steps of tasks are the same code.
IN_THE_DRIVER = [
    "after-recover@*#2",
    "during-write@2/0",
    "after-pre-commit@3/1",
    "before-decide@4",
    "after-decide@5",
    "during-commit@6",
    "during-recover@6",
    "after-complete@7",
]
WORST = {
    "datasource": ["after-pre-commit@1/0", "after-decide@2", "after-commit@3"],
    "foreachbatch": ["after-decide@1", "during-commit@2"],
}


def first_and(later: pytest.MarkDecorator) -> list[ParameterSet]:
    """The data source, and the other front-end in its turn."""
    return [pytest.param("datasource"), pytest.param("foreachbatch", marks=later)]


@pytest.mark.parametrize("front_end", first_and(pytest.mark.faults))
def test_killed_at_the_worst_instants(front_end: str, tmp_path: Path) -> None:
    chain = KillChain(tmp_path, front_end, WORST[front_end])
    chain.run()
    chain.assert_exactly_once()


@pytest.mark.faults
def test_a_checkpoint_whose_files_are_written_as_by_default_and_as_tuned(tmp_path: Path) -> None:
    """In turns: what one start has written, the next one reads and goes on with."""
    [(name, value)] = re.findall(r"--conf (\S+checkpoint\S+?)=(\S+)", TUNING.read_text())
    assert (name, value) == (CHECKPOINT_FILES, BY_FILE_SYSTEM), "what is measured is documented"
    points = ["after-pre-commit@1/0", "after-decide@2", "after-complete@3", "before-complete@4"]
    turns = [[], ["--setting", f"{name}={value}"]]
    chain = KillChain(tmp_path, "datasource", points, turns=turns)
    chain.run()
    chain.assert_exactly_once()


@pytest.mark.faults
@pytest.mark.parametrize("front_end", first_and(pytest.mark.long))
def test_killed_at_every_step(front_end: str, tmp_path: Path) -> None:
    steps = EVERY_STEP if front_end == "datasource" else IN_THE_DRIVER
    chain = KillChain(tmp_path, front_end, steps)
    chain.run()
    chain.assert_exactly_once()


@pytest.mark.faults
def test_two_sinks_in_one_epoch_killed_between_their_commits(tmp_path: Path) -> None:
    # Two partitions and two sinks: four handles are committed, then each sink is published.
    points = ["during-commit@1#2", "during-commit@2#5", "after-decide@3"]
    chain = KillChain(tmp_path, "foreachbatch", points, outputs=2)
    chain.run()
    chain.assert_exactly_once()


@pytest.mark.faults
def test_without_the_decision_the_same_kills_repeat_rows(tmp_path: Path) -> None:
    """The negative control: the decision step is cut out, and the check finds it."""
    undecided = str(Path(__file__).parent / "undecided_job.py")
    chain = KillChain(tmp_path, "foreachbatch", ["after-commit@1"], script=[undecided])
    with chain.start(chain.points[0]) as driver:
        driver.await_marker(SECONDS)
        driver.kill_all()
    with chain.start(None) as driver:
        driver.await_exit(SECONDS, expected=None)
    found = count(chain.outputs[0], chain.boundaries)
    assert not found.exact
    assert found.duplicated or found.lost


@pytest.mark.faults
@pytest.mark.parametrize("front_end", first_and(pytest.mark.long))
@pytest.mark.parametrize("kind", [ProcessKind.EXECUTOR, ProcessKind.WORKER])
def test_an_executor_or_a_worker_killed_with_its_task(
    front_end: str, kind: ProcessKind, tmp_path: Path
) -> None:
    """Spark runs the task again elsewhere; what the dead one left behind is swept."""
    chain = KillChain(
        tmp_path,
        front_end,
        ["after-pre-commit@1/0"],
        more=["--master", "local-cluster[2,1,1024]"],
    )
    with chain.start(chain.points[0]) as driver:
        worker = driver.await_marker(SECONDS)
        line = [worker, *driver.ancestors(worker)]
        # The worker that stands at the point, or the executor that started it.
        [victim] = [
            process
            for process in driver.processes()
            if process.kind is kind and process.pid in line
        ]
        driver.kill(victim)
        driver.await_exit(SECONDS)
    chain.assert_exactly_once()
