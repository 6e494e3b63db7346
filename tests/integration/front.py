"""The office behind its HTTP service, in this process: requests by several callers, work done by a worker in a thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from starlette.requests import Request
from starlette.testclient import TestClient

from conductor import Lane, Limit, Workflow
from conductor.declare import every, needs, registry
from conductor.declare.capability import capability
from conductor.errors import TransientError
from conductor.operations import batches, built_in
from conductor.service import asgi
from conductor.service.access import Caller
from conductor.sweeps import built_in as built_in_runs
from tests.integration.office import Office
from tests.support.leaks import forget, leaks
from tests.support.server import ValkeyServer

__all__ = ["Front", "opened"]

READ, WRITE = frozenset({"read"}), frozenset({"read", "write"})
CALLERS = {
    "root": Caller("root", WRITE | {"admin"}), "writer": Caller("writer", WRITE), "reader": Caller("reader", READ),
    "ada": Caller("token:ada", WRITE, frozenset({"ada"})), "bob": Caller("token:bob", WRITE, frozenset({"bob"})),
    "both": Caller("token:both", WRITE, frozenset({"ada", "bob"})),
}


class Front(Office):
    """The office with a lane, a limit and a door to the street."""

    def declare(self) -> None:
        super().declare()
        self.client: TestClient

        @capability("lend")
        def lend(title: str, days: int = 14) -> dict[str, Any]:
            """Lend a book."""
            if self.away:
                raise TransientError("the library is closed")
            return {"title": title, "days": days}

        desk: Workflow[Any] = Workflow("front_desk", lane=Lane("desk", 1, 2))

        @desk.step
        def serve() -> int:
            return 1

        asks: Workflow[Any] = Workflow("front_asks")

        @asks.step(limit=Limit("ai", "1/h"))
        def ask() -> int:
            return 1

    def say(self, method: str, path: str, body: Any = None, *, who: str = "root", **more: Any) -> Any:
        headers = {"who": who, **more.pop("headers", {})}
        return self.client.request(method, f"/v1{path}", json=body, headers=headers, **more)

    def told(self, method: str, path: str, body: Any = None, *, status: int = 200, who: str = "root", **more: Any) -> Any:
        """What a request is answered, which must have this status."""
        answer = self.say(method, path, body, who=who, **more)
        assert answer.status_code == status, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json()

    def refused(self, method: str, path: str, body: Any = None, *, status: int, code: str, who: str = "root") -> dict[str, Any]:
        """The error a request is answered with: always of one form."""
        said = self.told(method, path, body, status=status, who=who)
        assert set(said) == {"error"}, said
        error: dict[str, Any] = said["error"]
        assert error["code"] == code, error
        assert error["message"], error
        assert error["hint"], error
        return error


def _who(request: Request) -> Caller | None:
    return CALLERS.get(request.headers.get("who", ""))


@contextmanager
def opened(valkey: ValkeyServer, namespace: str, **settings: Any) -> Iterator[Front]:
    """A front with a registry of its own. At the end every key must be in the catalogue."""
    with registry.isolated(), needs.isolated(), every.isolated():
        for found in (built_in.notify, built_in.replay, built_in_runs.workflow_cancel, built_in_runs.workflow_sweep_idle, batches.batch):
            registry.register_capability(found, registry.place_of_caller())
        front = Front(valkey.url(), namespace, **settings)
        with TestClient(asgi(front.conductor, auth=_who), base_url="http://127.0.0.1") as front.client:
            yield front
    strange = [line for line in leaks(valkey.client(), namespace) if "index of runs" not in line]  # operations have an index of their own
    forget(valkey.client(), namespace)
    assert strange == []
