"""The history of a run on a terminal: one event a line, in columns, with the names of workers instead of their tags."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from conductor.cli.render import line_of_json
from conductor.log import Event
from conductor.records import NodeKind
from conductor.runs.around import worker_names
from conductor.runs.read import counted
from conductor.runs.why import moment
from conductor.store.reads import Source, read_graph, read_run

__all__ = ["History"]

_KINDS = 18  # the longest is clock_stepped_back
_ITEMS = 8  # `[10…29]` behind the name of an `each`
_WIDEST = 40


class History:
    """Writes the events of one run. Names of workers are asked for once each."""

    def __init__(self, source: Source, run_id: str) -> None:
        run = read_run(source, run_id)
        nodes = () if run is None else read_graph(source, run.partition, run.graph).nodes
        self._source = source
        self._steps = {node.index: node.name for node in nodes}
        self._width = min(_WIDEST, max((len(node.name) + _ITEMS * (node.kind is NodeKind.EACH) for node in nodes), default=0))
        self._workers: dict[str, str] = {}

    def line_of(self, event: Event, *, as_json: bool) -> str:
        told = replace(event, worker=self._name_of(event.worker)) if event.worker else event
        return line_of_json(told.to_json(self._steps)) if as_json else self._columns(told)

    def _name_of(self, tag: str) -> str:
        if tag not in self._workers:
            self._workers |= worker_names(self._source, [tag])
        return self._workers[tag]

    def _columns(self, event: Event) -> str:
        now = int(time.time() * 1000)
        at = moment(event.at, now, fine=True)
        details = " · ".join(_details(event, now))
        return f"{event.number:>5}  {at}  {event.kind:<{_KINDS}}  {self._subject(event):<{self._width}}  {details}".rstrip()

    def _subject(self, event: Event) -> str:
        if event.index is None:
            return ""
        name = self._steps.get(event.index, f"step {event.index}")
        if event.items is None:
            return name
        first, last = event.items
        return f"{name}[{first}]" if first == last else f"{name}[{first}…{last}]"


def _details(event: Event, now: int) -> Iterator[str]:
    if event.kind in ("started", "reopened"):
        yield f"generation {event.generation}"
    if event.due:
        yield f"starts at {moment(event.due, now)}"
    if event.delay_ms:
        yield f"in {event.delay_ms / 1000:g} s"
    yield from filter(None, (event.state, event.reason, event.how, "in doubt" if event.doubt else ""))
    yield from (f"by {who}" for who in (event.worker, event.actor) if who)
    if event.signal:
        yield f"signal {event.signal}"
    if event.by:
        yield f"by {event.by}"
    if event.waiters:
        yield f"waits in {counted(len(event.waiters), 'step')}"
    if event.signature:
        yield f"code {event.signature}"
    if event.total is not None:
        yield counted(event.total, "item")
