"""Runs a command so that it never outlives the process that asked for it.

A script of its own, with nothing imported but the standard library::

    python -I -S guard.py PARENT DESCRIPTOR command argument ...

It becomes the command (same process id, so the parent can wait for it and signal it), and leaves
a small process beside it that waits for the end of either. When the parent ends, be it by
SIGKILL, the command is killed. A byte on the descriptor tells that this is so. Linux only.
"""

from __future__ import annotations

import os
import select
import signal
import sys


def main() -> None:
    parent, ready, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    watched = os.pidfd_open(parent)
    # Asked after the descriptor was opened: now it can only be that of the real parent.
    if os.getppid() != parent:
        sys.exit("the parent has ended")
    own = os.pidfd_open(os.getpid())
    if os.fork() == 0:
        _watch(watched, own, ready)
        os._exit(0)
    os.close(ready)
    os.execvp(command[0], command)


def _watch(parent: int, command: int, ready: int) -> None:
    # A session of its own: what is sent to the group of the command must not end its watch.
    os.setsid()
    poll = select.poll()
    poll.register(parent, select.POLLIN)
    poll.register(command, select.POLLIN)
    os.write(ready, b"!")
    os.close(ready)
    ended = {descriptor for descriptor, _ in poll.poll()}
    if command not in ended:
        signal.pidfd_send_signal(command, signal.SIGKILL)


if __name__ == "__main__":
    main()
