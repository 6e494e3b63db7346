"""`conductor serve` as a process: how it starts, what it refuses, how it stops, and what it says while the store comes and goes."""

from __future__ import annotations

import http.client
import json
import re
import socket
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.processes import Process
from tests.support.site import Site
from tests.support.waiting import eventually

pytestmark = pytest.mark.spec("SVC-1", "SVC-4")

Serve = Callable[..., "Served"]


class Served:
    """One service process and a caller of it."""

    def __init__(self, process: Process) -> None:
        self.process = process
        found = re.search(r"serves http://([\d.]+):(\d+) ", process.text())
        assert found, process.text()
        self.address = (found[1], int(found[2]))
        self.headers: dict[str, str] = {}

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, str], Any]:
        connection = http.client.HTTPConnection(*self.address, timeout=60)
        try:
            sent = {**({"Content-Type": "application/json"} if body is not None else {}), **self.headers, **headers}
            connection.request(method, path, None if body is None else json.dumps(body), sent)
            answer = connection.getresponse()
            text = answer.read()
            told = json.loads(text) if answer.headers["content-type"] == "application/json" else text.decode()
            return answer.status, {name.lower(): value for name, value in answer.headers.items()}, told
        finally:
            connection.close()


def launch(site: Site, *options: str, name: str = "serve", ready: str = "serves http") -> Process:
    arguments = ["-m", "celery", "-A", "tests.support.app", "conductor", "serve", "--port", "0", *options]
    return site.processes.python(name, arguments, ready=ready, wait=bool(ready))


@pytest.fixture
def serve(site: Site) -> Serve:
    return lambda *options, **more: Served(launch(site, *options, **more))


def test_it_says_where_it_is_serves_runs_and_stops_when_it_is_told_to(site: Site, serve: Serve) -> None:
    service = serve()
    line = service.process.text().strip().splitlines()[-1]
    assert re.fullmatch(
        r"conductor \S+ serves http://127\.0\.0\.1:\d+ \(namespace t\w+, state in redis://127\.0\.0\.1:\d+/0, durability always, \d+ workflows, "
        r"open to this machine only, because there is no token\)", line), line
    site.worker()
    status, headers, told = service.ask("POST", "/v1/runs", {"workflow": "chain", "input": {"n": 3}})
    assert status == 201
    assert headers["conductor-epoch"] == site.engine.store.identity()
    status, _, told = service.ask("GET", f"{headers['location']}/outcome?wait=30")
    assert (status, told["state"]) == (200, "completed")
    assert "recover" in site.engine.store.last_sweeps()[0], "it has looked for runs to recover"
    assert service.process.terminate() == 0
    assert service.process.text().strip().splitlines()[-1] == line, "it ends without a word"


def test_it_ends_soon_though_streams_are_open_and_tells_their_readers_to_come_back(site: Site, serve: Serve) -> None:
    service = serve()
    _, headers, _ = service.ask("POST", "/v1/runs", {"workflow": "chain", "input": {"n": 3}})
    with socket.create_connection(service.address, timeout=30) as reader:
        reader.sendall(f"GET {headers['location']}/events HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n\r\n".encode())
        held = b""
        while b"started" not in held:
            held += reader.recv(65536)
        assert service.process.terminate(timeout=20) == 0
    assert site.server.client().xlen(site.engine.store.keys.of(0, "audit")) == 1, "what waited to be recorded is"


def test_mounted_into_an_application_it_ends_with_its_server_though_streams_are_open(site: Site) -> None:
    """Uvicorn waits for open answers before it ends the lifespan, and without a limit of its own for ever."""
    process = site.processes.python(
        "mounted", ["-m", "uvicorn", "tests.support.mounted:app", "--port", "0"], ready="Uvicorn running on", wait=True)
    port = re.search(r"running on http://127\.0\.0\.1:(\d+)", process.text())
    assert port
    address = ("127.0.0.1", int(port[1]))
    connection = http.client.HTTPConnection(*address, timeout=30)
    connection.request("POST", "/jobs/v1/runs", json.dumps({"workflow": "chain", "input": {"n": 3}}), {"Content-Type": "application/json"})
    location = connection.getresponse().headers["location"]
    connection.close()
    with socket.create_connection(address, timeout=30) as reader:
        reader.sendall(f"GET {location}/events HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n\r\n".encode())
        held = b""
        while b"started" not in held:
            held += reader.recv(65536)
        process.terminate(timeout=15)
        while more := reader.recv(65536):
            held += more
        assert b"this process stops" in held
    assert site.server.client().xlen(site.engine.store.keys.of(0, "audit")) == 1


