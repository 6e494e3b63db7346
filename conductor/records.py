"""Frozen records that travel between declaring, deciding and storing. No I/O, no clock.

A `Graph` is what a run keeps for life: it is written once per hash and read by every worker that meets one of its runs. Scripts never
decode it; they read one short descriptor line per step (`Node.descriptor`).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from functools import cached_property
from typing import Any

__all__ = [
    "LEASE_MS", "Attempt", "Backoff", "FailurePolicy", "Graph", "LaneTerms", "NewRun", "Node", "NodeKind", "Outcome", "OutcomeKind", "Poke",
    "QueueReason", "RetryPolicy",
]


class NodeKind(StrEnum):
    """What a node of the graph is."""

    STEP = "step"
    EACH = "each"
    SLEEP = "sleep"
    CALL = "call"
    WAIT = "wait"
    AGENT = "agent"
    ON_FAILURE = "on_failure"
    ON_FINISH = "on_finish"
    UNDO = "undo"

    @property
    def beside(self) -> bool:
        """Whether it stands beside the steps: it has no edges, and does not count towards the end of a run."""
        return self in (NodeKind.ON_FAILURE, NodeKind.ON_FINISH, NodeKind.UNDO)


class FailurePolicy(StrEnum):
    """What a step's final failure does to its run."""

    FAIL = "fail"
    CONTINUE = "continue"
    PAUSE = "pause"
    COMPENSATE = "compensate"


