"""Verbs on schedules. A job lives in the partition of its name: in `jobs`, by its next tick, or while it is paused in `job:#paused`.

Fields of `job:<name>`: `d` definition, `cd` cadence, `i` payload, `n` next tick, `c` created, `cs` since when this cadence holds, `sn`
when a process last said that it declares it (all ms), `ls` nominal time and id of what was started last, `tk` the last hundred
ticks as lines, `fired`, `missed`, `skipped` how often so far.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from conductor.ids import home_of_name, partition_of
from conductor.store.door import Door
from conductor.store.stubs import parse_stub

__all__ = ["FIRED", "MISSED", "SKIPPED", "JobRecord", "JobVerbs", "Tick"]

FIRED, MISSED, SKIPPED = "fired", "missed", "skipped"
_FIELDS = ("d", "cd", "n", "c", "cs", "sn", "ls", FIRED, MISSED, SKIPPED)


@dataclass(frozen=True, slots=True)
class Tick:
    """What became of one tick: `fired` with the id that was started, `missed`, or `skipped` with the reason."""

    nominal: int
    word: str
    id: str = ""
    reason: str = ""

    def line(self) -> str:
        return f"{self.nominal};{self.word};{self.id};{' '.join(self.reason.split())}"

    @classmethod
    def read(cls, line: str) -> Tick:
        nominal, word, started, reason = line.split(";", 3)
        return cls(int(nominal), word, started, reason)


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A stored job, its definition unread. Times are ms on the store's clock, 0 where there is none."""

    name: str
    definition: str
    cadence: str
    next_at: int
    created_at: int = 0
    since: int = 0
    seen_at: int = 0  # by a process that declares it
    last_at: int = 0
    last_id: str = ""
    fired: int = 0
    missed: int = 0
    skipped: int = 0
    paused_at: int = 0
    paused_reason: str = ""
    payload: str = ""
    ticks: tuple[Tick, ...] = ()

    @property
    def paused(self) -> bool:
        return self.paused_at > 0


