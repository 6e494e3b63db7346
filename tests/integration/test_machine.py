"""Any order of verbs: a state machine plays clients, workers, sweeps and operators against a simple model and a recount of everything.

At every point the counters of each run equal a recount of its records and index entries; a commit is taken exactly from the holder of the
fence; a step and a run end at most once in a life; nothing follows a cancel; every answer is the same when it is asked for again under its
number; and at the end, when operators let go, no run is stuck.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import fakeredis
import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from conductor.records import Attempt, LaneTerms, NewRun, NodeKind, OutcomeKind
from conductor.store import Store, connect
from conductor.store.lanes import read_lane
from tests.integration.limited_verbs import LimitedVerbs
from tests.integration.parked_verbs import ParkedVerbs
from tests.integration.playing import CODE, Player, shapes
from tests.integration.recount import Recount
from tests.support.leaks import forget, leaks
from tests.support.server import ValkeyServer

_ENDED = ("completed", "failed", "cancelled")
_PICK = st.integers(0, 30)
_SELDOM = st.integers(0, 3)  # what stops everything else is done once in four times
_KINDS = st.sampled_from([
    OutcomeKind.COMPLETED, OutcomeKind.COMPLETED, OutcomeKind.COMPLETED, OutcomeKind.FAILED, OutcomeKind.RETRY, OutcomeKind.GIVEN_BACK,
    OutcomeKind.SKIPPED,
])


_SHAPES = shapes()
_WAITING = [number for number, graph in enumerate(_SHAPES) if any(one.signal or one.kind is NodeKind.AGENT or one.limit for one in graph.nodes)]
_LANE = LaneTerms("l", 1, None, 60_000)  # one at a time


# What a campaign must have met: a rule whose precondition is never fulfilled, or a table without waits, proves nothing and looks green.
_MET = frozenset({
    "signal OK", "signal KEPT", "signal ALREADY", "signal OVER", "signal ENDED", "advance OK", "advance SAME", "advance TAKEN",
    "advance NOT_WAITING", "expired", "queued in a lane", "admitted", "cancel COMPENSATING", "undone", "marked", "parked", "woken",
    "said to a stub", "cancelled as a stub", "archive_missing", "died while waking", "permitted", "refused a permit",
    "taken under a permit", "permit lost",
})


class Verbs(Recount, ParkedVerbs, LimitedVerbs, RuleBasedStateMachine):
    """The rules. `connect_to` gives the server; each example has a namespace of its own. `seen` counts what the campaign has met."""

    connect_to: Callable[[], redis.Redis]
    seen: Counter[str]

    @initialize(
        shapes=st.lists(st.sampled_from([*range(len(_SHAPES)), *_WAITING, *_WAITING]), min_size=2, max_size=2), ahead=st.integers(0, 8),
        leave=st.booleans())
    def open(self, shapes: list[int], ahead: int, leave: bool) -> None:
        self.client = type(self).connect_to()
        self.store = Store(self.client, namespace=f"m{os.urandom(6).hex()}", partitions=1)
        self.play = Player(self.store)
        self.store.register_code("half", ["sig0", "sig2"])
        self.runs: list[str] = []
        self.attempts: list[Attempt] = []
        self.held: dict[str, int] = {}  # ref → fence of the attempt that holds it
        self.signals: dict[str, set[str]] = {}  # run → ids that were taken or kept
        self.answers: dict[tuple[str, int], str] = {}  # agent step → the answer that won
        self.values: dict[tuple[str, int], str] = {}  # waiting step → the payload that satisfied it
        self.twice = False
        self.new: dict[str, NewRun] = {}
        self.open_archive()
        self.open_limit()
        self.repeat_on_demand()
        for shape in shapes:
            self.start(shape, 5, delayed=False, deadline=shape % 2 == 1, lane=shape not in _WAITING)
        for _ in range(ahead):  # so that waits are open and undos have something to undo, however few steps an example has
            for one in self.play.claim(1):
                self.play.by_flags(one)
        self.know_children()
        for number in range(len(self.runs) if leave else 0):
            self.mark(number)
            if self.marked:
                self.park(0)

    def know_children(self) -> None:
        self.runs += [run_id for run_id in self.play.graphs if run_id not in self.runs and self.state(run_id)]

    def repeat_on_demand(self) -> None:
        """A reply that is lost: the call is made again under its number."""
        caller = self.store._caller()
        numbers = itertools.count(1)

        def call(script: Any, head: str, *args: Any) -> Any:
            sent = (head, caller.id, next(numbers), *args)
            reply = caller._insist(script, sent)
            if self.twice:
                assert caller._insist(script, sent) == reply, f"{script.name} answered otherwise when asked again"
            return reply

        caller.call = call  # type: ignore[method-assign]

    def took(self, attempts: list[Attempt]) -> None:
        self.only_with_a_permit(attempts)
        for one in attempts:
            assert one.ref not in self.held, f"{one.ref} was claimed while it was held"
            assert self.state(one.run_id) in ("running", "compensating")
            assert all(one.fence > other.fence for other in self.attempts), "a fence did not grow"
            self.held[one.ref] = one.fence
            self.attempts.append(one)

    def expected(self, one: Attempt) -> str:
        if one.run_id in self.away:
            return "LOST"
        older = self.play.field(one.run_id, "g") != str(one.generation)
        if self.state(one.run_id) == "cancelled" or (self.state(one.run_id) == "compensating" and older) or self.orphaned(one.run_id):
            return "CANCELLED"
        current = self.held.get(one.ref) == one.fence and self.state(one.run_id) not in ("", *_ENDED)
        return "OK" if current and self.play.field(one.run_id, "g") == str(one.generation) else "LOST"

    def orphaned(self, run_id: str) -> bool:
        """Whether it is a child whose parent ended, fails, or lives in another generation."""
        parent, _, generation = self.play.field(run_id, "up").partition(";")
        if not parent:
            return False
        over = self.play.state(parent) in ("", *_ENDED) or self.play.field(parent, "ph") == "F"
        return over or self.play.field(parent, "g") != generation

    def forget_holders(self, run_id: str) -> None:
        self.held = {ref: fence for ref, fence in self.held.items() if not ref.startswith(run_id)}

    # Clients and operators.

    @precondition(lambda self: len(self.runs) < 3)
    @rule(shape=st.sampled_from(range(len(_SHAPES))), priority=st.sampled_from([1, 5]), delayed=st.booleans(), deadline=st.booleans(),
          lane=st.booleans())
    def start_another(self, shape: int, priority: int, delayed: bool, deadline: bool, lane: bool) -> None:
        self.start(shape, priority, delayed=delayed, deadline=deadline, lane=lane)

    def start(self, shape: int, priority: int, *, delayed: bool, deadline: bool, lane: bool = True) -> None:
        run = self.play.new(
            _SHAPES[shape], priority=priority, delay_ms=60_000 if delayed and deadline else 0, deadline_ms=90_000 if deadline else 0,
            lane=_LANE if lane else None)
        assert self.store.start(run, _SHAPES[shape]).word == "OK"
        assert self.store.start(run, _SHAPES[shape]).word == "EXISTS"
        self.runs.append(run.run_id)
        self.new[run.run_id] = run
        self.seen["queued in a lane"] += self.state(run.run_id) == "queued"

    @precondition(lambda self: self.runs)
    @rule(pick=_PICK, seldom=_SELDOM, compensate=st.booleans())
    def cancel(self, pick: int, seldom: int, compensate: bool) -> None:
        run_id = self.runs[pick % len(self.runs)]
        if seldom != 2 and run_id not in self.away:
            return
        before = self.state(run_id)
        undoes = compensate and any(one.kind is NodeKind.UNDO for one in self.play.graphs[run_id].nodes)
        undoes = undoes and (before != "queued" or self.play.field(run_id, "g") != "1")
        if run_id in self.away and compensate and before != "cancelled":
            assert self.store.cancel(run_id, reason="x", compensate=True).word == "PARKED", "what is to be undone stands in its log"
            self.bring_back(run_id)
            before = self.state(run_id)
        self.seen["cancelled as a stub"] += run_id in self.away and before != "cancelled"
        word = {"cancelled": "ALREADY", "completed": "ENDED", "failed": "ENDED", "compensating": "COMPENSATING"}.get(before, "OK")
        assert self.store.cancel(run_id, reason="x", compensate=compensate).word == word
        self.seen[f"cancel {word}"] += 1
        self.seen["undone"] += word == "OK" and undoes
        again = "ALREADY" if word == "OK" and not undoes else "COMPENSATING" if word == "OK" else word
        assert self.store.cancel(run_id, reason="x", compensate=not compensate).word == again
        self.seen[f"cancel {again}"] += 1

    @precondition(lambda self: self.runs)
    @rule(pick=_PICK, seldom=_SELDOM, twice=st.booleans())
    def pause(self, pick: int, seldom: int, twice: bool) -> None:
        self.twice = twice
        if seldom != 2:
            return
        run_id = self.runs[pick % len(self.runs)]
        self.bring_back(run_id)
        before = self.state(run_id)
        words = {"paused": "ALREADY", "compensating": "COMPENSATING", "queued": "QUEUED"} | dict.fromkeys(_ENDED, "ENDED")
        assert self.store.pause(run_id, reason="ops").word == words.get(before, "OK")

    # Those who are waited for.

    @precondition(lambda self: self.runs)
    @rule(pick=_PICK, name=st.sampled_from(["go", "stop"]), number=st.integers(0, 3))
    def signal(self, pick: int, name: str, number: int) -> None:
        """Early, in time, late, again: its word follows from the records alone."""
        run_id = self.runs[pick % len(self.runs)]
        if waits := self.play.graphs[run_id].waits_for(name):
            self.send(run_id, name, f"{name}{number}", waits)

    def send(self, run_id: str, name: str, signal_id: str, waits: tuple[int, ...]) -> None:
        payload = f"j1:\"{signal_id}\""
        stands = [self.step(run_id, index) or "P" for index in waits]
        open_one = next((index for index, letter in zip(waits, stands, strict=True) if letter == "W"), None)
        if signal_id in self.signals.setdefault(run_id, set()):
            word = "ALREADY"
        elif self.state(run_id) in _ENDED:
            word = "ENDED"
        elif open_one is not None and not self.field(run_id, "ph"):
            word = "OK"
            self.values[run_id, open_one] = payload
        elif self.state(run_id) == "compensating":
            word = "OVER"
        else:
            word = "KEPT" if {"P", "W"} & set(stands) else "OVER"
        told = self.store.signal(run_id, name=name, signal_id=signal_id, payload=payload, waits=waits)
        assert told.word == word
        self.seen[f"signal {word}"] += 1
        if word in ("OK", "KEPT"):
            self.heard(run_id, open_one if word == "OK" else None)
            self.signals[run_id].add(signal_id)
            assert self.store.signal(run_id, name=name, signal_id=signal_id, payload=payload, waits=waits).word == "ALREADY"

    @precondition(lambda self: self.runs)
    @rule(pick=_PICK, body=st.sampled_from("ab"))
    def advance(self, pick: int, body: str) -> None:
        run_id = self.runs[pick % len(self.runs)]
        for agent in self.play.graphs[run_id].nodes:
            if agent.kind is NodeKind.AGENT:
                self.answer(run_id, agent.index, body)

    def answer(self, run_id: str, index: int, body: str) -> None:
        if self.must_be_asked(run_id, index):
            assert self.store.advance(run_id, index, digest=body, payload="j1:0").word == "PARKED"
            self.bring_back(run_id)
        waits = self.step(run_id, index) == "W" and not self.field(run_id, "ph")
        if (before := self.answers.get((run_id, index))) is not None:
            word = "SAME" if before == body else "TAKEN"
        else:
            word = "ENDED" if self.state(run_id) in _ENDED else "OK" if waits else "NOT_WAITING"
        assert self.store.advance(run_id, index, digest=body, payload=f"j1:\"{body}\"").word == word
        self.seen[f"advance {word}"] += 1
        if word == "OK":
            self.heard(run_id, index, agent=True)
            self.answers[run_id, index] = body
            self.values[run_id, index] = f"j1:\"{body}\""

    @precondition(lambda self: self.runs)
    @rule(pick=_PICK, seldom=_SELDOM)
    def expire_orphans(self, pick: int, seldom: int) -> None:
        """Nothing is cancelled for idleness but a run that is idle and waits for agents alone."""
        if seldom != 2:
            return
        run_id = self.runs[pick % len(self.runs)]
        if run_id in self.away:
            due = self.client.zscore(self.store.keys.of(0, "orphans:due"), run_id)
            assert self.store.expire_idle(run_id, before=2**52)[0] == ("PARKED" if due is not None and due < 8e15 else "MOVED")
            return
        graph, before = self.play.graphs[run_id], self.state(run_id)
        waiting = [one for one in graph.nodes if self.play.step(run_id, one.index) == "W"]
        orphan = before == "waiting_signal" and all(one.kind is NodeKind.AGENT for one in waiting)
        endless = any(one.idle_ms is None for one in waiting)
        word = "ENDED" if before in _ENDED else "OK" if orphan and not endless else "MOVED"
        assert self.store.expire_idle(run_id, before=2**52)[0] == word
        assert self.state(run_id) == ("cancelled" if word == "OK" else before)
        self.seen["expired"] += word == "OK"

    @precondition(lambda self: self.runs)
    @rule(pick=_PICK, twice=st.booleans())
    def resume(self, pick: int, twice: bool) -> None:
        self.twice = twice
        run_id = self.runs[pick % len(self.runs)]
        self.store.resume(run_id)

    @precondition(lambda self: self.runs)
    @rule(pick=_PICK, twice=st.booleans())
    def retry(self, pick: int, twice: bool) -> None:
        self.twice = twice
        run_id = self.runs[pick % len(self.runs)]
        self.bring_back(run_id)
        self.reopen(run_id)

    def reopen(self, run_id: str) -> bool:
        state, phase = self.state(run_id), self.play.field(run_id, "ph")
        wanted = (state == "failed" or (state == "paused" and phase == "U")) and not self.play.field(run_id, "un")
        if state in ("failed", "paused"):
            assert self.play.reopen(run_id, generation=state == "failed", at_event=1).word == ("CHANGED" if wanted else "REFUSED")
        word = self.play.reopen(run_id, generation=state == "failed").word
        assert word == ("OK" if wanted else "REFUSED")
        if wanted:
            self.forget_holders(run_id)
        return wanted

    @rule(scope=st.sampled_from(["all", "queue:q", "workflow:flow"]), seldom=_SELDOM, twice=st.booleans())
    def hold(self, scope: str, seldom: int, twice: bool) -> None:
        self.twice = twice
        if seldom != 2:
            self.store.unhold(scope)
        else:
            self.store.hold(scope, "x")

    @precondition(lambda self: len(self.runs) >= 3)
    @rule(pick=_PICK, twice=st.booleans())
    def purge(self, pick: int, twice: bool) -> None:
        self.twice = twice
        run_id = self.runs[pick % len(self.runs)]
        self.bring_back(run_id)
        if self.state(run_id) not in _ENDED:
            assert self.store.purge(run_id).word == "NOT_ENDED"
            return
        assert self.store.purge(run_id).word == "OK"
        self.runs.remove(run_id)
        self.forget_holders(run_id)
        assert self.play.keys_with(f"run:{run_id}") == []

    # Workers.

    @rule(limit=st.integers(1, 5), code=st.sampled_from([CODE, CODE, CODE, "half", "unknown"]), first=st.booleans(), twice=st.booleans())
    def claim(self, limit: int, code: str, first: bool, twice: bool) -> None:
        self.twice = twice
        batch = self.store.claim(0, self.play.want(limit, code=code, first=first))
        assert len(batch.attempts) <= limit
        assert not (code == "unknown" and batch.attempts)
        self.took(batch.attempts)

    def outcome(self, one: Attempt, kind: OutcomeKind, total: int) -> Any:
        if "!" in one.flags:
            return self.play.outcome(one, OutcomeKind.FAILED, reason="poison", error="{}")
        if "u" in one.flags or "s" in one.flags:
            return self.play.outcome(one, OutcomeKind.SKIPPED, reason="upstream_failed" if "u" in one.flags else "upstream_skipped")
        graph = self.play.graphs[one.run_id]
        if kind is OutcomeKind.COMPLETED and self.play.calls(one):
            child = self.play.call(one)
            if self.state(child) and child not in self.runs:
                self.runs.append(child)
            return self.play.outcome(one, OutcomeKind.CALLED, reason=child)
        if kind is OutcomeKind.COMPLETED and self.play.plans(one):
            return self.play.outcome(one, kind, total=self.play.plan(one))
        feeds = kind is OutcomeKind.COMPLETED and one.item is None and graph.feeds_each(one.index)
        if kind is OutcomeKind.SKIPPED and one.item is None and graph.feeds_each(one.index):
            kind = OutcomeKind.FAILED
        reasons = {OutcomeKind.SKIPPED: "when", OutcomeKind.RETRY: "transient", OutcomeKind.FAILED: "bad", OutcomeKind.GIVEN_BACK: "late"}
        return self.play.outcome(
            one, kind, reason=reasons.get(kind, ""), payload="" if "v" in one.flags else "j1:1", error="{}", delay_ms=60_000,
            total=total if feeds else -1, how="answered" if "v" in one.flags and kind is OutcomeKind.COMPLETED else "")

    @precondition(lambda self: self.attempts)
    @rule(
        picks=st.lists(_PICK, min_size=1, max_size=3), kind=_KINDS, total=st.integers(0, 3), limit=st.sampled_from([0, 0, 1, 3]),
        late=st.booleans(), twice=st.booleans())
    def commit(self, picks: list[int], kind: OutcomeKind, total: int, limit: int, late: bool, twice: bool) -> None:
        """Also late and doubled: whoever was given an attempt may speak at any time."""
        self.twice = twice
        current = [one for one in self.attempts if self.held.get(one.ref) == one.fence]
        among = self.attempts if late or not current else current
        chosen = [among[-1 - pick % len(among)] for pick in picks]
        words = []
        for one in chosen:
            word = self.expected(one)
            words.append(word)
            if word == "OK":
                del self.held[one.ref]
        batch = self.play.send(*(self.outcome(one, kind, total) for one in chosen), limit=limit)
        assert batch.answers == words
        self.took(batch.attempts)

    @rule(kinds=st.lists(_KINDS, min_size=1, max_size=6), limit=st.integers(1, 3), total=st.integers(0, 3), twice=st.booleans())
    def work(self, kinds: list[OutcomeKind], limit: int, total: int, twice: bool) -> None:
        """A worker that goes on for a while: claim, then commit and claim in one call."""
        self.claim(limit, CODE, first=True, twice=twice)
        for kind in kinds:
            if self.held:
                self.commit([0], kind, total, limit, late=False, twice=twice)
            self.everything_adds_up()
        self.seen["work"] += 1

    @precondition(lambda self: self.attempts)
    @rule(twice=st.booleans())
    def heartbeat(self, twice: bool) -> None:
        self.twice = twice
        some = self.attempts[-6:]
        assert self.store.heartbeat(0, some) == [self.expected(one) for one in some]

    # Sweeps.

    @precondition(lambda self: self.held)
    @rule(pick=_PICK, all_of_them=st.booleans(), twice=st.booleans())
    def expire(self, pick: int, all_of_them: bool, twice: bool) -> None:
        """Workers die: their leases end, and the sweep comes."""
        self.twice = twice
        refs = sorted(self.held)
        gone = refs if all_of_them else [refs[pick % len(refs)]]
        for ref in gone:
            self.play.backdate("leases", ref)
        self.play.look_now()
        lost = {cause.split()[0] for cause in self.store.expire_leases(0).causes}
        assert lost <= set(gone)
        for ref in gone:
            if ref in lost or self.state(ref.partition(":")[0]) in ("", *_ENDED):
                del self.held[ref]

    @rule(pick=_PICK, one=st.booleans(), twice=st.booleans())
    def due(self, pick: int, one: bool, twice: bool) -> None:
        self.twice = twice
        members = sorted(self.client.zrange(self.store.keys.of(0, "due"), 0, -1))
        for member in members[pick % len(members):][:1] if one and members else members:
            if one or not member.startswith("deadline"):
                self.play.backdate("due", member)
        self.store.fire_due(0)

    @rule(all_code=st.booleans(), missing_long=st.booleans(), twice=st.booleans())
    def take_back(self, all_code: bool, missing_long: bool, twice: bool) -> None:
        self.twice = twice
        if missing_long:
            self.play.backdate("aside")
        self.store.take_back(0, [f"sig{index}" for index in range(8)] if all_code else ["sig0"])
        self.store.repoke(0)

    # What must be so at every point.

    @invariant()
    def everything_adds_up(self) -> None:
        standing = self.standing() if self.runs else {}
        for run_id in self.runs:
            if run_id not in self.away:
                self.count(run_id, self.play.graphs[run_id], standing)
                self.read_log(run_id, self.play.graphs[run_id])

    @invariant()
    def what_was_answered_is_the_result(self) -> None:
        for (run_id, index), payload in self.values.items():
            if run_id in self.runs and run_id not in self.away and self.play.step(run_id, index) in "RXC":
                assert self.play.field(run_id, f"{index}r") == payload

    @invariant()
    def active_runs_are_those_that_have_not_ended(self) -> None:
        active = set(self.client.hkeys(self.store.keys.of(0, "active")))
        assert active == {run_id for run_id in self.runs if run_id not in self.away and self.state(run_id) not in (*_ENDED, "queued")}

    @invariant()
    def a_lane_is_as_full_as_it_may_be(self) -> None:
        view = read_lane(self.store, 0, "l") if self.runs else None
        active, queue = (view.active, view.queue) if view else ((), ())
        assert len(active) <= 1
        assert active or not queue, "somebody is queued while a place is free"
        mine = {run_id for run_id in self.runs if self.field(run_id, "ln")}
        assert set(queue) == {run_id for run_id in mine if self.state(run_id) == "queued"}
        delayed = {run_id for run_id in mine if self.field(run_id, "ro")}
        undone = {run_id for run_id in mine if self.state(run_id) == "compensating"}  # it keeps its place, and gets none if it had none
        assert set(active) - undone == {run_id for run_id in mine - delayed - undone if self.state(run_id) not in _ENDED}

    def teardown(self) -> None:
        if not hasattr(self, "runs"):
            return
        try:
            self.twice = False
            for run_id in self.runs:
                self.seen["admitted"] += any(entry.startswith("a;") for entry in self.play.log(run_id))
                self.bring_back(run_id)
            self.let_everything_end()
            self.everything_adds_up()
            self.active_runs_are_those_that_have_not_ended()
            for run_id in self.runs:
                assert self.store.purge(run_id).word == "OK"
            assert self.play.keys_with("run:") == self.play.keys_with("graph") == []
            assert leaks(self.client, self.store.namespace) == []
        finally:
            forget(self.client, self.store.namespace)
            self.store._caller().close()

    def let_everything_end(self) -> None:
        """Operators let go, workers have all code, what is due comes: every run must end."""
        for scope in ("all", "queue:q", "workflow:flow"):
            self.store.unhold(scope)
        for _ in range(60):
            open_runs = [run_id for run_id in self.runs if self.state(run_id) not in _ENDED]
            if not open_runs:
                return
            self.store.take_back(0, [f"sig{index}" for index in range(8)])
            for run_id in open_runs:
                if self.store.resume(run_id).word == "STEP_FAILED" and self.state(run_id) == "paused":
                    self.reopen(run_id)
            self.play.lose(*(one for one in self.attempts if self.held.get(one.ref) == one.fence))
            self.held.clear()
            self.play.due()
            for run_id in open_runs:
                self.answer_everything(run_id)
            for _ in range(100):
                if not (batch := self.play.claim(5)):
                    break
                for one in batch:
                    self.play.by_flags(one)
            self.everything_permitted(self.play.by_flags)
            self.know_children()
        raise AssertionError(f"stuck: {[self.play.log(run_id) for run_id in open_runs]}")


    def answer_everything(self, run_id: str) -> None:
        for one in self.play.graphs[run_id].nodes:
            if one.kind is NodeKind.AGENT:
                self.answer(run_id, one.index, "a")
            elif one.signal:
                self.send(run_id, one.signal, os.urandom(4).hex(), self.play.graphs[run_id].waits_for(one.signal))


def _fake() -> redis.Redis:
    client: redis.Redis = fakeredis.FakeRedis(server=fakeredis.FakeServer(), decode_responses=True)
    return client


_CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
# The short form plays the same few examples every time; the long one new ones, and enough to demand that it has met everything.
_SHORT, _LONG = 30, int(os.environ.get("CONDUCTOR_MACHINE_EXAMPLES", "1500"))
_PROVES = pytest.mark.spec(
    "RUN-2", "RUN-5", "RUN-7", "RUN-11", "RUN-14", "CAN-1", "CAN-2", "LANE-2", "LANE-3", "WF-5", "IDLE-1", "IDLE-2", "IDLE-4", "IDLE-6")


def _play(connect_to: Callable[[], redis.Redis], examples: int, *, anew: bool) -> Counter[str]:
    seen: Counter[str] = Counter()
    run_state_machine_as_test(
        type("Played", (Verbs,), {"connect_to": staticmethod(connect_to), "seen": seen}),
        settings=settings(
            max_examples=examples, stateful_step_count=40, derandomize=not anew, deadline=None, suppress_health_check=_CHECKS, database=None))
    return seen


def _connector(backend: str, request: pytest.FixtureRequest) -> Callable[[], redis.Redis]:
    if backend == "fakeredis":
        return _fake
    server: ValkeyServer = request.getfixturevalue("valkey")
    client = connect(server.url())
    return lambda: client


@_PROVES
@pytest.mark.parametrize("backend", ["fakeredis", "valkey"])
def test_any_order_of_verbs(backend: str, request: pytest.FixtureRequest) -> None:
    assert _play(_connector(backend, request), _SHORT, anew=False)["work"]


@_PROVES
@pytest.mark.faults
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("backend", ["fakeredis", "valkey"])
def test_very_many_orders_of_verbs(backend: str, request: pytest.FixtureRequest) -> None:
    """`CONDUCTOR_MACHINE_EXAMPLES` says how many; fewer than some hundred may not meet everything."""
    seen = _play(_connector(backend, request), _LONG, anew=True)
    assert not (_MET - set(+seen)), f"never met: {sorted(_MET - set(+seen))}; met: {seen}"
