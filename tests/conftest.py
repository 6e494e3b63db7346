"""What all tests share: a Valkey per test process, a namespace per test, stores on both backends, a site with real processes.

After each test that used a namespace on the real server, every key of it must be in the catalogue of `conductor/store/keys.py`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import fakeredis
import pytest
import redis

from conductor.declare import registry
from conductor.store import Store, connect
from tests.support.cluster import ValkeyCluster
from tests.support.leaks import forget, leaks
from tests.support.server import BROKER_DB, ValkeyServer

MakeStore = Callable[..., Store]


@pytest.fixture(autouse=True)
def declared_by_this_test() -> Iterator[None]:
    """What a test declares is forgotten after it, or a graph that is wrong on purpose fails whoever runs next. Modules keep what they declare."""
    before = registry.names()
    yield
    registry.forget_functions(since=before)


@pytest.fixture(scope="session")
def valkey() -> Iterator[ValkeyServer]:
    """A real server shared by the tests of one process. A test that kills or wipes its server asks for `own_valkey`."""
    server = ValkeyServer().start()
    yield server
    server.stop()


@pytest.fixture
def own_valkey() -> Iterator[ValkeyServer]:
    """A server of this test alone."""
    server = ValkeyServer().start()
    yield server
    server.stop()


@pytest.fixture
def redis_url(valkey: ValkeyServer) -> str:
    return valkey.url()


@pytest.fixture
def broker_url(valkey: ValkeyServer) -> str:
    return valkey.url(BROKER_DB)


@pytest.fixture
def namespace() -> str:
    """A namespace no other test has."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture(params=["fakeredis", "valkey"])
def backend(request: pytest.FixtureRequest) -> redis.Redis:
    """Logic is tested on both: fakeredis is quick and strict in other ways than the real server."""
    if request.param == "fakeredis":
        client: redis.Redis = fakeredis.FakeRedis(server=fakeredis.FakeServer(), decode_responses=True)
        return client
    server: ValkeyServer = request.getfixturevalue("valkey")
    request.getfixturevalue("clean_keys")
    return connect(server.url())


@pytest.fixture
def clean_keys(valkey: ValkeyServer, namespace: str) -> Iterator[None]:
    """The leak check: no key without an owner. Then the namespace is taken away."""
    yield
    try:
        found = leaks(valkey.client(), namespace)
    finally:
        forget(valkey.client(), namespace)
    assert not found, "keys without owner:\n" + "\n".join(found[:20])


@pytest.fixture
def make_store(backend: redis.Redis, namespace: str) -> MakeStore:
    """Stores of this test's namespace on either backend; each call is another process in miniature, with a caller of its own."""

    def make(partitions: int = 1, **options: Any) -> Store:
        return Store(backend, namespace=namespace, partitions=partitions, **options)

    return make


@pytest.fixture
def store(make_store: MakeStore) -> Store:
    return make_store()


@pytest.fixture
def site(request: pytest.FixtureRequest, valkey: ValkeyServer, namespace: str, tmp_path: Path, clean_keys: None) -> Iterator[Any]:
    """A site with real processes on the shared server. `@pytest.mark.parametrize("site", [{…}], indirect=True)` adds environment."""
    from tests.support.site import Site

    env: Mapping[str, str] = getattr(request, "param", {})
    one = Site(valkey, tmp_path, namespace, env)
    yield one
    one.close()


@pytest.fixture
def own_site(own_valkey: ValkeyServer, namespace: str, tmp_path: Path) -> Iterator[Any]:
    """A site on a server of its own, which the test may kill, stop and wipe."""
    from tests.support.site import Site

    one = Site(own_valkey, tmp_path, namespace)
    yield one
    one.close()


@pytest.fixture
def worker(site: Any) -> Callable[..., Any]:
    """Start a real `celery worker` (prefork, two processes) of this test's site."""
    start: Callable[..., Any] = site.worker
    return start


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """Printed with every failure; `CONDUCTOR_TEST_SEED=n` replays it."""
    import os
    import random

    number = int(os.environ.get("CONDUCTOR_TEST_SEED") or random.randrange(2**31))
    request.node.user_properties.append(("seed", number))
    print(f"seed {number}")
    return number


@pytest.fixture(scope="session")
def cluster() -> Iterator[ValkeyCluster]:
    """Three nodes shared by the tests of one process."""
    made = ValkeyCluster().start()
    yield made
    made.stop()
