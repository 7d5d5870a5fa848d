"""Modules are set aside once per process, and nothing else is kept."""

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

for _ in range(2):
    freeze_modules()
assert gc.get_freeze_count() == 0
freeze_modules()
frozen = gc.get_freeze_count()
assert frozen > 1000, frozen
given_up = cycle()
freeze_modules()
assert given_up() is not None
gc.collect()
assert given_up() is None, "what came later is collected as before"
assert gc.get_freeze_count() <= frozen
"""


def test_once_in_a_process_at_its_third_task() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=60)


COMMITS = """
import gc
from assent.protocol.guarantee import Guarantee
from assent.protocol.policy import Policy
from assent.sinks.files import FilesSink
from assent.spark.settings import Settings
from assent.spark.source import EpochWriter

settings = Settings(None, Guarantee.NONE, Policy())
for epoch in range(3):
    assert gc.get_freeze_count() == 0
    EpochWriter(settings, FilesSink("/nowhere"), {}).commit([], epoch)
assert gc.get_freeze_count() > 1000
"""


def test_in_the_process_that_commits_too() -> None:
    subprocess.run([sys.executable, "-c", COMMITS], check=True, timeout=60)
