"""An independent reader of what the store recorded: it parses the log by the table in `conductor/README.md`, not with the engine's code.

`account` lists every broken promise of one run in plain words; an empty list is the proof. It is judged together with the ledger, which
tells what step bodies really did.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import redis

from tests.support.ledger import Ledger

__all__ = ["Entry", "Record", "account", "entries", "judge", "record_of"]

_ENDS = "czf"
_CLOSES = "czftxbV"


@dataclass(frozen=True, slots=True)
class Entry:
    """One log entry: number from 1, code, ms, and the fields after it."""

    number: int
    code: str
    at: int
    fields: tuple[str, ...]

    @property
    def index(self) -> str:
        return self.fields[0]

    @property
    def fence(self) -> int:
        return int(self.fields[1] or 0)

    @property
    def items(self) -> list[int | None]:
        """The items an entry covers, or [None] where it speaks of the step itself."""
        text = self.fields[2] if self.code in "kctfxb" and len(self.fields) > 2 else ""
        if not text:
            return [None]
        first, _, last = text.partition("-")
        return list(range(int(first), int(last or first) + 1))


@dataclass
class Record:
    """A run as the store has it: its hash without payloads, and its log."""

    run_id: str
    state: str
    reason: str
    generation: int
    workflow: str
    log: list[Entry] = field(default_factory=list)


def _key(namespace: str, run_id: str) -> str:
    return f"conductor:{{{namespace}:{run_id[-2:]}}}:run:{run_id}"


def entries(client: redis.Redis, namespace: str, run_id: str) -> list[Entry]:
    lines = client.lrange(f"{_key(namespace, run_id)}:log", 0, -1)
    found = []
    for number, line in enumerate(lines, 1):
        code, at, *rest = str(line).split(";")
        found.append(Entry(number, code, int(at), tuple(rest)))
    return found


def record_of(client: redis.Redis, namespace: str, run_id: str) -> Record | None:
    fields = client.hmget(_key(namespace, run_id), ["st", "wy", "g", "w"])
    if fields[0] is None:
        return None
    state, reason, generation, workflow = (str(value or "") for value in fields)
    return Record(run_id, state, reason, int(generation or 0), workflow, entries(client, namespace, run_id))


def account(record: Record) -> list[str]:
    """What is wrong with this run's log. The run is expected to have ended."""
    checks = (_endings, _one_end_per_step, _claims_close, _nothing_after_the_end, _fences_grow)
    return [f"{record.run_id} ({record.workflow}): {wrong}" for check in checks for wrong in check(record)]


def _lives(record: Record) -> list[list[Entry]]:
    """The log cut where a new generation begins."""
    lives: list[list[Entry]] = [[]]
    for entry in record.log:
        if entry.code == "g":
            lives.append([])
        lives[-1].append(entry)
    return lives


def _endings(record: Record) -> Iterable[str]:
    if record.state not in ("completed", "failed", "cancelled"):
        yield f"is {record.state} ({record.reason}), not ended"
        return
    for number, life in enumerate(_lives(record), 1):
        ends = [entry for entry in life if entry.code in "eK"]
        if len(ends) != 1:
            yield f"life {number} has {len(ends)} endings: {ends}"
    last = [entry for entry in record.log if entry.code in "eK"][-1:]
    told = ("cancelled" if last[0].code == "K" else last[0].fields[0]) if last else "nothing"
    if told != record.state:
        yield f"the record says {record.state}, the log says {told}"


def _one_end_per_step(record: Record) -> Iterable[str]:
    for number, life in enumerate(_lives(record), 1):
        ends = Counter((entry.index, item) for entry in life if entry.code in _ENDS for item in entry.items)
        for (index, item), count in ends.items():
            if count > 1:
                yield f"life {number}: step {index} item {item} ended {count} times"


def _claims_close(record: Record) -> Iterable[str]:
    """A claim opens an attempt, its end closes it under the same fence; two attempts of one thing never overlap."""
    held: dict[tuple[str, int | None], int] = {}
    for entry in record.log:
        if entry.code in "gY":  # a new generation, or one in which only undos are taken
            held.clear()
        if entry.code == "k":
            for offset, item in enumerate(entry.items):
                if (entry.index, item) in held:
                    yield f"event {entry.number}: step {entry.index} item {item} is claimed while it is held"
                held[entry.index, item] = entry.fence + offset
        elif entry.code in _CLOSES and entry.fence:  # the end of a whole `each` follows from its items and has no fence
            for offset, item in enumerate(entry.items):
                if held.pop((entry.index, item), None) != entry.fence + offset:
                    yield f"event {entry.number}: step {entry.index} item {item} is closed ({entry.code}) under a fence nobody holds"


def _nothing_after_the_end(record: Record) -> Iterable[str]:
    for life in _lives(record):
        over = False
        for entry in life:
            if over and entry.code in "k" + _CLOSES:
                yield f"event {entry.number} ({entry.code}) comes after the end"
            over = over or entry.code in "eK"


def _fences_grow(record: Record) -> Iterable[str]:
    last: dict[tuple[str, int | None], int] = {}
    for entry in record.log:
        if entry.code != "k":
            continue
        for offset, item in enumerate(entry.items):
            if entry.fence + offset <= last.get((entry.index, item), 0):
                yield f"event {entry.number}: the fence of step {entry.index} item {item} did not grow"
            last[entry.index, item] = entry.fence + offset


def judge(client: redis.Redis, namespace: str, run_ids: Iterable[str], ledger: Ledger) -> list[str]:
    """All runs, and the ledger against them: nothing lost, nothing twice, and no body ran that was never claimed."""
    wrong = []
    bodies: Counter[str] = Counter()
    for key, count in ledger.begun().items():
        bodies[key.partition(":")[0]] += count
    for run_id in run_ids:
        record = record_of(client, namespace, run_id)
        if record is None:
            wrong.append(f"{run_id}: acknowledged, and gone")
            continue
        wrong += account(record)
        claims = sum(len(entry.items) for entry in record.log if entry.code == "k")
        if bodies[run_id] > claims:
            wrong.append(f"{run_id}: {bodies[run_id]} bodies began under {claims} claims")
    return wrong
