"""Pokes: what is published, on which transports, and what a broken broker costs."""

from __future__ import annotations

import base64
import json
import logging
import os
import threading
import time
from typing import Any

import pytest
from celery import Celery

from conductor.broker.pokes import Pokes
from conductor.records import Poke
from tests.support.server import BROKER_DB, ValkeyServer


@pytest.fixture
def broker(valkey: ValkeyServer) -> Any:
    client = valkey.client(BROKER_DB)
    client.flushdb()
    return client


def _app(url: str, **conf: Any) -> Celery:
    app = Celery("pokes", broker=url, set_as_current=False)
    app.conf.update(**conf)
    return app


def _bodies(client: Any, queue: str) -> list[Any]:
    return [json.loads(base64.b64decode(json.loads(text)["body"])) for text in client.lrange(queue, 0, -1)]


@pytest.mark.spec("RUN-4", "ACT-4")
def test_a_poke_names_namespace_partition_and_queue_and_nothing_else(valkey: ValkeyServer, broker: Any) -> None:
    pokes = Pokes(_app(valkey.url(BROKER_DB)), "shop")
    pokes([Poke(3, "celery"), Poke(3, "celery"), Poke(4, "gpu")])
    assert [body[0] for body in _bodies(broker, "celery")] == [["shop", 3, "celery"]]
    assert [body[0] for body in _bodies(broker, "gpu")] == [["shop", 4, "gpu"]]
    message = json.loads(broker.lindex("celery", 0))
    assert message["headers"]["task"] == "conductor.execute"
    assert message["headers"]["ignore_result"] is True
    assert message["content-type"] == "application/json"


@pytest.mark.spec("STK-5")
def test_a_poke_travels_over_any_kombu_transport() -> None:
    app = _app("memory://")
    Pokes(app, "shop")([Poke(1, "travelling")])  # the transport in memory is shared by all tests of a process
    with app.connection_for_read() as connection:
        message = connection.SimpleQueue("travelling").get(timeout=2)
        assert message.headers["task"] == "conductor.execute"
        assert message.payload[0] == ["shop", 1, "travelling"]
        message.ack()


def test_no_app_wide_time_limit_or_priority_is_set_by_a_poke(valkey: ValkeyServer, broker: Any) -> None:
    Pokes(_app(valkey.url(BROKER_DB), task_default_priority=6), "shop")([Poke(0, "celery")])
    found = [key for key in broker.keys() if key.startswith("celery")]
    message = json.loads(broker.lindex(found[0], 0))
    assert message["headers"]["timelimit"] == [None, None]
    assert message["properties"]["priority"] == 6


def test_a_broken_broker_costs_one_line_and_no_exception(own_valkey: ValkeyServer, caplog: pytest.LogCaptureFixture) -> None:
    pokes = Pokes(_app(own_valkey.url(BROKER_DB)), "shop")
    pokes([Poke(0, "celery")])
    own_valkey.kill()
    with caplog.at_level(logging.WARNING, logger="conductor"):
        for _ in range(50):
            pokes([Poke(0, "celery")])
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "nothing is lost" in caplog.text
    assert pokes.failures == 50


def test_after_a_restart_of_the_broker_the_first_poke_arrives(own_valkey: ValkeyServer) -> None:
    pokes = Pokes(_app(own_valkey.url(BROKER_DB)), "shop")
    pokes([Poke(0, "celery")])
    own_valkey.restart()
    pokes([Poke(1, "celery")])
    assert pokes.failures == 0
    assert ["shop", 1, "celery"] in [body[0] for body in _bodies(own_valkey.client(BROKER_DB), "celery")]


def test_a_silent_broker_holds_nobody_for_long(own_valkey: ValkeyServer) -> None:
    pokes = Pokes(_app(own_valkey.url(BROKER_DB)), "shop")
    pokes([Poke(0, "celery")])
    own_valkey.pause()
    try:
        began = time.monotonic()
        pokes([Poke(0, "celery"), Poke(1, "celery"), Poke(2, "celery")])
        assert time.monotonic() - began < 8
    finally:
        own_valkey.resume()


def test_an_undeclared_queue_is_named_where_missing_ones_are_not_made(valkey: ValkeyServer, caplog: pytest.LogCaptureFixture) -> None:
    pokes = Pokes(_app(valkey.url(BROKER_DB), task_create_missing_queues=False), "shop")
    pokes([Poke(0, "gpu")])
    assert "'gpu' is not in task_queues" in caplog.text


def test_threads_and_a_forked_child_have_connections_of_their_own(valkey: ValkeyServer, broker: Any) -> None:
    pokes = Pokes(_app(valkey.url(BROKER_DB)), "shop")
    pokes([Poke(0, "celery")])
    thread = threading.Thread(target=pokes, args=([Poke(1, "celery")],))
    thread.start()
    thread.join()
    child = os.fork()
    if child == 0:
        pokes([Poke(2, "celery")])
        os._exit(0 if pokes.failures == 0 else 1)
    assert os.waitpid(child, 0)[1] == 0
    pokes([Poke(3, "celery")])
    assert sorted(body[0][1] for body in _bodies(broker, "celery")) == [0, 1, 2, 3]
