"""What moves a run: cancel, signals and answers, retry, fork, pause and resume, and a person's word on an effect in doubt."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header
from pydantic import Field, model_validator
from starlette.responses import Response

from conductor.errors import RunFinished, RunQueued, UnknownKey, UnknownRun
from conductor.operations.answers import Answer
from conductor.runs.fork import fork_run
from conductor.runs.waiting import run_of_key
from conductor.service.access import Served, Writer
from conductor.service.forms import Body, Reason, Recorded
from conductor.service.ownership import own_run
from conductor.service.replies import Responses, example, reply
from conductor.service.segments import SegmentRoute
from conductor.service.shown_runs import CancelledRun, ConsentShown, ForkShown, MovedRun, Taken
from conductor.store.lanes import lane_of

__all__ = ["router"]

router = APIRouter(route_class=SegmentRoute, tags=["runs"])

_RUN, _FORK = "01908f2e-7c1a-7b3e-9d55-3f1c5e0a7b05", "01908f2e-7c1a-7e62-a0c4-5d21b7f03305"
_SIGNALLED: Responses = {200: example("what became of it", {
    "run_id": _RUN, "word": "taken", "step": "approval", "state": "running", "id": "a1",
}, Taken)}
_ANSWERED: Responses = {200: example("what became of it", {"run_id": _RUN, "word": "taken", "step": "draft", "state": "running"}, Taken)}


def _moves(state: str) -> Responses:
    return {200: example("what became of it", {"run_id": _RUN, "word": "ok", "state": state}, MovedRun)}


def _consents(given: bool) -> Responses:
    return {200: example("whether it has consent of its own now", {"run_id": _RUN, "consent": given}, ConsentShown)}



Name = Annotated[str, Field(min_length=1, max_length=256)]


class Cancel(Body):
    """Why, and how."""

    reason: Reason = "requested"
    terminate: bool = False
    compensate: bool = False


class Pause(Body):
    """Why."""

    reason: Reason = "requested"


class Nothing(Body):
    """An empty object, or no body at all."""


class Why(Body):
    """Why, or no body at all."""

    reason: Recorded = ""


class Signal(Body):
    """A signal; the same `id` again is no news."""

    name: Name
    value: Any = None
    id: Annotated[str, Field(max_length=128)] = ""


class Advance(Body):
    """An agent's answer for a step."""

    step: Name
    result: Any = None


class KeyedSignal(Signal):
    """A signal for the run of a key."""

    key: Annotated[str, Field(min_length=1, max_length=512)]


class KeyedAdvance(Advance):
    """An answer for a step of the run of a key."""

    key: Annotated[str, Field(min_length=1, max_length=512)]


class Fork(Body):
    """From which step on, and which fields of the input change."""

    from_: Annotated[str, Field(alias="from", min_length=1, max_length=256)]
    changes: Annotated[dict[str, Any], Field(max_length=100, default_factory=dict)]
    reason: Recorded = ""


class Resolve(Body):
    """Whether the effect of a step happened: `landed` with what it gave, or `absent`. Of an item: `step:index`."""

    step: Name
    landed: Any = None
    absent: bool = False
    reason: Recorded = ""

    @model_validator(mode="after")
    def _one_of_both(self) -> Resolve:
        if self.absent == ("landed" in self.model_fields_set):
            raise ValueError("say landed with its value, or absent: true")
        return self


_CANCEL, _PAUSE, _NOTHING, _WHY = Cancel(), Pause(), Nothing(), Why()  # what an empty body means


@router.post("/v1/runs/{run_id}/cancel", summary="Cancel a run", responses={200: example("what became of it", {
    "run_id": _RUN, "word": "ended", "state": "completed", "reason": "", "at": 1_753_000_000_000,
}, CancelledRun)})
def cancel(run_id: str, served: Served, caller: Writer, body: Cancel = _CANCEL) -> Response:
    """After `ok` nothing of it begins and no result is taken. One that has ended stays as it is, and the answer says how it ended."""
    own_run(served, caller, run_id)
    told = served.cancel(run_id, reason=body.reason, actor=caller.actor, terminate=body.terminate, compensate=body.compensate)
    return reply({**told, "word": told["word"].lower()})


@router.post("/v1/runs/{run_id}/pause", summary="Pause a run", responses=_moves("paused"))
def pause(run_id: str, served: Served, caller: Writer, body: Pause = _PAUSE) -> Response:
    """Nothing of it is claimed any more; what runs may end."""
    own_run(served, caller, run_id)
    return _moved(served, served.pause(run_id, reason=body.reason, actor=caller.actor))


@router.post("/v1/runs/{run_id}/resume", summary="Resume a run", responses=_moves("running"))
def resume(run_id: str, served: Served, caller: Writer, _body: Why = _WHY) -> Response:
    """It goes on; where a failed step paused it, what failed gets a fresh budget."""
    own_run(served, caller, run_id)
    return _moved(served, served.resume(run_id, actor=caller.actor))


@router.put("/v1/runs/{run_id}/consent", summary="Consent to everything in a run", responses=_consents(True))
def consent(run_id: str, served: Served, caller: Writer, _body: Nothing = _NOTHING) -> Response:
    """Capabilities that need consent have it in this run, until it ends or the consent is taken back."""
    own_run(served, caller, run_id)
    served.grant_run(run_id)
    return reply({"run_id": run_id, "consent": True})


