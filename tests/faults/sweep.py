"""Runs cases of the sweep side by side. Processes are forked from a warm one that has imported everything, so each costs milliseconds.

A case is one struck process and, if it died, one that follows it. What it found stands in its directory and in `Verdict.wrong`.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

from tests.faults.lean import Ground, play
from tests.faults.points import Case
from tests.support.leaks import forget
from tests.support.processes import ROOT
from tests.support.server import ValkeyServer

__all__ = ["Sweep", "Verdict"]

LONGEST = 60.0


@dataclass
class Verdict:
    """What became of a case. `landed` is the line the failpoint wrote before it struck."""

    case: Case
    landed: str = ""
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.case}: " + "; ".join(self.wrong)


@dataclass
class _Playing:
    case: Case
    ground: Ground
    process: ForkServerProcess
    follows: bool
    since: float


class Sweep:
    """A place to play cases on one server, `jobs` at a time."""

    def __init__(self, server: ValkeyServer, jobs: int = 8) -> None:
        self.server, self.jobs = server, jobs
        self.directory = Path(tempfile.mkdtemp(prefix="sweep-"))
        self._context = _warm()
        self._number = 0

    def close(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

    def count(self, scenario: str, names: Iterable[str]) -> dict[str, int]:
        """How often an undisturbed play of the scenario passes each place; it must also end right."""
        armed = ";".join(f"{name}=count@*" for name in sorted(names))
        ground = self._ground(f"count-{scenario}")
        process = self._launch(ground, scenario, armed)
        process.join(LONGEST)
        wrong = _report(ground, process)
        assert not wrong, f"{scenario} does not end right even undisturbed: {wrong}"
        return dict(Counter(line.split()[0] for line in _strikes(ground)))

    def play_beside(self, plays: Sequence[tuple[str, str, int]], may_stumble: bool = False) -> list[tuple[Ground, list[str]]]:
        """Play (name, scenario, port) side by side, unarmed, each against a port of its own (a proxy's); tells where, and what went wrong."""
        grounds = [replace(self._ground(name), url=self.server.url(port=port)) for name, _, port in plays]
        processes = [self._launch(ground, play[1], "", may_stumble) for ground, play in zip(grounds, plays, strict=True)]
        until = time.monotonic() + LONGEST
        for process in processes:
            process.join(max(0, until - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        return [(ground, _report(ground, process)) for ground, process in zip(grounds, processes, strict=True)]

    def play(self, cases: Iterable[Case], progress: bool = True) -> list[Verdict]:
        """Play all cases; tells one verdict each."""
        waiting, playing, verdicts = list(cases), list[_Playing](), list[Verdict]()
        every, begun = len(waiting), time.monotonic()
        waiting.reverse()
        while waiting or playing:
            while waiting and len(playing) < self.jobs:
                playing.append(self._begin(waiting.pop()))
            multiprocessing.connection.wait([one.process.sentinel for one in playing], timeout=1)
            still = []
            for one in playing:
                following, verdict = self._look(one)
                if following is not None:
                    still.append(following)
                elif verdict is not None:
                    verdicts.append(verdict)
                    if progress and (len(verdicts) % 25 == 0 or len(verdicts) == every):
                        bad = sum(1 for told in verdicts if told.wrong)
                        _say(f"crash points: {len(verdicts)}/{every} played, {bad} wrong, {time.monotonic() - begun:.0f} s")
            playing = still
        return verdicts

    def _ground(self, name: str) -> Ground:
        self._number += 1
        directory = self.directory / f"{self._number}-{name}"
        directory.mkdir()
        return Ground(self.server.url(), f"s{os.getpid()}-{self._number}", str(directory), self.server.url())

    def _launch(self, ground: Ground, scenario: str, armed: str, may_stumble: bool = False) -> ForkServerProcess:
        process = self._context.Process(target=play, args=(ground, scenario, armed, may_stumble))
        process.start()
        return process

    def _begin(self, case: Case) -> _Playing:
        ground = self._ground(str(case))
        process = self._launch(ground, case.scenario, f"{case.point}={case.action}@{case.nth}")
        return _Playing(case, ground, process, False, time.monotonic())

    def _look(self, one: _Playing) -> tuple[_Playing | None, Verdict | None]:
        """Whether it still plays, is followed by another process, or has its verdict."""
        if one.process.is_alive():
            if time.monotonic() - one.since < LONGEST:
                return one, None
            one.process.kill()
            one.process.join()
            return None, self._end(one, [f"not over after {LONGEST:.0f} s"])
        one.process.join()
        if one.case.action == "kill" and not one.follows and one.process.exitcode == -signal.SIGKILL:
            process = self._launch(one.ground, one.case.scenario, "")
            return _Playing(one.case, one.ground, process, True, time.monotonic()), None
        return None, self._end(one, _report(one.ground, one.process))

    def _end(self, one: _Playing, wrong: list[str]) -> Verdict:
        landed = _strikes(one.ground)
        if not landed:
            wrong.append("the fault did not land")
        elif one.case.action == "kill" and not one.follows:
            wrong.append("the fault landed and nobody died")
        if not wrong:
            forget(self.server.client(), one.ground.namespace)
            shutil.rmtree(one.ground.directory, ignore_errors=True)
        return Verdict(one.case, "; ".join(landed), wrong)


def _warm() -> ForkServerContext:
    """The process that all others are forked from; it needs to find the tests and to know the short leases before it imports them."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ["TEST_LEASE_SECONDS"] = "1"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.faults.lean"])
    return context


def _strikes(ground: Ground) -> list[str]:
    return ground.strikes.read_text().splitlines() if ground.strikes.exists() else []


def _report(ground: Ground, process: ForkServerProcess) -> list[str]:
    if not ground.report.exists():
        return [f"the process ended with {process.exitcode} and without a report"]
    return list(json.loads(ground.report.read_text()))


def _say(text: str) -> None:
    print(text, file=sys.__stderr__, flush=True)


