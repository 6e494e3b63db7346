"""Webhooks, paths and code in data, from outside to inside: rows S49–S52 and S57 of the security catalogue.

What a webhook may be pointed at, what it signs, and how long it may last is proven part by part in `tests/unit/test_surfaces.py` (S49: hostile
URLs, addresses that are not public, rebinding, redirects; S50: forged, old and shifted signatures; S51: receivers that drip, flood, are
silent or endless), and against a receiver over TLS in `tests/acceptance/test_operations.py`. Names of blobs (S52) are those of
`tests/unit/test_blobs.py`. Here is what only the whole can show.
"""

from __future__ import annotations

import ast
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import conductor
from conductor.errors import TransientError
from conductor.runs.execute import Drainer
from conductor.sessions import surfaces
from conductor.sessions.inbox import Message
from tests.integration.front import Front, opened
from tests.support.server import ValkeyServer

SECRET = "a secret of some length"


def exhaust(front: Front, count: int = 1) -> list[str]:
    """Operations whose retries are used up; their ends are told."""
    front.away = True
    with front.working():
        told = [
            front.told("POST", "/call", {"capability": "invoice", "params": {"number": number}, "session": "ada"}, status=202)["operation_id"]
            for number in range(count)
        ]
    front.due()
    assert {front.told("GET", f"/operations/{one}")["state"] for one in told} == {"exhausted"}
    front.tell()
    return told


def notices(front: Front) -> list[dict[str, Any]]:
    return list(front.told("GET", "/operations?capability=conductor.notify")["operations"])


# S49: a name that leads inside.


@pytest.fixture
def guarded(valkey: ValkeyServer, namespace: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Front]:
    """Its webhook has a public name, which answers an address of the inside."""
    resolve = socket.getaddrinfo

    def answer(host: Any, port: Any, *more: Any, **named: Any) -> Any:
        if host == "hooks.example":
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("169.254.169.254", port))]
        return resolve(host, port, *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    with opened(valkey, namespace, notify="webhook+https://hooks.example/t0ken log:", notify_secret=SECRET) as front:
        yield front


@pytest.mark.spec("SES-4")
def test_a_webhook_that_leads_inside_reaches_nobody_and_disturbs_nothing(guarded: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    connected: list[Any] = []
    connect = socket.socket.connect
    monkeypatch.setattr(socket.socket, "connect", lambda sock, address: (connected.append(address), connect(sock, address))[1])
    (operation_id,) = exhaust(guarded)
    guarded.drain()
    assert [address for address in connected if address[0] == "169.254.169.254"] == []
    by_state = {one["state"]: one for one in notices(guarded)}
    assert set(by_state) == {"failed", "completed"}  # the log surface was told all the same
    assert "169.254.169.254, which is not a public address" in by_state["failed"]["error"]
    assert "t0ken" not in str(guarded.told("GET", f"/operations/{by_state['failed']['operation_id']}?values=true"))
    (message,) = guarded.told("GET", "/sessions/ada/inbox")["messages"]
    assert (message["kind"], message["operation_id"]) == ("retry_exhausted", operation_id)


# S51: a target that is slow.


@pytest.mark.spec("SES-4", "OP-8")
def test_a_slow_target_takes_what_workers_have_left_over_and_never_the_turn_of_a_run(
    valkey: ValkeyServer, namespace: str, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Many messages stand ready for it before a run is started; a worker does the run first, and only then meets the target."""
    done: list[str] = []

    class Slow:
        name = "slow"

        def send(self, message: Message) -> None:
            done.append("slow")
            raise TransientError("no answer: TimeoutError")

    monkeypatch.setattr(surfaces, "_FACTORIES", dict(surfaces._FACTORIES))
    surfaces.register("slow", lambda *_: Slow())
    with opened(valkey, namespace, notify="slow:") as front:
        exhaust(front, 4)
        waiting = {int(one["operation_id"][-2:], 16) for one in notices(front)}
        assert len(notices(front)) == 4
        assert not done
        runs = [front.start() for _ in range(8)]
        for partition in sorted(waiting):
            drainer = Drainer(front.engine, worker_name="w1", on_step=lambda event: done.append(event.step))
            drainer.drain(partition, front.engine.default_queue)
            mine = [run_id for run_id in runs if int(run_id[-2:], 16) == partition]
            assert mine == [] or {front.state(run_id) for run_id in mine} == {"completed"}
            steps = [place for place, word in enumerate(done) if word in ("price", "charge")]
            slow = [place for place, word in enumerate(done) if word == "slow"]
            assert not steps or not slow or max(steps) < min(slow)
            done.clear()


# S52: names that are paths.


@pytest.fixture
def front(valkey: ValkeyServer, namespace: str) -> Iterator[Front]:
    with opened(valkey, namespace) as one:
        yield one


@pytest.mark.spec("BAD-1")
@pytest.mark.parametrize("name", ["..%2F..%2F..%2Fetc%2Fpasswd", "%2Fetc%2Fpasswd", "..", "....%2F%2Fetc%2Fpasswd", "%00", "C:%5Cboot.ini"])
def test_no_name_in_a_path_is_a_file(front: Front, name: str) -> None:
    """Every route that takes a name, as the OpenAPI document lists them."""
    served: Any = front.client.app
    asked = 0
    for path, methods in served.openapi()["paths"].items():
        if "{" not in path or "get" not in methods or path.endswith("/events"):
            continue
        told = path
        while "{" in told:
            told = told[: told.index("{")] + name + told[told.index("}") + 1 :]
        answer = front.client.get(told, headers={"who": "root"})
        asked += 1
        assert answer.status_code in (200, 404, 422), f"{told}: {answer.status_code}"
        assert "root:" not in answer.text
        # A session is any name that can be written, so one of these may exist; what it has is nothing.
        assert answer.status_code != 200 or "/sessions/" in told or name == "..", f"{told}: {answer.text[:200]}"
    assert asked >= 8


# S57: data that looks like code.

_CODE = {"eval", "exec", "compile", "__import__", "execfile"}
_READERS = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "yaml", "jinja2", "mako", "runpy", "code", "codeop"}


def test_nothing_of_ours_evaluates_what_it_is_given() -> None:
    found = []
    for file in sorted(Path(conductor.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            where = f"{file.name}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CODE:
                found.append(f"{where} calls {node.func.id}")
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name.partition(".")[0] for alias in node.names} if isinstance(node, ast.Import) else {(node.module or "").partition(".")[0]}
                found += [f"{where} imports {name}" for name in names & _READERS]
            if isinstance(node, ast.keyword) and node.arg == "shell" and getattr(node.value, "value", None) is True:
                found.append(f"{where} asks a shell")
    assert found == []


@pytest.mark.spec("BAD-1")
@pytest.mark.parametrize("text", ["{{7*7}}", "${7*7}", "__import__('os').system('id')", "$.steps.price.out", "%(x)s {0.__class__}", "'; return 1 --"])
def test_what_looks_like_code_is_text(front: Front, text: str) -> None:
    with front.working():
        assert front.told("POST", "/call", {"capability": "lend", "params": {"title": text}, "key": text, "session": text})["result"]["title"] == text
    assert front.told("GET", f"/operations?session={text}".replace("%", "%25").replace(";", "%3B").replace("#", "%23"))["operations"]