@router.delete("/v1/runs/{run_id}/consent", summary="Take the consent of a run back", responses=_consents(False))
def revoke_consent(run_id: str, served: Served, caller: Writer) -> Response:
    """It counts from the next attempt on."""
    own_run(served, caller, run_id)
    served.grant_run(run_id, on=False)
    return reply({"run_id": run_id, "consent": False})


@router.post("/v1/runs/{run_id}/retry", summary="Retry a failed run", responses=_moves("running"))
def retry(run_id: str, served: Served, caller: Writer, _body: Why = _WHY) -> Response:
    """A new generation: what completed stays, the rest runs again."""
    own_run(served, caller, run_id)
    return _moved(served, served.retry(run_id, actor=caller.actor))


def _moved(served: Served, told: dict[str, Any]) -> Response:
    if told["word"] == "ENDED":
        raise RunFinished(run_id=told["run_id"], state=told["state"])
    if told["word"] == "QUEUED":
        raise RunQueued(run_id=told["run_id"], lane=lane_of(served.engine.store, told["run_id"]))
    return reply({**told, "word": told["word"].lower()})


@router.post("/v1/runs/{run_id}/signal", summary="Send a signal", responses=_SIGNALLED)
def signal(run_id: str, served: Served, caller: Writer, body: Signal) -> Response:
    """Its value is checked against the wait's type before anything is written. `kept`: nothing waits for it yet."""
    own_run(served, caller, run_id)
    return reply(served.signal(run_id, body.name, body.value, id=body.id))


@router.post("/v1/runs/{run_id}/advance", summary="Answer for an agent", responses=_ANSWERED)
def advance(run_id: str, served: Served, caller: Writer, body: Advance) -> Response:
    """The first answer wins; the same one again gets the same reply."""
    own_run(served, caller, run_id)
    return reply(served.advance(run_id, body.step, body.result, actor=caller.actor))


@router.post("/v1/workflows/{workflow}/signal", summary="Send a signal by key", responses=_SIGNALLED)
def signal_by_key(workflow: str, served: Served, caller: Writer, body: KeyedSignal) -> Response:
    """As for a run, which is named by its workflow and key."""
    run_id = _of_key(served, caller, workflow, body.key)
    return reply(served.signal(run_id, body.name, body.value, id=body.id))


@router.post("/v1/workflows/{workflow}/advance", summary="Answer for an agent by key", responses=_ANSWERED)
def advance_by_key(workflow: str, served: Served, caller: Writer, body: KeyedAdvance) -> Response:
    """As for a run, which is named by its workflow and key."""
    run_id = _of_key(served, caller, workflow, body.key)
    return reply(served.advance(run_id, body.step, body.result, actor=caller.actor))


def _of_key(served: Served, caller: Writer, workflow: str, key: str) -> str:
    """The run of a key; one of another session is as unknown as a key that nobody has used."""
    served.import_code()  # which lane a key belongs to is said by the workflow
    run_id = run_of_key(served.engine, workflow, key)
    try:
        own_run(served, caller, run_id)
    except UnknownRun:
        raise UnknownKey(workflow=workflow, key=key, namespace=served.settings.namespace) from None
    return run_id


@router.post("/v1/runs/{run_id}/fork", summary="Fork a run", status_code=201, responses={
    201: example("the new run", {"run_id": _FORK, "forked_from": _RUN, "from": "pay", "effects_repeat": True, "new": True}, ForkShown),
    200: example("the fork that this key already has", {
        "run_id": _FORK, "forked_from": _RUN, "from": "pay", "effects_repeat": True, "new": False,
    }, ForkShown),
})
def fork(
    run_id: str, served: Served, caller: Writer, body: Fork,
    key: Annotated[str, Header(alias="Idempotency-Key", max_length=512, description="the same key is the same fork of this run")] = "",
) -> Response:
    """A new run on today's code that keeps what a step stood on. Effects from there on happen again, under new keys. The same key with
    another step or other changes is `key_conflict`."""
    own_run(served, caller, run_id)
    served.import_code()
    started = fork_run(served.engine, run_id, from_=body.from_, changes=body.changes, key=key)
    new = started.word == "OK"
    told = {"run_id": started.run_id, "forked_from": run_id, "from": body.from_, "effects_repeat": True, "new": new}
    return reply(told, 201 if new else 200, {"Location": f"/v1/runs/{started.run_id}"})


@router.post("/v1/runs/{run_id}/resolve", summary="Settle an effect in doubt", responses={
    200: example("the operation, which goes on with it", {
        "operation_id": f"{_RUN}:pay", "status": "queued", "queue_reason": "",
        "hint": f"ask `conductor ops show {_RUN}:pay` for its end; the session that asked finds it in its inbox",
    }, Answer),
})
def resolve(run_id: str, served: Served, caller: Writer, body: Resolve) -> Response:
    """Say whether the effect of a step happened, where nobody else can tell."""
    own_run(served, caller, run_id)
    told = served.resolve(f"{run_id}:{body.step}", happened=not body.absent, value=body.landed, actor=caller.actor)
    return reply(told.to_json())
