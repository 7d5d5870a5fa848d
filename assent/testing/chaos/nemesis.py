"""Does to a job and to its servers what a strike says."""

from __future__ import annotations

import time

from assent.testing.chaos.strike import Fault
from assent.testing.disk import SmallDisk
from assent.testing.process import DriverProcess, ProcessKind
from assent.testing.stage import Stage

_FULL_SECONDS = 10.0
_POLL_SECONDS = 0.05


class Nemesis:
    """Strikes at the driver, its processes, the stage's servers and their network, the disk."""

    def __init__(self, stage: Stage, trial: str, disk: SmallDisk) -> None:
        self._stage = stage
        self._trial = trial
        self._disk = disk

    def possible(self) -> list[Fault]:
        """What can be done to this stage, here."""
        missing = set()
        if not self._stage.servers:
            missing |= {Fault.SERVER, Fault.SERVER_PAUSED}
        if not self._stage.proxies:
            missing |= {Fault.CUT, Fault.ANSWERS, Fault.AWAY}
        if not self._disk.mounted:
            missing.add(Fault.DISK)
        if not self._stage.expires:
            missing.add(Fault.EXPIRED)
        return [fault for fault in Fault if fault not in missing]

    def strike(self, fault: Fault, driver: DriverProcess, standing: int | None) -> None:
        """Do it, while the process of that id stands at a step, if one does."""
        stage = self._stage
        match fault:
            case Fault.DRIVER:
                driver.kill_all()
            case Fault.DRIVER_ALONE:
                driver.kill_driver()
            case Fault.REPLACED | Fault.PAUSED:
                driver.pause_all()
            case Fault.EXECUTOR:
                self._kill(driver, ProcessKind.EXECUTOR)
            case Fault.WORKER:
                self._kill(driver, ProcessKind.WORKER)
            case Fault.STANDING:
                self._kill_standing(driver, standing)
            case Fault.SERVER:
                for server in stage.servers:
                    server.kill()
            case Fault.SERVER_PAUSED:
                for server in stage.servers:
                    server.pause()
            case Fault.CUT:
                for proxy in stage.proxies:
                    proxy.cut()
            case Fault.ANSWERS:
                for proxy in stage.proxies:
                    proxy.cut_answers()
            case Fault.AWAY:
                for proxy in stage.proxies:
                    proxy.stop()
            case Fault.DISK:
                self._disk.fill()
            case Fault.EXPIRED:
                stage.expire(self._trial)

    def repair(self, fault: Fault, driver: DriverProcess, seconds: float) -> None:
        """Undo what can be undone, now that whoever stood goes on; a silence lasts so long."""
        if fault in (Fault.PAUSED, Fault.SERVER_PAUSED, Fault.AWAY):
            time.sleep(seconds)  # the fault itself
        match fault:
            case Fault.PAUSED:
                driver.resume_all()
            case Fault.SERVER:
                for server in self._stage.servers:
                    server.start()
            case Fault.SERVER_PAUSED:
                for server in self._stage.servers:
                    server.resume()
            case Fault.AWAY:
                for proxy in self._stage.proxies:
                    proxy.resume()
            case Fault.DISK:
                self._clear_disk(driver)

    def _kill_standing(self, driver: DriverProcess, standing: int | None) -> None:
        if standing is None:
            self._kill(driver, ProcessKind.WORKER)
        for process in driver.processes():
            if process.pid == standing:
                driver.kill(process)

    def _kill(self, driver: DriverProcess, kind: ProcessKind) -> None:
        found = [process for process in driver.processes() if process.kind is kind]
        if found:
            driver.kill(found[0])

    def _clear_disk(self, driver: DriverProcess) -> None:
        """Whoever needs the disk fails; who does not, has a while to get there."""
        deadline = time.monotonic() + _FULL_SECONDS
        while driver.running and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        self._disk.clear()
