"""Verbs on whole runs: start, cancel, pause, resume, reopen, purge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from redis import exceptions

from conductor.codec import blob_names, check_text, drop_blobs
from conductor.errors import StoreFull, redact
from conductor.ids import partition_of
from conductor.records import LEASE_MS, Graph, NewRun
from conductor.store.answers import Cancelled, Moved, Started
from conductor.store.attempts import parse_claim
from conductor.store.door import Door
from conductor.store.reads import know_graph

__all__ = ["RunVerbs", "said"]

_LONGEST = 1024


class RunVerbs(Door):
    """What clients and operators do to a run."""

    pages = 8  # of 64 items each, that one call of a reopening looks at

    def start(
        self, run: NewRun, graph: Graph, *, roots: tuple[int, ...] | None = None, tag: str = "",
        records: Mapping[int, tuple[str, int | None]] | None = None, totals: Mapping[int, int] | None = None,
        skipped: frozenset[int] = frozenset(),
    ) -> Started:
        """Write the run. Of a fork: `records` are steps that already have one, index → (record, index in `forked_from`), `totals` lengths
        of lists that eaches begin anew with, `skipped` roots all of whose predecessors were. With a `tag` the first step is claimed for the
        caller in the same script."""
        if not run.bound_to:  # what a running step calls is part of work that was accepted
            self.admit()
        run = replace(run, input=self.offloaded(run.run_id, "input", run.input))
        try:
            told = self._start(run, graph, roots, tag, records or {}, totals or {}, skipped)
            if told.word != "OK" and told.run_id != run.run_id:
                drop_blobs(blob_names(run.input))  # the run is another one, which has its own
            return told
        except exceptions.OutOfMemoryError:
            raise StoreFull(used="100%") from None

    def _start(
        self, run: NewRun, graph: Graph, roots: tuple[int, ...] | None, tag: str, kept: Mapping[int, tuple[str, int | None]],
        totals: Mapping[int, int], skipped: frozenset[int],
    ) -> Started:
        partition, graph = partition_of(run.run_id), self._leased(graph)
        first = graph.roots if roots is None else roots
        ended = sum(1 for record, _ in kept.values() if record[0] in "CZ")
        named = ",".join(f"{index}{'s' if index in skipped else 'd' if run.doubtful else ''}" for index in first)
        args = self._start_args(run, graph, named, len(graph.steps) - ended)
        args += [run.queue_reason, run.bound_to, run.idle_timeout_ms or "", tag]
        args += [run.lane.name, run.lane.text, run.lane_key] if run.lane else ["", "", ""]
        args.append(run.limit_keys)
        tail = [part for index, (record, source) in kept.items() for part in (index, record, "" if source is None else source)]
        tail += [part for index, total in totals.items() for part in (index, f"E;{total}", "")]
        count = len(kept) + len(totals)
        reply = self._call_bare("start_run", partition, *args, "", 0, count, *tail)
        if reply[0] == "NEED_GRAPH":
            reply = self._call_bare("start_run", partition, *args, graph.doc, len(graph.nodes), count, *graph.lines, *tail)
        know_graph(graph)
        word, notice, queues, run_id, claim = reply
        if word == "LANE_FULL":
            return Started(word, run_id, [], "", lane=(int(notice), int(queues)))
        held = replace(parse_claim([claim]), input=run.input, session=run.session) if claim else None
        return Started(word, run_id, self._pokes(partition, queues), notice, held)

    def _leased(self, graph: Graph) -> Graph:
        """As declared, with the lease of this process where a step names none. Made once of each graph."""
        if self.lease_ms == LEASE_MS:
            return graph
        made = self._graphs.get(id(graph))
        if made is None or made[0] is not graph:
            made = self._graphs[id(graph)] = (graph, graph.leased(self.lease_ms))
        return made[1]

    def _start_args(self, run: NewRun, graph: Graph, roots: str, steps: int) -> list[Any]:
        return [
            run.run_id, run.workflow, graph.hash, run.input, run.queue, run.priority, run.session, run.key, run.digest, ",".join(run.tags),
            run.delay_ms, run.start_at, f"@{run.expires_at}" if run.expires_at else run.expires_ms,
            f"@{run.deadline_at}" if run.deadline_at else run.deadline_ms, run.retain_completed_ms, run.retain_failed_ms,
            run.key_retention_ms, steps, roots, graph.hooks, graph.eaches, run.forked_from,
        ]

    def cancel(
        self, run_id: str, *, reason: str, actor: str = "", terminate: bool = False, compensate: bool = False, only: int | None = None,
    ) -> Cancelled:
        """After this answers OK nothing of the run is claimed and no result is taken; with `compensate` it is undone before it ends. With
        `only`, here and below, nothing is done to a run that lives in another generation by now: SUPERSEDED."""
        partition = partition_of(run_id)
        word, state, why, at, queues = self._call_bare(
            "cancel_run", partition, run_id, said(reason, "reason"), said(actor, "actor"), int(terminate), int(compensate), _life(only))
        return Cancelled(word, state, why, int(at or 0), self._pokes(partition, queues))

    def pause(self, run_id: str, *, reason: str, actor: str = "", only: int | None = None) -> Moved:
        word, state = self._call("pause_run", partition_of(run_id), run_id, said(reason, "reason"), said(actor, "actor"), _life(only))
        return Moved(word, state)

    def resume(self, run_id: str, *, actor: str = "", only: int | None = None) -> Moved:
        """Go on; a run paused by a failed step answers STEP_FAILED and is reopened by its planner instead."""
        partition = partition_of(run_id)
        pokes = []
        while True:
            word, state, queues = self._call("resume_run", partition, run_id, said(actor, "actor"), _life(only))
            pokes += self._pokes(partition, queues)
            if word != "MORE":
                # After a thousand the rest follow; the last call of several may find nothing left, which is no news.
                return Moved("OK" if pokes and word == "NOT_PAUSED" else word, state, pokes)

    def reopen(
        self, run_id: str, *, at_event: int, reset: Mapping[int, tuple[str, str]], eaches: Sequence[int], steps: int, hooks: str,
        actor: str, generation: bool, only: int | None = None,
    ) -> Moved:
        """Apply a plan made from what the log said at `at_event`; CHANGED if it has grown since. `reset`: index → its new record and the
        state before; `eaches`: those whose items begin anew; `steps`: not ended after it."""
        partition = partition_of(run_id)
        tail = [part for index, (record, was) in reset.items() for part in (index, record, was)]
        word, state, queues = self._call(
            "reopen_run", partition, run_id, at_event, int(generation), said(actor, "actor"), _life(only), steps, hooks, self.pages,
            len(reset), len(eaches), *tail, *eaches,
        )
        pokes = self._pokes(partition, queues)
        told = word
        while told == "MORE":
            told, state, queues = self._call("reopen_items", partition, run_id, self.pages)
            pokes += self._pokes(partition, queues)
        return Moved("OK" if word == "MORE" else word, state, pokes)

    def renew(self, run_id: str, bond: str, *, graph: str, input: str, same: bool, tag: str = "") -> Started:
        """Begin an operation anew for the next life of the run that called it: OK, EXISTS (it has completed, or is of this life), CHANGED
        (not the `same` is asked for, and an earlier attempt is in doubt), RUN_ENDED, UNKNOWN. With a `tag` it is claimed, if it is on this
        `graph`."""
        partition = partition_of(run_id)
        stored = self.offloaded(run_id, "input", input)
        word, queues, claim = self._call_bare("renew", partition, run_id, bond, graph, stored, int(same), tag)
        held = parse_claim([claim]) if claim else None
        return Started(word, run_id, self._pokes(partition, queues), "", held)

    def leave_call(self, run_id: str) -> str:
        """Whoever waited for a call has stopped waiting, so that its end is told to the session: OK, ENDED or UNKNOWN."""
        word: str = self._call_bare("leave_call", partition_of(run_id), run_id)[0]
        return word

    def hasten(self, run_id: str, index: int, item: int | None = None) -> str:
        """A retry that waits for its time is due now: OK, NOT_WAITING or UNKNOWN."""
        word: str = self._call_bare("hasten", partition_of(run_id), run_id, index, "" if item is None else item)[0]
        return word

    def resolve(self, run_id: str, index: int, item: int | None, word: str) -> str:
        """Keep a person's word on an effect in doubt: OK, NOT_IN_DOUBT or UNKNOWN."""
        told: str = self._call_bare("resolve", partition_of(run_id), run_id, index, "" if item is None else item, word)[0]
        return told

    def blanket(self, run_id: str, *, on: bool) -> str:
        """Give or take back consent for everything in a run: OK, ENDED or UNKNOWN."""
        told: str = self._call_bare("blanket", partition_of(run_id), run_id, int(on))[0]
        return told

    def purge(self, run_id: str, *, due_only: bool = False, at_event: int | None = None, key: str = "") -> Moved:
        """Delete an ended run with all its keys; with `due_only` only if its retention is over (a retry may have given it a new end), with
        `at_event` only if its log still ends there. `key` is the idempotency key that goes with it: `workflow[@lane]:key`."""
        seen = "" if at_event is None else at_event
        return Moved(self._call("purge_run", partition_of(run_id), run_id, int(due_only), seen, key)[0])


def said(text: str, what: str) -> str:
    """A person's words as they stand in the log: without semicolons, which keep its fields apart; a reason, which everyone who sees the run
    reads, also without secrets (`token:ana` is who somebody is). Empty for none."""
    if text == "":
        return ""
    words = check_text(text, what, _LONGEST)
    return (redact(words) if what == "reason" else words).replace(";", ",")


def _life(generation: int | None) -> str:
    """The generation that is meant, as scripts take it; empty for whichever the run lives in."""
    return "" if generation is None else str(generation)
