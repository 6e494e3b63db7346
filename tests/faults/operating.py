"""Scenarios of operations, sessions and schedules. Each plays from wherever an earlier, killed process left things."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conductor.declare.cadence import Cadence
from conductor.errors import NotFailed, NotInDoubt
from conductor.operations import acting, schedules
from conductor.operations.read import find
from conductor.runs.retry import retry_run
from conductor.sessions import consent, inbox
from conductor.state import OpState
from tests.support.ops_works import CAPABILITIES, SESSION

if TYPE_CHECKING:
    from tests.faults.lean import Lean

__all__ = ["called_anew", "consented", "operated", "remembered", "scheduled"]

Right = dict[str, str]


def operated(lean: Lean) -> Right:
    """Called here, deferred, failed and hastened, in doubt and resolved; what is owed to the session is told once."""
    lean.call("called", "faults_pay", 1, 2)
    lean.leave("left", "faults_pay", 5, 6)
    lean.submit("deferred", "faults_pay", 2, 3)
    lean.call("flaky", "faults_flaky", 3, 4)
    lean.call("doubtful", "faults_doubtful", 4, 99)
    lean.drive(lambda: lean.state("doubtful") == "failed" or lean.ended("doubtful")(), "the one in doubt says so")
    try:
        acting.resolve(lean.engine, lean.runs["doubtful"], happened=True, value=99)
    except (NotInDoubt, NotFailed):
        pass  # an earlier process has resolved it
    lean.drive(lambda: _hastened(lean), "what waits for a retry is due")
    names = ("called", "deferred", "flaky", "doubtful", "left")
    lean.drive(lean.ended(*names), "all end")
    lean.drive(lambda: _told(lean), "every end is told")
    for message in inbox.read(lean.engine.store, SESSION):
        inbox.acknowledge(lean.engine.store, SESSION, message.id)
    left = inbox.read(lean.judge.store, SESSION)
    assert not left, f"acknowledged, and still there: {left}"
    return dict.fromkeys(names, "completed")


def _hastened(lean: Lean) -> bool:
    """Ten seconds of backoff are not waited for."""
    found = find(lean.judge, lean.runs["flaky"])
    if found.state is OpState.QUEUED and found.attempt:
        lean.store.hasten(lean.runs["flaky"], 0)
    return found.state is OpState.COMPLETED


def _told(lean: Lean) -> bool:
    """Deferred and retried operations owe their session a message, and one nobody waits for; one that was called only if its caller was lost."""
    store = lean.judge.store
    if any(lean.truth.zcard(store.keys.of(partition, "outbox")) for partition in range(store.partitions)):
        return False
    ids = list(lean.truth.scan_iter(f"conductor:{{{store.namespace}:*inbox:*:ids"))
    told = {str(one).rpartition(":")[0].rpartition(":")[0] for key in ids for one in lean.truth.zrange(key, 0, -1)}
    return {lean.runs[name] for name in ("deferred", "flaky", "doubtful", "left")} <= told


def consented(lean: Lean) -> Right:
    """A once-grant serves one operation and all its replays; a run may carry consent for everything in it."""
    consent.grant(lean.engine.store, SESSION, "faults_consented", grant_id="g1")
    lean.call("asked", "faults_consented", 1, 2)
    lean.drive(lean.ended("asked"), "the consented operation ends")
    consent.revoke(lean.engine.store, SESSION, "faults_consented")
    run_id = lean.start("blessed", "chain")
    lean.store.blanket(run_id, on=True)
    lean.store.blanket(run_id, on=False)
    lean.drive(lean.ended("blessed"), "the run ends")
    return {"asked": "completed", "blessed": "completed"}


def scheduled(lean: Lean) -> Right:
    """A job ticks, is paused and dropped; each tick was one operation."""
    payload = CAPABILITIES["faults_pay"].encode({"n": 1})
    job = schedules.Job("tick", "operation", "faults_pay", Cadence.of(1, where="test"), payload, overlap="allow")
    if not lean.ground.ledger.has_effect("ticked"):
        schedules.define(lean.engine, job)
        lean.store.seen_job("tick")
        lean.drive(lambda: _fired(lean) >= 2, "it has ticked twice")
        lean.ground.ledger.effect("ticked")
    lean.store.pause_job("tick")
    lean.store.drop_job("tick")
    lean.drive(lambda: not _open(lean), "what it started ends")
    assert lean.truth.zcard(lean.store.keys.of(0, "ops")) + lean.truth.zcard(lean.store.keys.of(1, "ops")) >= 2
    return {}


def _fired(lean: Lean) -> int:
    found = lean.judge.store.job("tick")
    return found.fired if found is not None else 0


def _open(lean: Lean) -> int:
    return sum(int(lean.truth.hlen(lean.store.keys.of(partition, "ops:open"))) for partition in range(lean.store.partitions))


def remembered(lean: Lean) -> Right:
    """A step with answers recorded inside: none of them is asked for again once its record is there."""
    lean.start_bare("remembering", "remembering")
    lean.drive(lean.ended("remembering"), "it ends")
    due = [lean.store.keys.of(partition, "due") for partition in range(lean.store.partitions)]
    lean.drive(lambda: not any(lean.truth.zcard(key) for key in due), "the operations it called are let go")
    return {"remembering": "completed"}



def called_anew(lean: Lean) -> Right:
    """What a step has called fails for good and fails its run; the retried run begins it anew under its own id."""
    lean.start_bare("calling", "calling")
    lean.drive(lean.ended("calling"), "it ends")
    if lean.state("calling") == "failed":
        lean.ground.ledger.effect("mended")
        try:
            retry_run(lean.engine, lean.runs["calling"], actor="test")
        except NotFailed:
            pass  # an earlier process has reopened it
    lean.drive(lean.ended("calling"), "the retried run ends")
    due = [lean.store.keys.of(partition, "due") for partition in range(lean.store.partitions)]
    lean.drive(lambda: not any(lean.truth.zcard(key) for key in due), "the operation it called is let go")
    assert sum(int(lean.truth.zcard(lean.store.keys.of(partition, "ops"))) for partition in range(lean.store.partitions)) == 1
    return {"calling": "completed"}
