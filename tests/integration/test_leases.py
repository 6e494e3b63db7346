"""How long a claim holds: what a step says, else what the process that started the run has set."""

from __future__ import annotations

import pytest

from conductor import Workflow, codec
from conductor.declare.starting import start_options
from conductor.runs.execute import Drainer
from conductor.runs.start import start
from conductor.settings import Settings
from conductor.store.indexes import scores
from conductor.wiring import Engine, build_engine
from tests.support.server import ValkeyServer

LONG = 40


@pytest.mark.spec("SET-1", "RUN-2", "WF-10")
@pytest.mark.usefixtures("clean_keys")
def test_the_usual_lease_is_a_setting_and_stands_in_what_a_run_keeps(valkey: ValkeyServer, namespace: str) -> None:
    """Two processes that differ in it start the same workflow; each worker keeps to what the run was started with."""
    flow, left = Workflow("leased"), dict[str, list[int]]()

    @flow.step
    def usual() -> None:
        left.setdefault("usual", []).append(lease())

    @flow.step(after=usual, lease_seconds=15)
    def own() -> None:
        left.setdefault("own", []).append(lease())

    def engine(**settings: float) -> Engine:
        whole = Settings(namespace=namespace, partitions=1, durability="none", **settings)
        return build_engine(whole, url=valkey.url(), workflows={"leased": flow}, poke=lambda pokes: None, default_queue="q")

    def lease() -> int:
        store = plain.store
        (member,) = store.client().zrange(store.keys.of(0, "leases"), 0, -1)
        seconds, _ = store.client().time()
        return round((scores(store, 0, "leases", [member])[0] or 0) / 1000) - int(seconds)

    plain, patient = engine(), engine(step_lease_seconds=LONG)
    drainer = Drainer(plain, worker_name="w1")
    for one in (patient, plain):
        start(one, flow, payload=codec.NULL, options=start_options("leased"))
        drainer.drain(0, "q")
    (long, short), (first, second) = left["usual"], left["own"]
    assert abs(long - LONG) <= 1
    assert all(abs(seconds - 15) <= 1 for seconds in (short, first, second))


def test_a_graph_is_the_same_until_another_lease_is_asked_for() -> None:
    """So what is shown of a workflow's graph is what its runs have, and the store has one graph more only where the setting differs."""
    flow = Workflow("leased")
    flow.add(lambda: None, name="only")
    assert flow.graph.leased(15_000) is flow.graph
    assert flow.graph.leased(40_000).hash != flow.graph.hash
    assert flow.graph.nodes[0].descriptor().split(";")[4] == "15000"
    assert flow.graph.leased(40_000).nodes[0].descriptor().split(";")[4] == "40000"
