"""Lanes and limits as people see and set them: those somebody is in, those set by hand, and those that code here declares.

Authority: the store; what code declares is shown only where nobody has used it yet. A person's word on a limit stands above the code's
until it is taken back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from conductor.declare.limits import read_rate
from conductor.declare.options import check_name
from conductor.errors import BadInput, DeclarationError, UnknownLane, UnknownLimit
from conductor.runs.execute import limits_of
from conductor.store.lanes import LaneView, read_lanes
from conductor.store.limits import LimitView, read_limits

if TYPE_CHECKING:
    from conductor.wiring import Engine

__all__ = ["KEEP", "lane_json", "lanes", "limit_json", "limits", "limits_as_declared", "set_limit"]

KEEP: Final = "keep"
"""Of a limit's rate or concurrency: leave it as it is."""
_MOST = 1_000_000


def lanes(engine: Engine, name: str = "") -> list[LaneView]:
    """Lanes that somebody is in, and those that are declared here, by name; or the one that is named."""
    declared = {
        flow.lane.name: LaneView.empty(terms) for flow in engine.workflows.values()
        if flow.lane is not None and (terms := getattr(flow.lane, "terms", None))
    }
    unknown = UnknownLane(lane=name, known=", ".join(sorted(declared)) or "none")
    if name and not _may_be(name):
        raise unknown
    shown = declared | {one.name: one for one in read_lanes(engine.store, name)}
    if name and name not in shown:
        raise unknown
    return [view for lane, view in sorted(shown.items()) if name in ("", lane)]


def lane_json(view: LaneView) -> dict[str, Any]:
    return {
        "lane": view.name, "max_active": view.max_active, "max_queued": view.max_queued, "queue_timeout_ms": view.timeout_ms or None,
        "fair": view.fair, "active": list(view.active), "queue": list(view.queue),
    }


def limits(engine: Engine, name: str = "") -> list[LimitView]:
    """Limits that are in use, set, or declared here, by name; or the one that is named."""
    declared = limits_of(engine)
    unknown = UnknownLimit(limit=name, known=", ".join(sorted(declared)) or "none")
    if name and not _may_be(name):
        raise unknown
    shown = {one: LimitView(one, terms) for one, terms in declared.items()} | {view.name: view for view in read_limits(engine.store, name)}
    if name and name not in shown:
        raise unknown
    return [view for one, view in sorted(shown.items()) if name in ("", one)]


def limit_json(view: LimitView) -> dict[str, Any]:
    many, per, at_once = view.terms.split(";")
    return {
        "limit": view.name, "rate": int(many) if many else None, "per_ms": int(per) if per else None,
        "concurrency": int(at_once) if at_once else None, "set_by_hand": view.by_hand, "running": view.permits, "spent": view.spent,
        "waiting": view.waiting, "held_back": view.back,
    }


def set_limit(engine: Engine, name: str, *, rate: str | None = KEEP, concurrency: int | str | None = KEEP) -> LimitView:
    """Set a limit for all workers, at once. None takes a rate or a concurrency away, KEEP leaves it."""
    (now,) = limits(engine, name)
    what = f"limit {name}"
    many, per, at_once = now.terms.split(";")
    if rate != KEEP:
        many, per = ("", "") if rate is None else _rate(rate, what)
    if concurrency != KEEP:
        at_once = "" if concurrency is None else str(_concurrency(concurrency, what))
    if not many and not at_once:
        problem = "without a rate and a concurrency it would limit nothing; take limit= out of the code instead"
        raise BadInput(what=what, field="limit", problem=problem)
    engine.poke(engine.store.set_limit(name, f"{many};{per};{at_once}", by_hand=True)[1])
    return limits(engine, name)[0]


def limits_as_declared(engine: Engine, name: str) -> LimitView:
    """Take back what was set: the code's word counts again."""
    (before,), declared, store = limits(engine, name), limits_of(engine), engine.store
    engine.poke(store.set_limit(name, "", by_hand=False, forget=True)[1])
    if name not in declared:
        return before
    engine.poke(store.set_limit(name, declared[name], by_hand=False)[1])
    return limits(engine, name)[0]


def _may_be(name: str) -> bool:
    """Whether something could be declared by this name. Any other would be looked for under a key that belongs to something else."""
    try:
        return bool(check_name(name, name, "name"))
    except DeclarationError:
        return False


def _rate(text: str, what: str) -> tuple[str, str]:
    try:
        return read_rate(text, what)
    except DeclarationError as wrong:
        raise BadInput(what=what, field="rate", problem=wrong.problem) from None


def _concurrency(given: int | str, what: str) -> int:
    if type(given) is not int or not 1 <= given <= _MOST:
        raise BadInput(what=what, field="concurrency", problem=f"{given!r} is not a whole number from 1 to {_MOST}, nor none")
    return given