def test_two_replicas_answer_for_each_other(site: Site, serve: Serve) -> None:
    one, two = serve(name="one"), serve(name="two")
    _, headers, told = one.ask("POST", "/v1/runs", {"workflow": "chain", "input": {"n": 3}, "key": "k"})
    assert two.ask("GET", headers["location"])[2]["run_id"] == told["run_id"]
    assert two.ask("POST", "/v1/runs", {"workflow": "chain", "input": {"n": 3}, "key": "k"})[2] == {**told, "new": False}
    secret, _ = site.engine.store.add_token("ann", ["read", "write"])
    eventually(lambda: one.ask("GET", "/v1/runs")[0] == two.ask("GET", "/v1/runs")[0] == 401, 5, what="both are closed")
    status, headers, login = one.ask("POST", "/v1/login", {"token": secret})
    assert status == 200
    two.headers = {"Cookie": headers["set-cookie"].partition(";")[0], "X-Conductor-CSRF": login["csrf"]}
    assert two.ask("POST", f"/v1/runs/{told['run_id']}/cancel", {"reason": "enough"})[2]["word"] == "ok"


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_it_does_not_open_to_others_without_a_token(site: Site, host: str) -> None:
    refused = launch(site, "--host", host, ready="")
    assert refused.wait() == 1
    line = refused.text().strip().splitlines()[-1]
    assert "there is no token" in line
    assert "conductor tokens add NAME" in line
    assert "Traceback" not in refused.text()
    site.engine.store.add_token("old", ["read"], expires_ms=1)
    again = launch(site, "--host", host, ready="", name="again")
    assert again.wait() == 1, "a token that does not count opens nothing"


def test_with_a_token_it_opens_and_shows_the_secret_to_nobody(site: Site, serve: Serve) -> None:
    secret, _ = site.engine.store.add_token("ci", ["read", "write"])
    service = serve("--host", "0.0.0.0", "-l", "debug")
    assert ", 1 token)" in service.process.text()
    service.headers = {"Authorization": f"Bearer {secret}"}
    assert service.ask("GET", "/v1/runs")[0] == 200
    assert service.ask("GET", f"/v1/runs?key={secret}")[0] == 200
    assert service.ask("GET", "/v1/runs/%0d%0aERROR%20fake%1b%5b31m")[0] == 404
    assert service.ask("POST", "/v1/runs", {"workflow": "x\r\nERROR fake \x1b]52;c;x\x07"})[0] in (404, 422)
    assert service.ask("GET", "/v1/runs", Authorization=f"Bearer {secret}x")[0] == 401
    service.process.terminate()
    log = service.process.text()
    assert secret not in log
    assert "\x1b" not in log
    assert not [line for line in log.splitlines() if line.startswith("ERROR fake")]


def test_a_port_that_is_taken_is_told_in_one_line(site: Site, serve: Serve) -> None:
    service = serve()
    refused = launch(site, "--port", str(service.address[1]), ready="", name="second")
    assert refused.wait() == 1
    assert re.search(r"service_port.*in use.*--port", refused.text().strip().splitlines()[-1])


def test_while_the_store_is_away_it_answers_503_and_afterwards_as_before(own_site: Site) -> None:
    service = Served(launch(own_site))
    _, headers, told = service.ask("POST", "/v1/runs", {"workflow": "chain", "input": {"n": 3}})
    epoch = headers["conductor-epoch"]
    own_site.server.kill()
    status, headers, error = service.ask("GET", f"/v1/runs/{told['run_id']}")
    assert (status, error["error"]["code"]) == (503, "store_unreachable")
    assert headers["retry-after"]
    status, _, error = service.ask("POST", "/v1/runs", {"workflow": "chain", "input": {"n": 3}})
    assert (status, error["error"]["code"]) == (503, "store_unreachable")
    assert service.ask("GET", "/v1/health")[0] == 200
    assert service.ask("GET", "/v1/ready")[0] == 503
    own_site.server.restart()
    eventually(lambda: service.ask("GET", f"/v1/runs/{told['run_id']}")[0] == 200, 20, what="it answers again")
    assert service.ask("GET", "/v1/health")[1]["conductor-epoch"] == epoch, "the store came back with what it had"
    own_site.server.client().flushall()
    status, headers, error = service.ask("GET", f"/v1/runs/{told['run_id']}")
    assert (status, error["error"]["code"]) == (404, "unknown_run")
    assert headers["conductor-epoch"] != epoch, "an unknown run is told with the store of this very moment"


def test_it_starts_while_the_store_is_away_and_serves_when_it_comes(own_site: Site) -> None:
    own_site.server.kill()
    service = Served(launch(own_site))
    assert "which is away" in service.process.text()
    assert service.ask("GET", "/v1/runs")[0] == 503
    own_site.server.restart()
    eventually(lambda: service.ask("GET", "/v1/runs")[0] == 200, 20, what="it serves")


def test_tokens_are_made_listed_and_revoked_by_commands(site: Site) -> None:
    def call(*arguments: str) -> tuple[int, str]:
        process = site.processes.python("tokens", ["-m", "celery", "-A", "tests.support.app", "conductor", "tokens", *arguments])
        before = process.wait()
        return before, process.text()

    code, text = call("add", "ci", "--scope", "read", "--session", "ann", "--expires", "90d", "--json")
    assert code == 0
    made = json.loads(text)
    assert (made["scopes"], made["sessions"], made["name"]) == (["read"], ["ann"], "ci")
    assert made["token"].startswith("cdr_")
    assert [token.name for token in site.engine.store.tokens()] == ["ci"]
    code, text = call("list")
    assert "ci" in text
    assert made["token"] not in text.partition(made["token"])[2]
    assert call("revoke", "ci")[0] == 0
    assert site.engine.store.tokens()[0].revoked_at
    assert call("revoke", "nobody")[0] == 3
    assert call("revoke", "ci", "--forget")[0] == 0
    assert site.engine.store.tokens() == []
