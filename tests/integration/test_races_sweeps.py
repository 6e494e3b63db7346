"""Races of the sweeps: what they meet while runs fail, code is missing, clocks step back, callers die half way and workers are held."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from conductor.records import FailurePolicy, NodeKind, OutcomeKind, Poke
from conductor.runs.fsck import fsck
from conductor.runs.retry import resume_failed
from conductor.settings import Settings
from conductor.store import Store
from conductor.sweeps import retention
from conductor.sweeps.overdue import intervals, overdue
from conductor.sweeps.retention import sweep_retention
from conductor.sweeps.retries import sweep_retries
from conductor.sweeps.stalled import sweep_stalled
from conductor.wiring import Engine
from tests.integration.playing import Player, chain, graph_of, node

HOUR = 3_600_000
MANY = 1100  # more than one call of a resume or unhold brings back


@pytest.fixture
def play(store: Store) -> Iterator[Player]:
    """A player whose records must still agree with their logs when the test is over."""
    player = Player(store)
    yield player
    assert [str(found) for found in fsck(engine_of(store))] == []


def engine_of(store: Store, **settings: float) -> Engine:
    return Engine(Settings(namespace=store.namespace, partitions=1, **settings), store, {}, lambda pokes: None, "q")


def meet_all(play: Player, code: str = "") -> None:
    """A worker meets everything that is ready, and may claim none of it."""
    while play.ready():
        assert play.claim(200, **({"code": code} if code else {})) == []


def despair(play: Player) -> None:
    """The code has been missing for too long, and the sweep of a worker that has none of it comes."""
    play.backdate("aside")
    play.store.take_back(0, ["none"])


# Missing code.


@pytest.mark.spec("WF-10", "RUN-7")
def test_a_run_paused_for_want_of_code_that_fails_meanwhile_still_ends(play: Player) -> None:
    play.store.register_code("old", ["sig0", "sig2"])
    run_id = play.start(graph_of(node(0), node(1), node(2, kind=NodeKind.ON_FAILURE)))
    (held,) = play.claim(code="old")
    assert play.claim(code="old") == []
    despair(play)
    assert play.ended(run_id) == ("paused", "code_missing")
    play.fail(held)
    assert play.ended(run_id) == ("running", ""), "code that is missing no longer matters to a run that is failing"
    assert play.drain() == [(2, None)]
    play.store.take_back(0, ["sig1"])
    assert play.drain() == []
    assert play.ended(run_id) == ("failed", "step_failed")


@pytest.mark.spec("WF-10", "RUN-7")
def test_missing_code_does_not_pause_a_run_among_its_last_steps(play: Player) -> None:
    play.store.register_code("old", ["sig0", "sig2"])
    run_id = play.start(graph_of(node(0), node(1), node(2, kind=NodeKind.ON_FAILURE)))
    (held,) = play.claim(code="old")
    assert play.claim(code="old") == []
    play.fail(held)
    despair(play)
    assert play.state(run_id) == "running"
    assert play.drain() == [(2, None)]
    assert play.ended(run_id) == ("failed", "step_failed")


@pytest.mark.spec("WF-10", "RUN-7")
@pytest.mark.parametrize("despairs_first", [True, False])
def test_a_failure_that_pauses_is_told_although_code_is_missing_too(play: Player, despairs_first: bool) -> None:
    play.store.register_code("old", ["sig0", "sig2"])
    run_id = play.start(graph_of(node(0, policy=FailurePolicy.PAUSE), node(1), node(2)))
    (failing,), (working,) = play.claim(code="old"), play.claim(2, code="old")
    if despairs_first:
        despair(play)
    play.fail(failing)
    despair(play)
    play.complete(working)
    play.store.take_back(0, ["sig1"])
    assert play.drain() == []
    assert play.ended(run_id) == ("paused", "step_failed")
    assert resume_failed(engine_of(play.store), run_id).word == "OK"
    assert sorted(play.drain()) == [(0, None), (1, None)]
    assert play.state(run_id) == "completed"


@pytest.mark.spec("WF-10", "RUN-14")
def test_a_persons_pause_replaces_one_that_would_lift_itself(play: Player) -> None:
    play.store.register_code("old", ["sig9"])
    run_id = play.start(chain(1))
    assert play.claim(code="old") == []
    despair(play)
    assert play.store.pause(run_id, reason="do not run this", actor="ops").word == "OK"
    play.store.take_back(0, ["sig0"])
    assert play.ended(run_id) == ("paused", "do not run this")
    assert play.claim() == []
    assert play.store.resume(run_id).word == "OK"
    assert play.drain() == [(0, None)]


@pytest.mark.spec("WF-10")
def test_every_run_that_misses_code_is_paused_however_many_there_are(play: Player) -> None:
    play.store.register_code("old", ["sig9"])
    runs = [play.start(chain(1)) for _ in range(5)]
    meet_all(play, "old")
    for _ in range(3):
        play.backdate("aside")
        play.store.take_back(0, ["none"], limit=2)
    assert {play.ended(run_id) for run_id in runs} == {("paused", "code_missing")}


@pytest.mark.spec("WF-10")
def test_whoever_has_the_code_takes_what_was_set_aside_in_the_claim_itself(play: Player) -> None:
    """Between a sweep that puts it back and a claim, one of many without the code would set it aside again, and again."""
    play.store.register_code("other", ["none"])
    run_id, paused = play.start(chain(1)), play.start(chain(1), queue="p")
    meet_all(play, "other")
    assert play.claim(1, "p", code="other") == []
    despair(play)
    assert (play.ended(run_id), play.ready()) == (("paused", "code_missing"), [])
    assert play.claim(code="other") == []
    assert play.store.set_aside({"none"}) == []
    assert play.store.set_aside({"sig0", "none"}) == [Poke(0, "q"), Poke(0, "p")]
    play.redis.hset(play.store.keys.of(0, "pokes"), "p", 0)
    told = play.store.claim(0, play.want(first=True))
    assert [held.run_id for held in told.attempts] == [run_id]
    assert (play.codes(run_id), Poke(0, "p") in told.pokes, play.ready("p")) == ("smpnrk", True, [f"{paused}:0"])
    play.complete(told.attempts[0])
    assert play.state(run_id) == "completed"


@pytest.mark.spec("WF-10")
def test_patience_begins_anew_when_somebody_with_the_code_was_there(play: Player) -> None:
    """However many wait, and more keep coming: while a worker takes them one after the other, no other may say that the code is missing."""
    play.store.register_code("other", ["none"])
    runs = [play.start(chain(1)) for _ in range(6)]
    meet_all(play, "other")
    play.backdate("aside")
    play.store.take_back(0, ["sig0"], limit=4)
    play.store.take_back(0, ["none"])
    assert [play.state(run_id) for run_id in runs] == ["running"] * 6
    play.backdate("aside")
    play.store.take_back(0, ["none"])
    assert [play.state(run_id) for run_id in runs].count("paused") == 2


@pytest.mark.spec("WF-10", "RET-1")
def test_what_was_set_aside_goes_with_its_run(play: Player) -> None:
    play.store.register_code("old", ["sig9"])
    runs = [play.start(chain(1)) for _ in range(3)]
    meet_all(play, "old")
    for run_id in runs:
        play.store.cancel(run_id, reason="x")
        assert play.store.purge(run_id).word == "OK"
    despair(play)
    assert play.keys_with(":aside") == []


# Callers that die between two calls of a thousand entries.


@pytest.mark.spec("RUN-14", "REC-3")
def test_the_due_sweep_finishes_what_a_dead_resume_began(play: Player) -> None:
    run_id = play.start(graph_of(*(node(index, signature="sig1") for index in range(MANY))))
    play.store.pause(run_id, reason="ops")
    meet_all(play)
    assert play.store._call("resume_run", 0, run_id, "", "")[0] == "MORE"
    assert len(play.ready()) == 1000
    play.due()
    assert len(play.ready()) == MANY
    assert play.keys_with(":held") == []
    assert play.state(run_id) == "running"


@pytest.mark.spec("WF-10", "REC-3")
def test_the_due_sweep_finishes_what_found_code_began(play: Player) -> None:
    play.store.register_code("old", ["sig1"])
    run_id = play.start(graph_of(*(node(index, signature="sig1" if index else "sig0") for index in range(MANY))))
    (other,) = play.claim(code="old")  # after it has set the first step aside
    play.give_back(other)
    despair(play)
    meet_all(play)
    play.store.take_back(0, ["sig0"])
    assert len(play.ready()) == 1000 + 1
    play.due()
    assert (len(play.ready()), play.keys_with(":held"), play.state(run_id)) == (MANY, [], "running")


@pytest.mark.spec("RUN-14", "REC-3")
def test_the_due_sweep_finishes_what_a_dead_unhold_began(play: Player) -> None:
    play.start(graph_of(*(node(index, signature="sig1") for index in range(MANY))))
    play.store.hold("workflow:flow", "x")
    meet_all(play)
    assert play.store._call("unhold", 0, "workflow:flow")[0] == "MORE"
    assert len(play.ready()) == 1000
    play.due()
    assert (len(play.ready()), play.keys_with(":held")) == (MANY, [])


@pytest.mark.spec("RUN-14")
@pytest.mark.parametrize("scope", ["all", "queue:q"])
def test_nobody_is_poked_for_a_queue_that_is_held(play: Player, scope: str) -> None:
    play.start(graph_of(node(0), node(1)))
    held = play.one()
    play.store.hold(scope, "maintenance")
    looks = [play.store.claim(0, play.want(first=True)).pokes for _ in range(5)]
    assert [poke for pokes in looks for poke in pokes] == [], "a worker would be woken by its own look, for ever"
    play.redis.hset(play.store.keys.of(0, "pokes"), "q", 0)
    assert play.send(play.outcome(held, OutcomeKind.COMPLETED, payload="j1:1"), limit=1).pokes == []
    assert play.store.unhold(scope).pokes == [Poke(0, "q")]


# Clocks and gaps.


@pytest.mark.spec("ACT-5", "REC-3")
def test_after_the_clock_stepped_back_leases_rest_for_one_lease_and_no_longer(play: Player) -> None:
    run_id = play.start(chain(1))
    held = play.one()
    head, ahead = play.store.keys.head(0), play.now() + HOUR
    play.redis.hset(head, mapping={"clock": ahead, "look": ahead - 1000, "calm": ahead - 600_000})
    play.redis.zadd(play.store.keys.of(0, "leases"), {held.ref: ahead + 15_000})
    assert play.store.claim(0, play.want()).attempts == []  # notices the step before any sweep does
    play.store.expire_leases(0)
    assert play.redis.zscore(play.store.keys.of(0, "leases"), held.ref) <= play.now() + 15_000
    play.backdate("leases")
    assert play.store.expire_leases(0).count == 0
    assert play.now() + 10_000 < int(play.redis.hget(head, "calm")) <= play.now() + 15_000
    play.redis.hincrby(head, "calm", -16_000)  # sixteen seconds pass, and the sweeps look on
    assert play.store.expire_leases(0).count == 1
    assert play.step(run_id, 0) == "R"


@pytest.mark.spec("ACT-5", "RUN-6")
def test_what_became_ready_before_the_clock_stepped_back_is_poked_again(play: Player) -> None:
    run_id = play.start(chain(1))
    ahead = play.now() + HOUR
    play.redis.hset(play.store.keys.head(0), "clock", ahead)
    play.redis.zadd(play.store.keys.of(0, "ready:q"), {f"{run_id}:0": 5e13 + ahead})
    play.redis.hset(play.store.keys.of(0, "pokes"), "q", ahead)
    play.redis.hset(play.store.keys.of(0, "repokes"), "q", f"{ahead};60000")
    play.store.glance()  # the first one only learns which queues there are
    assert play.store.glance().unclaimed == [0]
    assert play.store.repoke(0).pokes == [Poke(0, "q")]
    assert play.drain() == [(0, None)]


@pytest.mark.spec("REC-3", "REC-4")
@pytest.mark.parametrize(("settings", "every"), [({"stall_sweep_seconds": 10}, 10), ({}, 300)])
def test_the_pause_between_slow_sweeps_is_not_taken_for_an_outage(play: Player, settings: dict[str, float], every: float) -> None:
    """By the setting, and by `conductor sweeper --interval`."""
    run_id, engine, head = play.start(chain(1)), engine_of(play.store, **settings), play.store.keys.head(0)
    play.one()
    for ago, moved in ((3 * every, 0), (every, 1)):
        play.backdate("leases")
        play.redis.hset(head, mapping={"look": int(play.now() - ago * 1000), "calm": 0})
        assert sweep_stalled(engine, every=0 if settings else every).count == moved
    assert play.step(run_id, 0) == "R"


# What the sweeps meet first.


@pytest.mark.spec("STK-9", "REC-3")
@pytest.mark.parametrize("stranger", ["zz:{}:0", "zz:", "no kind at all"])
def test_what_a_newer_release_wrote_into_the_due_index_is_left_to_it(store: Store, stranger: str) -> None:
    play = Player(store)
    run_id = play.start(chain(1))
    play.retry_later(play.one())
    due, member = play.store.keys.of(0, "due"), stranger.format(run_id)
    play.redis.zadd(due, {member: 500})
    play.backdate("due", f"retry:{run_id}:0")
    assert play.store.fire_due(0).causes == [f"retry:{run_id}:0"]
    assert play.step(run_id, 0) == "R"
    assert play.redis.zscore(due, member) > play.now() + 30_000


@pytest.mark.spec("REC-3", "RUN-3")
def test_due_entries_of_an_ended_run_do_not_keep_a_live_one_waiting(play: Player) -> None:
    dead = play.start(graph_of(*(node(index, signature="sig1") for index in range(150))))
    play.send(*(play.outcome(held, OutcomeKind.RETRY, delay_ms=60_000, reason="transient", error="{}") for held in play.claim(150)))
    play.store.cancel(dead, reason="x")
    live = play.start(chain(1))
    play.retry_later(play.one())
    play.backdate("due")
    play.redis.zadd(play.store.keys.of(0, "due"), {f"retry:{live}:0": 2000})
    assert sweep_retries(engine_of(play.store)).causes == (f"retry:{live}:0",)


@pytest.mark.spec("REC-3", "RUN-3")
def test_leases_of_an_ended_run_do_not_keep_a_live_one_waiting(play: Player) -> None:
    dead = play.start(graph_of(*(node(index, signature="sig1") for index in range(150))))
    assert len(play.claim(150)) == 150
    play.store.cancel(dead, reason="x")
    live = play.start(chain(1))
    held = play.one()
    play.backdate("leases")
    play.redis.zadd(play.store.keys.of(0, "leases"), {held.ref: 2000})
    play.look_now()
    assert sweep_stalled(engine_of(play.store)).causes == (f"{live}:0 lease_expired",)


@pytest.mark.spec("RET-1")
def test_as_much_is_deleted_as_ends(play: Player, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep goes on while its batches are full; one whose time is over leaves the rest to the next, which is due at once."""
    engine = engine_of(play.store)
    monkeypatch.setattr(retention, "_BATCH", 10)

    def end(count: int) -> None:
        for _ in range(count):
            play.start(chain(1), retain_completed_ms=0)
        play.drain()

    end(45)
    assert sweep_retention(engine).count == 45
    assert retention.NAME not in overdue(*play.store.last_sweeps(), intervals(engine.settings))
    end(45)
    monkeypatch.setattr(retention, "_AT_MOST", 0)
    assert sweep_retention(engine).count == 10
    assert retention.NAME in overdue(*play.store.last_sweeps(), intervals(engine.settings))
    monkeypatch.setattr(retention, "_AT_MOST", 10)
    assert sweep_retention(engine).count == 35


@pytest.mark.spec("RET-1", "RUN-11")
def test_a_run_that_was_retried_under_the_retention_sweep_is_kept(play: Player, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = play.start(chain(1))
    play.fail(play.one())
    play.backdate("ended:failed")
    find = play.store.due_for_purge

    def found_then_retried(partition: int, limit: int) -> list[str]:
        """Somebody is faster between the look and the deletion: the run is retried and has ended anew."""
        found = find(partition, limit)
        assert play.reopen(run_id).word == "OK"
        play.drain()
        return found

    monkeypatch.setattr(play.store, "due_for_purge", found_then_retried)
    assert sweep_retention(engine_of(play.store)).count == 0
    assert play.ended(run_id) == ("completed", "")
