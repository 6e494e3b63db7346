"""Erasing a run: nothing of it is left anywhere, nor of what it has called, and its key starts another run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from conductor import Ctx, Lane, Workflow, capability
from conductor.declare import registry
from conductor.runs.archiving import open_snapshot
from conductor.runs.children import child_of
from conductor.runs.erasing import erase_run
from conductor.runs.fsck import fsck
from conductor.sweeps.archiving import sweep_archive
from tests.integration.shop import Shop
from tests.support.leaks import leaks
from tests.support.server import ValkeyServer

pytestmark = pytest.mark.spec("RET-1")

WHO = "ada@example.com"


class Person(BaseModel):
    mail: str


class Desk(Shop):
    """A shop with a workflow that calls another, which calls a third and a capability."""

    def declare(self) -> None:
        super().declare()

        @capability("look_up")
        def look_up(mail: str) -> str:
            return f"found {mail}"

        third: Workflow[Any] = Workflow("third", input=Person)

        @third.step
        def say(person: Person) -> str:
            return f"hello {person.mail}"

        inner: Workflow[Any] = Workflow("inner", input=Person)
        inner.call(third, name="greet")

        @inner.step
        def ask(person: Person, ctx: Ctx) -> Any:
            return ctx.call("look_up", mail=person.mail)

        outer: Workflow[Any] = Workflow("outer", input=Person)
        outer.call(inner, name="asks")
        laned: Workflow[Any] = Workflow("in_a_lane", input=Person, lane=Lane("desk", 5))
        laned.add(lambda: None, name="nothing")

    def outer(self, name: str = "outer", **options: Any) -> Any:
        handle = registry.declared[name].apply_async(Person(mail=WHO), key=WHO, **options)
        for _ in range(6):
            self.drain()
            for partition in range(self.engine.store.partitions):
                self.engine.store.fire_due(partition)
        assert handle.status == "completed"
        return handle

    def texts(self) -> str:
        """All that the store and the archive hold."""
        client, found = self.engine.store.client(), []
        read = {"string": client.get, "hash": client.hgetall, "set": client.smembers, "stream": client.xrange}
        for key in client.scan_iter(f"conductor:{{{self.engine.store.namespace}:*"):
            kind = client.type(key)
            found.append(f"{key} {read[kind](key) if kind in read else client.sort(key, by='none') if kind != 'zset' else client.zrange(key, 0, -1)}")
        rows = self.engine.archive.open().search(limit=1000).runs if self.engine.archive.configured else ()
        return "\n".join([*found, *(f"{row.run_id} {row.key} {row.workflow}" for row in rows)])

    def gone(self) -> None:
        assert WHO not in self.texts()
        assert [str(one) for one in fsck(self.engine)] == []
        assert leaks(self.engine.store.client(), self.engine.store.namespace, self.engine.store.partitions) == []


@pytest.fixture
def desk(valkey: ValkeyServer, namespace: str, clean_keys: None, tmp_path: Path) -> Iterator[Desk]:
    with registry.isolated():
        yield Desk(valkey.url(), namespace, archive_url=f"sqlite:///{tmp_path}/archive.db")


def to_archive(desk: Desk, *, only: str = "") -> None:
    client, store = desk.engine.store.client(), desk.engine.store
    for partition in range(store.partitions):
        key = store.keys.of(partition, "ended:completed")
        for run_id in client.zrange(key, 0, -1):
            if only in ("", run_id):
                client.zadd(key, {run_id: 1})
    sweep_archive(desk.engine)


@pytest.mark.parametrize("where", ["store", "archive", "parent in the archive", "both"])
def test_what_a_run_has_called_is_erased_with_it(desk: Desk, where: str) -> None:
    handle = desk.outer()
    child = child_of(desk.engine.store, handle.id, 0)
    assert child and child_of(desk.engine.store, child, 0)
    assert desk.texts().count(WHO) > 3
    if where != "store":
        to_archive(desk, only=handle.id if where.startswith("parent") else "")
    if where == "both":
        desk.engine.store.restore(open_snapshot(desk.engine.archive.open().get(handle.id, with_snapshot=True)))
    assert desk.json("purge", handle.id, "--yes")["purged"] == 1
    desk.gone()
    again = registry.declared["outer"].apply_async(Person(mail="other@example.com"), key=WHO)
    assert again.id != handle.id


def test_a_key_in_a_lane_and_one_that_is_another_runs(desk: Desk) -> None:
    first = desk.outer("in_a_lane")
    store = desk.engine.store
    name = store.keys.of(int(first.id[-2:], 16), f"key:in_a_lane@desk:{WHO}")
    assert store.client().get(name).startswith(first.id)
    assert erase_run(desk.engine, first.id)
    assert store.client().get(name) is None
    second = desk.outer("in_a_lane")
    store.client().set(name, f"{first.id};x")
    assert erase_run(desk.engine, second.id)
    assert store.client().get(name) == f"{first.id};x"
    assert not erase_run(desk.engine, first.id)
    store.client().delete(name)


def test_children_that_have_not_ended_go_with_a_run_that_has(desk: Desk) -> None:
    """Their records follow a cancel in batches; who erases does not wait for them."""
    desk.engine.store.hold("workflow:third", "x")
    handle = registry.declared["outer"].apply_async(Person(mail=WHO), key=WHO)
    for _ in range(3):
        desk.drain()
    child = child_of(desk.engine.store, handle.id, 0)
    assert not erase_run(desk.engine, handle.id)
    assert desk.engine.store.client().exists(desk.engine.store.keys.run(child))
    handle.cancel()
    assert desk.state(child) != "cancelled"
    assert erase_run(desk.engine, handle.id)
    desk.engine.store.unhold("workflow:third")
    for _ in range(3):
        desk.drain()
        for partition in range(desk.engine.store.partitions):
            desk.engine.store.fire_due(partition)
    desk.gone()


def test_children_that_were_asked_for_too_are_counted(desk: Desk) -> None:
    desk.outer(tags=["eu"])
    told = desk.json("purge", "--tag", "eu", "--yes")
    assert told["found"] == told["purged"] == 3
    desk.gone()
