"""Calls of the service without a socket: the ASGI app of a conductor, asked from a loopback address as a program on this machine would."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.testclient import TestClient

__all__ = ["Api"]


class Api:
    """The service of a conductor. `token` goes with every request, unless a request names its own headers for that."""

    def __init__(self, conductor: Any, token: str = "", *, address: str = "127.0.0.1", **options: Any) -> None:
        self.conductor = conductor
        self.app = conductor.asgi(**options)
        self.token = token
        self.http = TestClient(self.app, base_url="http://localhost", client=(address, 50000), raise_server_exceptions=False)

    def with_token(self, name: str, *scopes: str, sessions: list[str] | None = None, **more: Any) -> str:
        """Make a token and use it from now on."""
        self.token = self.new_token(name, *scopes, sessions=sessions, **more)
        return self.token

    def new_token(self, name: str, *scopes: str, sessions: list[str] | None = None, **more: Any) -> str:
        secret, _ = self.conductor.engine.store.add_token(name, scopes or ("read", "write", "admin"), sessions=sessions, **more)
        self.forget()
        return str(secret)

    def forget(self) -> None:
        """What the service remembers of tokens is asked for anew, as it is after a second."""
        self.app.state.access.keyring.expire()

    def ask(self, method: str, path: str, body: Any = None, *, token: str | None = None, headers: Mapping[str, str] | None = None,
            **more: Any) -> Any:
        """The response, whatever it is."""
        chosen = self.token if token is None else token
        sent = {**({"Authorization": f"Bearer {chosen}"} if chosen else {}), **(headers or {})}
        given = {"json": body} if body is not None else {}
        return self.http.request(method, path, headers=sent, **given, **more)

    def get(self, path: str, **more: Any) -> Any:
        return self.told(self.ask("GET", path, **more))

    def post(self, path: str, body: Any = None, **more: Any) -> Any:
        return self.told(self.ask("POST", path, {} if body is None else body, **more))

    def refused(self, method: str, path: str, body: Any = None, **more: Any) -> tuple[int, str]:
        """Status and code of an error, which must have the one form of errors."""
        answer = self.ask(method, path, body, **more)
        assert answer.status_code >= 400, answer.text
        error = answer.json()["error"]
        assert error["code"] and error["message"] and error["hint"], error
        return answer.status_code, error["code"]

    @staticmethod
    def told(answer: Any) -> Any:
        assert answer.status_code < 400, f"{answer.status_code}: {answer.text}"
        return answer.json()
