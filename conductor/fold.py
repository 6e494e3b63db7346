"""Folding the event log: the states and counters that a run's records must show. Pure, and independent of the scripts that wrote them.

Each event is one method named after it. A move that the lifecycle tables do not allow, a second end within a generation, a fence that
is not the claimed one, or a claim or commit after a cancel is kept in `violations`; folding goes on, so that one fault hides no other.
"""

from __future__ import annotations

from collections.abc import Iterable

from conductor.log import Event, Folded, FoldedEach, FoldedStep
from conductor.records import FailurePolicy, Graph, NodeKind
from conductor.state import RUN, STEP, RunState, StepState, may, terminal

__all__ = ["ancestors", "fold"]

_ENDED = terminal(STEP)
_RUN_ENDED = terminal(RUN)
_KEPT = (StepState.COMPLETED, StepState.SKIPPED)
_WAITERS = (NodeKind.SLEEP, NodeKind.WAIT, NodeKind.AGENT)


def fold(events: Iterable[Event], graph: Graph) -> Folded:
    """Apply all events, in order, to a run of `graph`."""
    folding = _Folding(graph)
    for event in events:
        folding.apply(event)
    return folding.close()


def ancestors(graph: Graph, indexes: Iterable[int]) -> frozenset[int]:
    """All nodes upstream of the given ones, without themselves unless one is upstream of another."""
    found: set[int] = set()
    todo = [parent for index in indexes for parent in graph.nodes[index].parents]
    while todo:
        index = todo.pop()
        if index not in found:
            found.add(index)
            todo.extend(graph.nodes[index].parents)
    return frozenset(found)


