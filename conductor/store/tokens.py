"""Verbs of who may call the HTTP service: tokens, and the logins of browsers. Both stand in partition 0, as hashes, each in one key.

A token is 32 random bytes; only its SHA-256 is kept, so whoever reads the store can forge none. A record that was revoked stays, so that a
service that was closed by its first token does not open again with the last one; `forget_token` takes the record away too.
Races: two tokens of one name added at once: HSETNX lets one in. A revocation beside a change of the same record cannot be lost, because
nothing but revoking and forgetting changes one.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from conductor.codec import check_session
from conductor.errors import BadInput
from conductor.store.door import Door

__all__ = ["SCOPES", "Login", "Token", "TokenVerbs", "digest"]

SCOPES = ("read", "write", "admin")
_PREFIX = "cdr_"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}\Z")
_SESSIONS = 100
_LOGINS = 10_000
_SHORTEST = 32


@dataclass(frozen=True, slots=True)
class Token:
    """What the store has of a token. Times are ms on its clock; 0: never. `sessions` None: everybody's."""

    name: str
    digest: str
    scopes: frozenset[str]
    sessions: frozenset[str] | None
    created_at: int
    expires_at: int = 0
    revoked_at: int = 0

    def problem(self, now: int) -> str:
        """Why it does not count at `now`; empty if it does."""
        if self.revoked_at:
            return f"token {self.name} was revoked"
        return f"token {self.name} has expired" if self.expires_at and now >= self.expires_at else ""

    def to_json(self) -> dict[str, Any]:
        """For people: everything but the digest."""
        return {
            "name": self.name, "scopes": sorted(self.scopes), "sessions": None if self.sessions is None else sorted(self.sessions),
            "created_at": self.created_at, "expires_at": self.expires_at or None, "revoked_at": self.revoked_at or None,
        }


@dataclass(frozen=True, slots=True)
class Login:
    """A browser that showed a token: the token's name and digest, and when the login ends."""

    token: str
    digest: str
    expires_at: int


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()


class TokenVerbs(Door):
    """Few of them and short, so that a service can read all at once."""

    def add_token(
        self, name: str, scopes: Iterable[str], *, sessions: Iterable[str] | None = None, expires_ms: int = 0, secret: str = "",
    ) -> tuple[str, Token]:
        """Make a token that lasts `expires_ms` from now, 0 for ever. Its text is given here and never again; where a stack of processes is
        set up, the text may be given to us as `secret`, and the same one again under the same name changes nothing."""
        _check_name(name)
        if secret and len(secret) < _SHORTEST:
            raise BadInput(what="token", field="text", problem=f"it has {len(secret)} characters, and {_SHORTEST} are needed")
        chosen, bound = _scopes(scopes), _sessions(sessions)
        if bound is not None and "admin" in chosen:
            raise BadInput(what="token", field="scopes", problem="admin concerns everybody, so it cannot be bound to sessions")
        now, secret = self.clock(), secret or _PREFIX + secrets.token_urlsafe(32)
        token = Token(name, digest(secret), chosen, bound, now, now + expires_ms if expires_ms else 0)
        self._command("tokens", [("HSETNX", self._key("tokens"), name, _line(token))])
        # Asked again because a lost answer was repeated: whose digest stands there has won.
        stands = self.token(name)
        if stands is None or stands.digest != token.digest:
            raise BadInput(what="token", field="name", problem=f"there is one named {name} already; forget it, or name another")
        return secret, stands

    def token(self, name: str) -> Token | None:
        text = self._read("HGET", self._key("tokens"), name)
        return None if text is None else _token(name, text)

    def tokens(self) -> list[Token]:
        """All tokens, revoked and expired ones too, by name."""
        found: Any = self._client.hgetall(self._key("tokens"))
        return [_token(name, text) for name, text in sorted(found.items())]

    def revoke_token(self, name: str) -> bool:
        """It counts no more; every service sees it within a second. False if there is none."""
        token = self.token(name)
        if token is None:
            return False
        if not token.revoked_at:
            ended = Token(name, token.digest, token.scopes, token.sessions, token.created_at, token.expires_at, self.clock())
            self._command("tokens", [("HSET", self._key("tokens"), name, _line(ended))])
        return True

    def forget_token(self, name: str) -> bool:
        """Take the record away. Without any record the service is open again, to its own machine only."""
        return bool(self._command("tokens", [("HDEL", self._key("tokens"), name)])[0])

    def add_login(self, secret: str, login: Login) -> None:
        """Remember a browser; those whose time is over are forgotten on the way."""
        now = self.clock()
        known: Any = self._client.hgetall(self._key("logins"))
        ends = sorted((int(line.rpartition(";")[2]), place) for place, line in known.items())
        over = [place for end, place in ends if end <= now] + [place for _, place in ends[: max(0, len(ends) - _LOGINS)]]
        line = f"{login.token};{login.digest};{login.expires_at}"
        commands: list[tuple[Any, ...]] = [("HSET", self._key("logins"), digest(secret), line)]
        self._command("tokens", commands + ([("HDEL", self._key("logins"), *over)] if over else []))

    def login(self, secret: str) -> Login | None:
        line: Any = self._client.hget(self._key("logins"), digest(secret))
        if line is None:
            return None
        token, told, end = line.split(";")
        return Login(token, told, int(end))

    def drop_login(self, secret: str) -> None:
        self._command("tokens", [("HDEL", self._key("logins"), digest(secret))])

    def _key(self, tail: str) -> str:
        return self.keys.of(0, tail)

    def clock(self) -> int:
        """The store's clock in ms."""
        seconds, micros = self._read("TIME")
        return int(seconds) * 1000 + int(micros) // 1000


def _check_name(name: str) -> None:
    if not _NAME.match(name):
        raise BadInput(what="token", field="name", problem=f"{name[:64]!r} is no name: letters, digits and . _ @ - only, 64 at most")


def _scopes(scopes: Iterable[str]) -> frozenset[str]:
    chosen = frozenset(scopes)
    if strange := chosen - set(SCOPES):
        raise BadInput(what="token", field="scopes", problem=f"{min(strange)!r} is no scope; they are {', '.join(SCOPES)}")
    if not chosen:
        raise BadInput(what="token", field="scopes", problem=f"none was given; they are {', '.join(SCOPES)}")
    return chosen


def _sessions(sessions: Iterable[str] | None) -> frozenset[str] | None:
    if sessions is None:
        return None
    bound = frozenset(check_session(session) for session in sessions)
    if not 1 <= len(bound) <= _SESSIONS:
        raise BadInput(what="token", field="sessions", problem=f"{len(bound)} were given; from 1 to {_SESSIONS} can be bound")
    return bound


def _line(token: Token) -> str:
    told = token.to_json() | {"digest": token.digest}
    del told["name"]
    return json.dumps(told)


def _token(name: str, line: str) -> Token:
    told = json.loads(line)
    sessions = told["sessions"]
    return Token(
        name, told["digest"], frozenset(told["scopes"]), None if sessions is None else frozenset(sessions), told["created_at"],
        told["expires_at"] or 0, told["revoked_at"] or 0,
    )
