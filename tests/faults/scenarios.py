"""What is played while it is struck: the four reference graphs, and the hands of an operator on runs that need them.

Each function plays from wherever an earlier, killed process left things, and tells in which state each run must be at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from conductor.errors import NotFailed, RunFinished
from conductor.records import Poke
from conductor.runs.children import child_of
from conductor.runs.execute import Drainer
from conductor.runs.retry import retry_run
from conductor.runs.waiting import advance, signal
from conductor.store import Want
from conductor.sweeps.stalled import sweep_stalled
from tests.faults.batching import batched
from tests.faults.operating import called_anew, consented, operated, remembered, scheduled
from tests.faults.parking import parked, recovered
from tests.support import works

if TYPE_CHECKING:
    from tests.faults.lean import Lean

__all__ = ["SCENARIOS"]

Right = dict[str, str]


def _graph(workflow: str) -> Callable[[Lean], Right]:
    def play(lean: Lean) -> Right:
        lean.start("one", workflow)
        lean.drive(lean.ended("one"), f"{workflow} ends")
        return {"one": "completed"}

    return play


def _timed(lean: Lean) -> Right:
    """A retry, a timer, and a second run that is cancelled while it waits."""
    lean.start("kept", "timed")
    lean.start("doomed", "timed", n=8)
    log = lean.store.keys.run(lean.runs["doomed"], "log")
    lean.drive(lambda: lean.truth.llen(log) >= 3 or lean.ended("doomed")(), "the run to be cancelled has begun")
    lean.store.cancel(lean.runs["doomed"], reason="not wanted", actor="test")
    lean.drive(lean.ended("kept", "doomed"), "both end")
    return {"kept": "completed", "doomed": "cancelled"}


def _paused(lean: Lean) -> Right:
    """Paused before anything was claimed, then resumed; the same for a whole workflow by holding it."""
    lean.start("paused", "chain")
    lean.store.pause(lean.runs["paused"], reason="wait", actor="test")
    lean.store.hold("workflow:diamond", "wait")
    lean.start("held", "diamond")
    lean.turn()
    lean.engine.poke(lean.store.resume(lean.runs["paused"], actor="test").pokes)
    lean.engine.poke(lean.store.unhold("workflow:diamond").pokes)
    lean.drive(lean.ended("paused", "held"), "what was paused ends")
    return {"paused": "completed", "held": "completed"}


def _mended(lean: Lean) -> Right:
    """Fails for good, is mended and retried; another run is purged after its end."""
    lean.start("mended", "brittle")
    lean.start("purged", "chain", n=2)
    lean.drive(lean.ended("mended", "purged"), "both end")
    _retry(lean, "mended")
    lean.store.purge(lean.runs["purged"])
    lean.drive(lean.ended("mended"), "the retried run ends")
    return {"mended": "completed", "purged": "gone"}


def _sharded(lean: Lean) -> Right:
    """Items that fail for good, mended and retried: more of them than one call of a reopening looks at."""
    lean.store.pages = 1
    lean.start("sharded", "shards")
    lean.drive(lean.ended("sharded"), "it ends")
    _retry(lean, "sharded")
    lean.drive(lean.ended("sharded"), "the retried run ends")
    return {"sharded": "completed"}


def _retry(lean: Lean, name: str) -> None:
    if lean.state(name) == "failed":
        lean.ground.ledger.effect("mended")
        try:
            retry_run(lean.engine, lean.runs[name], actor="test")
        except NotFailed:
            pass  # an earlier process has reopened it


def _long(lean: Lean) -> Right:
    """Longer than a heartbeat, with progress and a checkpoint; and a list so long that it is staged."""
    lean.start("long", "long", hold=0.7)
    lean.start("wide", "wide")
    lean.drive(lean.ended("long", "wide"), "both end")
    for partition in range(lean.store.partitions):
        staged = lean.store.keys.of(partition, "staged")
        for member in lean.truth.zrange(staged, 0, -1):
            lean.truth.zadd(staged, {str(member): 1})  # as if it had been staged long ago
    lean.drive(lambda: not any(lean.judge.store.glance().staged), "what was staged is forgotten")
    return {"long": "completed", "wide": "completed"}


def _unlucky(lean: Lean) -> Right:
    """Lost in every way without a crash: its poke is lost, its holder vanishes, its worker lacks the code, its worker is told to go."""
    lean.start("unheard", "chain", n=1)
    lean.pokes.clear()
    lean.drive(lean.ended("unheard"), "the sweep pokes again")
    _abandon(lean)
    _without_code(lean)
    _told_to_go(lean)
    names = ("unheard", "abandoned", "strange", "returned")
    lean.drive(lean.ended(*names), "all end")
    return dict.fromkeys(names, "completed")


def _undone(lean: Lean) -> Right:
    """One fails and is undone; another is cancelled while it sleeps, and undone as well."""
    lean.start("undone", "undone")
    slept = lean.start("regretted", "regretted", n=2)
    asleep = lean.store.keys.run(slept)
    lean.drive(lambda: str(lean.truth.hget(asleep, "1") or "").startswith("W") or lean.ended("regretted")(), "it sleeps")
    lean.engine.poke(lean.store.cancel(slept, reason="regretted", compensate=True).pokes)
    lean.drive(lean.ended("undone", "regretted"), "both are undone")
    run_id, begun = lean.runs["undone"], [line.key for line in lean.ground.ledger.lines("begin")]
    last = {step: len(begun) - 1 - begun[::-1].index(f"{run_id}:{step}:undo") for step in ("rent", "book")}
    assert last["rent"] < begun.index(f"{run_id}:book:undo"), "undos ran in the wrong order, or two at a time"
    assert f"{slept}:keep:undo" in lean.ground.ledger.effects()
    return {"undone": "failed", "regretted": "cancelled"}


def _called(lean: Lean) -> Right:
    """A parent and its child."""
    run_id = lean.start("called", "caller")
    lean.drive(lean.ended("called"), "parent and child end")
    child = child_of(lean.judge.store, run_id, 0)
    assert works.effect_keys("chain", child) <= lean.ground.ledger.effects()
    children = [key for key in lean.ground.ledger.effects() if key.endswith(":first")]
    assert children == [f"{child}:first"], f"more than one child: {children}"
    lean.drive(lambda: not lean.judge.store.glance().due or not any(lean.judge.store.glance().due), "what was bound is released")
    return {"called": "completed"}


def _erased(lean: Lean) -> Right:
    """Its entry in the ready index vanishes, as no script would ever let it: the net below catches it."""
    run_id = lean.start("erased", "chain", n=6)
    if lean.truth.llen(lean.store.keys.run(run_id, "log")) == 1:
        lean.truth.delete(lean.store.keys.of(int(run_id[-2:], 16), "ready:celery"))
    lean.drive(lean.ended("erased"), "it is re-derived from its log")
    return {"erased": "completed"}


def _waited(lean: Lean) -> Right:
    """A signal that comes early, an answer, a wait that lapses; and a run that waits for an agent who never comes."""
    run_id = lean.start("waited", "waited", n=3)
    lean.start("lonely", "lonely")
    _answered(lambda: signal(lean.engine, run_id, "word", 10, signal_id="s1"))
    log = lean.store.keys.run(run_id, "log")
    lean.drive(lambda: any(entry[0] == "i" for entry in lean.truth.lrange(log, 0, -1)) or lean.ended("waited")(), "it waits")
    _answered(lambda: advance(lean.engine, run_id, "draft", 20))
    lean.drive(lean.ended("waited", "lonely"), "both end")
    told = [lean.store.keys.of(partition, "outbox") for partition in range(lean.store.partitions)]
    lean.drive(lambda: not any(lean.truth.zcard(key) for key in told), "the end of the orphan is told")
    return {"waited": "completed", "lonely": "cancelled"}


def _answered(send: Callable[[], object]) -> None:
    """An earlier process may have sent it, and the run have ended."""
    try:
        send()
    except RunFinished:
        pass


def _abandon(lean: Lean) -> None:
    """A holder that claims and is never heard of again."""
    run_id = lean.start("abandoned", "chain", n=3)
    want = Want("celery", 1, "ghost", "ghost")
    lean.store.register_code("ghost", lean.drainer.signatures)
    lean.store.claim(int(run_id[-2:], 16), want)


def _without_code(lean: Lean) -> None:
    """A worker that knows only `chain` meets a `diamond` and sets it aside; the sweep of one that has the code comes before its next claim."""
    run_id = lean.start("strange", "diamond", n=4)
    lean.drain_with({"chain": works.chain}, int(run_id[-2:], 16))
    sweep_stalled(lean.engine)


def _told_to_go(lean: Lean) -> None:
    """A worker that is told to stop between its claim and the first line of a body."""
    run_id = lean.start("returned", "chain", n=5)
    asked = iter([False, False])
    leaving = Drainer(lean.engine, worker_name="leaving", stopping=lambda: next(asked, True))
    leaving.drain(int(run_id[-2:], 16), "celery")
    lean.pokes.append(Poke(int(run_id[-2:], 16), "celery"))


def _gated(lean: Lean) -> Right:
    """Two runs in a lane for one, under a limit of one a second; the second is started for a little later, so that a timer opens it."""
    lean.start("inside", "gated", n=1, hold=0.5)
    lean.start("queued", "gated", n=2, countdown=0.2)
    lean.drive(lean.ended("inside", "queued"), "both end")
    return {"inside": "completed", "queued": "completed"}


SCENARIOS: dict[str, Callable[[Lean], Right]] = {
    "chain": _graph("chain"), "diamond": _graph("diamond"), "fan": _graph("fan"), "timed": _timed,
    "paused": _paused, "mended": _mended, "sharded": _sharded, "long": _long, "unlucky": _unlucky, "operated": operated, "consented": consented,
    "scheduled": scheduled, "gated": _gated, "erased": _erased, "undone": _undone, "called": _called, "remembered": remembered, "called_anew": called_anew, "waited": _waited,
    "parked": parked, "recovered": recovered, "batched": batched,
}
