"""What the first tasks of a process find there is set aside, and nothing else is kept."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc, weakref
from assent.spark.frozen import freeze_modules

class Node:
    pass

def cycle():
    node = Node()
    node.itself = node
    return weakref.ref(node)

for _ in range(3):
    imported = [[] for _ in range(1000)]
    before = gc.get_freeze_count()
    freeze_modules()
    assert gc.get_freeze_count() - before > 1000
frozen = gc.get_freeze_count()
given_up = cycle()
freeze_modules()
assert given_up() is not None
gc.collect()
assert given_up() is None, "what came later is collected as before"
assert gc.get_freeze_count() <= frozen
"""


def test_at_the_first_three_tasks_of_a_process() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=60)


COMMITS = """
import gc
from assent.protocol.guarantee import Guarantee
from assent.protocol.policy import Policy
from assent.sinks.files import FilesSink
from assent.spark.settings import Settings
from assent.spark.source import EpochWriter

settings = Settings(None, Guarantee.NONE, Policy())
assert gc.get_freeze_count() == 0
EpochWriter(settings, FilesSink("/nowhere"), {}).commit([], 0)
assert gc.get_freeze_count() > 1000
"""


def test_in_the_process_that_commits_too() -> None:
    subprocess.run([sys.executable, "-c", COMMITS], check=True, timeout=60)
