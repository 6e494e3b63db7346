"""A state behind Sentinels: the URL of Celery's form works, and after a failover the same client goes on with the new master."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from conductor.errors import UnsafeServer
from conductor.runs.doctor import examine, found_durability, refuse_unsafe
from conductor.settings import Settings
from conductor.store import Store, connect
from tests.integration.playing import Player, chain
from tests.support.sentinel import SentinelGroup
from tests.support.waiting import eventually

pytestmark = pytest.mark.spec("SET-2", "SET-3")


@pytest.fixture
def group() -> Iterator[SentinelGroup]:
    made = SentinelGroup(password="s3cret").start()
    yield made
    made.stop()


def test_after_a_failover_the_same_store_goes_on_with_the_new_master(group: SentinelGroup, namespace: str) -> None:
    url = f"sentinel://:s3cret@127.0.0.1:{group.port}/3?master_name=shop;sentinel://127.0.0.1:1"
    store = Store(connect(url), namespace=namespace, partitions=1, url=url)
    assert "s3cret" not in store.url
    _needs_to_be_accepted(store.client())
    play = Player(store)
    run_id = play.start(chain(2))
    play.complete(play.one())
    group.master.kill()
    eventually(lambda: group.present_master() == group.replica.port, 30, what="the replica is promoted")
    assert (play.drain(), play.state(run_id)) == ([(1, None)], "completed")
    truth: Any = redis.Redis(port=group.replica.port, password="s3cret", db=3)
    assert truth.exists(store.keys.run(run_id))


def _needs_to_be_accepted(client: Any) -> None:
    """A failover may lose the last writes: that is for the user to accept."""
    for declared in ({}, {"durability": "always"}):
        settings = Settings(**declared)
        with pytest.raises(UnsafeServer, match=r"behind Sentinels: a failover may lose the last writes; accept it: conductor_durability=rep"):
            refuse_unsafe(examine(client, settings), settings)
    settings = Settings(durability="replicated")
    refuse_unsafe(examine(client, settings), settings)
    assert found_durability(client, settings) == "replicated"
