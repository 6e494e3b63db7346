"""A user's codec, as encryption is one: every value that the store keeps of runs, operations and schedules is written by it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from conductor import AlreadyAdvanced, Ctx, KeyConflict, Workflow, capability, codec
from conductor.declare import every, registry
from conductor.runs.fsck import fsck
from conductor.sweeps.overdue import run_sweeper
from tests.integration.shop import Shop
from tests.support.server import ValkeyServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.spec("RUN-10")
SECRET = "sesame"


class Secret(BaseModel):
    """What nobody who reads the store may see."""

    word: str


class Sealed:
    """Spells the same text differently each time, as encryption does."""

    def __init__(self) -> None:
        self._salts = itertools.count(1)

    def encode(self, text: str) -> str:
        return f"{next(self._salts)}~{text.encode()[::-1].hex()}"

    def decode(self, body: str) -> str:
        return bytes.fromhex(body.partition("~")[2])[::-1].decode()


@pytest.fixture
def shop(valkey: ValkeyServer, namespace: str, clean_keys: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setattr(codec, "_codecs", {})
    monkeypatch.setattr(codec, "_writer", "j1")
    with registry.isolated(), every.isolated():
        codec.register_codec("sealed", Sealed())
        made = Shop(valkey.url(), namespace, due_sweep_seconds=0.05, outbox_sweep_seconds=0.05)
        guarded()
        yield made


def guarded() -> None:
    """A workflow with everything that makes a value: steps, items, waits, an agent, a child, what is recorded inside a step."""

    @capability("seal", retry="replay", idempotent=True)
    def seal(word: str, ctx: Ctx) -> str:
        return f"{word} of {ctx.session}"

    flow, child = Workflow("guarded", input=Secret), Workflow("guarded_child", input=Secret)
    flow.every(86_400, input={"word": SECRET}, name="guarded-daily")

    @child.step
    def inner(secret: Secret) -> str:
        return f"{secret.word}!"

    @flow.step
    def split(secret: Secret, ctx: Ctx) -> list[str]:
        ctx.checkpoint({"word": secret.word})
        assert ctx.once("asked", lambda: f"{secret.word} once") == f"{SECRET} once"
        assert str(ctx.call("seal", word=secret.word)).startswith(SECRET)
        return [secret.word] * 300  # more than travel with their step: they are staged

    @flow.each(split, max_parallel=300)
    def one(member: str) -> str:
        return f"{member}."

    called = flow.call(child, name="called", after=[one])
    word = flow.wait("word", Secret, after=[called])
    late = flow.wait("late", str, timeout=timedelta(milliseconds=1), default="by default", after=[word])
    draft = flow.agent("draft", Secret, after=[late])

    @flow.step(after=[draft])
    def end(one: list[str], called: str, word: Secret, late: str, draft: Secret) -> str:
        return one[0] + called + word.word + late + draft.word


def until(shop: Shop, done: Any) -> None:
    def look() -> Any:
        shop.drain()
        run_sweeper(shop.engine, once=True)
        return done()

    eventually(look, 20)


def test_nothing_of_value_stands_in_the_store_unsealed(shop: Shop, valkey: ValkeyServer) -> None:
    run = shop.conductor.start("guarded", {"word": SECRET}, session="ada")
    run.signal("word", {"word": SECRET}, id="early")
    until(shop, lambda: shop.json("show", run.id)["active_waiters"])
    run.advance("draft", {"word": SECRET})
    until(shop, lambda: run.status == "completed")
    assert run.get(timeout=5) == f"{SECRET}.{SECRET}!{SECRET}by default{SECRET}"
    run.fork("end", word=SECRET * 2)
    shop.conductor.submit("seal", {"word": SECRET}, session="ada")
    until(shop, lambda: shop.conductor.inbox("ada"))
    assert shop.conductor.inbox("ada")[0].body["result"] == f"{SECRET} of ada"
    shop.conductor.schedule("nightly", "seal", {"word": SECRET}, when=timedelta(days=1))
    assert {one.name for one in shop.conductor.schedules()} == {"nightly", "guarded-daily"}
    assert list(readable(valkey, shop.engine.store.namespace)) == []
    assert fsck(shop.engine) == []


def readable(valkey: ValkeyServer, namespace: str) -> Iterator[str]:
    """Places where the secret stands for everybody to read."""
    client: Any = valkey.client()
    reads = {
        "hash": lambda key: [text for pair in client.hgetall(key).items() for text in pair], "string": lambda key: [client.get(key)],
        "list": lambda key: client.lrange(key, 0, -1), "set": lambda key: client.smembers(key), "zset": lambda key: client.zrange(key, 0, -1),
        "stream": lambda key: [text for _, fields in client.xrange(key) for pair in fields.items() for text in pair],
    }
    for key in client.scan_iter(f"conductor:{{{namespace}:*"):
        yield from (f"{key}: {text[:200]}" for text in reads[client.type(key)](key) if SECRET in text)


@pytest.mark.spec("RUN-1", "OP-5", "WF-5")
def test_what_is_spelled_differently_each_time_is_still_the_same(shop: Shop) -> None:
    """Keys and repeated answers are compared by value, never by how it was spelled."""
    first, again = (shop.conductor.start("guarded", {"word": SECRET}, key="k") for _ in range(2))
    assert first.id == again.id
    with pytest.raises(KeyConflict):
        shop.conductor.start("guarded", {"word": "other"}, key="k")
    assert len({shop.conductor.submit("seal", {"word": SECRET}, key="k").operation_id for _ in range(2)}) == 1
    lonely = Workflow("lonely")
    lonely.agent("opinion", dict[str, int])
    run = shop.conductor.start("lonely")
    until(shop, lambda: run.status == "waiting_signal")
    assert [run.advance("opinion", value).word for value in ({"a": 1, "b": 2}, {"b": 2, "a": 1})] == ["taken", "repeated"]
    with pytest.raises(AlreadyAdvanced):
        run.advance("opinion", {"a": 2, "b": 2})


@pytest.mark.spec("WF-10")
def test_a_graph_is_the_same_in_every_process_whatever_codec_writes(shop: Shop) -> None:
    def declared() -> str:
        with registry.isolated():
            flow = Workflow("again")
            flow.wait("word", str, timeout=timedelta(hours=1), default=SECRET)
            return flow.graph.hash

    assert len({declared() for _ in range(3)}) == 1