class _Folding:
    """The state of a folding under way. Counters that a stopping run no longer keeps are frozen until it has settled."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.out = Folded(left=len(graph.steps))
        self.delayed = False
        self.last_failure = ""
        for node in graph.nodes:
            self.out.steps[node.index] = FoldedStep(left=len(node.parents))
            if node.kind is NodeKind.EACH:
                self.out.eaches[node.index] = FoldedEach()

    def apply(self, event: Event) -> None:
        out = self.out
        if event.number != out.number + 1:
            self.blame(event, f"follows event {out.number}")
        out.number = event.number
        if out.state in _RUN_ENDED and event.kind not in ("reopened", "clock_stepped_back"):
            self.blame(event, f"stands after the run ended ({out.state})")
        if event.index is not None and event.index >= len(self.graph.nodes):
            self.blame(event, f"names step {event.index}, the graph has {len(self.graph.nodes)}")
            return
        getattr(self, event.kind)(event)

    def close(self) -> Folded:
        """Derive what is counted by standing: entries in the ready index and waits for the due index."""
        out = self.out
        if out.state in _RUN_ENDED or not out.trusted:
            return out
        out.ready, out.due, out.waiters, out.agents, out.children = 0, int(self.delayed), 0, 0, 0
        out.waiting = ()
        if out.phase == "C":
            out.ready += sum(undo.state is StepState.READY for undo in out.undos.values())
            out.due += sum(undo.state is StepState.RETRY_PENDING for undo in out.undos.values())
        for index, step in out.steps.items():
            if self.out_of_play(index):
                continue
            if index in out.eaches and out.eaches[index].total and not step.failed_parent:
                out.ready += self.listed(index)
                out.due += out.eaches[index].count(StepState.RETRY_PENDING)
            else:
                out.ready += step.state is StepState.READY
                out.due += step.state is StepState.RETRY_PENDING
                if step.state is StepState.WAITING and self.graph.nodes[index].kind is NodeKind.CALL:
                    out.children += 1
                elif step.state is StepState.WAITING:
                    out.waiting += (index,)
                    out.waiters += 1
                    out.agents += self.graph.nodes[index].kind is NodeKind.AGENT
        return out

    def out_of_play(self, index: int) -> bool:
        """While last steps run, or undos, what else was open is no longer counted."""
        kind = self.graph.nodes[index].kind
        return (self.out.phase == "H" and kind not in (NodeKind.ON_FAILURE, NodeKind.ON_FINISH)) or (
            self.out.phase == "C" and kind is not NodeKind.UNDO)

    def listed(self, index: int) -> bool:
        each, step = self.out.eaches[index], self.out.steps[index]
        opened = bool(each.again) or each.cursor < each.total
        return step.state in (StepState.READY, StepState.RUNNING) and opened and each.active < self.graph.nodes[index].max_parallel

    def blame(self, event: Event, what: str) -> None:
        self.out.violations.append(f"event {event.number} ({event.kind}): {what}")

    # Moves.

    def targets(self, event: Event) -> list[FoldedStep]:
        """The step, or the items, that an event speaks of."""
        if event.index is None:
            return []
        if event.items is None:
            return [self.out.steps[event.index]]
        if self.graph.nodes[event.index].kind is NodeKind.UNDO:
            return [self.out.undos.setdefault((event.index, number), FoldedStep()) for number in event.item_numbers]
        each = self.out.eaches.get(event.index)
        if each is None:
            self.blame(event, f"names items of step {event.index}, which is no each")
            return []
        return [each.items.setdefault(number, FoldedStep(StepState.READY)) for number in event.item_numbers]

    def move(self, event: Event, step: FoldedStep, fact: str, where: str) -> None:
        target = may(STEP, step.state, fact)
        if target is None:
            self.blame(event, f"{where} was {step.state}, from which it cannot be {fact}")
            target = next(row[fact] for row in STEP.values() if fact in row)
        step.state = StepState(target)
        step.since = event.at
        if step.state in _ENDED:
            if step.ended_in == self.out.generation:
                self.blame(event, f"{where} ended twice in generation {self.out.generation}")
            step.ended_in = self.out.generation

    def leave(self, event: Event, fact: str) -> None:
        """An attempt ends: by its holder, or because its lease was taken away."""
        each = self.out.eaches.get(event.index) if event.index is not None and event.items is not None else None
        for place, step in enumerate(self.targets(event)):
            where = f"step {event.index}" if each is None else f"item {event.index}:{event.item_numbers[place]}"
            if step.fence != event.fence + place:
                self.blame(event, f"{where} was claimed with fence {step.fence}, not {event.fence + place}")
            self.move(event, step, fact, where)
            step.reason = event.reason
            self.out.active -= 1
            if fact in ("given_back", "lost", "called") or event.reason in ("operation_pending", "unasked"):
                step.attempt -= 1
            if each is not None:
                each.active -= 1
                if step.state is StepState.READY:
                    each.again.add(event.item_numbers[place])

    def unblock(self, event: Event, index: int) -> None:
        step, node = self.out.steps[index], self.graph.nodes[index]
        goes = step.completed_parent or not node.parents
        awaits = node.kind in _WAITERS and goes and not step.failed_parent and not step.answered
        if awaits and self.out.trusted and node.signal in self.out.early:
            self.out.early.remove(node.signal)
            awaits, step.answered = False, True
        self.move(event, step, "awaits" if awaits else "unblocked", f"step {index}")

    def follow(self, event: Event, index: int, end: StepState) -> None:
        for after in self.graph.successors[index]:
            step = self.out.steps[after]
            if step.state is not StepState.PENDING:
                continue
            step.left -= 1
            step.completed_parent |= end is StepState.COMPLETED
            step.failed_parent |= end is StepState.FAILED or (end is StepState.SKIPPED and event.reason == "upstream_failed")
            if step.left == 0:
                self.unblock(event, after)

    def end_step(self, event: Event, index: int) -> None:
        """What follows from the end of a step: joins, counters, the run's failure policy."""
        node, state = self.graph.nodes[index], self.out.steps[index].state
        if node.kind.beside:
            return
        self.out.left -= 1
        if state is not StepState.FAILED:
            self.follow(event, index, state)
            return
        self.out.failed += 1
        # A value that no longer fits its model pauses the run whatever the step's own policy is.
        # So does an effect in doubt, except in a stand-alone operation, which fails.
        paused = ("payload_mismatch",) if self.graph.workflow.startswith("op:") else ("payload_mismatch", "effect_in_doubt")
        policy = FailurePolicy.PAUSE if self.last_failure in paused else node.policy
        if policy is FailurePolicy.CONTINUE:
            self.follow(event, index, state)
        elif policy in (FailurePolicy.FAIL, FailurePolicy.COMPENSATE):
            self.out.phase = "F"
        elif self.out.phase == "":
            self.out.phase = "U"

    def finish_or_leave(self, event: Event, fact: str) -> None:
        index = event.index
        if index is None:
            return
        if index in self.out.eaches and event.items is None and event.fence == 0:  # the last item ended the each
            self.move(event, self.out.steps[index], fact, f"step {index}")
            self.out.steps[index].reason = event.reason
        else:
            self.leave(event, fact)
        if event.items is None:
            self.end_step(event, index)

    # Events.

    def started(self, event: Event) -> None:
        """A fork names steps that are no roots: everything upstream of them was kept from the run it came from."""
        self.out.generation = event.generation
        for index, total in event.totals:
            self.out.eaches[index].total = total
        for index in sorted(ancestors(self.graph, event.ready)):
            kept = self.out.steps[index]
            kept.state, kept.ended_in = StepState.COMPLETED, event.generation
            self.out.left -= 1
        for node in self.graph.steps:
            self.count_parents(node.index)
        self.delayed = event.due > 0
        if event.lane:
            self.out.state = RunState.QUEUED
        elif not self.delayed:
            for index in event.ready:
                self.unblock(event, index)

    def queued(self, event: Event) -> None:
        """A delayed start whose time has come, and whose lane has no place."""
        self.delayed = False
        self.move_run(event, "queued")

    def admitted(self, event: Event) -> None:
        self.move_run(event, "admitted")
        for index in event.ready:
            self.unblock(event, index)

    def claimed(self, event: Event) -> None:
        each = self.out.eaches.get(event.index) if event.index is not None and event.items is not None else None
        if each is not None and event.index is not None and self.out.steps[event.index].state is StepState.READY:
            self.move(event, self.out.steps[event.index], "claimed", f"step {event.index}")
        for place, step in enumerate(self.targets(event)):
            where = f"step {event.index}" if each is None else f"item {event.index}:{event.item_numbers[place]}"
            self.move(event, step, "claimed", where)
            step.fence, step.worker = event.fence + place, event.worker
            step.attempt += 1
            self.out.active += 1
            if each is not None:
                each.active += 1
                each.again.discard(event.item_numbers[place])
                each.cursor = max(each.cursor, event.item_numbers[place] + 1)

    def completed(self, event: Event) -> None:
        if event.index is not None and event.items is None and event.total is not None:
            for after in self.graph.successors[event.index]:
                if self.graph.nodes[after].source == event.index:
                    self.out.eaches[after].total = event.total
        self.finish_or_leave(event, "completed")

    def skipped(self, event: Event) -> None:
        self.finish_or_leave(event, "skipped")

    def failed(self, event: Event) -> None:
        if event.reason != "items_failed":
            self.last_failure = event.reason
        self.finish_or_leave(event, "failed")

    def retry_scheduled(self, event: Event) -> None:
        self.leave(event, "retry_scheduled")

    def called(self, event: Event) -> None:
        self.leave(event, "called")

    def lost(self, event: Event) -> None:
        self.leave(event, "lost")

    def given_back(self, event: Event) -> None:
        self.leave(event, "given_back")

    def due(self, event: Event) -> None:
        if event.reason == "start":
            self.delayed = False
            for index in event.ready:
                self.unblock(event, index)
            return
        for step in self.targets(event):
            self.move(event, step, "due", f"step {event.index}")
        if event.items is not None and event.index in self.out.eaches:
            self.out.eaches[event.index].again.update(event.item_numbers)

    def answered(self, event: Event) -> None:
        for step in self.targets(event):
            self.move(event, step, "answered", f"step {event.index}")
            step.answered = True

    def signal_kept(self, event: Event) -> None:
        self.out.early.append(event.signal)

    def run_idle(self, event: Event) -> None:
        self.move_run(event, "idle")

    def run_resumed(self, event: Event) -> None:
        self.move_run(event, "resumed")

    def set_aside(self, event: Event) -> None:
        """Still ready, only elsewhere."""

    taken_back = set_aside
    clock_stepped_back = set_aside

    def paused(self, event: Event) -> None:
        self.move_run(event, "paused")
        self.out.reason = event.reason
        if self.out.phase == "U":
            self.out.ready = self.out.due = self.out.waiters = self.out.agents = self.out.children = 0
            self.out.waiting = ()

    def resumed(self, event: Event) -> None:
        self.move_run(event, "resumed")
        self.out.reason = ""

    def deadline_passed(self, event: Event) -> None:
        """What still runs is refused from here on; the run fails as after any failure."""
        out, self.delayed = self.out, False
        out.generation, out.phase, out.active, out.failed = event.generation, "F", 0, max(1, out.failed)
        if out.state is RunState.PAUSED:
            out.state = RunState.RUNNING

    def finishing(self, event: Event) -> None:
        self.out.phase = "H"
        if event.index is not None:
            self.unblock(event, event.index)

    def compensating(self, event: Event) -> None:
        """Nothing forward is claimed or taken any more; from here on only undos are counted."""
        out, self.delayed = self.out, False
        self.move_run(event, "compensating")
        out.generation, out.reason, out.phase, out.active = event.generation, event.reason, "C", 0
        for index, node in enumerate(self.graph.nodes):
            if node.kind is NodeKind.UNDO and node.undoes is None:
                self.unblock(event, index)

    def undoing(self, event: Event) -> None:
        """The next undo stands. They run one at a time."""
        undos = [*self.out.undos.values(), *(step for index, step in self.out.steps.items() if self.graph.nodes[index].undoes is not None)]
        if any(undo.state not in _ENDED and undo.state is not StepState.PENDING for undo in undos):
            self.blame(event, "another undo has not ended")
        for step in self.targets(event):
            self.move(event, step, "unblocked", f"undo {event.index}")

    def ended(self, event: Event) -> None:
        out = self.out
        facts = {RunState.COMPLETED: "completed", RunState.CANCELLED: "cancelled"}
        self.move_run(event, facts.get(RunState(event.state), "ended"))
        out.state, out.reason, out.ended_at = RunState(event.state), event.reason, event.at
        out.ready = out.due = out.waiters = out.agents = out.children = 0
        out.waiting = ()

    def cancelled(self, event: Event) -> None:
        """Counters stay as the cancel found them."""
        self.close()
        self.move_run(event, "cancelled")
        self.out.reason, self.out.ended_at = event.reason, event.at

    def reopened(self, event: Event) -> None:
        """A new life: what is named begins anew, what is not named stays. Last steps and counters begin anew as well."""
        out = self.out
        if out.state is RunState.CANCELLED and self.graph.workflow.startswith("op:"):
            out.state = RunState.FAILED  # it was cancelled with the run that had called it, and begins anew with that
        self.move_run(event, "requeued" if event.lane else "reopened" if event.generation > out.generation else "resumed")
        out.generation, out.reason, out.phase, out.ended_at = max(out.generation, event.generation), "", "", 0
        self.delayed = False
        named = [index for index in (*event.ready, *event.reset) if not self.graph.nodes[index].kind.beside]
        for index in named:
            self.begin_anew(event, index)
        for hook in self.graph.nodes:
            if hook.kind.beside:
                out.steps[hook.index] = FoldedStep()
        for index in named:
            self.count_parents(index)
        out.left = sum(out.steps[node.index].state not in _ENDED for node in self.graph.steps)
        out.active = out.failed = 0
        for index in () if event.lane else event.ready:
            self.unblock(event, index)

    def begin_anew(self, event: Event, index: int) -> None:
        step = self.out.steps[index]
        if step.state is not StepState.PENDING:
            self.move(event, step, "reset", f"step {index}")
        self.out.steps[index] = FoldedStep(answered=step.answered)
        if each := self.out.eaches.get(index):
            each.active, each.again = 0, set()
            each.closed = {number for number, item in each.items.items() if item.state not in _KEPT}

    def items_reopened(self, event: Event) -> None:
        """A reopening has reached these items: those that it does not keep begin anew."""
        each = self.out.eaches.get(event.index) if event.index is not None else None
        if each is None:
            self.blame(event, f"names items of step {event.index}, which is no each")
            return
        reached = each.closed.intersection(event.item_numbers)
        each.closed -= reached
        each.again |= reached
        each.items |= {number: FoldedStep(StepState.READY) for number in reached}

    def count_parents(self, index: int) -> None:
        """The joins of a step whose parents may have ended before: at the opening of a fork, or of a new generation."""
        step, parents = self.out.steps[index], [self.out.steps[parent] for parent in self.graph.nodes[index].parents]
        step.left = sum(parent.state not in _KEPT for parent in parents)
        step.completed_parent = any(parent.state is StepState.COMPLETED for parent in parents)

    def move_run(self, event: Event, fact: str) -> None:
        target = may(RUN, self.out.state, fact)
        if target is None:
            self.blame(event, f"the run was {self.out.state}, from which it cannot be {fact}")
            return
        self.out.state = RunState(target)