class Backoff(StrEnum):
    """How long to wait before a repeat."""

    ADAPTIVE = "adaptive"
    FIXED_10S = "fixed_10s"
    EXPONENTIAL = "exponential"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The stored half of `Retry`: what a decision needs and JSON can carry. `on` and `never` are matched by qualified class names."""

    max: int = 5
    on: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    backoff: Backoff = Backoff.ADAPTIVE
    cap_ms: int = 120_000
    max_age_ms: int = 1_800_000
    unknown: bool = False  # repeat also what nothing says may be repeated


LEASE_MS = 15_000  # how long a claim of a step holds without a heartbeat, where nobody says anything else


@dataclass(frozen=True, slots=True)
class Node:
    """One node. `parents` are all direct predecessors, `needs` those whose results it receives, `source` the list an `each` is over,
    `undoes` the step whose compensation it is; the node of kind UNDO that undoes nothing makes the plan of what is undone."""

    index: int
    name: str
    kind: NodeKind = NodeKind.STEP
    parents: tuple[int, ...] = ()
    needs: tuple[int, ...] = ()
    source: int | None = None
    undoes: int | None = None
    queue: str = ""  # empty: the run's
    priority: int | None = None  # None: the run's
    alone: bool = False  # an effect, or a step with a timeout: never in a batch
    wants_input: bool = False
    timeout_ms: int = 0
    lease_ms: int = 0  # 0: the usual one, or what the process that starts a run has set for it
    delay_ms: int = 0
    max_parallel: int = 0
    policy: FailurePolicy = FailurePolicy.FAIL
    retry: RetryPolicy | None = None
    result: bool = False
    signature: str = ""  # names, edges and types of this step; a worker claims only signatures it has
    calls: str = ""  # the workflow that it runs as a child
    capability: str = ""  # the registered capability that it calls, if it is one
    limit: str = ""  # the limit it stands under
    limit_terms: str = ""  # what the code says of it: `rate;per ms;concurrency`, empty: none
    budget: int = 0  # how often a minute that capability may be retried, over all runs; 0: as often as need be
    signal: str = ""  # the name of the signal that a wait is for
    default: str | None = None  # the payload with which a wait completes when its time (`delay_ms`) is over; None: it fails
    idle_ms: int | None = None  # how long an agent may be all that is waited for; None: as the setting said at the start, 0: for ever
    instructions: str = ""  # what an agent is asked for

    def stands_in(self, run_queue: str) -> str:
        """The ready index where it stands in a run of this queue; `queue!limit` under a limit."""
        return f"{self.queue or run_queue}{f'!{self.limit}' if self.limit else ''}"

    def descriptor(self) -> str:
        """The line scripts read:
        `kind;queue;priority;alone;lease;timeout;delay;max_parallel;signature;parents;needs;source;input;budget@capability;awaits`,
        the last only of a wait (its signal) and of an agent (its patience in ms, 0: for ever). Of an undo, `source` is what it undoes."""
        source = self.source if self.undoes is None else self.undoes
        fields = (
            _KIND_LETTER[self.kind], self.stands_in(""), "" if self.priority is None else self.priority, int(self.alone),
            self.lease_ms or LEASE_MS,
            self.timeout_ms, self.delay_ms, self.max_parallel, self.signature, len(self.parents),
            ",".join(map(str, self.needs)), "" if source is None else source, int(self.wants_input),
            f"{self.budget or ''}@{self.capability}" if self.capability else "",
            *((self.signal,) if self.signal else ()), *((self.idle_ms,) if self.idle_ms is not None else ()),
        )
        return ";".join(map(str, fields))


_KIND_LETTER = {
    NodeKind.STEP: "s", NodeKind.EACH: "e", NodeKind.SLEEP: "t", NodeKind.WAIT: "w", NodeKind.AGENT: "a", NodeKind.CALL: "c",
    NodeKind.ON_FAILURE: "h", NodeKind.ON_FINISH: "h", NodeKind.UNDO: "u",
}


@dataclass(frozen=True)
class Graph:
    """A declared workflow, frozen. What stands beside the steps (last steps, then undos) is at the end of `nodes` and has no edges. What
    follows from the nodes is worked out once: every start and every step asks for it."""

    workflow: str
    nodes: tuple[Node, ...]
    successors: tuple[tuple[int, ...], ...] = field(default=())
    hash: str = ""

    @classmethod
    def build(cls, workflow: str, nodes: tuple[Node, ...]) -> Graph:
        """Derive successors and hash. The hash covers names, edges, types (by signature) and options, not bodies."""
        following: list[list[int]] = [[] for _ in nodes]
        for node in nodes:
            for parent in node.parents:
                following[parent].append(node.index)
        bare = cls(workflow, nodes, tuple(tuple(found) for found in following))
        digest = hashlib.blake2b(bare.doc.encode(), digest_size=8).hexdigest()
        return replace(bare, hash=digest)

    def leased(self, lease_ms: int) -> Graph:
        """As a run keeps it: what names no lease has this one."""
        if lease_ms == LEASE_MS or all(node.lease_ms for node in self.nodes):
            return self
        return Graph.build(self.workflow, tuple(node if node.lease_ms else replace(node, lease_ms=lease_ms) for node in self.nodes))

    @cached_property
    def steps(self) -> tuple[Node, ...]:
        """All nodes that count towards the end of a run."""
        return tuple(node for node in self.nodes if not node.kind.beside)

    @cached_property
    def roots(self) -> tuple[int, ...]:
        return tuple(node.index for node in self.steps if not node.parents)

    @cached_property
    def hooks(self) -> str:
        """Last steps in the order they run, as scripts read them: `f<index>` only after a failure, `n<index>` always. Before them the
        plan of what is undone: `u<index>` where a step or a cancel asks for it, `U<index>` where the whole workflow does."""
        letters = {NodeKind.ON_FAILURE: "f", NodeKind.ON_FINISH: "n"}
        last = [f"{letters[node.kind]}{node.index}" for node in self.nodes if node.kind in letters]
        plan = next((node for node in self.nodes if node.kind is NodeKind.UNDO and node.undoes is None), None)
        undo = [] if plan is None else [f"{'U' if plan.policy is FailurePolicy.COMPENSATE else 'u'}{plan.index}"]
        return ",".join([*undo, *last])

    def undo_of(self, index: int) -> Node | None:
        """The compensation of a step, if it has one."""
        return next((node for node in self.nodes if node.undoes == index), None)

    @cached_property
    def leaves(self) -> tuple[Node, ...]:
        """The nodes whose results are the run's: those marked `result=True`, else all without successors."""
        marked = tuple(node for node in self.steps if node.result)
        return marked or tuple(node for node in self.steps if not self.successors[node.index])

    def waits_for(self, signal: str) -> tuple[int, ...]:
        """The waits for a signal, in their order."""
        return tuple(node.index for node in self.nodes if node.signal == signal)

    @cached_property
    def eaches(self) -> str:
        """The indexes of its eaches, as scripts read them."""
        return ",".join(str(node.index) for node in self.nodes if node.kind is NodeKind.EACH)

    @cached_property
    def following(self) -> tuple[str, ...]:
        """For each node the indexes of its successors, as scripts read them."""
        return tuple(",".join(map(str, found)) for found in self.successors)

    @cached_property
    def _fanned_out(self) -> frozenset[int]:
        return frozenset(node.source for node in self.nodes if node.source is not None)

    def feeds_each(self, index: int) -> bool:
        """Whether the result of this step is a list that an `each` fans out."""
        return index in self._fanned_out

    def index_of(self, name: str) -> int | None:
        return next((node.index for node in self.nodes if node.name == name), None)

    @cached_property
    def lines(self) -> tuple[Any, ...]:
        """Index and descriptor of each node, one after the other, as a script stores them."""
        return tuple(part for node in self.nodes for part in (node.index, node.descriptor()))

    @cached_property
    def doc(self) -> str:
        """The stored form, canonical so that equal graphs have equal hashes. Defaults are left out to keep it small."""
        nodes = [_without_defaults(node) for node in self.nodes]
        return json.dumps({"v": 1, "workflow": self.workflow, "nodes": nodes}, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_doc(cls, text: str) -> Graph:
        doc = json.loads(text)
        if doc.get("v") != 1:
            raise ValueError(f"graph format {doc.get('v')!r} is newer than this release reads (1); upgrade celery-conductor")
        return cls.build(doc["workflow"], tuple(_node_from(index, raw) for index, raw in enumerate(doc["nodes"])))


_DEFAULTS = {field.name: field.default for field in fields(Node) if field.name not in ("index", "name")}


def _without_defaults(node: Node) -> dict[str, Any]:
    kept = {name: value for name, default in _DEFAULTS.items() if (value := getattr(node, name)) != default}
    if node.retry is not None:
        kept["retry"] = asdict(node.retry)
    return kept | {"name": node.name}


def _node_from(index: int, raw: dict[str, Any]) -> Node:
    values = dict(raw)
    for name in ("parents", "needs"):
        values[name] = tuple(values.get(name, ()))
    if retry := values.get("retry"):
        kinds = {"on": tuple(retry["on"]), "never": tuple(retry["never"]), "backoff": Backoff(retry["backoff"])}
        values["retry"] = RetryPolicy(**(retry | kinds))
    values["kind"] = NodeKind(values.get("kind", NodeKind.STEP))
    values["policy"] = FailurePolicy(values.get("policy", FailurePolicy.FAIL))
    return Node(index=index, **values)


@dataclass(frozen=True, slots=True)
class LaneTerms:
    """A lane as a start names it. `max_queued` None: no bound; `timeout_ms` 0: for ever. `known` False: by its name only, on the terms that
    it has; `fair`: keys take turns."""

    name: str
    max_active: int = 5
    max_queued: int | None = 20
    timeout_ms: int = 600_000
    fair: bool = False
    known: bool = True

    @property
    def text(self) -> str:
        """As scripts read it; empty where only the name was given."""
        queued = "" if self.max_queued is None else self.max_queued
        return f"{self.max_active};{queued};{self.timeout_ms};{int(self.fair)}" if self.known else ""

    @classmethod
    def read(cls, name: str, text: str) -> LaneTerms:
        """What a run was started with."""
        if not text:
            return cls(name, known=False)
        active, queued, timeout, fair = text.split(";")
        return cls(name, int(active), int(queued) if queued else None, int(timeout), fair == "1")


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run to be written. Times are ms; `delay_ms` counts from the store's now, `start_at` is absolute."""

    run_id: str
    workflow: str
    input: str  # payload
    queue: str
    priority: int = 5
    session: str = ""
    key: str = ""
    digest: str = ""  # of input and session: what must be equal under one key
    tags: tuple[str, ...] = ()
    delay_ms: int = 0
    start_at: int = 0
    expires_ms: int = 0  # after now: cancelled as `expired` if nothing was claimed until then
    deadline_ms: int = 0  # after now: failed as `deadline`
    expires_at: int = 0  # the same as moments
    deadline_at: int = 0
    retain_completed_ms: int = 86_400_000
    retain_failed_ms: int = 604_800_000
    key_retention_ms: int = 604_800_000
    forked_from: str = ""
    queue_reason: str = ""  # of a stand-alone operation: why it is queued
    bound_to: str = ""  # `run;generation` an operation ends with; `run;generation;step` of a child run; see `fragments/called.lua`
    doubtful: bool = False  # it was made before, its record is gone, and nobody knows what it has done
    lane: LaneTerms | None = None
    lane_key: str = ""  # whose turn it takes in a fair lane
    limit_keys: str = ""  # whose turn it takes in each limit with a key: lines `limit=key`
    idle_timeout_ms: int = 0  # how long the run may wait for agents alone, where they do not say; 0: for ever


@dataclass(frozen=True, slots=True)
class Poke:
    """A wake-up: look into this queue of this partition. It carries no work."""

    partition: int
    queue: str


@dataclass(frozen=True, slots=True)
class Attempt:
    """One claim of one step or item: what a worker holds. `needs` are payloads in the order of the node's `needs`."""

    run_id: str
    index: int
    item: int | None
    fence: int
    generation: int
    attempt: int
    flags: str
    workflow: str
    graph: str
    lease_ms: int
    waited_ms: int
    needs: tuple[str | None, ...] = ()
    input: str | None = None
    session: str = ""
    deadline: int = 0  # ms on the store's clock, 0 = none
    total: int = 0  # an `each`: number of items
    at: int = 0  # ms on the store's clock when it was claimed

    @property
    def ref(self) -> str:
        """`run:index[:item]`, as the lease index spells it."""
        return f"{self.run_id}:{self.index}" if self.item is None else f"{self.run_id}:{self.index}:{self.item}"


class OutcomeKind(StrEnum):
    """How an attempt ended. The value is the letter scripts know."""

    COMPLETED = "C"
    SKIPPED = "Z"
    RETRY = "T"
    CALLED = "W"  # it waits for a child run
    FAILED = "F"
    GIVEN_BACK = "B"


class QueueReason(StrEnum):
    """Why a stand-alone operation is queued; its policy depends on it."""

    RETRY = "retry"
    DEFERRED = "deferred_submit"
    SCHEDULED = "scheduled_job"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a worker says of an attempt. `payload` is the result; `error` what is kept of a failure (JSON)."""

    attempt: Attempt
    kind: OutcomeKind
    payload: str = ""
    total: int = 0  # length of the list, where the result feeds an `each`
    reason: str = ""
    error: str = ""
    delay_ms: int = 0
    ran_ms: int = 0
    policy: FailurePolicy = FailurePolicy.FAIL
    doubt: bool = False  # nobody knows whether it took effect
    retry_after_ms: int = 0  # the error said so: whose key it was, is held back so long by the limit
    how: str = ""  # completed, but not by its code: `verified`, `resolved`, `answered`, `default`