class JobVerbs(Door):
    """What declarations, sweeps and operators do to a schedule."""

    def put_job(self, name: str, *, definition: str, cadence: str, payload: str, following: int) -> str:
        """CREATED, CHANGED or SAME. `following` counts only for a new cadence."""
        return str(self._call_bare("put_job", self._job_home(name), name, definition, cadence, payload, following)[0])

    def seen_job(self, name: str) -> str:
        """A process declares it: OK or UNKNOWN."""
        return str(self._call_bare("seen_job", self._job_home(name), name)[0])

    def tick_job(self, name: str, *, expected: int, following: int, ticks: Sequence[Tick] = ()) -> str:
        """OK, MOVED (somebody else was first) or UNKNOWN."""
        lines = [tick.line() for tick in ticks]
        return str(self._call_bare("tick_job", self._job_home(name), name, expected, following, len(lines), *lines)[0])

    def pause_job(self, name: str, *, reason: str = "") -> str:
        """OK, ALREADY or UNKNOWN."""
        return self._pause_or_resume(name, 1, 0, reason)

    def resume_job(self, name: str, *, following: int) -> str:
        """OK, ALREADY or UNKNOWN; it ticks next at `following`."""
        return self._pause_or_resume(name, 0, following, "")

    def _pause_or_resume(self, name: str, pause: int, following: int, reason: str) -> str:
        return str(self._call_bare("pause_job", self._job_home(name), name, pause, following, reason)[0])

    def drop_job(self, name: str) -> str:
        """OK or UNKNOWN."""
        return str(self._call_bare("drop_job", self._job_home(name), name)[0])

    def job_clock(self) -> int:
        """Now, in ms: the only clock that ticks are judged by."""
        seconds, micros = self._read("TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    def partitions_with_due_jobs(self) -> list[int]:
        """Where something is due, in two round trips."""
        now = self.job_clock()
        counted = self._command("read", [("ZCOUNT", self.keys.of(number, "jobs"), "-inf", now) for number in range(self.partitions)])
        return [partition for partition, due in enumerate(counted) if int(due)]

    def due_jobs(self, partition: int, now: int, limit: int = 100, skip: int = 0) -> list[JobRecord]:
        """Jobs whose next tick is not after `now`, with their payloads and without their past ticks."""
        names = self._read("ZRANGEBYSCORE", self.keys.of(partition, "jobs"), "-inf", now, "LIMIT", skip, limit)
        found = self._records([(partition, name) for name in names], payloads=True)
        # Between the two reads another sweep may have moved a job on, or somebody paused it: its next tick is none of ours.
        return [record for record in found if record.next_at <= now and not record.paused]

    def jobs(self) -> list[JobRecord]:
        """Every job, paused ones too, by name, without payloads and past ticks."""
        looks = [
            look for number in range(self.partitions)
            for look in (("ZRANGE", self.keys.of(number, "jobs"), 0, -1), ("HKEYS", self.keys.of(number, "job:#paused")))
        ]
        # One that is paused between the two looks stands in both.
        found = {name: place // 2 for place, names in enumerate(self._command("read", looks)) for name in names}
        return self._records([(home, name) for name, home in sorted(found.items())])

    def job(self, name: str) -> JobRecord | None:
        """One job with its payload and its last ticks."""
        return next(iter(self._records([(self._job_home(name), name)], payloads=True, ticks=True)), None)

    def known_jobs(self, names: Iterable[str]) -> list[bool]:
        """Which of these are there, in one round trip."""
        looks = [("EXISTS", self.keys.of(self._job_home(name), f"job:{name}")) for name in names]
        return [bool(int(found)) for found in self._command("read", looks)] if looks else []

    def states_of(self, run_ids: Sequence[str]) -> list[str]:
        """The states of runs and operations, parked ones too, empty for one that is not there, in one round trip. The runs are looked for
        before and after the stubs: one that is parked, or woken, meanwhile is seen in one of the three looks."""
        here = [("HGET", self.keys.run(run_id), "st") for run_id in run_ids]
        parked = [("HGET", self.keys.of(partition_of(run_id), "parked"), run_id) for run_id in run_ids]
        found = self._command("read", [*here, *parked, *here]) if here else []
        first, stubs, last = (found[at * len(run_ids) : (at + 1) * len(run_ids)] for at in range(3))
        return [
            after or before or (parse_stub(run_id, stub).state.value if stub else "")
            for run_id, before, stub, after in zip(run_ids, first, stubs, last, strict=True)
        ]

    def _records(self, found: Sequence[tuple[int, str]], *, payloads: bool = False, ticks: bool = False) -> list[JobRecord]:
        """The records of these, without those that were dropped since."""
        fields = (*_FIELDS, *(("i",) if payloads else ()), *(("tk",) if ticks else ()))
        looks: list[tuple[Any, ...]] = []
        for partition, name in found:
            looks.append(("HMGET", self.keys.of(partition, f"job:{name}"), *fields))
            looks.append(("HGET", self.keys.of(partition, "job:#paused"), name))
        replies = iter(self._command("read", looks) if looks else [])
        read = (_record(name, dict(zip(fields, next(replies), strict=True)), next(replies)) for _, name in found)
        return [record for record in read if record is not None]

    def _job_home(self, name: str) -> int:
        return home_of_name(name, self.partitions)


def _record(name: str, held: dict[str, str | None], paused: str | None) -> JobRecord | None:
    if held["d"] is None:
        return None
    numbers = {field: int(held[field] or 0) for field in ("n", "c", "cs", "sn", FIRED, MISSED, SKIPPED)}
    last_at, _, last_id = (held["ls"] or "").partition(";")
    paused_at, _, reason = (paused or "").partition(";")
    lines = filter(None, (held.get("tk") or "").split("\n"))
    return JobRecord(
        name=name, definition=held["d"], cadence=held["cd"] or "", next_at=numbers["n"], created_at=numbers["c"], since=numbers["cs"],
        seen_at=numbers["sn"], last_at=int(last_at or 0), last_id=last_id, fired=numbers[FIRED], missed=numbers[MISSED],
        skipped=numbers[SKIPPED],
        paused_at=int(paused_at or 0), paused_reason=reason, payload=held.get("i") or "",
        ticks=tuple(sorted(map(Tick.read, lines), key=lambda tick: tick.nominal)),
    )
