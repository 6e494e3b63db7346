"""What a start over HTTP costs beside the call it makes: both measured in turn, by one caller, on a connection that stays open."""

from __future__ import annotations

import http.client
import json
import statistics
import time
from collections.abc import Callable

import pytest

from tests.acceptance.test_serve import Served, launch
from tests.support import works
from tests.support.site import Site

pytestmark = [pytest.mark.bench, pytest.mark.spec("SVC-1")]

BODY = json.dumps({"workflow": "chain", "input": {"n": 3}}).encode()


def test_a_start_over_http_costs_at_most_twice_the_call(site: Site) -> None:
    service = Served(launch(site))
    connection = http.client.HTTPConnection(*service.address)

    def post() -> None:
        connection.request("POST", "/v1/runs", BODY, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 201

    def call() -> None:
        site.conductor.start(works.chain, {"n": 3})

    took: dict[str, list[float]] = {"post": [], "call": []}
    ways: dict[str, Callable[[], None]] = {"post": post, "call": call}
    for number in range(1200):
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            if number >= 200:
                took[name].append((time.perf_counter() - began) * 1e6)
    half = {name: statistics.median(times) for name, times in took.items()}
    print(f"POST /v1/runs p50 {half['post']:.0f} µs, conductor.start p50 {half['call']:.0f} µs, ratio {half['post'] / half['call']:.2f}")
    assert half["post"] <= 2 * half["call"]
