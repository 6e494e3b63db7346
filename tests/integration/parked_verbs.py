"""Rules of the state machine about runs that leave the store for the archive and come back: marked, parked, spoken to, lost, woken.

The archive is a dictionary here. What the store deletes must be what it holds; what is said to a stub has the same words as if the run were
there; of all wakers one brings it back, however many died half way, and then everything that was said has been done.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import redis
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from conductor.records import NewRun, NodeKind
from conductor.state import RunState
from conductor.store import Store
from conductor.store.copying import read_snapshot
from conductor.store.parking import _pieces
from conductor.store.snapshots import Snapshot
from conductor.store.stubs import read_stub
from tests.integration.playing import Player

__all__ = ["ParkedVerbs"]

_PICK = st.integers(0, 30)
_SELDOM = st.integers(0, 3)
_CALM_MS = 5000  # one whose timer is that near is not parked


@dataclass
class Away:
    """A parked run as the model knows it: where its steps stand, and what was said since."""

    snapshot: Snapshot
    letters: dict[int, str]
    orphan: bool
    answered: set[int] = field(default_factory=set)
    said: bool = False


class ParkedVerbs:
    """What a state machine of verbs needs to know about parking."""

    client: redis.Redis
    store: Store
    play: Player
    runs: list[str]
    new: dict[str, NewRun]
    seen: Counter[str]

    def open_archive(self) -> None:
        self.marked: dict[str, Snapshot] = {}
        self.away: dict[str, Away] = {}

    # How a run stands, wherever it is.

    def state(self, run_id: str) -> str:
        if run_id not in self.away:
            return self.play.state(run_id)
        stub = read_stub(self.store, run_id)
        assert stub is not None, f"{run_id} was parked and has no stub"
        return str(stub.state)

    def step(self, run_id: str, index: int) -> str:
        return self.away[run_id].letters[index] if run_id in self.away else self.play.step(run_id, index)

    def field(self, run_id: str, name: str) -> str:
        return self.away[run_id].snapshot.fields.get(name, "") if run_id in self.away else self.play.field(run_id, name)

    # Leaving.

    @precondition(lambda self: self.runs)
    @rule(pick=_PICK)
    def mark(self, pick: int) -> None:
        """The first half of parking; anything may happen before the second."""
        run_id = self.runs[pick % len(self.runs)]
        n = self.store.mark_parking(run_id, self.play.now() + 1000)
        bound = self.client.smembers(self.store.keys.run(run_id, "ops"))
        alone = not self.field(run_id, "up") and not any(self.client.hexists(self.store.keys.of(0, "active"), str(one)) for one in bound)
        may = run_id not in self.away and self.state(run_id) == "waiting_signal" and alone
        assert (n > 0) == may
        if may:
            found = read_snapshot(self.store, run_id)
            assert found is not None and found.n == n
            self.marked[run_id] = found
            self.seen["marked"] += 1

    @precondition(lambda self: self.marked)
    @rule(pick=_PICK)
    def park(self, pick: int) -> None:
        """It goes only if it is to the letter what the archive has."""
        run_id = sorted(self.marked)[pick % len(self.marked)]
        held = self.marked.pop(run_id)
        now = None if run_id in self.away else read_snapshot(self.store, run_id)
        orphan = self.client.zscore(self.store.keys.of(0, "orphans:due"), run_id)
        near = [at for at in (*held.due.values(), orphan) if at is not None and at < self.play.now() + _CALM_MS]
        word = self.store.park(held)
        if now is None:
            stub = read_stub(self.store, run_id)
            assert word == ("OK" if stub is not None and stub.n == held.n else "UNKNOWN")
            return
        assert word == "OK" or now.n != held.n or near or "pk" not in now.fields, "nothing has happened to it and it was not parked"
        if word == "OK":
            assert (now.fields, now.keys, now.due) == (held.fields, held.keys, held.due), "what was deleted is not what the archive has"
            self.left(run_id, held, orphan)

    def left(self, run_id: str, held: Snapshot, orphan: float | None) -> None:
        letters = {one.index: self.letter(held, one.index) for one in self.play.graphs[run_id].nodes}
        self.away[run_id] = Away(held, letters, orphan is not None)
        self.seen["parked"] += 1
        assert self.store.park(held) == "OK", "asked again, it says the same"
        assert self.store.start(self.new[run_id], self.play.graphs[run_id]).word == "EXISTS" if run_id in self.new else True
        times = [at for at in (*held.due.values(), orphan) if at is not None and at < 8e15]
        assert self.client.zscore(self.store.keys.of(0, "wake"), run_id) == (min(times) if times else None)
        assert self.play.keys_with(f"run:{run_id}") == []

    def letter(self, held: Snapshot, index: int) -> str:
        return held.fields.get(str(index), "P")[:1]

    # Coming back.

    @precondition(lambda self: self.away)
    @rule(pick=_PICK, dies=st.booleans())
    def wake(self, pick: int, dies: bool) -> None:
        run_id = sorted(self.away)[pick % len(self.away)]
        if dies:
            for tail, kind, offset, values in _pieces(self.store, self.away[run_id].snapshot):
                self.store._call_bare("restore_part", 0, run_id, str(self.away[run_id].snapshot.n), tail, kind, offset, *values)
            self.seen["died while waking"] += 1
            return
        self.bring_back(run_id)

    def bring_back(self, run_id: str) -> None:
        """Wake it, if it is away; a second waker finds nothing to do."""
        if run_id not in self.away:
            return
        before = self.state(run_id)
        one = self.away.pop(run_id)
        told = self.store.restore(one.snapshot, stub=one.snapshot.n)
        assert (told.word, self.store.restore(one.snapshot, stub=one.snapshot.n).word) == ("OK", "CHANGED")
        self.seen["woken"] += 1
        moved = "running" if "R" in one.letters.values() else "waiting_signal"
        assert self.play.state(run_id) == ("cancelled" if before == "cancelled" else moved)
        assert self.play.log(run_id)[: one.snapshot.n] == one.snapshot.keys["log"]
        for index, letter in one.letters.items():
            assert (self.play.step(run_id, index) or "P") == letter, f"step {index} is not as what was said to the stub leaves it"

    @precondition(lambda self: self.away)
    @rule(pick=_PICK, seldom=_SELDOM)
    def archive_is_empty(self, pick: int, seldom: int) -> None:
        """Its row is gone: it is paused until the row is back. One that was cancelled is let go for good elsewhere (`test_parking.py`)."""
        run_id = sorted(self.away)[pick % len(self.away)]
        if seldom == 2 and self.state(run_id) != "cancelled":
            assert self.store.lose_stub(run_id, self.away[run_id].snapshot.n).word == "OK"
            assert self.state(run_id) == "paused"
            self.away[run_id].orphan = False
            assert self.store.lose_stub(run_id, self.away[run_id].snapshot.n + 1).word == "CHANGED"
            self.seen["archive_missing"] += 1

    # What was said to it meanwhile.

    def heard(self, run_id: str, index: int | None, *, agent: bool = False) -> None:
        if (one := self.away.get(run_id)) is None:
            return
        one.said = True
        self.seen["said to a stub"] += 1
        if index is not None:
            one.letters[index], one.orphan = "R", False
        if agent and index is not None:
            one.answered.add(index)

    def must_be_asked(self, run_id: str, index: int) -> bool:
        """Whether a stub cannot say what becomes of an answer: its waiter is not open, and nobody has answered since it was parked."""
        if (one := self.away.get(run_id)) is None or self.state(run_id) == "cancelled":
            return False
        return index not in one.answered and one.letters[index] != "W"

    @invariant()
    def a_parked_run_is_nowhere_else(self) -> None:
        if not hasattr(self, "away"):
            return
        of = self.store.keys.of
        assert set(self.client.hkeys(of(0, "parked"))) == set(self.away)
        assert set(self.client.zrange(of(0, "wake"), 0, -1)) <= set(self.away)
        for run_id, one in self.away.items():
            assert not self.client.exists(self.store.keys.run(run_id))
            assert [tail for tail in ("runs", "progress") if self.client.zscore(of(0, tail), run_id)] == []
            assert [member for member in self.client.zrange(of(0, "due"), 0, -1) if run_id in str(member)] == []
            stub = read_stub(self.store, run_id)
            assert stub is not None
            entries = [self.client.zscore(of(0, tail), run_id) is not None for tail in ("orphans", "orphans:due")]
            assert entries == [one.orphan and stub.state is RunState.WAITING_SIGNAL] * 2, "the idle index holds exactly the orphans"
            if (one.said or stub.state is RunState.CANCELLED) and stub.state is not RunState.PAUSED:
                due = self.client.zscore(of(0, "wake"), run_id)
                assert due is not None and due <= self.play.now() + 5000, "something was said to it and nobody is to wake it"

    def agents_of(self, run_id: str) -> list[Any]:
        return [one for one in self.play.graphs[run_id].nodes if one.kind is NodeKind.AGENT]
