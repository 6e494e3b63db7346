"""The history of a run on a terminal: one event a line, in columns."""

from __future__ import annotations

import time
from collections.abc import Iterator

from conductor.cli.doors import Told
from conductor.cli.render import line_of_json
from conductor.records import NodeKind
from conductor.runs.words import counted, moment

__all__ = ["History"]

_KINDS = 18  # the longest is clock_stepped_back
_ITEMS = 8  # `[10…29]` behind the name of an `each`
_WIDEST = 40


class History:
    """Writes the events of one run, whose steps say how wide their column must be."""

    def __init__(self, shown: Told) -> None:
        widths = (len(step["name"]) + _ITEMS * (step["kind"] == NodeKind.EACH) for step in shown["steps"])
        self._width = min(_WIDEST, max(widths, default=0))

    def line_of(self, event: Told, *, as_json: bool) -> str:
        return line_of_json(event) if as_json else self._columns(event)

    def _columns(self, event: Told) -> str:
        now = int(time.time() * 1000)
        at = moment(event["at"], now, fine=True)
        details = " · ".join(_details(event, now))
        return f"{event['number']:>5}  {at}  {event['kind']:<{_KINDS}}  {_subject(event):<{self._width}}  {details}".rstrip()


def _subject(event: Told) -> str:
    """The step, and which items of it."""
    if event.get("index") is None:
        return ""
    name = str(event.get("step") or f"step {event['index']}")
    if not event.get("items"):
        return name
    first, last = event["items"]
    return f"{name}[{first}]" if first == last else f"{name}[{first}…{last}]"


def _details(event: Told, now: int) -> Iterator[str]:
    if event["kind"] in ("started", "reopened"):
        yield f"generation {event['generation']}"
    if due := event.get("due"):
        yield f"starts at {moment(due, now)}"
    if delay := event.get("delay_ms"):
        yield f"in {delay / 1000:g} s"
    yield from filter(None, (event.get("state"), event.get("reason"), event.get("how"), "in doubt" if event.get("doubt") else ""))
    yield from (f"by {who}" for who in (event.get("worker"), event.get("actor")) if who)
    if signal := event.get("signal"):
        yield f"signal {signal}"
    if by := event.get("by"):
        yield f"by {by}"
    if waiters := event.get("waiters"):
        yield f"waits in {counted(len(waiters), 'step')}"
    if signature := event.get("signature"):
        yield f"code {signature}"
    if (total := event.get("total")) is not None:
        yield counted(total, "item")
    if entry := event.get("entry"):  # of a later release
        yield str(entry)
