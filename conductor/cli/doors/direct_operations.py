"""The door to the store itself: operations, schedules, sessions, and what holds work back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from conductor.cli.doors import KEEP, Asked, Told
from conductor.operations import timetable
from conductor.operations.acting import refuse_over
from conductor.operations.call import wait_for
from conductor.operations.naming import operations_named
from conductor.operations.offering import disabled_now, offer
from conductor.operations.read import OpFilter
from conductor.operations.schedules import orphans
from conductor.operations.showing import show_operation
from conductor.runs.gating import lane_json, lanes, limit_json, limits, limits_as_declared, set_limit
from conductor.sessions.consent import grant_json
from conductor.sessions.inbox import wait
from conductor.store.reads import read_now

if TYPE_CHECKING:
    from conductor.cli.finding import Here
    from conductor.wiring import Engine

__all__ = ["DirectOperations"]


@dataclass(frozen=True, slots=True)
class _Call:
    conductor: Any
    engine: Engine
    operation_id: str

    def __call__(self, seconds: float, /) -> Told:
        return wait_for(self.engine, self.operation_id, seconds).to_json()

    def leave(self) -> None:
        self.conductor.leave(self.operation_id)


class DirectOperations:
    """The half of `Direct` that is not about runs."""

    _here: Here

    @property
    def _engine(self) -> Engine:
        raise NotImplementedError

    @property
    def _conductor(self) -> Any:
        raise NotImplementedError

    @property
    def _actor(self) -> str:
        raise NotImplementedError

    def operations_named(self, text: str) -> list[str]:
        return operations_named(self._engine, text)

    def operations(self, by: Mapping[str, Any], *, limit: int) -> Told:
        wanted = OpFilter(
            by.get("state", ""), by.get("capability", ""), by.get("error_kind", ""), by.get("session", ""),
            int(by.get("older_than", 0) * 1000))
        found = self._conductor.operations(wanted, limit=limit, patient=True)
        return {"operations": [one.to_json() for one in found], "now": read_now(self._engine.store)}

    def operation(self, operation_id: str, *, values: bool = False) -> Told:
        return show_operation(self._engine, operation_id, values=values, spelling=self._here.spelling)

    def operation_status(self) -> Told:
        return {**self._conductor.operation_status(), "now": read_now(self._engine.store)}

    def retry_operation(self, operation_id: str, *, health_check: bool) -> Told:
        refuse_over(self._conductor.operation(operation_id))
        return dict(self._conductor.retry_operation(operation_id, health_check=health_check, actor=self._actor).to_json())

    def cancel_operation(self, operation_id: str, *, reason: str) -> Told:
        return dict(self._conductor.cancel_operation(operation_id, reason=reason, actor=self._actor))

    def resolve(self, operation_id: str, *, happened: bool, value: Any) -> Told:
        return dict(self._conductor.resolve(operation_id, happened=happened, value=value, actor=self._actor).to_json())

    def call(self, capability: str, params: Any, *, session: str, key: str) -> Asked:
        self._here.need_code()
        return _Call(self._conductor, self._engine, self._conductor.begin(capability, params, session=session, key=key))

    def submit(self, capability: str, params: Any, *, session: str, key: str) -> Told:
        self._here.need_code()
        return dict(self._conductor.submit(capability, params, session=session, key=key).to_json())

    def capabilities(self, text: str) -> list[Told]:
        engine = self._here.engine  # imports the modules that declare them; the store is not asked
        found = self._here.conductor.capabilities(text)
        disabled = disabled_now(engine, found)
        return [offer(one, disabled.get(one.name, "")) for one in found]

    # What holds work back.

    def lanes(self, name: str) -> list[Told]:
        return [
            lane_json(view) | {"active_count": len(view.active), "queued_count": len(view.queue)} for view in lanes(self._engine, name)
        ]

    def limits(self, name: str) -> list[Told]:
        return [limit_json(view) for view in limits(self._engine, name)]

    def set_limit(self, name: str, *, rate: Any = KEEP, concurrency: Any = KEEP) -> None:
        set_limit(self._engine, name, rate=rate, concurrency=concurrency)

    def limits_as_declared(self, name: str) -> None:
        limits_as_declared(self._engine, name)

    # Schedules.

    def schedules(self) -> Told:
        return {"schedules": timetable.list_schedules(self._engine), "now": self._engine.store.job_clock()}

    def schedule(self, name: str) -> Told:
        found = timetable.find_schedule(self._engine, name)
        return timetable.schedule_json(found, found.name in orphans(self._engine, [found]))

    def pause_schedule(self, name: str, reason: str) -> str:
        return timetable.pause(self._engine, name, reason)

    def resume_schedule(self, name: str) -> str:
        return timetable.resume(self._engine, name)

    def drop_schedule(self, name: str) -> str:
        return timetable.drop(self._engine, name)

    # Sessions.

    def inbox(self, session: str, *, after: str = "", limit: int) -> Told:
        found = self._conductor.inbox(session, after=after, limit=limit)
        return {"messages": [one.to_dict() for one in found], "now": read_now(self._engine.store)}

    def messages(self, session: str, after: str, seconds: float) -> list[Told]:
        return [one.to_dict() for one in wait(self._engine.store, session, after, seconds)]

    def acknowledge(self, session: str, message_id: str) -> bool:
        return bool(self._conductor.acknowledge(session, message_id))

    def grant(self, session: str, capability: str, mode: str, seconds: float | None) -> Told:
        if capability not in self._here.engine.capabilities:
            self._here.need_code()
        found = self._conductor.capability(capability)  # a misspelt name would grant nothing, and nobody would notice
        lasting = None if seconds is None else timedelta(seconds=seconds)
        grant_id = self._conductor.grant(session, found.name, mode, lasting=lasting, by=self._actor)
        return {"session": session, "capability": found.name, "mode": mode, "grant_id": grant_id, "needed": found.options.consent}

    def grants(self, session: str) -> Told:
        return {"session": session, "grants": [grant_json(one) for one in self._conductor.grants(session)]}

    def revoke(self, session: str, capability: str) -> Told:
        self._conductor.revoke(session, capability)
        return {"session": session, "capability": capability or None, "revoked": True}
