"""A crew of imaginary workers: drives the store's verbs at random, without Celery and without user code, from a seed.

Whatever it does is legal for somebody to do at that moment; so whatever the store makes of it must pass a recount.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from conductor.archive.lazy import LazyArchive
from conductor.ids import new_run_id
from conductor.log import parse_all
from conductor.records import Attempt, FailurePolicy, Graph, NewRun, Node, NodeKind, Outcome, OutcomeKind
from conductor.runs.retry import resume_failed, retry_run
from conductor.runs.undoing import plan_undos
from conductor.store import Store, Want
from conductor.store.reads import read_graph, read_run

__all__ = ["ENDS", "Crew", "engine_of", "graph_of", "random_graph"]

SIGNALS = ("go", "stop")
ENDS = (OutcomeKind.COMPLETED, OutcomeKind.SKIPPED, OutcomeKind.RETRY, OutcomeKind.FAILED, OutcomeKind.GIVEN_BACK)


def engine_of(store: Store, workflows: dict[str, Any] | None = None) -> Any:
    """As much of an engine as reading and retrying need."""
    settings = SimpleNamespace(retention_completed_seconds=86_400, retention_failed_seconds=604_800)
    return SimpleNamespace(store=store, workflows=workflows or {}, poke=lambda pokes: None, settings=settings, default_queue="q", archive=LazyArchive())


def graph_of(*nodes: Node, workflow: str = "flow") -> Graph:
    """A graph of nodes that need not say what every node has to."""
    return Graph.build(workflow, nodes)


def random_graph(rng: random.Random, policies: tuple[FailurePolicy, ...] = tuple(FailurePolicy)) -> Graph:
    """Steps, sleeps and eaches with random edges to earlier ones, and sometimes last steps."""
    nodes: list[Node] = []
    for index in range(rng.randint(1, 8)):
        parents = tuple(sorted(rng.sample(range(index), min(index, rng.choice((0, 1, 1, 2, 3))))))
        lists = [parent for parent in parents if nodes[parent].kind is NodeKind.STEP]
        kind = rng.choice((
            NodeKind.STEP, NodeKind.STEP, NodeKind.STEP, NodeKind.SLEEP, NodeKind.EACH, NodeKind.WAIT, NodeKind.AGENT, NodeKind.CALL))
        if kind is NodeKind.EACH and not lists:
            kind = NodeKind.STEP
        source = rng.choice(lists) if kind is NodeKind.EACH else None
        nodes.append(Node(
            index, f"s{index}", kind, parents, source=source, max_parallel=rng.randint(1, 4) if kind is NodeKind.EACH else 0, lease_ms=1,
            delay_ms=rng.choice((0, 1)) if kind is NodeKind.WAIT else 0, policy=rng.choice(policies), signature=f"sig{index}",
            alone=rng.random() < 0.2, signal=rng.choice(SIGNALS) if kind is NodeKind.WAIT else "",
            idle_ms=rng.choice((None, 0, 1)) if kind is NodeKind.AGENT else None,
        ))
    for kind in (NodeKind.ON_FAILURE, NodeKind.ON_FINISH):
        if rng.random() < 0.3:
            nodes.append(Node(len(nodes), str(kind), kind, signature=str(kind), lease_ms=1))
    if rng.random() < 0.5:
        nodes.append(Node(len(nodes), "undo:plan", NodeKind.UNDO, signature="plan", lease_ms=1, policy=rng.choice(policies)))
        for node in [node for node in nodes if node.kind in (NodeKind.STEP, NodeKind.EACH, NodeKind.CALL) and rng.random() < 0.7]:
            nodes.append(Node(
                len(nodes), f"{node.name}:undo", NodeKind.UNDO, undoes=node.index, signature="undo", lease_ms=1, alone=rng.random() < 0.5))
    return graph_of(*nodes, workflow=rng.choice(("flow", "other")))



@dataclass
class Crew:
    """`held` are the attempts the crew has; some belong to workers that died, and nobody will commit those in time."""

    store: Store
    rng: random.Random
    graphs: list[Graph]
    held: list[Attempt] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    deadlines: bool = True
    going_home: bool = False

    def __post_init__(self) -> None:
        signatures = sorted({node.signature for graph in self.graphs for node in graph.nodes})
        self.store.register_code("all", signatures)
        self.store.register_code("some", signatures[::2])
        self.signatures = signatures

    def act(self) -> str:
        """Do one thing at random and say what."""
        weights: dict[Callable[[], None], int] = {
            self.start: 3, self.claim: 10, self.commit: 12, self.fire: 4, self.lose: 2, self.pause: 1, self.resume: 2, self.cancel: 1,
            self.retry: 2, self.hold: 1, self.unhold: 2, self.take_back: 1, self.overrun: 1 if self.deadlines else 0,
            self.signal: 3, self.advance: 3, self.expire: 1,
        }
        chosen = self.rng.choices(list(weights), list(weights.values()))[0]
        chosen()
        self.done.append(chosen.__name__)
        return chosen.__name__

    def finish(self, rounds: int = 400) -> None:
        """Let good workers go on until nothing is left to do."""
        self.going_home = True
        for scope in ("all", "workflow:flow", "queue:q"):
            self.store.unhold(scope)
        for _ in range(rounds):
            self.held.clear()  # whoever held something is gone
            self.take_back()
            self.fire()
            self.lose()
            for run_id in self.runs:
                self._resume(run_id)  # a loss may have been what a run that stops to pause was waiting for
                self._answer(run_id)
            self.claim("all", 10)
            if not self.held and not any(not read_run(self.store, run_id).ended for run_id in self.runs):  # type: ignore[union-attr]
                return
            self._commit(self.held, lambda: OutcomeKind.COMPLETED)

    def start(self) -> None:
        graph = self.rng.choice(self.graphs)
        run_id = new_run_id(self.store.partitions, len(self.runs) % self.store.partitions)
        self.store.start(NewRun(
            run_id, graph.workflow, "j1:1", "q", key=self.rng.choice(("", run_id)), digest="d", priority=self.rng.randint(0, 9),
            delay_ms=self.rng.choice((0, 0, 0, 1)), deadline_ms=self.rng.choice((0, 0, 0, 3_600_000)),
        ), graph)
        self.runs.append(run_id)

    def claim(self, code: str = "", limit: int = 0) -> None:
        for partition in range(self.store.partitions):
            want = Want("q", limit or self.rng.randint(1, 6), code or self.rng.choice(("all", "all", "all", "some")), "crew", first=True)
            self.held += self.store.claim(partition, want).attempts

    def commit(self) -> None:
        count = self.rng.randint(0, len(self.held))
        self.rng.shuffle(self.held)
        given, self.held = self.held[:count], self.held[count:]
        self._commit(given, lambda: self.rng.choices(ENDS, (12, 1, 2, 1, 1))[0])

    def _commit(self, attempts: list[Attempt], kind: Callable[[], OutcomeKind]) -> None:
        for partition in {int(held.run_id[-2:], 16) for held in attempts}:
            outcomes = []
            for held in attempts:
                if int(held.run_id[-2:], 16) == partition:
                    outcomes.append(self._outcome(held, kind()))
            batch = self.store.commit(partition, outcomes, Want("q", self.rng.choice((0, 1, 3)), "all", "crew"))
            self.held = [held for held in self.held if held not in attempts] + batch.attempts

    def _outcome(self, held: Attempt, kind: OutcomeKind) -> tuple[Outcome, str]:
        graph = read_graph(self.store, int(held.run_id[-2:], 16), held.graph)
        node = graph.nodes[held.index]
        reason = {OutcomeKind.SKIPPED: "when", OutcomeKind.FAILED: "permanent_error", OutcomeKind.RETRY: "transient"}.get(kind, "")
        if "u" in held.flags or "s" in held.flags:
            kind, reason = OutcomeKind.SKIPPED, "upstream_failed" if "u" in held.flags else "upstream_skipped"
        policy = node.policy
        if node.kind is NodeKind.CALL and "v" not in held.flags and kind is OutcomeKind.COMPLETED:
            return Outcome(held, OutcomeKind.CALLED, reason=self._child(held), policy=policy), ""
        if node.kind is NodeKind.UNDO and node.undoes is None and kind is OutcomeKind.COMPLETED:
            return Outcome(held, kind, total=self._plan(held, graph)), ""
        if kind is OutcomeKind.FAILED and self.rng.random() < 0.2:
            reason, policy = "payload_mismatch", FailurePolicy.PAUSE
        total = self.rng.choice((0, 1, 5, 70)) if graph.feeds_each(held.index) else -1
        after = ",".join(map(str, graph.successors[held.index]))
        return Outcome(held, kind, "j1:1", total, reason, '{"type":"E"}', 0, 1, policy), after

    def _child(self, held: Attempt) -> str:
        """A child run; of a crew that wants to go home, or has enough to do, one that is gone already."""
        graph = self.rng.choice(self.graphs)
        child = new_run_id(self.store.partitions, int(held.run_id[-2:], 16))
        if self.going_home or len(self.runs) > 30:
            return child
        told = self.store.start(NewRun(child, graph.workflow, "j1:1", "q", bound_to=f"{held.run_id};{held.generation};{held.index}"), graph)
        if told.word == "OK":
            self.runs.append(child)
        return child

    def _plan(self, held: Attempt, graph: Graph) -> int:
        places = plan_undos(graph, parse_all(self.store.log_of(held.run_id)))
        for number, first in enumerate(range(0, max(1, len(places)), 3)):
            self.store.stage_undo(held, number, places[first : first + 3])
        return len(places)

    def fire(self) -> None:
        for partition in range(self.store.partitions):
            self.store.fire_due(partition)

    def lose(self) -> None:
        """The sweep has looked a moment ago and found everything calm."""
        for partition in range(self.store.partitions):
            client: Any = self.store.client()
            seconds, micros = client.time()
            client.hset(self.store.keys.head(partition), mapping={"look": int(seconds) * 1000 + int(micros) // 1000, "calm": 0})
            self.store.expire_leases(partition)

    def signal(self) -> None:
        """Of a name that some graphs wait for and others do not; ids repeat now and then."""
        if self.runs:
            self._signal(self.rng.choice(self.runs), self.rng.choice(SIGNALS), f"id{self.rng.randint(0, 20)}")

    def _signal(self, run_id: str, name: str, signal_id: str) -> None:
        run = read_run(self.store, run_id)
        assert run is not None
        waits = read_graph(self.store, run.partition, run.graph).waits_for(name)
        self.store.signal(run_id, name=name, signal_id=signal_id, payload="j1:2", waits=waits)

    def advance(self) -> None:
        if self.runs:
            self._advance(self.rng.choice(self.runs))

    def _advance(self, run_id: str) -> None:
        run = read_run(self.store, run_id)
        assert run is not None
        graph = read_graph(self.store, run.partition, run.graph)
        for node in graph.nodes:
            if node.kind is NodeKind.AGENT:
                self.store.advance(run_id, node.index, digest=self.rng.choice("ab"), payload="j1:3", actor="crew")

    def _answer(self, run_id: str) -> None:
        self._advance(run_id)
        for name in SIGNALS:
            self._signal(run_id, name, f"last{self.rng.random()}")

    def expire(self) -> None:
        for found in self.store.orphans(before=2**52):
            for run_id in found[:1]:
                self.store.expire_idle(run_id)

    def overrun(self) -> None:
        """A deadline is over now: its entry is backdated."""
        for partition in range(self.store.partitions):
            client: Any = self.store.client()
            due = self.store.keys.of(partition, "due")
            members = [member for member, _ in client.zscan_iter(due) if member.startswith("deadline:")]
            if members:
                client.zadd(due, {self.rng.choice(sorted(members)): 1})
            self.store.fire_due(partition)

    def pause(self) -> None:
        if self.runs:
            self.store.pause(self.rng.choice(self.runs), reason="requested")

    def resume(self) -> None:
        if self.runs:
            self._resume(self.rng.choice(self.runs))

    def _resume(self, run_id: str) -> None:
        if self.store.resume(run_id).word == "STEP_FAILED":
            resume_failed(engine_of(self.store), run_id)

    def cancel(self) -> None:
        if self.runs:
            self.store.cancel(self.rng.choice(self.runs), reason="because; of: this", actor="me", compensate=self.rng.random() < 0.5)

    def retry(self) -> None:
        failed = [run_id for run_id in self.runs if (run := read_run(self.store, run_id)) and run.state == "failed" and not run.undone]
        if failed:
            retry_run(engine_of(self.store), self.rng.choice(failed), actor="me")

    def hold(self) -> None:
        self.store.hold(self.rng.choice(("all", "workflow:flow", "queue:q")), "maintenance")

    def unhold(self) -> None:
        for scope in ("all", "workflow:flow", "queue:q"):
            self.store.unhold(scope)

    def take_back(self) -> None:
        for partition in range(self.store.partitions):
            self.store.take_back(partition, self.signatures)
