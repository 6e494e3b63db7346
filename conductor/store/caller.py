"""One caller: a connection of its own and a number that grows with every call that changes something.

Authority: a script records the number and answer of a caller's last call. A reply that was lost on the way is therefore not an error: the
call is sent again with the same number and gets the first answer. That is why the connection must never retry by itself (redis-py would
replay a command without telling us), and why a caller belongs to one thread of one process: a fork makes a new one.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from typing import Any

import hiredis
import redis
from redis import exceptions

from conductor import failpoints
from conductor.errors import StoreUnreachable
from conductor.store.scripts import Script

__all__ = ["Caller", "Reply", "all_replies"]

Reply = list[Any]
_LOST = (exceptions.ConnectionError, exceptions.TimeoutError, ConnectionError, TimeoutError, OSError)
# Asking again as the same caller would get the same refusal: it is told at once.
_REFUSED = (exceptions.AuthenticationError, exceptions.AuthorizationError)
_DISTRUSTED = "CERTIFICATE_VERIFY_FAILED"
# The server is there but cannot answer yet: loading its append-only file, busy with a long script, failing over.
_NOT_YET = ("LOADING", "BUSY", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "READONLY", "MISCONF")
# The client takes the word away from the text of those that it has a class for.
_PASSING = (exceptions.TryAgainError, exceptions.ClusterDownError, exceptions.ReadOnlyError)


class Caller:
    """Sends scripts; repeats what may have been executed under the same number until the server answers."""

    def __init__(self, pool: redis.ConnectionPool, *, patience_seconds: float, url: str) -> None:
        self._pool = pool
        self._connection: Any = None
        self._patience = patience_seconds
        self._url = url
        self._plain = False
        self._numbers = itertools.count(1)
        self.id = os.urandom(6).hex()

    def call(self, script: Script, head: str, *args: Any) -> Reply:
        """A call under a fresh number; `args` follow caller id and number."""
        return self._insist(script, (head, self.id, next(self._numbers), *args))

    def call_bare(self, script: Script, head: str, *args: Any) -> Reply:
        """A call whose own ids make it idempotent."""
        return self._insist(script, (head, *args))

    def command(self, name: str, *commands: tuple[Any, ...]) -> list[Any]:
        """Plain idempotent commands in one pipelined round trip, passing the failpoints of `name`."""
        return self._until_answered(name, lambda: self._pipeline(commands))

    def _insist(self, script: Script, args: tuple[Any, ...]) -> Reply:
        return self._until_answered(script.name, lambda: self._evaluate(script, args))

    def _until_answered(self, name: str, attempt: Callable[[], list[Any]]) -> list[Any]:
        give_up: float = time.monotonic() + self._patience
        pause = 0.02
        while True:
            try:
                failpoints.hit(f"{name}.before")
                reply = attempt()
                failpoints.hit(f"{name}.sent")
                return reply
            except _LOST as error:
                self._lost()
                if isinstance(error, _REFUSED) or _DISTRUSTED in str(error):
                    give_up = 0
                last: Exception = error
            except exceptions.ResponseError as error:
                if not self._passes(error):
                    raise
                last = error
            if time.monotonic() + pause > give_up:
                raise StoreUnreachable(url=self._url, problem=f"{type(last).__name__}: {last}") from last
            time.sleep(pause)
            pause = min(pause * 2, 1.0)

    def _keys_of(self, head: str) -> tuple[Any, ...]:
        """Number and names of the keys that a script is sent with; it builds all others from the first."""
        return 1, head

    def _passes(self, error: exceptions.ResponseError) -> bool:
        """Whether the same call may be answered in a moment."""
        return isinstance(error, _PASSING) or str(error).startswith(_NOT_YET)

    def _lost(self) -> None:
        self.close()

    def _evaluate(self, script: Script, args: tuple[Any, ...]) -> Reply:
        connection = self._connected(args[0])
        self._send(connection, ("EVALSHA", script.plain_sha if self._plain else script.sha, *self._keys_of(args[0]), *args[1:]))
        try:
            reply = connection.read_response()
        except exceptions.NoScriptError:
            connection.send_command("SCRIPT", "LOAD", script.plain if self._plain else script.text)
            self._unless_shebang(connection.read_response)
            return self._evaluate(script, args)
        except exceptions.ResponseError as error:
            if self._plain or "near '#'" not in str(error):
                raise
            self._plain = True
            return self._evaluate(script, args)
        return list(reply)

    @staticmethod
    def _send(connection: Any, command: tuple[Any, ...]) -> None:
        """Packed by hiredis itself: the client's own packing looks at every argument once more, for every step of every run."""
        connection.send_packed_command((hiredis.pack_command(command),))

    def _unless_shebang(self, read: Callable[[], Any]) -> None:
        """Servers before 7 refuse the shebang when loading, fakeredis when running: from then on scripts go without it."""
        try:
            read()
        except exceptions.ResponseError as error:
            if self._plain or "'#'" not in str(error):
                raise
            self._plain = True

    def _pipeline(self, commands: tuple[tuple[Any, ...], ...]) -> list[Any]:
        connection = self._connected("")
        connection.send_packed_command((b"".join(map(hiredis.pack_command, commands)),))
        replies = all_replies(connection, len(commands))
        if wrong := next((reply for reply in replies if isinstance(reply, Exception)), None):
            raise wrong
        return replies

    def _connected(self, key: str) -> Any:
        """The connection for a call on this key."""
        if self._connection is None:
            self._connection = self._connect(self._pool)
        return self._connection

    @staticmethod
    def _connect(pool: redis.ConnectionPool) -> Any:
        # Not `make_connection`: the pool would count each one as in use for ever, and refuse the hundredth reconnection.
        connection: Any = pool.connection_class(**pool.connection_kwargs)
        connection.connect()
        return connection

    def close(self) -> None:
        """Drop the connection; the next call opens a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()


def all_replies(connection: Any, count: int) -> list[Any]:
    """So many answers, a refusal among them as a value: one that was left unread would be taken for the answer to the next question."""
    replies: list[Any] = []
    for _ in range(count):
        try:
            replies.append(connection.read_response())
        except exceptions.ResponseError as error:
            replies.append(error)
    return replies
